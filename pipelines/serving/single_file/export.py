"""Writes a model as one LiteRT or ONNX file, with a JSON file beside it."""

import contextlib
import dataclasses
import functools
import hashlib
import importlib
import importlib.util
import json
import os
import tempfile

import tensorflow as tf

import custom_ops
import vit_tf
from pipelines.errors import RunError, UserError
from pipelines.serving.probes import has_constant_logits, random_head
from pipelines.serving.saved_model import check_local_output
from pipelines.serving.signatures import check_model
from pipelines.serving.single_file import conversion
from pipelines.serving.single_file.comparison import (
    MOST_LEVELS,
    RESIZED_TOLERANCE,
    FileComparison,
    compare_file,
    compare_resize,
)
from pipelines.stored_models import runtimes
from pipelines.stored_models.parity import tolerance_of
from vit_tf.files import storage
from vit_tf.files.atomic_file import write_atomically
from vit_tf.images.decoding import MAX_PIXELS

# Packages that write and check a file: distribution -> module.
_PACKAGES = {
    "litert": {"ai-edge-litert": "ai_edge_litert"},
    "onnx": {"tf2onnx": "tf2onnx", "onnx": "onnx", "onnxruntime": "onnxruntime"},
}


# Part of the test images that a quantized file may get wrong and the model right.
_MOST_LOST = 0.01


@dataclasses.dataclass(frozen=True)
class FileReport:
    """The result of `export_file`; `str()` is a summary to print.

    Attributes:
        path: the file; `path + ".json"` describes it.
        size: of the file, in bytes.
        float_size: of the file with float32 weights; None if it is this one.
        comparison: the `FileComparison` of the file.
        tolerance: the largest allowed difference of a file with float32 weights.
        levels: largest difference of a pixel that the file resizes, in levels of 255; None if it
            resizes none.
        noun: what is compared: "logit", or "feature" for a model without a head.
    """

    path: str
    size: int
    float_size: int | None
    comparison: FileComparison
    tolerance: float
    levels: float | None = None
    noun: str = "logit"

    def __str__(self):
        lines = [f"wrote {self.path} ({self.size / 1e6:,.2f} MB) and {self.path}.json"]
        found = f"largest difference {self.comparison.difference:.1e} of the largest {self.noun}"
        if self.float_size is None:
            found += f" (allowed: {self.tolerance:.0e})"
        else:
            share = self.size / self.float_size
            lines.append(f"size: {share:.1%} of float32 ({self.float_size / 1e6:,.2f} MB)")
        lines.append(f"checked in a process without TensorFlow: {found}")
        if self.comparison.has_random_head:
            lines.append(
                "the features were compared, by the logits of a random head: the model's own head "
                "gives all images the same logits"
            )
        if self.levels is not None:
            lines.append(
                f"its resize of images of another size: largest difference {self.levels:.1e} of "
                f"255 levels (allowed: {MOST_LEVELS})"
            )
        if self.comparison.accuracy is not None:
            lines.append(
                f"accuracy on the test split of digits: {self.comparison.accuracy:.2%}, of the "
                f"model {self.comparison.model_accuracy:.2%}"
            )
        return "\n".join(lines)


def file_path(output, form) -> str:
    """The file of a form, "litert" or "onnx", in the directory `output`."""
    return storage.join(output, f"model{runtimes.SUFFIXES[form]}")


def check_output(output, form, overwrite=False):
    """Raises `UserError` unless `export_file` may write, and its packages are installed."""
    for name, module in _PACKAGES[form].items():
        if importlib.util.find_spec(module) is None:
            raise UserError(
                f"--format={form} needs {name}, which is not installed. Install it: "
                f"pip install '.[{form}]'."
            )
    if not storage.is_url(output):
        check_local_output(output)
    for path in (file_path(output, form), f"{file_path(output, form)}.json"):
        if not overwrite and (os.path.lexists(path) or storage.exists(path)):
            raise UserError(f"{path} exists. Choose another --output, or replace it: --overwrite.")
        if storage.is_folder(path):
            raise UserError(f"{path} is a directory. Choose another --output.")


def export_file(
    loaded,
    output,
    form,
    *,
    quantize="none",
    batch=None,
    overwrite=False,
    samples=None,
    labeled=None,
) -> FileReport:
    """Writes `<output>/model.tflite` or `<output>/model.onnx`, and a JSON file beside it.

    They are written only after a process without TensorFlow computed the outputs of the file. With
    float32 weights they equal the model's up to `parity.tolerance_of`, for images of the model's
    size, and up to `RESIZED_TOLERANCE` for others; the pixels that its resize makes, up to
    `MOST_LEVELS`. With quantized weights, the same file with float32 weights must pass, and the
    difference is reported. If the head gives all images the same logits, the logits of a random
    head are compared. The output of a model without a head is its features.

    Args:
        loaded: a `vit_tf.LoadedModel` in float32.
        output: directory or URL; created if missing.
        form: "litert" or "onnx".
        quantize: see `conversion.litert_converter`; "none" for "onnx".
        batch: number of images in each call; None: any.
        overwrite: replace existing files.
        samples: for "int8", float32 images `[N, h, w, 3]` of the model's size, 0 .. 255.
        labeled: images and labels to measure a quantized file with, see `compare_file`; None: the
            samples, or pictures.

    Raises:
        UserError: if the model cannot be exported or converted, or the output cannot be written.
        RunError: if the outputs of file and model differ, or a quantized file loses more than a
            point of accuracy on `labeled`. No files are left.
    """
    check_output(output, form, overwrite)
    model, preprocessing, classes = loaded
    check_model(model, preprocessing, classes, MAX_PIXELS)
    if model.dtype_policy.name != "float32":
        raise UserError(
            f"The model computes in {model.dtype_policy.name}, which {form} files do not have. "
            "Open it in float32."
        )
    conversion.check_size(model)
    path, tolerance = file_path(output, form), tolerance_of(model.config.to_dict())
    convert = functools.partial(_convert, loaded, form, quantize, batch, samples)
    with custom_ops.implementation("reference"):
        probe = None
        if has_constant_logits(model, preprocessing):
            with random_head(model):
                *_, probe = convert(labeled and labeled[:1])
        content, float_size, found = convert(labeled)
        levels = _check_resize(form, preprocessing, batch)
    if probe is not None:
        found = dataclasses.replace(
            found, difference=probe.difference, resized=probe.resized, has_random_head=True
        )
    described = _describe(loaded, form, quantize, batch, content, found, levels)
    _write(output, path, content, described)
    return FileReport(path, len(content), float_size, found, tolerance, levels, _noun(model))


def _convert(loaded, form, quantize, batch, samples, labeled):
    """Converts a model and checks the file.

    Returns:
        The content of the file; its size with float32 weights, or None if it has these; and its
        `FileComparison`.
    """
    model, preprocessing, classes = loaded
    function = conversion.make_function(model, preprocessing, classes, batch)
    with contextlib.ExitStack() as stack:
        if form == "onnx":
            content = conversion.to_onnx(model, function)
        else:
            convert = stack.enter_context(conversion.litert_converter(model, function))
            content = convert()
        with _file(form, content) as path:
            found = compare_file(path, loaded)
        noun = _noun(model)
        _check_difference(found.difference, noun, "", tolerance_of(model.config.to_dict()))
        _check_difference(found.resized, noun, " for images that it resizes", RESIZED_TOLERANCE)
        if quantize == "none":
            return content, None, found
        float_size = len(content)
        content = convert(quantize, _batches(samples, batch))
        with _file(form, content) as path:
            found = compare_file(path, loaded, *(labeled or [samples]))
        _check_accuracy(found, quantize)
        return content, float_size, found


def _check_resize(form, preprocessing, batch):
    """The result of `compare_resize` for the resize in a file; None if it has none."""
    if not conversion.resizes_inside(preprocessing):
        return None
    function = conversion.make_resize(preprocessing, batch)
    if form == "onnx":
        content = conversion.to_onnx(None, function)
    else:
        with conversion.litert_converter(None, function) as convert:
            content = convert()
    with _file(form, content) as path:
        return compare_resize(path, preprocessing)


@contextlib.contextmanager
def _file(form, content):
    """Yields the path of a temporary file with a content."""
    with tempfile.TemporaryDirectory() as folder:
        path = file_path(folder, form)
        with open(path, "wb") as file:
            file.write(content)
        yield path


def _noun(model):
    return "feature" if model.head is None else "logit"


def _check_difference(difference, noun, where, tolerance):
    if not difference <= tolerance:
        raise RunError(
            f"The export differs from the model{where} by {difference:.3g} of the largest "
            f"{noun}. Allowed: {tolerance:.0e}."
        )


def _check_accuracy(found, quantize):
    """Raises `RunError` if a quantized file loses more accuracy than it may, where it is known."""
    if found.accuracy is not None and found.accuracy < found.model_accuracy - _MOST_LOST:
        raise RunError(
            f"With --quantize={quantize}, {found.accuracy:.2%} of the test images are right, with "
            f"the model {found.model_accuracy:.2%}: more than a point is lost. Use another "
            "--quantize" + ("; were the images those of training?" if quantize == "int8" else ".")
        )


def _batches(samples, batch):
    """Batches `[B, h, w, 3]` of the samples, as the file reads them."""
    if samples is None:
        return None
    size = batch or 1
    return [samples[i : i + size] for i in range(0, len(samples) - size + 1, size)]


def _describe(loaded, form, quantize, batch, content, comparison, levels):
    """The JSON object beside a file."""
    model, preprocessing, classes = loaded
    fields = dataclasses.asdict(preprocessing)  # All: the caller may not know the defaults.
    count = model.config.num_classes
    activation = classes.activation_of(count)
    if count:
        outputs = {"logits": [batch, count], "probabilities": [batch, len(classes.names(count))]}
    else:
        outputs = {"embedding": [batch, model.output.shape[-1]]}
    resizes = conversion.resizes_inside(preprocessing)
    sides = [None, None] if resizes else list(preprocessing.image_size)
    # The call itself turns no image: that is part of decoding.
    outside = ["decode to RGB"] + ["turn by EXIF orientation"] * (preprocessing.exif == "apply")
    versions = {"vit_tf": vit_tf.__version__, "tensorflow": tf.__version__}
    versions |= {name: _version(module) for name, module in _PACKAGES[form].items()}
    if form == "onnx":
        versions["opset"] = conversion.OPSET
    return {
        "format": form,
        "file": f"model{runtimes.SUFFIXES[form]}",
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "quantize": quantize,
        "input": {
            "name": runtimes.INPUT,
            "dtype": "float32",
            "shape": [batch, *sides, 3],
            "values": "RGB, 0 to 255",
        },
        "outputs": outputs,
        "inside": ["resize"] * resizes + ["normalize"] + [activation] * (count > 0),
        "outside": outside + ["resize"] * (not resizes),
        "preprocessing": {x: y for x, y in fields.items() if x != "dtype"},
        "labels": list(classes.labels),
        "activation": activation,
        "config": model.config.to_dict(),
        "difference": comparison.difference,
        "resize_difference": levels,
        "versions": versions,
    }


def _version(module):
    """The version of a module; its distribution may have another name, as for GPUs."""
    return getattr(importlib.import_module(module), "__version__", "unknown")


def _write(output, path, content, described):
    text = json.dumps(described, indent=1, ensure_ascii=False) + "\n"
    try:
        if not storage.is_url(output):
            os.makedirs(output, exist_ok=True)
        write_atomically(path, lambda file: file.write(content))
        write_atomically(f"{path}.json", lambda file: file.write(text.encode()))
    except OSError as error:
        raise RunError(f"Cannot write {path}: {error.strerror}.") from None
