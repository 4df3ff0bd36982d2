"""The sidecar `<checkpoint>.json`: settings that the arrays cannot store."""

import json
import os

from vit_tf.checkpoints.shapes import check_grid
from vit_tf.classes import Classes
from vit_tf.config import ModelConfig
from vit_tf.config.checks import POLICIES
from vit_tf.files.atomic_file import write_atomically
from vit_tf.files.json_object import JsonObject, read_json_object
from vit_tf.preprocessing import Preprocessing

_ADVICE = "Delete or restore it."


class Sidecar:
    """The values of the JSON object beside a checkpoint; each value is checked when it is read.

    A value is None if the sidecar does not contain it. An invalid value raises `ValueError`.

    Args:
        values: the `JsonObject`.

    Attributes:
        path: the sidecar's own file name; the file need not exist.
    """

    def __init__(self, values):
        self.path = values.path
        self._values = values

    @property
    def grid(self) -> tuple[int, int] | None:
        """(rows, columns) of the position table."""
        grid = self._values.raw("grid")
        return None if grid is None else check_grid(grid, self.path)

    @property
    def dtype(self) -> str | None:
        """Name of the Keras dtype policy that the weights were trained with."""
        dtype = self._values.raw("dtype")
        if dtype is not None and dtype not in POLICIES:
            raise ValueError(
                f"{self.path} has dtype={dtype!r:.40}. Expected one of {', '.join(POLICIES)}. "
                f"{_ADVICE}"
            )
        return dtype

    @property
    def preprocessing(self) -> Preprocessing | None:
        """The model's `Preprocessing`."""
        return self._convert("preprocessing", Preprocessing.from_dict)

    @property
    def classes(self) -> Classes | None:
        """The model's `Classes`, which are stored with the preprocessing."""
        return self.preprocessing and self._convert("preprocessing", Classes.from_dict)

    def config(self, from_dict) -> ModelConfig | None:
        """The configuration that the weights were trained with; `from_dict` restores it."""
        return self._convert("config", from_dict)

    def _convert(self, name, from_dict):
        fields = self._values.raw(name)
        try:
            return from_dict(fields) if fields else None
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{self.path}: {error} Correct it in this file, or delete the file."
            ) from None


def read_sidecar(path) -> Sidecar:
    """The sidecar of the checkpoint at `path`; an empty one if there is no such file.

    Raises:
        ValueError: if the sidecar is not a JSON object.
    """
    path = _sidecar_path(path)
    return Sidecar(read_json_object(path, _ADVICE) or JsonObject(path, {}))


def write_sidecar(path, preprocessing, classes=None, config=None, grid=None, dtype=None) -> None:
    """Writes the sidecar of the checkpoint at `path`, completely or not at all.

    Args:
        path: of the checkpoint.
        preprocessing: `Preprocessing`, or None.
        classes: `Classes`, written with the preprocessing; None if they are unknown.
        config: a `ModelConfig`; None if the checkpoint itself holds it.
        grid: (rows, columns) of the position table, if the model has patches.
        dtype: name of the model's dtype policy; None if the checkpoint itself holds it.
    """
    values = {
        **({} if grid is None else {"grid": list(grid)}),
        **({} if config is None else {"config": config.to_dict()}),
        **({} if dtype is None else {"dtype": dtype}),
        "preprocessing": preprocessing and stored_fields(preprocessing, classes),
    }
    text = json.dumps(values, indent=1) + "\n"
    write_atomically(_sidecar_path(path), lambda file: file.write(text.encode()))


def stored_fields(preprocessing, classes) -> dict:
    """The JSON object with the fields of both; `classes` may be None."""
    return preprocessing.to_dict() | (classes or Classes()).to_dict()


def _sidecar_path(path):
    return os.fspath(path) + ".json"
