"""The targets of masked patch prediction: colors or pixels (docs/paper.md G.2).

`N` patches of `P x P` pixels, row by row.
"""

import numpy as np
import tensorflow as tf

# 3 bits for each of red, green and blue.
LEVELS = 8
COLORS = LEVELS**3
# Cells per side of a patch in the target "downsample".
CELLS = 4
# Means this close below the edge of a level count as on it: rounding leaves the mean of pixels of
# an edge value, such as 32, up to about 1e-4 below it.
_EDGE = 2e-4


def patches_of(images, grid, side):
    """Cuts images into patches.

    Args:
        images: float `[b, H, W, C]`.
        grid: (rows, columns) of the patches.
        side: P, side of a patch in pixels; pixels right of and below the last patch are left out.

    Returns:
        float `[b, N, P, P, C]`.
    """
    rows, columns = grid
    channels = images.shape[-1]
    images = images[:, : rows * side, : columns * side]
    cut = tf.reshape(images, [-1, rows, side, columns, side, channels])
    return tf.reshape(
        tf.transpose(cut, [0, 1, 3, 2, 4, 5]), [-1, rows * columns, side, side, channels]
    )


def color_classes(means):
    """Classes of mean colors: 64 r + 8 g + b with 3 bits per color.

    Args:
        means: float `[..., 3]`, values from 0 to 255.

    Returns:
        int32 `[...]` in 0 .. `COLORS` - 1.
    """
    levels = tf.floor((means + _EDGE) * (LEVELS / 256))
    levels = tf.cast(tf.clip_by_value(levels, 0, LEVELS - 1), tf.int32)
    return tf.reduce_sum(levels * [LEVELS**2, LEVELS, 1], axis=-1)


def class_colors():
    """The middle of each class of `color_classes`: float32 `[COLORS, 3]`, values from 0 to 255."""
    levels = np.stack(np.unravel_index(np.arange(COLORS), [LEVELS] * 3), axis=-1)
    return ((levels + 0.5) * (256 / LEVELS)).astype(np.float32)


def cell_means(patches):
    """Mean colors of `CELLS x CELLS` equal cells of each patch, row by row.

    A pixel that several cells share counts in each with the part of it that the cell covers.

    Args:
        patches: float `[b, N, P, P, C]`.

    Returns:
        float `[b, N, CELLS**2, C]`.
    """
    weights = tf.constant(_overlaps(patches.shape[2]), patches.dtype)
    means = tf.einsum("bnyxc,iy,jx->bnijc", patches, weights, weights)
    return tf.reshape(means, [-1, patches.shape[1], CELLS**2, patches.shape[-1]])


def _overlaps(side):
    """The share of each of `side` pixels in each of `CELLS` cells, `[CELLS, side]`; rows sum to 1.

    In steps of 1 / CELLS of a pixel, pixel y covers CELLS steps from CELLS y on, and cell i covers
    `side` steps from side i on.
    """
    steps = np.arange(CELLS * side)
    share = np.zeros([CELLS, side])
    np.add.at(share, (steps // side, steps // CELLS), 1 / side)
    return share
