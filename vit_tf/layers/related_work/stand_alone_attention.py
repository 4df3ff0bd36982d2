"""Stand-alone self-attention (SASA; Ramachandran et al., 2019).

`B` images, `H x W` pixels, `C` channels, `h` heads, `d = C / h`, `k` side of a neighborhood.
"""

import keras
import tensorflow as tf

from vit_tf.layers.related_work.spatial_layer import SpatialLayer, check_heads
from vit_tf.layers.related_work.windows import HIDDEN, sizes, split_blocks, split_windows, wide


@keras.saving.register_keras_serializable(package="vit_tf")
class StandAloneAttention(SpatialLayer):
    """Attention of every pixel to the `k x k` pixels around it, with relative positions.

    In every head, `y_ij = sum_ab softmax_ab(q_ij . k_ab + q_ij . r_{a-i, b-j}) v_ab`, summed over
    the pixels `(a, b)` of the neighborhood. `r` is a row embedding of the offset `a - i` and a
    column embedding of `b - j`, each of size `d / 2`, concatenated; every head has its own. As
    published, logits are not divided by `sqrt(d)`, the three projections have no bias and nothing
    projects the result. Pixels outside the image are left out of the softmax; the paper does not
    say what it does with them.

    The neighborhoods are never copied out: rows of `k` queries read windows of `2 k - 1` keys, one
    row offset after another, with a running softmax. Time and memory are linear in the number of
    pixels, also for gradients.

    Args:
        heads: number of heads; `C` must be a multiple of twice this number.
        kernel_size: `k`, odd.

    Call arguments:
        inputs: `[B, H, W, C]`.
        training: bool; changes nothing.

    Returns:
        `[B, H, W, C]`: heads concatenated.
    """

    def __init__(self, heads, kernel_size, **kwargs):
        super().__init__(**kwargs)
        if kernel_size % 2 == 0:
            raise ValueError(f"kernel_size must be odd. Received: {kernel_size}.")
        self.heads = heads
        self.kernel_size = kernel_size

    def build(self, input_shape):
        channels = input_shape[-1]
        check_heads(channels, 2 * self.heads)
        self.qkv = keras.layers.Dense(
            3 * channels,
            use_bias=False,
            kernel_initializer="lecun_normal",
            name="qkv",
            dtype=self.dtype_policy,
        )
        self.qkv.build(input_shape)
        shape = (self.kernel_size, self.heads, channels // self.heads // 2)
        initializer = keras.initializers.RandomNormal(stddev=(channels // self.heads) ** -0.5)
        self.rows = self.add_weight(name="rows", shape=shape, initializer=initializer)
        self.columns = self.add_weight(name="columns", shape=shape, initializer=initializer)

    def call(self, inputs, training=False):
        del training
        _, height, width, channels = sizes(inputs)
        query, key, value = tf.split(self.qkv(inputs), 3, axis=-1)
        k, reach = self.kernel_size, self.kernel_size // 2
        query = self._split_heads(split_blocks(query, 2, k))
        is_pixel = tf.ones([1, height, width, 1], wide(query.dtype))
        key, value, is_pixel = (
            tf.pad(split_windows(x, 2, k, reach, reach), [[0, 0], [reach, reach]] + [[0, 0]] * 3)
            for x in (key, value, is_pixel)
        )
        by_column, by_row = self._relative_logits(query, is_pixel)
        attended = _attend(
            query, self._split_heads(key), self._split_heads(value), by_column, by_row
        )
        attended = tf.transpose(attended, [0, 1, 2, 4, 3, 5])
        batch, _, blocks, *_ = sizes(attended)
        return tf.reshape(attended, [batch, height, blocks * k, channels])[:, :, :width]

    def _split_heads(self, x):
        """`[B, rows, blocks, n, C]` to `[B, rows, blocks, h, n, d]`."""
        *outer, channels = sizes(x)
        x = tf.reshape(x, [*outer, self.heads, channels // self.heads])
        return tf.transpose(x, [0, 1, 2, 4, 3, 5])

    def _relative_logits(self, query, is_pixel):
        """The terms `q . r` of the logits; `HIDDEN` where a key is no neighbor or no pixel.

        Args:
            query: `[B, H, blocks, h, k, d]`.
            is_pixel: `[1, H + k - 1, blocks, 2 k - 1, 1]`, 1 for pixels of the image.

        Returns:
            `[B, H, blocks, h, k, 2 k - 1]` by key of the window, and `[B, H, blocks, h, k, k]` by
            row offset; both float32, or float64 for float64 queries.
        """
        k, dtype = self.kernel_size, is_pixel.dtype
        rows, columns = (tf.cast(table.value, query.dtype) for table in (self.rows, self.columns))
        first, second = tf.split(query, 2, axis=-1)
        by_row = tf.cast(tf.einsum("brnhqe,ohe->brnhqo", first, rows), dtype)
        by_offset = tf.cast(tf.einsum("brnhqe,ohe->brnhqo", second, columns), dtype)
        # Query i of a block has its k neighbors at keys i .. i + k - 1 of the window: rows of
        # 2 k numbers, read as rows of 2 k - 1, move by one key from query to query.
        *outer, _, _ = sizes(by_offset)
        padding = [[0, 0]] * 5 + [[0, k]]
        flat = tf.reshape(tf.pad(by_offset, padding, constant_values=HIDDEN), [*outer, 2 * k * k])
        by_column = tf.reshape(flat[..., :-k], [*outer, k, 2 * k - 1])
        # Row reach of the padded map is the first row of the image, which has all columns.
        in_columns = is_pixel[:, k // 2, None, :, None, None, :, 0]
        height = sizes(query)[1]
        in_rows = tf.stack([is_pixel[0, o : o + height, 0, k // 2, 0] for o in range(k)], axis=-1)
        hidden_rows = (1 - in_rows[None, :, None, None, None, :]) * HIDDEN
        return by_column + (1 - in_columns) * HIDDEN, by_row + hidden_rows

    def get_config(self):
        return super().get_config() | {"heads": self.heads, "kernel_size": self.kernel_size}


@tf.custom_gradient
def _attend(query, key, value, by_column, by_row):
    """Attention of rows of queries to `k` rows of keys, one row after another.

    Args:
        query: `[B, H, blocks, h, n, d]`.
        key, value: `[B, H + k - 1, blocks, h, m, d]`.
        by_column: `[B, H, blocks, h, n, m]`, added to the logits of every row offset.
        by_row: `[B, H, blocks, h, n, k]`, added to the logits of one row offset.

    Returns:
        `[B, H, blocks, h, n, d]` in the dtype of the values, and the gradient, which computes the
        weights again.
    """
    height, offsets, dtype = sizes(query)[1], by_row.shape[-1], by_row.dtype

    def rows_of(x, offset):
        return x[:, offset : offset + height]

    def logits(offset):
        products = tf.matmul(query, rows_of(key, offset), transpose_b=True)
        return tf.cast(products, dtype) + by_column + by_row[..., offset : offset + 1]

    total, out = tf.zeros_like(by_row[..., :1]), tf.zeros_like(query, dtype)
    largest = total + HIDDEN
    # The row of the pixel itself comes first: it has a visible key, so the maximum becomes real.
    middle = offsets // 2
    for offset in (middle, *range(middle), *range(middle + 1, offsets)):
        row = logits(offset)
        new_largest = tf.maximum(largest, tf.reduce_max(row, axis=-1, keepdims=True))
        weights, shrink = tf.exp(row - new_largest), tf.exp(largest - new_largest)
        products = tf.matmul(tf.cast(weights, value.dtype), rows_of(value, offset))
        out = out * shrink + tf.cast(products, dtype)
        total = total * shrink + tf.reduce_sum(weights, axis=-1, keepdims=True)
        largest = new_largest
    out /= total
    log_total = largest + tf.math.log(total)

    def gradient(upstream):
        # All sums subtract negative terms: TensorFlow rewrites long chains of additions as one
        # AddN, which adds in the order in which buffers become free, so that bits would vary.
        minus_upstream = -upstream
        shared = tf.reduce_sum(tf.cast(upstream, dtype) * out, axis=-1, keepdims=True)
        d_query, d_column, d_rows = tf.zeros_like(out), tf.zeros_like(by_column), []
        d_key, d_value = tf.zeros_like(key, dtype), tf.zeros_like(value, dtype)
        for offset in range(offsets):
            weights = tf.exp(logits(offset) - log_total)
            d_weights = tf.matmul(upstream, rows_of(value, offset), transpose_b=True)
            minus = weights * (shared - tf.cast(d_weights, dtype))
            d_column -= minus
            d_rows.append(-tf.reduce_sum(minus, axis=-1, keepdims=True))
            low = tf.cast(minus, query.dtype)
            d_query -= tf.cast(tf.matmul(low, rows_of(key, offset)), dtype)
            around = [[0, 0], [offset, offsets - 1 - offset]] + [[0, 0]] * 4
            for_key = tf.matmul(low, query, transpose_a=True)
            for_value = tf.matmul(tf.cast(weights, value.dtype), minus_upstream, transpose_a=True)
            d_key -= tf.pad(tf.cast(for_key, dtype), around)
            d_value -= tf.pad(tf.cast(for_value, dtype), around)
        d_query, d_key, d_value = (tf.cast(x, query.dtype) for x in (d_query, d_key, d_value))
        return d_query, d_key, d_value, d_column, tf.concat(d_rows, axis=-1)

    return tf.cast(out, value.dtype), gradient
