"""Compares a model with the size of its file and with the memory, before the model is built.

A few bytes of configuration can describe a model that needs more memory than the machine has.
"""

import contextlib
import math
import os

from vit_tf import cost
from vit_tf.files import storage

# Largest ratio of the content's size to the file's size. Neither Keras nor `save_npz` compresses,
# and trained weights cannot be compressed much.
MAX_COMPRESSION = 10
# The largest input of a model in a file: an image of 800 MB (float32), or the 512 x 512 patches of
# 8 x 8 pixels in an image of 4096 x 4096.
_MAX_PIXELS, _MAX_PATCHES = 8192**2, 512**2
# Of control groups, version 2.
_CONTAINER_LIMIT = "/sys/fs/cgroup/memory.max"


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
