"""Loads and saves checkpoints: published `.npz` files, and safetensors of other projects.

Everything in a file is checked before the first variable changes, and a file is written whole or
not at all. Here the family of a model is looked up; `vit_tf/checkpoints` gets it as an argument.
"""

import os
from typing import Any

import numpy as np

from vit_tf.checkpoints import loading
from vit_tf.checkpoints.atomic_file import write_atomically
from vit_tf.checkpoints.loading import LoadReport
from vit_tf.checkpoints.published.checkpoint import PublishedCheckpoint, as_released
from vit_tf.checkpoints.published.entries import Entry, ModelWeights
from vit_tf.checkpoints.safetensors.checkpoint import SafetensorsCheckpoint
from vit_tf.checkpoints.safetensors.writing import write_checkpoint
from vit_tf.checkpoints.sidecar import write_sidecar
from vit_tf.families import FAMILIES, config_from_dict, family_of, layout_module
from vit_tf.preprocessing import Preprocessing


def open_checkpoint(path) -> PublishedCheckpoint | SafetensorsCheckpoint:
    """Opens a checkpoint of any format, to be used in a `with` block.

    Args:
        path: a folder with `model.safetensors`, a `.safetensors` file, or else a published file.

    Returns:
        An open checkpoint; `vit_tf.checkpoints` lists its attributes.

    Raises:
        ValueError: if the file is damaged, or holds no model of ours.
        FileNotFoundError: if there is no such file.
    """
    if os.path.isdir(path) or os.fspath(path).endswith(".safetensors"):
        return _open_safetensors(path)
    return _open_published(path)


def load_checkpoint(model, checkpoint, head="auto", source_grid=None) -> LoadReport:
    """Loads what `open_checkpoint` or `model_weights` returned; see `load_npz`."""
    mapping = family_of(model.config).published
    return loading.load_checkpoint(model, checkpoint, mapping, head, source_grid)


def load_npz(model, path, head="auto", source_grid=None) -> LoadReport:
    """Loads a published checkpoint into a model, resizing positions where the grids differ.

    Args:
        model: a `VisionTransformer` or `ResNet`.
        path: `.npz` file; read without pickle.
        head: what happens to `pre_logits` and `head`. "keep": loaded, a mismatch is an error.
            "auto": loaded if they fit, reset if not. "reset": both reset (the head to zeros, as for
            fine-tuning; the paper's choice). "reset_last": `pre_logits` loaded, `head` reset.
        source_grid: `(rows, columns)` of the file's position table. None reads it from the sidecar
            `<path>.json`; without one it is the model's own grid if that has as many cells, else a
            square.

    Returns:
        A `LoadReport`.

    Raises:
        ValueError: if the file is damaged, of another layout or does not fit. The model is then
            unchanged.
        FileNotFoundError: if there is no such file.
    """
    with _open_published(path) as checkpoint:
        return load_checkpoint(model, checkpoint, head, source_grid)


def save_npz(model, path, preprocessing=None) -> None:
    """Writes a model in the published layout, with a sidecar `<path>.json`.

    The file loads in the reference JAX code. The sidecar holds what the layout has no place for:
    the patch grid, the configuration, the dtype policy, and the preprocessing with the class names.
    Both are written beside their place and renamed, so a reader never sees half a file.

    Args:
        model: a `VisionTransformer` or `ResNet`.
        path: file name; its directory must exist.
        preprocessing: optional `vit_tf.Preprocessing`.
    """
    arrays: dict[str, Any] = {
        key: as_released(key, value) for key, value in published_arrays(model)
    }
    write_atomically(path, lambda file: np.savez(file, **arrays))
    policy = model.dtype_policy.name
    write_sidecar(path, preprocessing, model.config, model.config.grid, policy)


def load_safetensors(model, path, head="auto") -> LoadReport:
    """Loads a Hugging Face or timm checkpoint, as `load_npz` does a published one.

    Args:
        model: a `VisionTransformer` or `ResNet` with the configuration that
            `open_checkpoint(path)` finds; image size, head and dropout may be others.
        path: a `.safetensors` file, or a directory with `model.safetensors`; beside it
            `config.json` and `preprocessor_config.json`, if there are any. Where they do not state
            the image size, the position table has the model's own grid if that has as many cells,
            else a square.
        head: as for `load_npz`.

    Raises:
        ValueError: if the file is damaged, has no counterpart here or does not fit; the message
            gives the reason. The model is then unchanged.
        FileNotFoundError: if there is no such file.
    """
    with _open_safetensors(path, model.config.grid) as checkpoint:
        return load_checkpoint(model, checkpoint, head)


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
    preprocessing = preprocessing or Preprocessing(image_size=model.config.image_size)
    module = layout_module(model.config, layout)
    return write_checkpoint(path, module, model.config, preprocessing, model_weights(model))


def model_weights(model, name="") -> ModelWeights:
    """The weights of a model by published key, for `load_checkpoint` into another model.

    Args:
        model: a `VisionTransformer` or `ResNet`.
        name: where it is from, for messages.
    """
    return ModelWeights(model, published_entries(model), name)


def published_entries(model) -> list[Entry]:
    """Which published arrays each variable of a model is made of."""
    return family_of(model.config).published.entries(model)


def published_arrays(model):
    """Yields `(published key, float32 array)` for all weights of a model."""
    for entry in published_entries(model):
        yield from entry.arrays().items()


def _open_published(path):
    return PublishedCheckpoint(path, [family.published for family in FAMILIES], config_from_dict)


def _open_safetensors(path, own_grid=None):
    return SafetensorsCheckpoint(path, [family.safetensors for family in FAMILIES], own_grid)
