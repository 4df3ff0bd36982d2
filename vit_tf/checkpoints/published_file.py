"""A checkpoint file by canonical key, whichever of the published layouts it is in."""

import re

import numpy as np

from vit_tf.checkpoints.npz_archive import NpzFile
from vit_tf.checkpoints.published_layout import POSITIONS, canonical_names

_SCANNED = "Transformer/encoderblock/"
# Norms of hybrids, which the released files keep as (1, 1, 1, channels) and newer ones do not.
_GROUP_NORM = re.compile(r"(^|/)gn(\d+|_root|_proj)/(scale|bias)$")


def as_released(key, array) -> np.ndarray:
    """An array in the shape that the released files have."""
    return array.reshape(1, 1, 1, -1) if _GROUP_NORM.search(key) else array


class PublishedFile:
    """An open checkpoint; big_vision's and old files look like the reference's (paper.md B.3, B.8).

    In big_vision, positions are a top-level array without a class slot, since the class token holds
    its own, and the blocks may be stacked along a leading axis.

    Attributes:
        shapes: canonical key -> shape.
    """

    def __init__(self, path):
        self._file = NpzFile(path)
        try:
            names = canonical_names(self._file.shapes, path)
        except ValueError:
            self._file.__exit__()
            raise
        self._stacked, self._slot, self.shapes, self._names = {}, 0, {}, {}
        for key, name in names.items():
            shape = self._file.shapes[name]
            if key == "pos_embedding" and POSITIONS not in names and len(shape) == 3:
                self._slot = int("cls" in names)
                self._add(POSITIONS, name, (shape[0], shape[1] + self._slot, shape[2]))
            elif key.startswith(_SCANNED) and shape and shape[0] <= 1000:
                for index in range(shape[0]):
                    block = f"Transformer/encoderblock_{index}/{key[len(_SCANNED) :]}"
                    self._add(block, name, shape[1:])
                    self._stacked[block] = index
            elif _GROUP_NORM.search(key) and shape[:-1] == (1, 1, 1):
                self._add(key, name, shape[-1:])
            else:
                self._add(key, name, shape)

    def _add(self, key, name, shape):
        self.shapes[key], self._names[key] = shape, name

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self._file.__exit__(*exc_info)

    def check(self, key):
        """Raises what `read` would, without keeping the array."""
        self._file.check(self._names[key])

    def read(self, key) -> np.ndarray:
        """The array of a canonical key as float32; raises ValueError if it is damaged."""
        array = self._file.read(self._names[key])
        if key in self._stacked:
            return array[self._stacked[key]]
        if key == POSITIONS and self._slot:
            return np.pad(array, [(0, 0), (1, 0), (0, 0)])
        return array.reshape(self.shapes[key])
