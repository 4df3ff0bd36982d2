"""Writes a model as a SavedModel that runs without this package."""

import dataclasses
import functools
import json
import os
import shutil
import tempfile
import typing

import tensorflow as tf

import custom_ops
import vit_tf
from pipelines.config.names import ExportForm
from pipelines.errors import RunError, UserError
from pipelines.serving.atomic_directory import atomic_directory
from pipelines.serving.probes import has_constant_logits, random_head
from pipelines.serving.saved_model_comparison import TOLERANCE, compare_saved_model
from pipelines.serving.signatures import check_model, make_signatures
from pipelines.serving.stored_weights import stored_weights
from pipelines.serving.warm_up import write_requests
from vit_tf import packing
from vit_tf.checkpoints.kinds import SAVED_MODEL
from vit_tf.files import storage
from vit_tf.files.json_object import read_json_object
from vit_tf.images.decoding import MAX_PIXELS

# The forms are also the names of their directories.
PORTABLE, FUSED = typing.get_args(ExportForm)
# The implementation of the ops with which each form is traced.
_IMPLEMENTATIONS = {PORTABLE: "reference", FUSED: "compiled"}

# A fused export contains the library, and two lines of Python that load it into TensorFlow.
LOADER = os.path.join("assets.extra", "load_ops.py")
_LIBRARY = "_vit_ops.so"
# The preprocessing, for programs that show what the model sees; the signatures contain it too.
_PREPROCESSING = os.path.join("assets.extra", "preprocessing.json")
# Contents of a copy to a URL that was cut before its marker.
_COPIED_BEFORE = {"assets", "assets.extra", "fingerprint.pb", "variables"}
_LOADER_LINES = f"""import pathlib, tensorflow as tf
tf.load_op_library(str(pathlib.Path(__file__).with_name("{_LIBRARY}")))
"""


@dataclasses.dataclass(frozen=True)
class ExportReport:
    """The result of `export`; `str()` is a summary to print.

    Attributes:
        path: the SavedModel.
        loader: Python file to run before loading it; None if it needs none.
        size: of all its files, in bytes.
        signatures: their names.
        max_difference: largest relative difference from the model that `export` compares with, see
            `compare_saved_model`.
        tolerance: the largest allowed difference.
        load_seconds: the time to load it in the process that checked it.
        coverage: for a fused one, how many blocks are packed, in which precision; else None.
        has_random_head: whether the logits of a random head were compared too, since the
            model's own logits are the same for all images.
    """

    path: str
    loader: str | None
    size: int
    signatures: tuple[str, ...]
    max_difference: float
    tolerance: float
    load_seconds: float
    coverage: str | None = None
    has_random_head: bool = False

    def __str__(self):
        after = f", after {os.path.basename(self.loader)}" if self.loader else ""
        coverage = f"packed: {self.coverage}\n" if self.coverage else ""
        head = " with a random head too, since its own gives all images the same logits"
        return (
            f"wrote {self.path} ({self.size / 1e6:,.1f} MB, loaded in {self.load_seconds:.1f} s)\n"
            f"signatures: {', '.join(self.signatures)}\n"
            f"{coverage}"
            f"checked in a process with TensorFlow only{after}{head * self.has_random_head}: "
            f"largest difference {self.max_difference:.1e} of the largest value (allowed: "
            f"{self.tolerance:.0e})"
        )


def export(
    model,
    preprocessing,
    output,
    overwrite=False,
    form=PORTABLE,
    classes=None,
    max_pixels=MAX_PIXELS,
    batch_calls=None,
) -> ExportReport:
    """Writes `<output>/<form>`, a SavedModel.

    A portable one contains only TensorFlow's own ops. A fused one contains the compiled ops, which
    are faster, and their library: run its `assets.extra/load_ops.py` before loading it. The
    library fits the minor version of TensorFlow and the kind of processor that are used here. The
    weights of encoder blocks are packed if `vit_tf.pack_model` covers the model, in the precision
    of its compute dtype. Both contain requests with which TensorFlow Serving warms them up.

    The export is written to a temporary directory. It is renamed, or copied to a URL, only after a
    new process, which can import only TensorFlow, computed the same outputs as the model's
    reference implementation; packed weights in bfloat16 are compared with the model in float32. If
    the head gives all images the same logits, so does an export with a random head before.

    Args:
        model: a `VisionTransformer` or `ResNet`.
        preprocessing: its `vit_tf.Preprocessing`, which becomes part of the export.
        output: directory, or the URL of one for a portable SavedModel; created if missing.
        overwrite: replace an existing SavedModel. A copy to a URL that was cut is always replaced.
        form: "portable" or "fused".
        classes: the model's `vit_tf.Classes`; None means unnamed ones, and a softmax.
        max_pixels: the most pixels of an encoded image that the signatures decode.
        batch_calls: see `make_signatures`; only for a fused one.

    Raises:
        UserError: if the model cannot be exported, the output exists or cannot be written,
            `max_pixels` is out of range, or `form` is "fused" and there are no compiled ops.
        RunError: if the outputs of export and model differ. No files are left.
    """
    check_output(output, overwrite, form)
    check_model(model, preprocessing, classes or vit_tf.Classes(), max_pixels)
    path = os.path.join(output, form)
    tolerance = TOLERANCE[model.compute_dtype]
    write = functools.partial(
        _write_checked,
        model,
        preprocessing,
        form=form,
        classes=classes,
        max_pixels=max_pixels,
        batch_calls=batch_calls if form == FUSED else None,
        tolerance=tolerance,
    )
    traced = custom_ops.implementation(_IMPLEMENTATIONS[form])
    with atomic_directory(path, SAVED_MODEL) as temporary, traced:
        has_random_head = has_constant_logits(model, preprocessing)
        features = 0.0
        if has_random_head:
            with random_head(model), tempfile.TemporaryDirectory(dir=temporary) as folder:
                features = write(folder)[-1].difference
        signatures, coverage, comparison = write(temporary)
        size = sum(entry.stat().st_size for entry in _files(temporary))
    return ExportReport(
        path=path,
        loader=os.path.join(path, LOADER) if form == FUSED else None,
        size=size,
        signatures=signatures,
        max_difference=max(comparison.difference, features),
        tolerance=tolerance,
        load_seconds=comparison.load_seconds,
        coverage=coverage,
        has_random_head=has_random_head,
    )


def _write_checked(
    model, preprocessing, directory, *, form, classes, max_pixels, batch_calls, tolerance
):
    """Writes a SavedModel and calls it; see `export`.

    Returns:
        The names of its signatures, the `coverage` of the report, and the `Comparison`.
    """
    served, coverage = (model, None) if form == PORTABLE else packing.packed_or_same(model)
    signatures = make_signatures(served, preprocessing, classes, max_pixels, batch_calls)
    _write(served, signatures, directory)
    _write_preprocessing(preprocessing, directory)
    if form == FUSED:
        _add_library(directory)
    comparison = compare_saved_model(
        _compared(model, served),
        preprocessing,
        directory,
        list(signatures),
        tolerance,
        os.path.join(directory, LOADER) if form == FUSED else None,
        classes,
        max_pixels,
    )
    return tuple(signatures), coverage, comparison


def read_preprocessing(directory):
    """The `vit_tf.Preprocessing` of a SavedModel.

    Returns:
        None for one of an earlier version, which does not store it.

    Raises:
        UserError: if the file is damaged.
    """
    path = storage.join(directory, _PREPROCESSING)
    try:
        values = read_json_object(path, "Export the model again.")
        return values and vit_tf.Preprocessing.from_dict(values.raw("preprocessing"))
    except ValueError as error:
        raise UserError(str(error)) from None


def _compared(model, served):
    """The model that an export is compared with.

    Packed weights in bfloat16 round less than the layers of a model in bfloat16. The errors of both
    would add up, so the model is copied in float32.
    """
    if served is model or model.compute_dtype == "float32":
        return model
    copy = vit_tf.create_model(model.config, dtype="float32")
    for new, old in zip(copy.weights, model.weights, strict=True):
        new.assign(old)
    return copy


def check_output(output, overwrite=False, form=PORTABLE):
    """Raises `UserError` unless `export` may write `<output>/<form>`."""
    if form == FUSED:
        _library_path()
    path = os.path.join(output, form)
    if storage.is_url(output):
        if form == FUSED:
            raise UserError(
                "A fused export contains a library, which loads from a local disk only. Name a "
                "local --output and copy it, or use --format=portable."
            )
        if storage.is_file(output):
            raise UserError(f"Cannot write to --output {output}: it is a file.")
    else:
        check_local_output(output)
    if not os.path.lexists(path) and not storage.exists(path):
        return
    if storage.is_folder(path):
        names = storage.list_names(path)
        # The copy to a URL may have been cut; without its marker it is no model of anybody.
        if not names or (storage.is_url(path) and _COPIED_BEFORE.issuperset(names)):
            return
    if not storage.is_file(os.path.join(path, SAVED_MODEL)):
        raise UserError(f"{path} exists and is not a SavedModel. Choose another --output.")
    if not overwrite:
        raise UserError(f"{path} exists. Choose another --output, or replace it: --overwrite.")


def check_local_output(output):
    """Raises `UserError` unless the local directory `output` exists or can be created."""
    existing = os.path.abspath(output)
    while not os.path.lexists(existing):
        existing = os.path.dirname(existing)
    if not os.path.isdir(existing):
        raise UserError(f"Cannot write to --output {output}: {existing} is not a directory.")
    if not os.access(existing, os.W_OK):
        raise UserError(f"Cannot write to --output {output}: no permission to change {existing}.")


def _library_path():
    report = custom_ops.describe()
    if not report["compiled"]:
        raise UserError(f"A fused export contains the compiled ops, but {report['reason']}.")
    if not report["path"] or not os.path.isfile(report["path"]):
        raise UserError(
            "A fused export contains the library of the compiled ops, but the file it was loaded "
            "from is gone or unknown. Start a new process."
        )
    return report["path"]


def _add_library(directory):
    folder = os.path.join(directory, os.path.dirname(LOADER))
    try:
        os.makedirs(folder, exist_ok=True)
        shutil.copyfile(_library_path(), os.path.join(folder, _LIBRARY))
        with open(os.path.join(directory, LOADER), "w", encoding="utf-8") as file:
            file.write(_LOADER_LINES)
    except OSError as error:
        raise RunError(f"Cannot write {folder}: {error.strerror}.") from None


def _write(model, signatures, directory):
    # The root holds the variables and nothing else of Keras, so loading rebuilds no Keras object.
    root = tf.Module()
    with stored_weights(model) as variables:
        root.variables_ = variables
        concrete = {name: f.get_concrete_function() for name, f in signatures.items()}
    try:
        tf.saved_model.save(root, directory, signatures=concrete)
        write_requests(directory, list(signatures), model.config.image_size)
    except (tf.errors.OpError, OSError) as error:
        raise RunError(f"Cannot write the SavedModel {directory}: {error}") from None


def _write_preprocessing(preprocessing, directory):
    path = os.path.join(directory, _PREPROCESSING)
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"preprocessing": preprocessing.to_dict()}, file, indent=1)
    except OSError as error:
        raise RunError(f"Cannot write {path}: {error.strerror}.") from None


def _files(directory):
    for entry in os.scandir(directory):
        yield from _files(entry) if entry.is_dir() else [entry]
