"""Entries: a variable of a model and its published arrays, used to load and to save."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import keras


@dataclasses.dataclass(frozen=True, eq=False)
class Entry:
    """One variable of a model and the published arrays that hold its values.

    Attributes:
        variable: the Keras variable.
        shapes: published key -> shape.
        pack: list of published arrays, in the order of `shapes`, -> value of the variable.
        unpack: value of the variable -> list of published arrays.
        resizable: whether the last axis of an array, of relative positions, may have another odd
            length; `pack` then resizes the array.
    """

    variable: keras.Variable
    shapes: dict[str, tuple[int, ...]]
    pack: Callable
    unpack: Callable
    resizable: bool = False

    def arrays(self) -> dict[str, np.ndarray]:
        """The current values by published key, float32."""
        values = self.unpack(np.asarray(self.variable.value, np.float32))
        return dict(zip(self.shapes, values, strict=True))


class ModelWeights:
    """The weights of a model by published key, with the interface of an open checkpoint.

    Args:
        model: the model.
        entries: the entries of the model.
        path: where the model is from, for messages.
        preprocessing: its `Preprocessing`, if it is known.

    Attributes:
        shapes: published key -> shape.
        trained_config, grid: configuration and patch grid of the model.
        preprocessing: see above.
    """

    def __init__(self, model, entries, path="", preprocessing=None):
        self.path, self.preprocessing = path, preprocessing
        self.trained_config = model.config
        self.grid = model.config.grid
        self._entries = {key: entry for entry in entries for key in entry.shapes}
        self.shapes = {key: tuple(entry.shapes[key]) for key, entry in self._entries.items()}

    def check(self, key):
        """Does nothing: arrays in memory are never damaged."""

    def read(self, key) -> np.ndarray:
        """The array of a published key, float32."""
        return self._entries[key].arrays()[key]


def reshaped(variable, key, shape) -> Entry:
    """A variable that is one published array, possibly of another shape."""
    return Entry(
        variable,
        {key: tuple(shape)},
        pack=lambda arrays: arrays[0].reshape(variable.shape),
        unpack=lambda value: [value.reshape(shape)],
    )


def layer_entries(layer, prefix, names=("kernel", "bias")) -> list[Entry]:
    """The variables `names` of a layer, which have the same names in the file."""
    variables = [(name, getattr(layer, name)) for name in names]
    return [reshaped(variable, f"{prefix}/{name}", variable.shape) for name, variable in variables]


def variable_entries(layer, prefix) -> list[Entry]:
    """All variables of a layer, at their paths from the layer's own name on."""
    start = len(layer.path) - len(layer.name)
    return [
        reshaped(variable, f"{prefix}/{variable.path[start:]}", variable.shape)
        for variable in layer.variables
    ]


def kernel(layer, prefix) -> Entry:
    """The kernel of a layer without bias."""
    return layer_entries(layer, prefix, ("kernel",))[0]
