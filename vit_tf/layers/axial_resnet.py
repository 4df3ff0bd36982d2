"""Position-sensitive axial attention and the residual unit of AxialResNet (docs/paper.md E.2).

`B` images, `H x W` pixels, `n` pixels along the axis of attention and `L` lines of them, `C`
channels, `h` heads of `d = C / h` values.
"""

import math

import keras
import numpy as np
import tensorflow as tf

from vit_tf.layers.normalization import BatchNorm, GroupNorm

# Standard deviation sqrt(2 / (outputs of the kernel)), for layers before a ReLU (He et al., 2015).
_HE = {"scale": 2.0, "mode": "fan_out", "distribution": "untruncated_normal"}


def convolution(filters, kernel_size, strides, **kwargs):
    """A convolution without bias and without padding."""
    initializer = keras.initializers.VarianceScaling(**_HE)
    return keras.layers.Conv2D(
        filters, kernel_size, strides, use_bias=False, kernel_initializer=initializer, **kwargs
    )


def resize_relative_table(table, length):
    """Resizes a table of relative positions by linear interpolation, first and last aligned.

    Args:
        table: `[rows, 2 n - 1]`, for lines of `n` pixels.
        length: columns of the result, an odd number.

    Returns:
        float32 `[rows, length]`.
    """
    before = np.linspace(-1, 1, table.shape[1]) if table.shape[1] > 1 else np.zeros(1)
    after = np.linspace(-1, 1, length) if length > 1 else np.zeros(1)
    return np.stack([np.interp(after, before, row) for row in table]).astype(np.float32)


class _NormalizedLayer(keras.layers.Layer):
    """Base of layers with norms: `norm` is "batch" or "group".

    Args:
        heads: `h`; also the number of groups of a GroupNorm.
        norm: "batch" or "group".
        epsilon: added to the variance in every norm.
        momentum: of the moving averages of a BatchNorm.
    """

    def __init__(self, heads, norm, epsilon, momentum, **kwargs):
        super().__init__(**kwargs)
        self.heads = heads
        self.norm = norm
        self.epsilon = epsilon
        self.momentum = momentum

    def make_norm(self, name, **fields):
        """Returns a norm of the chosen kind; see `norm_layer`."""
        fields = {"groups": self.heads} | fields
        kind = (self.norm, self.epsilon, self.momentum)
        return norm_layer(*kind, name=name, dtype=self.dtype_policy, **fields)

    def get_config(self):
        return super().get_config() | {
            "heads": self.heads,
            "norm": self.norm,
            "epsilon": self.epsilon,
            "momentum": self.momentum,
        }


def norm_layer(norm, epsilon, momentum, groups, **kwargs):
    """A `BatchNorm` (norm "batch") or a `GroupNorm` with `groups` (norm "group")."""
    if norm == "batch":
        return BatchNorm(epsilon, momentum=momentum, **kwargs)
    return GroupNorm(epsilon, groups=groups, **kwargs)


@keras.saving.register_keras_serializable(package="vit_tf")
class PositionSensitiveAttention(_NormalizedLayer):
    """Self-attention along one axis with relative query, key and value terms (docs/paper.md E.2).

    Output o is the sum over p of softmax_p(q_o k_p + q_o r^q_{o-p} + k_p r^k_{p-o})
    (v_p + r^v_{o-p}), without the factor 1 / sqrt(d). Queries and keys have d / 2 values, values d.
    The norms are over q | k | v, over the three terms of the logits, and over the two sums of
    values. A BatchNorm normalizes each channel. A GroupNorm normalizes the channels of each head,
    and each of the `3 h` maps of logits alone.

    The compiled attention does not normalize logits, so this layer computes in TensorFlow and
    stores the `[B, L, h, n, n]` logits and weights.

    Args:
        filters: `C` of the output; `2 h` must divide it.
        heads: `h`.
        axis: 1 attends along the height, 2 along the width.
        strides: the output is averaged over `strides x strides` pixels.
        norm, epsilon, momentum: kind of norm ("batch" or "group") and its constants.

    Call arguments:
        inputs: `[B, H, W, channels]`; the side of `axis` is fixed when the layer is built.
        training: bool.

    Returns:
        `[B, H // strides, W // strides, C]`.
    """

    def __init__(
        self,
        filters,
        heads,
        axis,
        strides=1,
        norm="batch",
        epsilon=1e-5,
        momentum=0.9,
        **kwargs,
    ):
        super().__init__(heads, norm, epsilon, momentum, **kwargs)
        self.filters = filters
        self.axis = axis
        self.strides = strides
        if axis not in (1, 2):
            raise ValueError(f"axis must be 1 (height) or 2 (width). Received: {axis}.")
        if filters % (2 * heads):
            raise ValueError(
                f"filters={filters} is not a multiple of {2 * heads}, twice heads={heads}."
            )

    def build(self, input_shape):
        channels, self.span = input_shape[-1], input_shape[self.axis]
        if self.span is None:
            raise ValueError(
                f"The side of axis {self.axis} must be known, since the relative positions belong "
                f"to it. Received: shape {tuple(input_shape)}."
            )
        values = self.filters // self.heads
        self.qkv = keras.layers.Dense(
            2 * self.filters,
            use_bias=False,
            kernel_initializer=keras.initializers.RandomNormal(stddev=1 / math.sqrt(channels)),
            name="qkv",
            dtype=self.dtype_policy,
        )
        self.norm_qkv = self.make_norm("norm_qkv")
        self.norm_logits = self.make_norm("norm_logits", groups=3 * self.heads, axis=2)
        self.norm_values = self.make_norm("norm_values")
        self.qkv.build((None, None, None, channels))
        for norm in (self.norm_qkv, self.norm_values):
            norm.build((None, None, None, 2 * self.filters))
        self.norm_logits.build((None, None, 3 * self.heads, self.span, self.span))
        self.relative = self.add_weight(
            name="relative",
            shape=(2 * values, 2 * self.span - 1),
            initializer=keras.initializers.RandomNormal(stddev=1 / math.sqrt(values)),
        )

    def call(self, inputs, training=False):
        x = tf.transpose(inputs, [0, 2, 1, 3]) if self.axis == 1 else inputs
        lines, span = x.shape[1] or tf.shape(x)[1], self.span
        values = self.filters // self.heads
        sizes = [values // 2, values // 2, values]
        qkv = self.norm_qkv(self.qkv(x), training=training)
        qkv = tf.reshape(qkv, [-1, lines, span, self.heads, 2 * values])
        q, k, v = tf.split(qkv, sizes, axis=-1)
        # Column o - p + n - 1 of the table belongs to the first axis o and the second axis p.
        columns = np.arange(span)[:, None] - np.arange(span) + span - 1
        table = tf.gather(tf.convert_to_tensor(self.relative), columns.reshape(-1), axis=1)
        table = tf.reshape(table, [2 * values, span, span])
        relative_q, relative_k, relative_v = tf.split(table, sizes, axis=0)
        logits = tf.concat(
            [
                tf.einsum("blohc,blphc->blhop", q, k),
                tf.einsum("blohc,cop->blhop", q, relative_q),
                tf.einsum("blphc,cpo->blhop", k, relative_k),
            ],
            axis=2,
        )
        logits = self.norm_logits(logits, training=training)
        logits = tf.reshape(logits, [-1, lines, 3, self.heads, span, span])
        logits = tf.reduce_sum(tf.cast(logits, tf.float32), axis=2)
        weights = tf.cast(tf.nn.softmax(logits), inputs.dtype)
        # Channel 2 c belongs to the values, channel 2 c + 1 to their positions.
        sums = tf.stack(
            [
                tf.einsum("blhop,blphc->blohc", weights, v),
                tf.einsum("blhop,cop->blohc", weights, relative_v),
            ],
            axis=-1,
        )
        sums = tf.reshape(sums, [-1, lines, span, 2 * self.filters])
        sums = self.norm_values(sums, training=training)
        outputs = tf.reduce_sum(tf.reshape(sums, [-1, lines, span, self.filters, 2]), axis=-1)
        if self.axis == 1:
            outputs = tf.transpose(outputs, [0, 2, 1, 3])
        if self.strides > 1:
            outputs = tf.nn.avg_pool2d(outputs, self.strides, self.strides, "VALID")
        return outputs

    def compute_output_shape(self, input_shape):
        sides = (side and side // self.strides for side in input_shape[1:3])
        return (input_shape[0], *sides, self.filters)

    def get_config(self):
        return super().get_config() | {
            "filters": self.filters,
            "axis": self.axis,
            "strides": self.strides,
        }


@keras.saving.register_keras_serializable(package="vit_tf")
class AxialResidualUnit(_NormalizedLayer):
    """1 x 1 convolution, attention along the height and along the width, 1 x 1 convolution.

    Both convolutions have a norm; ReLU follows the first norm, the attention and the sum with the
    shortcut, which is projected and normalized if the channels or the sides change. The last norm
    starts with scale 0, so that a new unit computes ReLU(shortcut).

    Args:
        filters: `f`, the channels of the attention.
        heads, norm, epsilon, momentum: see `PositionSensitiveAttention`.
        strides: of the attention's output and of the projection; must divide the sides.

    Call arguments:
        inputs: `[B, H, W, channels]` of the sides that the layer is built for.
        training: bool.

    Returns:
        `[B, H / strides, W / strides, 2 f]`.
    """

    def __init__(
        self, filters, heads, strides=1, norm="batch", epsilon=1e-5, momentum=0.9, **kwargs
    ):
        super().__init__(heads, norm, epsilon, momentum, **kwargs)
        self.filters = filters
        self.strides = strides

    def build(self, input_shape):
        if any(side % self.strides for side in input_shape[1:3]):
            raise ValueError(
                f"strides={self.strides} does not divide the sides of {tuple(input_shape)}."
            )
        inside, outside = self.filters, 2 * self.filters
        policy = {"dtype": self.dtype_policy}
        self.conv_down = convolution(inside, 1, 1, name="conv_down", **policy)
        self.norm_down = self.make_norm("norm_down")
        self.height = self._attention("height", axis=1, strides=1)
        self.width = self._attention("width", axis=2, strides=self.strides)
        self.conv_up = convolution(outside, 1, 1, name="conv_up", **policy)
        self.norm_up = self.make_norm("norm_up", scale=0.0)
        self.conv_proj = self.norm_proj = None
        narrow, wide = ((*input_shape[:-1], channels) for channels in (inside, outside))
        self.conv_down.build(input_shape)
        for layer in (self.norm_down, self.height, self.width, self.conv_up):
            layer.build(narrow)
        self.norm_up.build(wide)
        if input_shape[-1] != outside or self.strides != 1:
            self.conv_proj = convolution(outside, 1, self.strides, name="conv_proj", **policy)
            self.norm_proj = self.make_norm("norm_proj")
            self.conv_proj.build(input_shape)
            self.norm_proj.build(wide)

    def _attention(self, name, axis, strides):
        return PositionSensitiveAttention(
            self.filters,
            self.heads,
            axis,
            strides,
            self.norm,
            self.epsilon,
            self.momentum,
            name=name,
            dtype=self.dtype_policy,
        )

    def call(self, inputs, training=False):
        shortcut = inputs
        if self.conv_proj is not None:
            shortcut = self.norm_proj(self.conv_proj(inputs), training=training)
        x = tf.nn.relu(self.norm_down(self.conv_down(inputs), training=training))
        x = self.width(self.height(x, training=training), training=training)
        x = self.norm_up(self.conv_up(tf.nn.relu(x)), training=training)
        return tf.nn.relu(x + shortcut)

    def compute_output_shape(self, input_shape):
        sides = (side and side // self.strides for side in input_shape[1:3])
        return (input_shape[0], *sides, 2 * self.filters)

    def get_config(self):
        return super().get_config() | {"filters": self.filters, "strides": self.strides}
