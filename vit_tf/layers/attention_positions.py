"""Positions inside attention: logits of offsets, and rotations of queries and keys.

Shapes: `B` images, `T` tokens, `P` patches, `H` heads, `D` width, `d = D / H`.
"""

import functools
import math

import keras
import numpy as np
import tensorflow as tf

from vit_tf.layers.embeddings import in_dtype


@keras.saving.register_keras_serializable(package="vit_tf")
class RelativeLogits(keras.layers.Layer):
    """Scaled products of queries and learned vectors of offsets (docs/paper.md D.1).

    The logit of query i and key j is `q_i . r_(i - j) / sqrt(d)`. The table of the vectors r is
    `[2 T - 1, d]`: row n belongs to the offset `i - j = T - 1 - n`, so that the keys of a query
    read ascending rows. The heads share it. The initial values are normal with standard deviation
    0.02.

    Args:
        heads: number of heads `H`; must divide the width.

    Call arguments:
        queries: `[B, T, D]`, the heads side by side; `T` is the number of tokens that the layer was
            built for.

    Returns:
        `[B, H, T, T]` in the layer's compute dtype, to be added to the logits of the content.
    """

    def __init__(self, heads, **kwargs):
        super().__init__(**kwargs)
        self.heads = heads

    def build(self, input_shape):
        _, self.tokens, width = input_shape
        self.table = self.add_weight(
            name="table",
            shape=(2 * self.tokens - 1, width // self.heads),
            initializer=keras.initializers.RandomNormal(stddev=0.02),
        )

    def compute_output_shape(self, input_shape):
        return (input_shape[0], self.heads, self.tokens, self.tokens)

    def call(self, queries):
        if queries.shape[1] not in (None, self.tokens):
            raise ValueError(
                f"The relative positions are for {self.tokens} tokens. Received: "
                f"{queries.shape[1]} tokens. Create the model with the image_size of these patches."
            )
        tokens, size = self.tokens, self.table.shape[1]
        # The table has few rows: scaling it costs less than scaling the logits. One more row makes
        # the rows of the products 2 T long. Read as rows of 2 T - 1, row i begins i places earlier,
        # so that a key is in the same column of every row.
        table = in_dtype(self.table, queries.dtype) / math.sqrt(size)
        table = tf.pad(table, [[0, 1], [0, 0]])
        by_head = tf.reshape(queries, [-1, tokens, self.heads, size])
        by_head = tf.transpose(by_head, [0, 2, 1, 3])
        products = tf.matmul(tf.reshape(by_head, [-1, size]), table, transpose_b=True)
        products = tf.reshape(products, [-1, self.heads, tokens * 2 * tokens])
        rows = products[:, :, : tokens * (2 * tokens - 1)]
        rows = tf.reshape(rows, [-1, self.heads, tokens, 2 * tokens - 1])
        return rows[..., tokens - 1 :]

    def get_config(self):
        return super().get_config() | {"heads": self.heads}


@functools.lru_cache(maxsize=16)
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
        float32 `[P, 2, d / 2]`: cosines, then sines; the angles of the row are the first half. All
        blocks of a model share the array.
    """
    periods = base ** (np.arange(size // 4) / (size // 4))
    centers = [(np.arange(sides) + 0.5) / sides * 2 - 1 for sides in grid]
    at = np.stack(np.meshgrid(*centers, indexing="ij"), axis=-1).reshape(-1, 2, 1)
    angles = (2 * math.pi * at / periods).reshape(-1, size // 2)
    table = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    table.flags.writeable = False
    return table


def rotate(x, table):
    """Rotates the channels i and `i + d / 2` of the patches by the angle i of the table.

    Args:
        x: `[B, T, ..., d]`; the last `P` of the tokens are patches, the others stay as they are.
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
