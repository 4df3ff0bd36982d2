"""Compares the size of a model that a file describes with the file, before it is built.

A few bytes of configuration can describe a model that takes all memory.
"""

import math
import os

from vit_tf import cost

# How much larger than the file its content may be. Neither Keras nor `save_npz` compresses, and
# trained weights cannot be compressed by much.
MAX_COMPRESSION = 10
# The largest input that a file may ask for: an image of 800 MB, or 8 x 8 patches of 4096 x 4096.
_MAX_PIXELS, _MAX_PATCHES = 8192**2, 512**2


def check_size(config, shapes, path):
    """Refuses a model with more weights than a file holds, or too large an input.

    Args:
        config: the configuration that the file claims.
        shapes: shapes of the arrays that are really there.
        path: the file, for messages.

    Raises:
        ValueError: then.
    """
    numbers = sum(math.prod(shape) for shape in shapes)
    if cost.arrays(config) > len(shapes) or cost.parameters(config) > numbers:
        raise ValueError(
            f"{path} describes a larger model than it holds weights for: {len(shapes)} arrays of "
            f"{numbers:,} numbers. Download or copy it again."
        )
    check_input(config, path)


def check_input(config, path):
    """Refuses a model whose images are too large, which no array shows.

    Raises:
        ValueError: then.
    """
    patches = math.prod(config.grid or (0, 0))
    if math.prod(config.image_size) > _MAX_PIXELS or patches > _MAX_PATCHES:
        raise ValueError(
            f"{path} describes a model that reads images of {config.image_size}. Expected at most "
            f"{_MAX_PIXELS:,} pixels and {_MAX_PATCHES:,} patches."
        )


def check_compression(config, path):
    """Refuses a file that is far too small for the weights of its model, even in float16.

    Raises:
        ValueError: then.
    """
    parameters, size = cost.parameters(config), os.path.getsize(path)
    if 2 * parameters > MAX_COMPRESSION * size:
        raise ValueError(
            f"{path} has {size:,} bytes and claims {parameters:,} weights, which do not fit into "
            "them. Download or copy it again."
        )
