"""Attention-augmented convolution (AACN; Bello et al., 2019)."""

import keras
import tensorflow as tf

import custom_ops
from custom_ops import dispatch
from vit_tf.config.spatial import attention_sizes
from vit_tf.layers.related_work.spatial_layer import SpatialLayer, known_sides
from vit_tf.layers.related_work.windows import by_place, sizes, wide
from vit_tf.layers.standardized_conv import StandardizedConv


@keras.saving.register_keras_serializable(package="vit_tf")
class AugmentedConvolution(SpatialLayer):
    """A 3 x 3 convolution and full self-attention of the same inputs, concatenated.

    The logit of query `(i, j)` and key `(a, b)` is `q . (k + r_{a-i} + c_{b-j}) / sqrt(d_k)`. The
    embeddings `r` and `c` of row and column offsets are shared by all heads. Attention makes
    `value_fraction` of the filters, rounded to a multiple of the heads, and projects them once
    more; the convolution makes the others. As in the rest of this family, the kernel of the
    convolution is standardized. Time and memory of the attention grow with the square of the number
    of pixels.

    Args:
        filters: output channels.
        heads: number of heads.
        key_fraction, value_fraction: size of all keys and of all values, as fractions of `filters`;
            the keys of a head have at least 20 channels, its values at least 1.
        variance_epsilon, deviation_epsilon: see `StandardizedConv`.

    Call arguments:
        inputs: `[B, H, W, C]`, of the height and width that the layer was built for.
        training: bool; changes nothing.

    Returns:
        `[B, H, W, filters]`: convolution, then attention.
    """

    def __init__(
        self,
        filters,
        heads,
        key_fraction,
        value_fraction,
        variance_epsilon,
        deviation_epsilon,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.filters = filters
        self.heads = heads
        self.supports_jit = dispatch.supports_jit("auto")
        self.key_fraction = key_fraction
        self.value_fraction = value_fraction
        self.variance_epsilon = variance_epsilon
        self.deviation_epsilon = deviation_epsilon

    def build(self, input_shape):
        self.sides = known_sides(input_shape[1:3], self.name)
        self.key_size, self.value_size = attention_sizes(
            self.filters, self.key_fraction, self.value_fraction, self.heads
        )
        values = self.heads * self.value_size
        if values >= self.filters:
            raise ValueError(
                f"heads={self.heads} and value_fraction={self.value_fraction} leave no filters to "
                f"the convolution: attention makes {values} of {self.filters}."
            )
        self.conv = StandardizedConv(
            self.filters - values,
            kernel_size=3,
            strides=1,
            padding=1,
            variance_epsilon=self.variance_epsilon,
            deviation_epsilon=self.deviation_epsilon,
            name="conv",
            dtype=self.dtype_policy,
        )
        channels = 2 * self.heads * self.key_size + values
        self.qkv = keras.layers.Dense(channels, name="qkv", dtype=self.dtype_policy)
        self.out = keras.layers.Dense(values, name="out", dtype=self.dtype_policy)
        self.conv.build(input_shape)
        self.qkv.build(input_shape)
        self.out.build((*input_shape[:-1], values))
        self.rows, self.columns = (
            self.add_weight(
                name=name,
                shape=(2 * side - 1, self.key_size),
                initializer=keras.initializers.RandomNormal(stddev=self.key_size**-0.5),
            )
            for name, side in zip(("rows", "columns"), self.sides, strict=True)
        )

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], self.filters)

    def standardized_convs(self):
        return [self.conv]

    def call(self, inputs, training=False):
        del training
        return tf.concat([self.conv(inputs), self.out(self._attend(inputs))], axis=-1)

    def _attend(self, inputs):
        height, width = self.sides
        batch, heads, size = sizes(inputs)[0], self.heads, self.key_size
        keys = heads * size
        query, key, value = tf.split(self.qkv(inputs), [keys, keys, heads * self.value_size], -1)
        scale = size**-0.5
        bias = self._relative_logits(tf.reshape(query, [batch, height, width, heads, size])) * scale
        # The op takes queries, keys and values of one size: zeros change neither products nor sums.
        widest = max(size, self.value_size)
        parts = []
        for part, own in ((query, size), (key, size), (value, self.value_size)):
            part = tf.reshape(part, [batch, height * width, heads, own])
            part = tf.pad(part, [[0, 0]] * 3 + [[0, widest - own]])
            parts.append(tf.reshape(part, [batch, height * width, heads * widest]))
        attended = custom_ops.attention(tf.concat(parts, axis=-1), heads, bias=bias, scale=scale)
        attended = tf.reshape(attended, [batch, height, width, heads, widest])
        attended = attended[..., : self.value_size]
        return tf.reshape(attended, [batch, height, width, heads * self.value_size])

    def _relative_logits(self, query):
        """`q . (r + c)`: `[B, H, W, h, d_k]` to `[B, h, N, N]`, float32 (float64 for float64)."""
        height, width = self.sides
        dtype = wide(query.dtype)
        rows, columns = (tf.cast(table.value, query.dtype) for table in (self.rows, self.columns))
        by_row = by_place(tf.cast(tf.einsum("bijhd,md->bhjim", query, rows), dtype))
        by_column = by_place(tf.cast(tf.einsum("bijhd,md->bhijm", query, columns), dtype))
        by_row = tf.transpose(by_row, [0, 1, 3, 2, 4])
        logits = by_row[..., :, None] + by_column[..., None, :]
        count = height * width
        return tf.reshape(logits, [-1, self.heads, count, count])

    def get_config(self):
        return super().get_config() | {
            "filters": self.filters,
            "heads": self.heads,
            "key_fraction": self.key_fraction,
            "value_fraction": self.value_fraction,
            "variance_epsilon": self.variance_epsilon,
            "deviation_epsilon": self.deviation_epsilon,
        }
