"""The reader of exported models: SavedModels, which can only be called."""

import contextlib
import os
import typing

import tensorflow as tf

import custom_ops
from pipelines.config.names import ExportForm
from pipelines.data.labels.label_file import wrong_count
from pipelines.errors import UserError
from vit_tf.files import storage

# The file that makes a folder a SavedModel.
MARKER = "saved_model.pb"
# The signature that classifies the images of a batch that can be decoded.
SIGNATURE = "serving_bytes_lenient"
_OUTPUTS = {"probabilities", "valid"}
# In TensorFlow's error for a fused export when the compiled ops are not loaded.
_UNKNOWN_OP = "Op type not registered 'Vit"


def is_saved_model(path) -> bool:
    """Whether a directory is a SavedModel."""
    return storage.is_file(os.path.join(path, MARKER))


def find_exported(path) -> str | None:
    """The SavedModel at a path, or in one of the directories that `export` makes there.

    Returns:
        None if there is none, or if `path` is a workdir.
    """
    if storage.exists(os.path.join(path, "config.json")):
        return None
    folders = (path, *(os.path.join(path, form) for form in typing.get_args(ExportForm)))
    return next((os.fspath(folder) for folder in folders if is_saved_model(folder)), None)


def load(path):
    """Reads a SavedModel that `pipelines.export` wrote.

    Args:
        path: see `find_exported`.

    Returns:
        The result of `tf.saved_model.load`. It owns the variables: keep it for as long as one of
        its `signatures` is called.

    Raises:
        UserError: if it is damaged, or was not written by `pipelines.export`.
    """
    with _user_errors(path):
        loaded = _load(path)
        loaded.signatures["embed"]  # All exports have it.
        return loaded


def open_classifier(path, labels=()):
    """Reads a SavedModel with classes.

    Args:
        path: see `find_exported`.
        labels: class names that replace the stored ones; () keeps those.

    Returns:
        `(classify, labels)`: a function from string `[B]`, encoded images, to a dict with
        `probabilities` float32 `[B, K]` and `valid` bool `[B]`; and the `K` names of the classes.

    Raises:
        UserError: as `load`, and if it has no classes, or the number of labels is wrong.
    """
    with _user_errors(path, " with classes to predict"):
        loaded = _load(path)
        outputs = loaded.signatures[SIGNATURE].structured_outputs
        names = list(loaded.signatures["labels"]()["classes"].numpy())
        count = outputs["probabilities"].shape[-1] if "probabilities" in outputs else None
    if not outputs.keys() >= _OUTPUTS:
        raise UserError(
            f"{path}: expected {sorted(_OUTPUTS)} from {SIGNATURE}. Received: {sorted(outputs)}."
        )
    if count != len(names):
        raise UserError(
            f"{path} has {len(names)} class names but {count} probabilities. Export the model "
            "again."
        )

    def classify(image_bytes):
        # Called through `loaded`, which owns the variables and must stay alive.
        return loaded.signatures[SIGNATURE](image_bytes=image_bytes)

    if labels and len(labels) != len(names):
        raise wrong_count(labels, len(names))
    return classify, list(labels) or [name.decode("utf-8", "replace") for name in names]


def _load(path):
    if custom_ops.is_compiled():
        custom_ops.load()  # For a fused export. The library in its folder is not trusted.
    return tf.saved_model.load(path)


@contextlib.contextmanager
def _user_errors(path, kind=""):
    """Raises what TensorFlow and Python raise for other directories as `UserError`."""
    try:
        yield
    except Exception as error:  # TensorFlow raises many types.
        reason = str(error).partition("\n")[0]
        if _UNKNOWN_OP in reason and not custom_ops.is_compiled():
            why = custom_ops.describe()["reason"]
            raise UserError(
                f"{path} is a fused export, which needs the compiled ops, but {why}. A portable "
                "export needs none."
            ) from None
        raise UserError(
            f"{path} is not a SavedModel written by pipelines.export{kind} "
            f"({type(error).__name__}: {reason}). If an older version wrote it, export the model "
            "again."
        ) from None
