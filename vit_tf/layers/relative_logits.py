"""Relative positions: logits of attention that depend on the offset of query and key.

Shapes: `B` images, `T` tokens, `H` heads, `D` width, `d = D / H`.
"""

import math

import keras
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
