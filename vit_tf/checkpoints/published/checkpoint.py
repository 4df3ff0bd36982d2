"""Reads a published `.npz` file and its sidecar by canonical key.

Other names of the arrays are supported too: newer (Linen) block names, numbered layers, the
prefixes of training states and big_vision's files (docs/paper.md B.1, B.2, B.8), and any prefix
that all names have. In big_vision,
positions are a top-level array without a row for the class token, because the class token includes
its position, and the blocks may be stacked along a leading axis.
"""

import functools
import os
import re

import numpy as np

from vit_tf.checkpoints.published.npz_archive import BFLOAT16, NpzArchive
from vit_tf.checkpoints.published.vit_positions import POSITIONS, trained_positions
from vit_tf.checkpoints.shapes import assumed_square, summarize
from vit_tf.checkpoints.sidecar import read_sidecar
from vit_tf.classes import Classes
from vit_tf.config import ModelConfig
from vit_tf.preprocessing import Preprocessing

_PREFIXES = ("opt/target/", "params/img/", "params/", "")
_STACKED_BLOCKS = "Transformer/encoderblock/"
# Norms of hybrids: shape (1, 1, 1, channels) in the released files, (channels,) in newer ones.
_GROUP_NORM = re.compile(r"(^|/)gn(\d+|_root|_proj)/(scale|bias)$")


def as_released(key, array) -> np.ndarray:
    """An array in the shape that the released files have."""
    return array.reshape(1, 1, 1, -1) if _GROUP_NORM.search(key) else array


class PublishedCheckpoint:
    """An open `.npz` file in the published layout, as in `vit_tf.checkpoints`; `with` closes it.

    `dtypes` is a dict from canonical key to the dtype in the file.

    Args:
        path: file name; the sidecar `<path>.json` is read with it.
        mappings: the modules of the published layout of each family, such as `published.vit`.
        config_from_dict: restores a configuration from the dictionary in the sidecar.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is damaged, or is not a model of one of the families.
    """

    layout = "published"
    position_resize = "bilinear"

    def __init__(self, path, mappings, config_from_dict):
        self.path, self.notes = os.fspath(path), []
        self._config_from_dict = config_from_dict
        self._sidecar = read_sidecar(path)
        self._archive = NpzArchive(path)
        try:
            self._mapping, names, prefix = _canonical_names(
                self._archive.shapes, mappings, self.path
            )
        except ValueError:
            self._archive.close()
            raise
        if prefix not in _PREFIXES:
            self.notes.append(f"the names of the arrays begin with {prefix!r}, which is left out")
        if BFLOAT16 in self._archive.dtypes.values():
            self.notes.append("arrays of two bytes without a type (|V2) are read as bfloat16")
        self._stacked, self._slot, self.shapes, self.dtypes, self._names = {}, 0, {}, {}, {}
        for key, name in names.items():
            shape = self._archive.shapes[name]
            if key == "pos_embedding" and POSITIONS not in names and len(shape) == 3:
                self._slot = int("cls" in names)
                self._add(POSITIONS, name, (shape[0], shape[1] + self._slot, shape[2]))
            elif key.startswith(_STACKED_BLOCKS) and shape and shape[0] <= 1000:
                for index in range(shape[0]):
                    block = f"Transformer/encoderblock_{index}/{key[len(_STACKED_BLOCKS) :]}"
                    self._add(block, name, shape[1:])
                    self._stacked[block] = index
            elif _GROUP_NORM.search(key) and shape[:-1] == (1, 1, 1):
                self._add(key, name, shape[-1:])
            else:
                self._add(key, name, shape)

    def _add(self, key, name, shape):
        self.shapes[key], self._names[key] = shape, name
        self.dtypes[key] = self._archive.dtypes[name]

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self._archive.close()

    def check(self, key):
        """Raises the errors that `read` would raise, without keeping the array."""
        self._archive.check(self._names[key])

    def read(self, key) -> np.ndarray:
        """The array of a canonical key as float32; raises ValueError if it is damaged."""
        array = self._archive.read(self._names[key])
        if key in self._stacked:
            return array[self._stacked[key]]
        if key == POSITIONS and self._slot:
            return np.pad(array, [(0, 0), (1, 0), (0, 0)])
        return array.reshape(self.shapes[key])

    @property
    def grid(self) -> tuple[int, int] | None:
        """(rows, columns) of the position table, from the sidecar; None without it.

        Raises:
            ValueError: if the value in the sidecar is not valid.
        """
        return self._sidecar.grid

    @property
    def trained_config(self) -> ModelConfig | None:
        """The configuration that the weights were trained with; None without sidecar.

        Raises:
            ValueError: if the value in the sidecar is not valid.
        """
        return self._sidecar.config(self._config_from_dict)

    @functools.cached_property
    def inferred_config(self) -> ModelConfig:
        """The configuration from the arrays; fields that they do not show are the paper's.

        `notes` then says whether a square was assumed.

        Raises:
            ValueError: if vit_tf does not support a model with these arrays.
        """
        config = self._mapping.config_from_shapes(self.shapes, self.path, self.grid)
        if self.grid is None and trained_positions(self.shapes) in ("learned_1d", "relative"):
            self.notes.append(assumed_square(config.grid, self.path))
        return config

    @functools.cached_property
    def config(self) -> ModelConfig:
        """The sidecar's configuration or, without one, `inferred_config`.

        Raises:
            ValueError: if sidecar and arrays contradict each other, or vit_tf does not support the
                model.
        """
        found, claimed = self.inferred_config, self.trained_config
        if claimed is None:
            return found
        if claimed.family != found.family:
            raise ValueError(
                f"{self._sidecar.path} describes a model of the family {claimed.family!r}, the "
                f"arrays of {self.path} are of {found.family!r}. Restore or delete the sidecar."
            )
        stated, real = map(self._mapping.array_fields, (claimed, found))
        for name in stated | real:
            if stated.get(name) != real.get(name):
                raise ValueError(
                    f"{self._sidecar.path} has {name}={stated.get(name)}, the arrays of "
                    f"{self.path} have {real.get(name)}. Restore or delete the sidecar."
                )
        return claimed

    @property
    def preprocessing(self) -> Preprocessing | None:
        """The `Preprocessing` from the sidecar; None without sidecar.

        Raises:
            ValueError: if the value in the sidecar is not valid or does not fit the model.
        """
        preprocessing = self._sidecar.preprocessing
        if preprocessing is not None and preprocessing.image_size != self.config.image_size:
            raise ValueError(
                f"{self._sidecar.path} prepares images of {preprocessing.image_size}, the model "
                f"reads {self.config.image_size}. Restore or delete the sidecar."
            )
        return preprocessing

    @property
    def dtype(self) -> str | None:
        """The dtype policy from the sidecar; None without sidecar.

        Raises:
            ValueError: if the value in the sidecar is not valid.
        """
        return self._sidecar.dtype

    @property
    def classes(self) -> Classes | None:
        """The `Classes` from the sidecar; None without sidecar."""
        return self._sidecar.classes


def _canonical_names(shapes, mappings, path):
    """The module for the model in a file, canonical key -> name in the file, and their prefix."""
    common = os.path.commonprefix(list(shapes))  # noqa: RUF071 - no paths
    common = common[: 1 + max(common.rfind("/"), common.rfind("."))]
    for prefix in (*_PREFIXES, common):
        names = [name[len(prefix) :] for name in shapes if name.startswith(prefix)]
        for mapping in mappings:
            if (keys := mapping.canonical_names(names)) is not None:
                return mapping, _inverted(keys, prefix, path), prefix
    raise ValueError(
        f"{path} is not a Vision Transformer or BiT ResNet checkpoint in the published layout: "
        f"it has no embedding/kernel. It holds {summarize(sorted(shapes)) or 'no arrays'}."
    )


def _inverted(keys, prefix, path):
    canonical = {}
    for name, key in keys.items():
        if key in canonical:
            raise ValueError(
                f"{path} holds {prefix}{name} and {canonical[key]}, which are two names of one "
                "array."
            )
        canonical[key] = prefix + name
    return canonical
