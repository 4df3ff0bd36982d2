"""Loads and saves checkpoints: published `.npz` files, and safetensors of other projects.

A file is checked completely before the first variable changes, and is written completely or not at
all. These functions find the family of a model and pass it to `vit_tf/checkpoints` as an argument.
"""

import dataclasses
import os
from typing import Any

import numpy as np

from vit_tf.checkpoints import loading
from vit_tf.checkpoints.kinds import kind_of, refusal
from vit_tf.checkpoints.loading import LoadReport, for_range
from vit_tf.checkpoints.published.checkpoint import PublishedCheckpoint, as_released
from vit_tf.checkpoints.rule import ModelWeights, Rule
from vit_tf.checkpoints.safetensors.checkpoint import SafetensorsCheckpoint
from vit_tf.checkpoints.safetensors.writing import write_checkpoint
from vit_tf.checkpoints.sidecar import write_sidecar
from vit_tf.classes import Classes
from vit_tf.config import ModelConfig
from vit_tf.config.variants import VARIANTS
from vit_tf.families import FAMILIES, config_from_dict, family_of, layout_module
from vit_tf.files import storage
from vit_tf.files.atomic_file import write_atomically
from vit_tf.preprocessing import Preprocessing
from vit_tf.pretrained.cache import fetch
from vit_tf.pretrained.class_names import different_names, names_if_imagenet
from vit_tf.pretrained.records import find_record, sizes


def find_weights(weights, config: ModelConfig | None = None) -> str:
    """The path of weights; published weights are downloaded if they are not in the cache.

    A sidecar is written beside a downloaded file, with its configuration, its preprocessing and the
    names of its classes.

    Args:
        weights: a path or URL, or a name of `vit_tf.list_weights`; an existing path comes first.
            With `config` also a collection, if one file of it fits.
        config: configuration of the model that is wanted.

    Raises:
        ValueError: if there is no such file and no such name, or several files fit.
        vit_tf.pretrained.download.DownloadError: if the file cannot be downloaded, is damaged, or
            differs from the one that was verified or first used.
    """
    if storage.exists(weights):
        return os.fspath(weights)
    if storage.is_url(weights):
        raise ValueError(f"There is no file or folder {weights}.")
    return download_weights(find_record(os.fspath(weights), config))


def download_weights(record) -> str:
    """The path of the file of a `WeightsRecord`; see `find_weights`.

    Raises:
        vit_tf.pretrained.download.DownloadError: see `find_weights`.
    """

    def describe(file, path):
        with open_checkpoint(file) as checkpoint:
            config = checkpoint.config
        if sizes(config) != sizes(VARIANTS[record.model]):
            raise ValueError(
                f"{path} does not hold a {record.model}. Check where it is from: "
                f"{record.name} is {record.url}."
            )
        if config.grid is None:  # No array of a ResNet shows the size of its images.
            config = config.replace(image_size=record.image_size)
        named = config.num_classes == record.num_classes
        preprocessing = dataclasses.replace(
            record.preprocessing,
            image_size=config.image_size,
        )
        classes = Classes(labels=names_if_imagenet(config.num_classes) if named else ())
        write_sidecar(path, preprocessing, classes, config, config.grid)

    return fetch(record, describe)


def open_checkpoint(path) -> PublishedCheckpoint | SafetensorsCheckpoint:
    """Opens a checkpoint of any format. Use it in a `with` block.

    Args:
        path: a folder with `model.safetensors`, a `.safetensors` file, or a published file; or the
            URL of one.

    Returns:
        An open checkpoint; `vit_tf.checkpoints` lists its attributes.

    Raises:
        ValueError: if the file is damaged, or does not hold a model that vit_tf supports, or
            `vit_tf.load` reads it: a `.keras` file or the folder of a run.
        FileNotFoundError: if there is no such file.
    """
    kind = kind_of(path)
    if kind in ("run", "keras"):
        named = "the folder of a run" if kind == "run" else "a Keras file"
        raise ValueError(
            f"{path} is {named}. vit_tf.load({os.fspath(path)!r}).model is the model in it, and "
            "vit_tf.save_npz writes that as a file of weights."
        )
    if kind == "safetensors":
        return _open_safetensors(path)
    if kind in ("npz", "file", "folder", "nothing"):  # A published file may have any name.
        return _open_published(path)
    raise refusal(path, kind)


def load_checkpoint(
    model, checkpoint, head="auto", source_grid=None, preprocessing=None
) -> LoadReport:
    """Loads the result of `open_checkpoint` or `model_weights` into a model; see `load_npz`."""
    mapping = family_of(model.config).published
    checkpoint = for_range(checkpoint, preprocessing)
    return loading.load_checkpoint(model, checkpoint, mapping, head, source_grid)


def load_npz(model, path, head="auto", source_grid=None, preprocessing=None) -> LoadReport:
    """Loads a published checkpoint into a model; resizes the positions if the grids differ.

    Args:
        model: the model.
        path: `.npz` file or its URL; read without pickle.
        head: treatment of `pre_logits` and `head`. "keep": both are loaded, and a mismatch is an
            error. "auto": both are loaded if they fit, else both are reset. "reset": both are reset
            (the head to zeros, as in the paper's fine-tuning). "reset_last": `pre_logits` is
            loaded, `head` is reset.
        source_grid: `(rows, columns)` of the file's position table. None reads it from the sidecar
            `<path>.json`. Without a sidecar it is the model's grid if its number of
            patches fits the table, else a square.
        preprocessing: the `Preprocessing` of this model's images; None means pixels in [-1, 1]. If
            the file states another mean or std, the patch embedding is converted.

    Returns:
        A `LoadReport`.

    Raises:
        ValueError: if the file is damaged, has another layout or does not fit the model. The model
            is then unchanged.
        FileNotFoundError: if there is no such file.
    """
    with _open_published(path) as checkpoint:
        return load_checkpoint(model, checkpoint, head, source_grid, preprocessing)


def save_npz(model, path, preprocessing=None, classes=None) -> None:
    """Writes a model in the published layout, with a sidecar `<path>.json`.

    The reference JAX code can load the file. An AxialResNet has the paths of its variables as keys,
    since no weights are published. The sidecar holds settings that the layout cannot store: the
    patch grid, the configuration, the dtype policy, and the preprocessing with the classes.
    A reader never sees an incomplete file: files are written under a temporary name and renamed,
    and objects behind a URL as a whole.

    Args:
        model: the model.
        path: file name, whose directory must exist, or a URL such as `gs://bucket/a.npz`.
        preprocessing: optional `vit_tf.Preprocessing`.
        classes: optional `vit_tf.Classes`, which are stored with a preprocessing only.
    """
    arrays: dict[str, Any] = {
        key: as_released(key, value) for key, value in published_arrays(model)
    }
    write_atomically(path, lambda file: np.savez(file, **arrays))
    policy = model.dtype_policy.name
    write_sidecar(path, preprocessing, classes, model.config, model.config.grid, policy)


def load_safetensors(model, path, head="auto", preprocessing=None) -> LoadReport:
    """Loads a checkpoint of Hugging Face, timm or axial-deeplab into a model; see `load_npz`.

    Args:
        model: a model with the configuration
            `open_checkpoint(path).config`; image size, head and dropout may differ.
        path: a `.safetensors` file, or a directory with `model.safetensors`. `config.json` and
            `preprocessor_config.json` are read from the same directory if they exist. If they do
            not state the image size, the position table has the model's grid if that has as many
            patches as the table, else a square.
        head, preprocessing: as for `load_npz`.

    Raises:
        ValueError: if the file is damaged, holds a model that vit_tf cannot express, or does not
            fit the model; the message states the reason. The model is then unchanged.
        FileNotFoundError: if there is no such file.
    """
    with _open_safetensors(path, model.config.grid) as checkpoint:
        return load_checkpoint(model, checkpoint, head, preprocessing=preprocessing)


def save_safetensors(model, path, layout, preprocessing=None, classes=None) -> list[str]:
    """Writes a model in the layout of Hugging Face `transformers`, timm or axial-deeplab.

    Args:
        model: the model.
        path: directory for `model.safetensors`, `config.json` and the layout's other files.
        layout: "huggingface"; of Hugging Face too "deit" (with a distillation token), "dinov2"
            (with layer scale), "dinov2_with_registers", "dinov3" (rotary positions) and "siglip"
            (attention pooling); "timm" or "axial_deeplab" (AxialResNets).
        preprocessing: the model's `vit_tf.Preprocessing`; None means a direct resize to the model's
            image size.
        classes: its `vit_tf.Classes`; None means no class names, and a softmax.

    Returns:
        Settings that the layout cannot store, one sentence each.

    Raises:
        ValueError: if the layout cannot store the model; the message states the reason.
    """
    config, weights = model.config, model_weights(model)
    preprocessing = preprocessing or Preprocessing(image_size=config.image_size, exif="apply")
    module = layout_module(config, layout)
    return write_checkpoint(path, module, config, preprocessing, classes or Classes(), weights)


def model_weights(model, name="", preprocessing=None) -> ModelWeights:
    """The weights of a model by published key, for `load_checkpoint` into another model.

    Args:
        model: of any family.
        name: where the model is from, for messages.
        preprocessing: its `Preprocessing`; None if it is unknown.
    """
    return ModelWeights(model, published_rules(model), name, preprocessing)


def published_rules(model) -> list[Rule]:
    """The published arrays that hold each variable of a model."""
    return family_of(model.config).published.rules(model)


def published_arrays(model):
    """Yields `(published key, float32 array)` for all weights of a model."""
    weights = model_weights(model)
    for key in weights.shapes:
        yield key, weights.read(key)


def _open_published(path):
    return PublishedCheckpoint(path, [family.published for family in FAMILIES], config_from_dict)


def _open_safetensors(path, own_grid=None):
    layouts = [family.safetensors for family in FAMILIES]
    checkpoint = SafetensorsCheckpoint(path, layouts, own_grid)
    labels = different_names(checkpoint.classes.labels)
    checkpoint.classes = dataclasses.replace(checkpoint.classes, labels=labels)
    return checkpoint
