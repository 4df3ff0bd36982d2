"""Tables by relative place, read by the places of query and key."""

import tensorflow as tf

from vit_tf.layers.related_work.windows import sizes


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
