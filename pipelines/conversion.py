"""Writes a model in another format and reads it back, one model in memory at a time."""

import json
import os
import tempfile

import vit_tf
from pipelines import parity, weights
from pipelines.errors import RunError, UserError
from vit_tf.files import write_atomically

_FILES = (".npz", ".keras")


def convert(source, destination, layout=None, choice="final", overwrite=False, say=print):
    """Converts a model.

    Args:
        source: whatever `weights.find` finds.
        destination: `.npz` or `.keras` file, or with a layout a directory.
        layout: None, "huggingface" or "timm".
        choice: which weights of a workdir; see `weights.choose`.
        overwrite: whether to replace what is there.
        say: called with lines for the user.

    Returns:
        `parity.Report` of the model before and after.

    Raises:
        UserError: if the source cannot be read, the destination not written, or the layout has no
            place for the model. Nothing is left behind.
        RunError: if writing fails.
    """
    _check_destination(destination, layout, overwrite)
    before = _facts(
        source,
        choice,
        lambda model, preprocessing: _write(model, preprocessing, destination, layout, say),
        say,
    )
    say(f"wrote {destination} ({_size(destination) / 1e6:,.1f} MB)")
    return parity.compare(before, _facts(destination, "final"))


def check(first, second, choice="final"):
    """Compares what two paths hold, `choice` where it is a workdir; returns a `parity.Report`."""
    found = []
    for path in (first, second):
        is_run = os.path.isdir(path) and not os.path.exists(os.path.join(path, "model.safetensors"))
        found.append(_facts(path, choice if is_run else "final"))
    return parity.compare(*found)


def _facts(path, choice, use=None, say=None):
    """The facts of the model at `path`, which exists no longer than this call.

    Args:
        path: where it is.
        choice: see `weights.choose`.
        use: called with the model and its preprocessing.
        say: called with what had to be assumed of a file from elsewhere.
    """
    source = weights.find(weights.choose(path, choice))
    model, preprocessing = weights.open_model(source, "float32")
    for note in weights.notes(source) if say else ():
        say(f"note: {note}")
    if use is not None:
        use(model, preprocessing)
    return parity.facts_of(os.fspath(path), model, preprocessing)


def _check_destination(path, layout, overwrite):
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
    if layout is None and os.path.isdir(path):
        raise UserError(f"Cannot write {path}: it is a folder.")
    taken = os.path.join(path, "model.safetensors") if layout else path
    if os.path.lexists(taken) and not overwrite:
        raise UserError(f"{taken} is there. Choose another place, or replace it: --overwrite.")


def _write(model, preprocessing, path, layout, say):
    try:
        if layout is not None:
            for note in vit_tf.save_safetensors(model, path, layout, preprocessing):
                say(f"note: {note}")
        elif path.endswith(".npz"):
            vit_tf.save_npz(model, path, preprocessing)
        else:
            _save_keras(model, path, preprocessing)
    except ValueError as error:
        raise UserError(str(error)) from None
    except OSError as error:
        raise RunError(f"Cannot write {path}: {error.strerror or error}.") from None


def _save_keras(model, path, preprocessing):
    """Writes a `.keras` file and, since it has no place for the preprocessing, a sidecar."""
    sidecar = json.dumps({"preprocessing": preprocessing.to_dict()}, indent=1) + "\n"
    with tempfile.TemporaryDirectory(dir=os.path.dirname(os.path.abspath(path))) as folder:
        temporary = os.path.join(folder, "model.keras")
        model.save(temporary)
        os.replace(temporary, path)
    write_atomically(path + ".json", lambda file: file.write(sidecar.encode()))


def _size(path):
    if not os.path.isdir(path):
        return os.path.getsize(path)
    return sum(entry.stat().st_size for entry in os.scandir(path) if entry.is_file())
