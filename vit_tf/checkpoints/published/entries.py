"""One variable of ours and the published arrays it is made of; used to load and to save."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import keras


@dataclasses.dataclass(frozen=True, eq=False)
class Entry:
    """One variable of ours and the published arrays it is made of.

    Attributes:
        variable: the Keras variable.
        shapes: published key -> shape.
        pack: list of published arrays, in the order of `shapes`, -> our array.
        unpack: our array -> list of published arrays.
    """

    variable: keras.Variable
    shapes: dict[str, tuple[int, ...]]
    pack: Callable
    unpack: Callable

    def arrays(self) -> dict[str, np.ndarray]:
        """The present values by published key, float32."""
        values = self.unpack(np.asarray(self.variable.value, np.float32))
        return dict(zip(self.shapes, values, strict=True))


class ModelWeights:
    """The weights of a model by published key, as `load_checkpoint` wants an open checkpoint.

    Args:
        model: the model.
        entries: of that model.
        path: where the model is from, for messages.

    Attributes:
        shapes: published key -> shape.
        trained_config, grid: of the model.
    """

    def __init__(self, model, entries, path=""):
        self.path = path
        self.trained_config = model.config
        self.grid = model.config.grid
        self._entries = {key: entry for entry in entries for key in entry.shapes}
        self.shapes = {key: tuple(entry.shapes[key]) for key, entry in self._entries.items()}

    def check(self, key):
        """Does nothing: what is in memory is whole."""

    def read(self, key) -> np.ndarray:
        """The array of a published key, float32."""
        return self._entries[key].arrays()[key]


def reshaped(variable, key, shape) -> Entry:
    """A variable that is one array, in whatever shape."""
    return Entry(
        variable,
        {key: tuple(shape)},
        pack=lambda arrays: arrays[0].reshape(variable.shape),
        unpack=lambda value: [value.reshape(shape)],
    )


def layer_entries(layer, prefix, names=("kernel", "bias")) -> list[Entry]:
    """The variables `names` of a layer, which are called so in the file too."""
    variables = [(name, getattr(layer, name)) for name in names]
    return [reshaped(variable, f"{prefix}/{name}", variable.shape) for name, variable in variables]


def kernel(layer, prefix) -> Entry:
    """The kernel of a layer without bias."""
    return layer_entries(layer, prefix, ("kernel",))[0]
