"""Rotary positions: queries and keys are rotated by angles of row and column (DINOv3).

Shapes: `B` images, `N` tokens, `P` patches, `H` heads, `d` channels of a head.
"""

import math

import numpy as np
import tensorflow as tf


def rotary_table(grid, size, base):
    """The cosines and sines of the angles of each patch (Simeoni et al., 2025, DINOv3).

    The center of a patch has a row and a column from -1 to 1 on any grid. Its angles are `2 pi`
    times the row, then the column, divided by each of `d / 4` periods, which rise geometrically
    from 1 to less than the base.

    Args:
        grid: `(rows, columns)` of the patches.
        size: `d`, a multiple of 4.
        base: the period that would follow the last one.

    Returns:
        float32 `[P, 2, d / 2]`: cosines, then sines; the angles of the row are the first half.
    """
    periods = base ** (np.arange(size // 4) / (size // 4))
    centers = [(np.arange(sides) + 0.5) / sides * 2 - 1 for sides in grid]
    at = np.stack(np.meshgrid(*centers, indexing="ij"), axis=-1).reshape(-1, 2, 1)
    angles = (2 * math.pi * at / periods).reshape(-1, size // 2)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def rotate(x, table):
    """Rotates the channels i and `i + d / 2` of the patches by the angle i of the table.

    Args:
        x: `[B, N, ..., d]`; the last `P` of the tokens are patches, the others stay as they are.
        table: from `rotary_table`.

    Returns:
        A tensor of the same shape and dtype.
    """
    cosines, sines = (tf.constant(table[:, part], x.dtype) for part in (0, 1))
    before = [[tf.shape(x)[1] - len(table), 0], [0, 0]]
    cosines = tf.pad(tf.concat([cosines, cosines], axis=-1), before, constant_values=1)
    sines = tf.pad(tf.concat([-sines, sines], axis=-1), before)
    shape = [-1, *[1] * (len(x.shape) - 3), x.shape[-1]]
    first, second = tf.split(x, 2, axis=-1)
    other = tf.concat([second, first], axis=-1)
    return x * tf.reshape(cosines, shape) + other * tf.reshape(sines, shape)
