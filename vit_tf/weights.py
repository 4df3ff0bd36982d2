"""Loads and saves checkpoints: published `.npz` files, and safetensors of other projects.

Everything in a file is checked before the first variable changes, and a file is written whole or
not at all.
"""

import json
import os

import numpy as np

from vit_tf.checkpoints.atomic_file import write_atomically
from vit_tf.checkpoints.loading import LoadReport, load_arrays
from vit_tf.checkpoints.published_config import config_of_shapes
from vit_tf.checkpoints.published_file import PublishedFile, as_released
from vit_tf.checkpoints.published_layout import published_table
from vit_tf.config import ModelConfig
from vit_tf.families import config_from_dict
from vit_tf.preprocessing import Preprocessing


def load_npz(model, path, head="auto", source_grid=None) -> LoadReport:
    """Loads a published checkpoint into a model, resizing positions where the grids differ.

    Args:
        model: a `VisionTransformer` or `ResNet`.
        path: `.npz` file; read without pickle.
        head: what happens to `pre_logits` and `head`. "keep": loaded, a mismatch is an error.
            "auto": loaded if they fit, reset if not. "reset": both reset (the head to zeros, as for
            fine-tuning; the paper's choice). "reset_last": `pre_logits` loaded, `head` reset.
        source_grid: `(rows, columns)` of the file's position table. None reads it from the sidecar
            `<path>.json`, else takes the table as square.

    Returns:
        A `LoadReport`.

    Raises:
        ValueError: if the file is damaged, foreign or does not fit. The model is then unchanged.
        FileNotFoundError: if there is no such file.
    """
    sidecar = read_sidecar(path)
    grid = sidecar.get("grid") if source_grid is None else source_grid
    try:
        config = config_from_dict(sidecar["config"]) if sidecar.get("config") else None
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}.json: {error} Delete or restore it.") from None
    with PublishedFile(path) as file:
        return load_arrays(
            model, file, path, head, None if grid is None else check_grid(grid, path), config
        )


def save_npz(model, path, preprocessing=None) -> None:
    """Writes a model in the published layout, with a sidecar `<path>.json`.

    The file loads in the reference JAX code. The sidecar holds what the layout has no place for:
    the patch grid, the configuration, and the preprocessing with the class names. Both are written
    beside their place and renamed, so a reader never sees half a file.

    Args:
        model: a `VisionTransformer` or `ResNet`.
        path: file name; its directory must exist.
        preprocessing: optional `vit_tf.Preprocessing`.
    """
    arrays = {key: as_released(key, value) for key, value in published_arrays(model)}
    sidecar = {
        **({"grid": list(model.grid)} if hasattr(model, "grid") else {}),
        "config": model.config.to_dict(),
        "preprocessing": None if preprocessing is None else preprocessing.to_dict(),
    }
    path = os.fspath(path)
    write_atomically(path, lambda file: np.savez(file, **arrays))
    text = json.dumps(sidecar, indent=1) + "\n"
    write_atomically(path + ".json", lambda file: file.write(text.encode()))


def read_sidecar(path) -> dict:
    """The sidecar of a checkpoint, `{}` if it has none.

    Raises:
        ValueError: if the sidecar is not a JSON object.
    """
    sidecar_path = os.fspath(path) + ".json"
    try:
        with open(sidecar_path, encoding="utf-8") as file:
            sidecar = json.load(file)
    except FileNotFoundError:
        return {}
    except (ValueError, OSError, RecursionError) as error:
        raise ValueError(f"{sidecar_path} is not JSON: {error}. Delete or restore it.") from None
    if not isinstance(sidecar, dict):
        raise ValueError(f"{sidecar_path} must hold a JSON object. Delete or restore it.")
    return sidecar


def infer_config(path) -> ModelConfig:
    """The configuration of the model in a published file, read off its array shapes.

    Raises:
        ValueError: if the file is damaged or holds no model of ours.
        FileNotFoundError: if there is no such file.
    """
    with PublishedFile(path) as file:
        grid = read_sidecar(path).get("grid")
        return config_of_shapes(file.shapes, path, None if grid is None else check_grid(grid, path))


def load_safetensors(model, path, head="auto") -> LoadReport:
    """Loads a Hugging Face or timm checkpoint, as `load_npz` does a published one.

    Args:
        model: a `VisionTransformer` or `ResNet` with the configuration that
            `open_foreign(path)` finds; image size, head and dropout may be others.
        path: a `.safetensors` file, or a directory with `model.safetensors`; beside it
            `config.json` and `preprocessor_config.json`, if there are any.
        head: as for `load_npz`.

    Raises:
        ValueError: if the file is damaged, has no counterpart here or does not fit; the message
            gives the reason. The model is then unchanged.
        FileNotFoundError: if there is no such file.
    """
    from vit_tf.checkpoints.safetensors import checkpoint

    with checkpoint.open_foreign(path) as file:
        config = file.config
        return load_arrays(model, file, path, head, getattr(config, "grid", None), config)


def save_safetensors(model, path, layout, preprocessing=None) -> list[str]:
    """Writes a model as Hugging Face `transformers` or timm keeps theirs.

    Args:
        model: a `VisionTransformer` or `ResNet`.
        path: directory; gets `model.safetensors`, `config.json` and what else the layout has.
        layout: "huggingface" or "timm".
        preprocessing: its `vit_tf.Preprocessing`, with the class names; None means the reference's.

    Returns:
        What the layout cannot keep, one sentence each.

    Raises:
        ValueError: if the layout has no place for such a model; the message says for what.
    """
    from vit_tf.checkpoints.safetensors import checkpoint

    arrays = ModelArrays(model)
    preprocessing = preprocessing or Preprocessing(image_size=model.config.image_size)
    return checkpoint.write_foreign(
        path, layout, model.config, preprocessing, arrays.read, arrays.shapes
    )


class ModelArrays:
    """The weights of a model by published key, one at a time; like an open file to `load_arrays`.

    Attributes:
        shapes: published key -> shape.
    """

    def __init__(self, model):
        self._entries = {}
        for entry in published_table(model):
            self._entries |= dict.fromkeys(entry.shapes, entry)
        self.shapes = {key: tuple(entry.shapes[key]) for key, entry in self._entries.items()}

    def check(self, key):
        """Does nothing: what is in memory is whole."""

    def read(self, key) -> np.ndarray:
        """The array of a published key, float32."""
        entry = self._entries[key]
        values = entry.unpack(np.asarray(entry.variable.value, np.float32))
        return values[list(entry.shapes).index(key)]


def published_arrays(model):
    """Yields `(published key, float32 array)` for all weights of a model."""
    for entry in published_table(model):
        value = np.asarray(entry.variable.value, np.float32)
        yield from zip(entry.shapes, entry.unpack(value), strict=True)


def check_grid(value, path):
    """Returns a grid from a caller or a sidecar as a tuple; raises `ValueError` if it is none."""
    is_pair = isinstance(value, list | tuple) and len(value) == 2
    if not is_pair or not all(type(side) is int and side > 0 for side in value):
        raise ValueError(f"{path}: a grid is (rows, columns), in patches. Received: {value!r}.")
    return tuple(value)
