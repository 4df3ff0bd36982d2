"""Creates a model, if its file and the memory can hold it.

A few bytes of configuration can describe a model that needs more memory than the machine has, so a
model is compared with the size of its file and with the memory before it is built.
"""

from __future__ import annotations

import contextlib
import math
import os
import warnings
from typing import TYPE_CHECKING

from vit_tf import cost
from vit_tf.config import ModelConfig
from vit_tf.config.checks import check_dtype
from vit_tf.config.size_notes import one_patch
from vit_tf.config.variants import VARIANTS, get_variant
from vit_tf.families import family_of
from vit_tf.files import storage
from vit_tf.pretrained.records import sizes

if TYPE_CHECKING:
    import keras

# Largest ratio of the content's size to the file's size. Neither Keras nor `save_npz` compresses,
# and trained weights cannot be compressed much.
MAX_COMPRESSION = 10
# The largest input of a model in a file: an image of 800 MB (float32), or the 512 x 512 patches of
# 8 x 8 pixels in an image of 4096 x 4096.
_MAX_PIXELS, _MAX_PATCHES = 8192**2, 512**2
# Of control groups, version 2.
_CONTAINER_LIMIT = "/sys/fs/cgroup/memory.max"


def create_model(name, *, weights=None, dtype=None, **fields) -> keras.Model:
    """Builds a model, with fresh or with trained weights.

    Args:
        name: a name of `list_models`, such as "ViT-B/16" (or "ViT-B_16"), or a `ViTConfig`,
            `ResNetConfig` or `AxialResNetConfig`.
        weights: None for fresh weights; a `.npz` or `.safetensors` file or a folder of
            safetensors, or the URL of one; a name of `list_weights` or of any file of AugReg, which
            is downloaded once (docs/weights.md); or a collection such as "augreg", if one of its
            files fits the model. Fields that are not given, `num_classes` and `image_size` among
            them, are then taken from the file. Positions are resized to a given `image_size`; for
            other `num_classes` the head, and the layer before it that `representation_size`
            describes, get fresh initial values.
        dtype: Keras dtype policy, such as "mixed_bfloat16"; None is the global policy.
        **fields: new values of fields of the configuration; None keeps the value of the variant or
            of the file.

    Returns:
        A built `keras.Model`: a `VisionTransformer`, a `ResNet` for the names "BiT-..." and those
        of docs/paper.md C.4, or an `AxialResNet`.

    Warns:
        UserWarning: if an image is a single patch.

    Raises:
        ValueError: for an unknown name, field or dtype policy, or values that do not fit together;
            if no weights or several have this name, or they do not fit the model; if a file
            describes a far larger model than it can hold, or the memory is too small.
        vit_tf.pretrained.download.DownloadError: if weights cannot be downloaded.

    Example:
        >>> model = create_model("ViT-Ti/16", num_classes=10, image_size=(64, 48))
        >>> model.grid
        (4, 3)
    """
    check_dtype(dtype)
    config = name if isinstance(name, ModelConfig) else get_variant(name)
    given = {key: value for key, value in fields.items() if value is not None}
    if weights is None:
        return _build(config.replace(**given), dtype)

    from vit_tf.weights import find_weights, load_checkpoint, open_checkpoint  # imports TensorFlow

    with open_checkpoint(find_weights(weights, config.replace(**given))) as checkpoint:
        if config is not name:
            _check_sizes(name, config.replace(**given), checkpoint)
            check_file(checkpoint)
            config = checkpoint.config
        model = _build(config.replace(**given), dtype)
        load_checkpoint(model, checkpoint, head="auto")
    return model


def _build(config, dtype):
    check_memory(config)
    if note := one_patch(config):
        warnings.warn(note, stacklevel=3)
    return family_of(config).model(config, dtype=dtype)


def _check_sizes(name, config, checkpoint):
    """Raises if a file holds another model than the requested one."""
    wanted, found = sizes(config), sizes(checkpoint.config)
    for field in wanted | found:
        if wanted.get(field) != found.get(field):
            named = [other for other in VARIANTS if sizes(VARIANTS[other]) == found]
            hint = f" Create a {named[0]}." if named else ""
            raise ValueError(
                f"{checkpoint.path} holds another model than {name}: {field} is "
                f"{found.get(field)} in the file and {wanted.get(field)} in the model.{hint}"
            )


def list_models() -> list[str]:
    """Names that `create_model` accepts."""
    return list(VARIANTS)


def check_file(checkpoint):
    """Refuses a file with too large a model, before the model is built.

    Args:
        checkpoint: the result of `vit_tf.weights.open_checkpoint`.

    Raises:
        ValueError: if the model is refused.
    """
    if checkpoint.layout == "published":  # Safetensors cannot be compressed.
        _check_compression(checkpoint.config, checkpoint.path)
    _check_input(checkpoint.config, checkpoint.path)


def check_memory(config):
    """Refuses a model whose weights, with the activations of one image, exceed the memory.

    Args:
        config: configuration of the model.

    Raises:
        ValueError: if the model is refused.
    """
    weights, activations = (
        cost.weight_bytes(config),
        cost.activation_bytes(config, 1, training=False),
    )
    if weights + activations > (memory := _memory_bytes()):
        raise ValueError(
            f"The model has {cost.parameters(config):,} parameters. It needs {weights / 1e9:,.1f} "
            f"GB for its weights and {activations / 1e9:,.1f} GB for one image, but this machine "
            f"has {memory / 1e9:,.1f} GB of memory. Choose a smaller model or smaller images."
        )


def _memory_bytes():
    """The memory of the machine, or of the container that this process runs in."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError):  # The limit may be "max".
        with open(_CONTAINER_LIMIT, encoding="ascii") as file:
            memory = min(memory, int(file.read()))
    return memory


def check_size(config, shapes, path):
    """Refuses a model with more weights than its file holds, or with too large an input.

    Args:
        config: the configuration in the file.
        shapes: shapes of the arrays in the file.
        path: path of the file, for messages.

    Raises:
        ValueError: if the model is refused.
    """
    numbers = sum(math.prod(shape) for shape in shapes)
    if cost.arrays(config) > len(shapes) or cost.parameters(config) > numbers:
        raise ValueError(
            f"{path} describes a larger model than it holds weights for: {len(shapes)} arrays of "
            f"{numbers:,} numbers. Download or copy it again."
        )
    _check_input(config, path)


def _check_input(config, path):
    """Refuses a model with too large images. The shapes of arrays do not show the image size."""
    patches = math.prod(config.grid or (0, 0))
    if math.prod(config.image_size) > _MAX_PIXELS or patches > _MAX_PATCHES:
        raise ValueError(
            f"{path} describes a model that reads images of {config.image_size}. Expected at most "
            f"{_MAX_PIXELS:,} pixels and {_MAX_PATCHES:,} patches."
        )


def _check_compression(config, path):
    """Refuses a file that is far too small for the weights of its model, even in float16."""
    parameters, size = cost.parameters(config), storage.size_and_time(path)[0]
    if 2 * parameters > MAX_COMPRESSION * size:
        raise ValueError(
            f"{path} has {size:,} bytes and claims {parameters:,} weights, which do not fit into "
            "them. Download or copy it again."
        )
