"""Writes a model as a SavedModel that serves without this package, and proves that it does."""

import contextlib
import dataclasses
import os
import shutil
import tempfile

import numpy as np
import tensorflow as tf

import custom_ops
from pipelines.errors import RunError, UserError
from pipelines.serving import clean_process
from pipelines.serving.signatures import make_signatures
from vit_tf.analysis.attention_maps import attention_maps
from vit_tf.images.decoding import decode_image
from vit_tf.layers import StandardizedKernels

# Forms of an export, which are also the names of their directories, and the implementation of the
# ops that each is traced with.
PORTABLE, FUSED = "portable", "fused"
FORMS = {PORTABLE: "reference", FUSED: "compiled"}

# What a fused export carries: the library, and two lines that load it into TensorFlow.
LOADER = os.path.join("assets.extra", "load_ops.py")
_LIBRARY = "_vit_ops.so"
_LOADER_LINES = f"""import pathlib, tensorflow as tf
tf.load_op_library(str(pathlib.Path(__file__).with_name("{_LIBRARY}")))
"""

# Largest difference allowed between the export and the model, as a part of the largest value of an
# output. Graph optimisation fuses and reorders what rounds; measured up to 12 layers: 2e-6 in
# float32, 1e-3 in float16, 2e-2 in bfloat16. A wrong resize or a lost weight is far outside.
TOLERANCE = {"float64": 1e-4, "float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
# Below this largest value, differences count as if it were this.
_SMALLEST_SCALE = 1e-3


@dataclasses.dataclass(frozen=True)
class ExportReport:
    """What `export` wrote; `str()` is a summary for people.

    Attributes:
        path: the SavedModel.
        loader: Python file to run before loading it; None if it needs none.
        size: of all its files, in bytes.
        signatures: their names.
        max_difference: largest difference from the model that the check saw, as a part of the
            largest value of that output.
        tolerance: what was allowed.
    """

    path: str
    loader: str | None
    size: int
    signatures: tuple[str, ...]
    max_difference: float
    tolerance: float

    def __str__(self):
        after = f", after {os.path.basename(self.loader)}" if self.loader else ""
        return (
            f"wrote {self.path} ({self.size / 1e6:,.1f} MB)\n"
            f"signatures: {', '.join(self.signatures)}\n"
            f"checked in a process with TensorFlow only{after}: largest difference "
            f"{self.max_difference:.1e} of the largest value (allowed: {self.tolerance:.0e})"
        )


def export(model, preprocessing, output, overwrite=False, form=PORTABLE) -> ExportReport:
    """Writes `<output>/<form>`, a SavedModel.

    A portable one contains only TensorFlow's own ops. A fused one contains the compiled ops, which
    are faster, and carries their library: before it is loaded, `assets.extra/load_ops.py` in it has
    to be run. The library fits the minor version of TensorFlow and the kind of processor that are
    used here.

    It is written beside its place and renamed only after a fresh process, which can import nothing
    but TensorFlow, loaded it and gave what the model gives here with TensorFlow's own ops.

    Args:
        model: a `VisionTransformer` or `ResNet`.
        preprocessing: its `vit_tf.Preprocessing`, which becomes part of the export.
        output: directory; created if missing.
        overwrite: replace a SavedModel that is there.
        form: "portable" or "fused".

    Raises:
        UserError: if the model cannot be exported, the output is taken or cannot be written, or
            there are no compiled ops for a fused export.
        RunError: if the export does not do what the model does. Nothing is left behind.
    """
    signatures = make_signatures(model, preprocessing)
    check_output(output, overwrite, form)
    path = os.path.join(output, form)
    with _written_beside(path) as temporary, custom_ops.implementation(FORMS[form]):
        # Nothing has to be standardised in a model that does not change any more.
        with StandardizedKernels(model, constant=True) as kernels:
            _write(model, signatures, temporary, kernels)
        if form == FUSED:
            _add_library(temporary)
        difference = _compare(model, preprocessing, temporary, list(signatures))
        size = sum(entry.stat().st_size for entry in _files(temporary))
    loader = os.path.join(path, LOADER) if form == FUSED else None
    return ExportReport(path, loader, size, tuple(signatures), difference, _tolerance(model))


def check_output(output, overwrite=False, form=PORTABLE):
    """Raises `UserError` unless `export` may write `<output>/<form>`."""
    if form == FUSED:
        _library_path()
    path = os.path.join(output, form)
    existing = os.path.abspath(output)
    while not os.path.lexists(existing):
        existing = os.path.dirname(existing)
    if not os.path.isdir(existing):
        raise UserError(f"Cannot write to --output {output}: {existing} is no directory.")
    if not os.access(existing, os.W_OK):
        raise UserError(f"Cannot write to --output {output}: no permission to change {existing}.")
    if not os.path.lexists(path) or (os.path.isdir(path) and not os.listdir(path)):
        return
    if not is_saved_model(path):
        raise UserError(f"{path} is there and is no SavedModel. Choose another --output.")
    if not overwrite:
        raise UserError(f"{path} is there. Choose another --output, or replace it: --overwrite.")


def is_saved_model(path) -> bool:
    """Whether a directory is a SavedModel."""
    return os.path.isfile(os.path.join(path, "saved_model.pb"))


def _library_path():
    report = custom_ops.describe()
    if not report["compiled"]:
        raise UserError(f"A fused export contains the compiled ops, but {report['reason']}.")
    if not report["path"] or not os.path.isfile(report["path"]):
        raise UserError(
            "A fused export carries the library of the compiled ops, but where it was loaded from "
            "is not known any more. Start a new process."
        )
    return report["path"]


def _add_library(directory):
    folder = os.path.join(directory, os.path.dirname(LOADER))
    try:
        os.mkdir(folder)
        shutil.copyfile(_library_path(), os.path.join(folder, _LIBRARY))
        with open(os.path.join(directory, LOADER), "w", encoding="utf-8") as file:
            file.write(_LOADER_LINES)
    except OSError as error:
        raise RunError(f"Cannot write {folder}: {error.strerror}.") from None


def _write(model, signatures, directory, kernels):
    # The root holds the variables and nothing else of Keras, so loading rebuilds no Keras object.
    root = tf.Module()
    root.variables_ = kernels.substitute(model.weights)
    concrete = {name: f.get_concrete_function() for name, f in signatures.items()}
    try:
        tf.saved_model.save(root, directory, signatures=concrete)
    except tf.errors.OpError as error:
        raise RunError(f"Cannot write the SavedModel {directory}: {error.message}") from None


@contextlib.contextmanager
def _written_beside(path):
    """Gives a new directory beside `path` that takes its place at the end, or vanishes."""
    output, form = os.path.split(path)
    created = _make_directories(output)
    try:
        temporary = tempfile.mkdtemp(prefix=f".{form}.", dir=output)
    except OSError as error:
        raise UserError(f"Cannot write to --output {output}: {error.strerror}.") from None
    try:
        yield temporary
        os.chmod(temporary, 0o755)  # mkdtemp's directories are for their owner only
        _replace(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        for directory in created:
            with contextlib.suppress(OSError):
                os.rmdir(directory)
        raise


def _make_directories(path):
    """Creates `path` and its parents; returns those that were missing, the deepest first."""
    missing, directory = [], os.path.abspath(path)
    while not os.path.exists(directory):
        missing.append(directory)
        directory = os.path.dirname(directory)
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise UserError(f"Cannot create --output {path}: {error.strerror}.") from None
    return missing


def _replace(temporary, path):
    """Renames a directory into place; what was there is moved aside first and deleted last."""
    if not os.path.lexists(path):
        os.rename(temporary, path)
        return
    output, form = os.path.split(path)
    aside = tempfile.mkdtemp(prefix=f".{form}.old.", dir=output)
    old = os.path.join(aside, form)
    try:
        os.rename(path, old)
        try:
            os.rename(temporary, path)
        except BaseException:
            os.rename(old, path)
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _files(directory):
    for entry in os.scandir(directory):
        yield from _files(entry) if entry.is_dir() else [entry]


def _compare(model, preprocessing, directory, names):
    """Runs the SavedModel in another process; returns the largest difference from the model."""
    calls, expected = [], []
    loader = os.path.join(directory, LOADER)
    arguments = {"loader": loader} if os.path.exists(loader) else {}
    for name, images, inputs in _calls(preprocessing.image_size):
        if name in names:
            calls.append((name, inputs))
            with custom_ops.implementation("reference"):
                expected.append(_expect(name, model, preprocessing, images))
    try:
        actual = clean_process.call(directory, calls, **arguments)
    except clean_process.CallError as error:
        raise RunError(f"The export does not work with TensorFlow alone: {error}") from None
    largest = 0.0
    for (name, _), ours, theirs in zip(calls, expected, actual, strict=True):
        if ours.keys() != theirs.keys():
            raise RunError(f"The export's {name} returns {sorted(theirs)}, not {sorted(ours)}.")
        for key, value in ours.items():
            difference = _difference(theirs[key], value)
            if not difference <= _tolerance(model):
                raise RunError(
                    f"The export differs from the model: {key} of {name} by {difference:.3g} of "
                    f"its largest value. Allowed: {_tolerance(model):.0e}."
                )
            largest = max(largest, difference)
    return largest


def _calls(image_size):
    """Yields `(signature, images, input)`: what to call, and the images that the input means.

    Images are uint8 arrays, None for one that cannot be decoded.
    """
    height, width = image_size
    generator = np.random.default_rng(0)
    own, odd, tiny = (
        generator.integers(0, 256, (batch, rows, columns, 3), np.uint8)
        for batch, rows, columns in ((2, height, width), (1, 2 * height + 3, width + 7), (1, 3, 5))
    )
    for images in (own, odd, tiny):
        for name in ("serving_default", "embed", "attend"):
            yield name, list(images), images.astype(np.float32)
        yield "serving_uint8", list(images), images
    jpeg = tf.io.encode_jpeg(odd[0]).numpy()
    png = tf.io.encode_png(tiny[0]).numpy()
    decoded = [decode_image(data).numpy() for data in (jpeg, png)]
    yield "serving_bytes", decoded, [jpeg, png]
    yield "serving_bytes_lenient", [decoded[0], None, decoded[1]], [jpeg, jpeg[:-9], png]


def _expect(name, model, preprocessing, images):
    """What the model gives for `images` here, eagerly: dict of arrays."""
    height, width = preprocessing.image_size
    valid = np.array([image is not None for image in images])
    blank = np.zeros((height, width, 3), np.uint8)
    # On the CPU, as the other process: GPUs round float32 products to 10 bits by default.
    with tf.device("CPU:0"):
        inputs = tf.stack([preprocessing(blank if x is None else x) for x in images])
        if name == "attend":
            outputs = {"attention": attention_maps(model, inputs)}
        elif name == "embed":
            outputs = {"embedding": tf.cast(model.features(inputs), tf.float32)}
        else:
            logits = model(inputs, training=False)
            outputs = {"logits": logits, "probabilities": preprocessing.to_probabilities(logits)}
    outputs = {key: value.numpy() for key, value in outputs.items()}
    for key, value in outputs.items():
        if not np.isfinite(value).all():
            raise RunError(f"The model's {key} for ordinary images are not finite.")
    if name in ("attend", "embed"):
        return outputs
    labels = preprocessing.labels or [str(i) for i in range(model.config.num_classes)]
    outputs["classes"] = np.array([labels] * len(images))
    if name == "serving_bytes_lenient":
        outputs["logits"][~valid] = outputs["probabilities"][~valid] = np.nan
        outputs["valid"] = valid
    return outputs


def _difference(actual, expected):
    """Largest difference as a part of the largest expected value; inf where they cannot compare."""
    if actual.shape != expected.shape or actual.dtype.kind != expected.dtype.kind:
        return float("inf")
    if expected.dtype.kind != "f":
        return 0.0 if np.array_equal(actual, expected) else float("inf")
    known = ~np.isnan(expected)
    if not np.array_equal(known, ~np.isnan(actual)):
        return float("inf")
    actual, expected = actual[known], expected[known]
    if not expected.size:
        return 0.0
    return float(np.abs(actual - expected).max() / max(np.abs(expected).max(), _SMALLEST_SCALE))


def _tolerance(model):
    return TOLERANCE[model.compute_dtype]
