"""Writes a model in another format and reads it back, one model in memory at a time."""

import dataclasses
import logging
import os
import tempfile
import typing
import warnings

import vit_tf
from pipelines.config.fields import check_local
from pipelines.config.names import Layout
from pipelines.errors import RunError, UserError
from pipelines.runs.workdir import Workdir
from pipelines.stored_models import model_source, parity
from pipelines.stored_models.stored_model import Opening
from vit_tf.checkpoints.kinds import kind_of
from vit_tf.checkpoints.sidecar import write_sidecar

_log = logging.getLogger(__name__)

_FILES = (".npz", ".keras")
# Fields of preprocessing that a layout cannot store: these projects always decode and resize as
# Pillow does, and none of them says whether a photo is turned.
_NOT_STORED = {
    layout: ("exif",) if layout == "axial_deeplab" else ("antialias", "exif", "jpeg")
    for layout in typing.get_args(Layout)
}


def convert(
    source, destination, *, layout=None, weights="final", overwrite=False
) -> parity.ParityReport:
    """Converts a model.

    Args:
        source: path, see `model_source.find`.
        destination: `.npz` or `.keras` file; with a layout, a directory.
        layout: None, or one of `config.names.Layout`.
        weights: which weights of a workdir, see `model_source.find`.
        overwrite: whether to replace an existing destination.

    Returns:
        The comparison of the model before and after.

    Raises:
        UserError: if the source cannot be read, the destination cannot be written, or the layout
            cannot store the model. No files are left.
        RunError: if writing fails. No files are left, as after a failed comparison.
    """
    _check_destination(destination, layout, overwrite)
    # Folders of other projects cannot store a dtype policy.
    dtype = None if layout is None else "float32"
    parent, name = os.path.split(os.path.abspath(destination))
    # Moved to the destination only after it was read again and holds the same model.
    with tempfile.TemporaryDirectory(prefix=f".{name}.", dir=parent) as folder:
        written = os.path.join(folder, name)
        before = _open_and_write(source, weights, dtype, written, layout, destination)
        with warnings.catch_warnings():
            # Those about the weights were shown when the source was read.
            warnings.simplefilter("ignore")
            after = dataclasses.replace(_summarize(written, "final", dtype), name=destination)
        report = parity.compare(before, after, _NOT_STORED.get(layout, ()))
        if report.passed:
            _move_into_place(written, destination)
            _log.info(f"wrote {destination} ({_size(destination) / 1e6:,.1f} MB)")
    return report


def check(first, second, weights="final") -> parity.ParityReport:
    """Compares the models at two paths; `weights` applies to workdirs.

    Raises:
        UserError: if one cannot be read, or `weights` is given and neither is a workdir.
    """
    dtype = None if first.endswith(".keras") and second.endswith(".keras") else "float32"
    runs = [kind_of(path) == "run" for path in (first, second)]
    if weights != "final" and not any(runs):
        raise UserError(
            f"--weights={weights} needs a workdir, but neither {first} nor {second} is a workdir. "
            "Leave the flag out, or name a workdir."
        )
    chosen = [weights if is_run else "final" for is_run in runs]
    return parity.compare(_summarize(first, chosen[0], dtype), _summarize(second, chosen[1], dtype))


# Each of these two functions frees its model on return, so memory holds one model at a time.


def _summarize(path, weights, dtype):
    opened = model_source.find(path, weights).open_model(Opening(dtype))
    return parity.summarize_model(os.fspath(path), *opened)


def _open_and_write(path, weights, dtype, written, layout, destination):
    opened = model_source.find(path, weights).open_model(Opening(dtype))
    _write(opened, written, layout, destination)
    return parity.summarize_model(os.fspath(path), *opened)


def _check_destination(path, layout, overwrite):
    check_local("The destination", path)
    if layout is None and not path.endswith(_FILES):
        raise UserError(
            f"Cannot tell what {path} should become. Name a .npz or .keras file, or add "
            "--layout=huggingface or --layout=timm for a folder of safetensors."
        )
    if layout is not None and path.endswith((*_FILES, ".safetensors")):
        raise UserError(f"--layout={layout} writes a folder, not a file. Received: {path}.")
    parent = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(parent):
        raise UserError(f"Cannot write {path}: there is no folder {parent}.")
    if not os.access(parent, os.W_OK):
        raise UserError(f"Cannot write {path}: no permission to change {parent}.")
    if os.path.lexists(path) and os.path.isdir(path) != (layout is not None):
        kind = "folder" if layout is None else "file"
        raise UserError(f"Cannot write {path}: it is a {kind}. Name another path.")
    if layout is None:
        taken = next((file for file in (path, path + ".json") if os.path.lexists(file)), None)
    else:
        if os.path.exists(Workdir(path).manifest):
            raise UserError(f"Cannot write {path}: it is the workdir of a run. Name a new folder.")
        taken = path if os.path.lexists(path) and not _is_empty(path) else None
    if taken and not overwrite:
        raise UserError(f"{taken} already exists. Choose another path, or replace it: --overwrite.")


def _is_empty(path):
    return os.path.isdir(path) and not os.listdir(path)


def _move_into_place(written, destination):
    """Moves a file with its sidecar, or the files of a folder; each move is atomic."""
    if not os.path.isdir(written):
        for suffix in (".json", ""):
            os.replace(written + suffix, destination + suffix)
        return
    os.makedirs(destination, exist_ok=True)
    for name in os.listdir(written):
        os.replace(os.path.join(written, name), os.path.join(destination, name))


def _write(opened, path, layout, destination):
    model, *described = opened
    try:
        if layout is not None:
            for note in vit_tf.save_safetensors(model, path, layout, *described):
                _log.info(f"note: {note}")
        elif path.endswith(".npz"):
            vit_tf.save_npz(model, path, *described)
        else:
            model.save(path)
            # The file itself cannot store the preprocessing.
            write_sidecar(path, *described)
    except ValueError as error:
        raise UserError(str(error)) from None
    except OSError as error:
        raise RunError(f"Cannot write {destination}: {error.strerror or error}.") from None


def _size(path):
    if not os.path.isdir(path):
        return os.path.getsize(path)
    return sum(entry.stat().st_size for entry in os.scandir(path) if entry.is_file())
