"""Multi-head self-attention with one projection to q | k | v (paper, appendix A)."""

import math

import keras

import custom_ops
from custom_ops import dispatch, reference
from vit_tf.layers.dropout import Dropout
from vit_tf.layers.lora.dense import Dense
from vit_tf.layers.relative_logits import RelativeLogits


def projections(width, dtype):
    """Returns the dense layers "qkv", q | k | v of tokens `[..., D]`, and "out"."""
    # Xavier uniform for each [D, D] kernel; for the joint [D, 3 D] it would be too narrow.
    limit = math.sqrt(3 / width)
    initializer = keras.initializers.RandomUniform(-limit, limit)
    qkv = Dense(3 * width, kernel_initializer=initializer, name="qkv", dtype=dtype)
    out = Dense(width, kernel_initializer="glorot_uniform", name="out", dtype=dtype)
    return qkv, out


@keras.saving.register_keras_serializable(package="vit_tf")
class MultiHeadAttention(keras.layers.Layer):
    """Self-attention with one q | k | v projection and an output projection.

    Calls `custom_ops.attention_with_taps` or, with an `axis`, `custom_ops.axial_attention`,
    compiled if possible. With `dropout` above 0, training uses the reference and stores the
    weights, `[B, heads, N, N]` or `[B, lines, heads, n, n]`; inference does not.

    Args:
        heads: number of heads; must divide the width `D`.
        dropout: drop rate of the attention weights.
        stream: int that separates the random numbers of this dropout from other layers.
        implementation: see `custom_ops.attention`.
        axis: None: every token attends to all tokens. 2 or 1: the tokens are a grid, and each
            attends to its row (2) or its column (1).
        relative_positions: whether logits of relative positions are added, see `RelativeLogits`.
            They take `[B, heads, N, N]`, and fix the number of tokens.

    Call arguments:
        tokens: `[B, N, D]`; with an axis `[B, R, C, D]`.
        training: bool.
        taps: names of the statistics to return: "class_row", "distance", "entropy"; see
            `custom_ops.attention_with_taps`. Only without an axis.
        grid: `(rows, columns)` of the patches, needed by "distance".

    Returns:
        `(output of the shape of the tokens, dict of taps)`; the dict is empty without taps.
    """

    def __init__(
        self,
        heads,
        dropout=0.0,
        stream=0,
        implementation="auto",
        axis=None,
        relative_positions=False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if axis not in (None, 1, 2):
            raise ValueError(f"axis must be None, 1 or 2. Received: {axis!r}.")
        if axis is not None and relative_positions:
            raise ValueError(f"relative_positions need full attention, but axis={axis}.")
        self.heads = heads
        self.dropout = dropout
        self.stream = stream
        self.axis = axis
        self.implementation = implementation
        self.relative_positions = relative_positions
        self.supports_jit = dispatch.supports_jit(implementation)
        self.weights_dropout = Dropout(dropout, stream=stream, dtype=self.dtype_policy)

    def build(self, input_shape):
        width = input_shape[-1]
        if width % self.heads:
            raise ValueError(f"The width {width} is not a multiple of heads={self.heads}.")
        self.qkv, self.out = projections(width, self.dtype_policy)
        self.qkv.build(input_shape)
        self.out.build(input_shape)
        if self.relative_positions:
            self.relative = RelativeLogits(self.heads, name="relative", dtype=self.dtype_policy)
            self.relative.build(input_shape)

    def project(self, tokens):
        """The inputs of attention: q | k | v `[B, ..., 3 D]` of the tokens, and the bias.

        The bias is `[B, heads, N, N]` with relative positions, else None.
        """
        qkv = self.qkv(tokens)
        return qkv, self.relative(qkv[..., : tokens.shape[-1]]) if self.relative_positions else None

    def call(self, tokens, training=False, taps=(), grid=None):
        qkv, bias = self.project(tokens)
        tap_values = {}
        if taps and self.axis is not None:
            raise ValueError(f"taps={tuple(taps)} need full attention, but axis={self.axis}.")
        if training and self.dropout > 0:
            if taps:
                raise ValueError(
                    f"taps={tuple(taps)} cannot be read in training with attention dropout. "
                    "Call with training=False."
                )
            attended = self._attend_with_dropout(qkv, bias)
        elif self.axis is not None:
            attended = custom_ops.axial_attention(
                qkv, self.heads, self.axis, implementation=self.implementation
            )
        else:
            attended, tap_values = custom_ops.attention_with_taps(
                qkv,
                self.heads,
                tuple(taps),
                bias=bias,
                grid=grid,
                implementation=self.implementation,
            )
        return self.out(attended), tap_values

    def _attend_with_dropout(self, qkv, bias):
        weights = reference.attention_weights(qkv, self.heads, bias, axis=self.axis)
        weights = self.weights_dropout(weights, training=True)
        _, _, value = reference.split_heads(qkv, self.heads, self.axis)
        return reference.apply_weights(weights, value, self.axis)

    def get_config(self):
        return super().get_config() | {
            "heads": self.heads,
            "dropout": self.dropout,
            "stream": self.stream,
            "implementation": "auto",
            "axis": self.axis,
            "relative_positions": self.relative_positions,
        }
