"""Blocks of a line of pixels, the windows that they read, and tables by relative place."""

import tensorflow as tf

# Added to a logit to hide its key: finite, so that no -inf - -inf becomes NaN, and so low that the
# weight is exactly 0 beside any visible key.
HIDDEN = -1e30


def wide(dtype):
    """The dtype of a softmax over logits of `dtype`: float32, or float64 for float64."""
    return tf.float64 if dtype == tf.float64 else tf.float32


def sizes(tensor) -> list:
    """The shape as a list: ints where they are known, scalar tensors elsewhere."""
    known = tensor.shape.as_list()
    if None not in known:
        return known
    dynamic = tf.shape(tensor)
    return [dynamic[axis] if side is None else side for axis, side in enumerate(known)]


def split_blocks(x, axis, block, before=0, after=0):
    """Splits an axis into blocks; zeros fill the last one.

    Args:
        x: tensor with `n` entries along the axis.
        axis: the axis, an int of at least 0.
        block: entries of a block.
        before, after: zeros to add before the first entry, and after the last block.

    Returns:
        `x` with the axis replaced by two, `[ceil(n / block) + ..., block]`.
    """
    shape = sizes(x)
    rest = -shape[axis] % block
    padding = [[0, 0]] * len(shape)
    padding[axis] = [before, rest + after]
    x = tf.pad(x, padding)
    count = (before + shape[axis] + rest + after) // block
    return tf.reshape(x, [*shape[:axis], count, block, *shape[axis + 1 :]])


def split_windows(x, axis, block, before, after):
    """Splits an axis into windows: each block, and its surroundings. Zeros fill the borders.

    Args:
        x: tensor with `n` entries along the axis.
        axis: the axis, an int of at least 0.
        block: entries of a block.
        before, after: entries of a window before and after its block; together at most `block`.

    Returns:
        `x` with the axis replaced by two, `[ceil(n / block), before + block + after]`.
    """
    # A window is a block of the shifted line and the first entries of the next block.
    blocks = split_blocks(x, axis, block, before, block - before)
    count = sizes(blocks)[axis]
    first = _part(blocks, axis, 0, count - 1)
    second = _part(_part(blocks, axis, 1, count - 1), axis + 1, 0, before + after)
    return tf.concat([first, second], axis=axis + 1)


def by_place(relative):
    """Turns offsets into places without a gather (Huang et al., 2018; Bello et al., 2019).

    Args:
        relative: `[..., n, 2 n - 1]`; entry `[..., i, n - 1 + o]` belongs to query `i` and the key
            at place `i + o`.

    Returns:
        `[..., n, n]`: entry `[..., i, a]` belongs to query `i` and key `a`.
    """
    *outer, count, _ = sizes(relative)
    # Rows of 2 n numbers, read as rows of 2 n - 1, move by one place from query to query.
    padding = [[0, 0]] * (len(outer) + 1)
    flat = tf.reshape(tf.pad(relative, [*padding, [0, 1]]), [*outer, 2 * count * count])
    flat = tf.pad(flat, [*padding[:-1], [0, count - 1]])
    return tf.reshape(flat, [*outer, count + 1, 2 * count - 1])[..., :count, count - 1 :]


def _part(x, axis, start, length):
    return x[(slice(None),) * axis + (slice(start, start + length),)]
