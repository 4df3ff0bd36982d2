"""Multi-head self-attention with one projection to q | k | v (paper, appendix A)."""

import math

import keras
import tensorflow as tf

import custom_ops
from custom_ops import dispatch, reference
from vit_tf.layers.attention_positions import RelativeLogits, rotary_table, rotate
from vit_tf.layers.dense import Dense
from vit_tf.layers.dropout import Dropout
from vit_tf.layers.embeddings import in_dtype


def projections(width, dtype, bias=True):
    """Returns the dense layers "qkv", q | k | v of tokens `[..., D]`, and "out".

    With `bias=False`, "qkv" has none.
    """
    # Xavier uniform for each [D, D] kernel; for the joint [D, 3 D] it would be too narrow.
    limit = math.sqrt(3 / width)
    initializer = keras.initializers.RandomUniform(-limit, limit)
    qkv = Dense(3 * width, use_bias=bias, kernel_initializer=initializer, name="qkv", dtype=dtype)
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
        qk_norm: whether each head's queries and keys go through a LayerNorm over their channels
            (Dehghani et al., 2023, ViT-22B, section 2).
        epsilon: added to the variance in these LayerNorms.
        key_bias: whether keys have a bias.
        qkv_bias: whether queries and values have one; without, keys have none either.
        rotary: None, or `(rows, columns, base)`: queries and keys of the patches are rotated, see
            `rotary_table`. Only without an axis.

    Call arguments:
        tokens: `[B, N, D]`; with an axis `[B, R, C, D]`.
        training: bool.
        taps: names of the statistics to return: "class_row", "distance", "entropy"; see
            `custom_ops.attention_with_taps`. Only without an axis.
        grid: `(rows, columns)` of the patches, needed by "distance"; None means that of `rotary`.

    Returns:
        `(output of the shape of the tokens, dict of taps)`; the dict is empty without taps.
    """

    def __init__(  # noqa: PLR0913 - the parameters of a layer are its configuration
        self,
        heads,
        dropout=0.0,
        stream=0,
        implementation="auto",
        axis=None,
        relative_positions=False,
        qk_norm=False,
        epsilon=1e-6,
        key_bias=True,
        rotary=None,
        qkv_bias=True,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if axis not in (None, 1, 2):
            raise ValueError(f"axis must be None, 1 or 2. Received: {axis!r}.")
        if axis is not None and relative_positions:
            raise ValueError(f"relative_positions need full attention, but axis={axis}.")
        if axis is not None and rotary:
            raise ValueError(f"rotary={rotary} needs full attention, but axis={axis}.")
        if key_bias and not qkv_bias:
            raise ValueError("qkv_bias=False leaves out the bias of keys too, but key_bias=True.")
        self.heads = heads
        self.dropout = dropout
        self.stream = stream
        self.axis = axis
        self.implementation = implementation
        self.relative_positions = relative_positions
        self.qk_norm = qk_norm
        self.epsilon = epsilon
        self.key_bias = key_bias
        self.qkv_bias = qkv_bias
        self.bias = None
        self.rotary = None if rotary is None else tuple(rotary)
        self.supports_jit = dispatch.supports_jit(implementation)
        self.weights_dropout = Dropout(dropout, stream=stream, dtype=self.dtype_policy)

    def build(self, input_shape):
        width = input_shape[-1]
        if width % self.heads:
            raise ValueError(f"The width {width} is not a multiple of heads={self.heads}.")
        self.qkv, self.out = projections(width, self.dtype_policy, bias=self.key_bias)
        self.qkv.build(input_shape)
        self.out.build(input_shape)
        if self.qkv_bias and not self.key_bias:
            self.bias = self.add_weight(name="bias", shape=(2, width), initializer="zeros")
        if self.qk_norm:
            policy = {"epsilon": self.epsilon, "dtype": self.dtype_policy}
            self.norm_query = keras.layers.LayerNormalization(name="norm_query", **policy)
            self.norm_key = keras.layers.LayerNormalization(name="norm_key", **policy)
            for norm in (self.norm_query, self.norm_key):
                norm.build((None, None, self.heads, width // self.heads))
        if self.relative_positions:
            self.relative = RelativeLogits(self.heads, name="relative", dtype=self.dtype_policy)
            self.relative.build(input_shape)

    def project(self, tokens, grid=None):
        """The inputs of attention: q | k | v `[B, ..., 3 D]` of the tokens, and the bias.

        The bias is `[B, heads, N, N]` with relative positions, else None.
        """
        qkv = self.qkv(tokens)
        if self.bias is not None:
            of_query, of_value = tf.unstack(in_dtype(self.bias, qkv.dtype))
            qkv += tf.concat([of_query, tf.zeros_like(of_query), of_value], axis=0)
        if self.qk_norm or self.rotary:
            qkv = self._prepared(qkv, grid)
        return qkv, self.relative(qkv[..., : tokens.shape[-1]]) if self.relative_positions else None

    def _prepared(self, qkv, grid):
        """The projections q | k | v with normalized and rotated queries and keys."""
        width = qkv.shape[-1] // 3
        both, value = tf.split(qkv, [2 * width, width], axis=-1)
        shape = tf.shape(both)
        by_head = [shape[:-1], [2, self.heads, width // self.heads]]
        both = tf.reshape(both, tf.concat(by_head, axis=0))
        if self.qk_norm:
            query, key = tf.unstack(both, axis=-3)
            both = tf.stack([self.norm_query(query), self.norm_key(key)], axis=-3)
        if self.rotary:
            *own, base = self.rotary
            table = rotary_table(tuple(grid or own), width // self.heads, base)
            both = rotate(both, table)
        return tf.concat([tf.reshape(both, shape), value], axis=-1)

    def call(self, tokens, training=False, taps=(), grid=None):
        qkv, bias = self.project(tokens, grid)
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
            "qk_norm": self.qk_norm,
            "epsilon": self.epsilon,
            "key_bias": self.key_bias,
            "rotary": self.rotary,
            "qkv_bias": self.qkv_bias,
        }
