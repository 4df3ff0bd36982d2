"""The Transformer encoder block: attention and MLP, each after a LayerNorm (paper, eq. 2-3)."""

import contextlib

import keras
import tensorflow as tf

import custom_ops
from custom_ops.reference import GELU
from vit_tf.layers.attention import MultiHeadAttention
from vit_tf.layers.dense import Dense
from vit_tf.layers.dropout import Dropout, StochasticDepth
from vit_tf.layers.normalization import ResidualNorm

# Streams of one block: attention weights, attention output, MLP hidden, MLP output, two branches.
STREAMS_PER_BLOCK = 8


def swiglu(x):
    """SiLU of the first half of the channels times the second half (Shazeer, 2020)."""
    gate, value = tf.split(x, 2, axis=-1)
    return tf.nn.silu(gate) * value


def ops_of(implementation):
    """A context in which all ops of a layer run in its `implementation`; "auto" changes nothing."""
    return (
        contextlib.nullcontext()
        if implementation == "auto"
        else custom_ops.implementation(implementation)
    )


_ACTIVATIONS = (*GELU, "swiglu")


@keras.saving.register_keras_serializable(package="vit_tf")
class MlpBlock(keras.layers.Layer):
    """Dense, activation, dropout, Dense, dropout.

    Args:
        mlp_size: width of the input of the second dense layer.
        activation: "gelu_tanh", "gelu_erf", or "swiglu", for which the first dense layer has twice
            the width: gate | value.
        dropout: drop rate after each dense layer.
        stream: int that separates the random numbers of this block from other layers.

    Call arguments:
        tokens: `[B, N, D]`.
        training: bool.

    Returns:
        `[B, N, D]`.
    """

    def __init__(self, mlp_size, activation, dropout=0.0, stream=0, **kwargs):
        super().__init__(**kwargs)
        if activation not in _ACTIVATIONS:
            raise ValueError(
                f"activation must be one of {', '.join(_ACTIVATIONS)}. Received: {activation!r}."
            )
        self.mlp_size = mlp_size
        self.activation = activation
        self.dropout = dropout
        self.stream = stream
        self.hidden_dropout = Dropout(dropout, stream=stream, dtype=self.dtype_policy)
        self.output_dropout = Dropout(dropout, stream=stream + 1, dtype=self.dtype_policy)

    def build(self, input_shape):
        wide = self.mlp_size * (2 if self.activation == "swiglu" else 1)
        # GELU is a part of this layer, SwiGLU is not.
        self.dense_0 = self._dense(wide, "dense_0", GELU.get(self.activation))
        self.dense_1 = self._dense(input_shape[-1], "dense_1")
        self.dense_0.build(input_shape)
        self.dense_1.build((*input_shape[:-1], self.mlp_size))

    def _dense(self, units, name, activation=None):
        return Dense(
            units,
            activation,
            kernel_initializer="glorot_uniform",
            bias_initializer=keras.initializers.RandomNormal(stddev=1e-6),
            name=name,
            dtype=self.dtype_policy,
        )

    def call(self, tokens, training=False):
        hidden = self.dense_0(tokens, training=training)
        if self.activation == "swiglu":
            hidden = swiglu(hidden)
        hidden = self.hidden_dropout(hidden, training=training)
        return self.output_dropout(self.dense_1(hidden), training=training)

    def get_config(self):
        return super().get_config() | {
            "mlp_size": self.mlp_size,
            "activation": self.activation,
            "dropout": self.dropout,
            "stream": self.stream,
        }


@keras.saving.register_keras_serializable(package="vit_tf")
class LayerScale(keras.layers.Layer):
    """Multiplies each channel by a learned factor (CaiT, Touvron et al., 2021, section 2.1).

    Args:
        initial: initial value of the factors.

    Call arguments:
        tokens: `[..., D]`.

    Returns:
        Tokens of the same shape.
    """

    def __init__(self, initial, **kwargs):
        super().__init__(**kwargs)
        self.initial = initial

    def build(self, input_shape):
        initializer = keras.initializers.Constant(self.initial)
        self.scale = self.add_weight(
            name="scale", shape=(input_shape[-1],), initializer=initializer
        )

    def call(self, tokens):
        return tokens * self.scale

    def get_config(self):
        return super().get_config() | {"initial": self.initial}


@keras.saving.register_keras_serializable(package="vit_tf")
class EncoderBlock(keras.layers.Layer):
    """One pre-LN Transformer block.

    Args:
        heads: attention heads.
        mlp_size, activation: see `MlpBlock`.
        epsilon: added to the variance in all LayerNorms.
        dropout: drop rate after the attention's output projection and in the MLP.
        attention_dropout: drop rate of the attention weights.
        stochastic_depth: probability that an example loses a residual branch; the two branches are
            drawn independently.
        stream: first of the `STREAMS_PER_BLOCK` ints for the random numbers of this block.
        implementation: see `custom_ops.attention`.
        axis: see `MultiHeadAttention`.
        relative_positions, qk_norm, key_bias, rotary, qkv_bias: see `MultiHeadAttention`.
        layer_scale: initial value of the factors of both residual branches, see `LayerScale`; 0
            means no factors.

    Call arguments:
        tokens: `[B, N, D]`; with an axis `[B, R, C, D]`.
        training: bool.
        taps, grid: see `MultiHeadAttention`.

    Returns:
        `(tokens of the same shape, dict of taps)`.
    """

    def __init__(  # noqa: PLR0913 - the parameters of a layer are its configuration
        self,
        heads,
        mlp_size,
        activation,
        epsilon,
        dropout=0.0,
        attention_dropout=0.0,
        stochastic_depth=0.0,
        stream=0,
        implementation="auto",
        axis=None,
        relative_positions=False,
        layer_scale=0.0,
        qk_norm=False,
        key_bias=True,
        rotary=None,
        qkv_bias=True,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.heads = heads
        self.mlp_size = mlp_size
        self.activation = activation
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.stochastic_depth = stochastic_depth
        self.epsilon = epsilon
        self.stream = stream
        self.implementation = implementation
        self.axis = axis
        self.relative_positions = relative_positions
        self.layer_scale = layer_scale
        self.qk_norm = qk_norm
        self.key_bias = key_bias
        self.rotary = None if rotary is None else tuple(rotary)
        self.qkv_bias = qkv_bias

        policy = {"dtype": self.dtype_policy}
        self.norm_attention = ResidualNorm(epsilon=epsilon, name="norm_attention", **policy)
        self.attention = MultiHeadAttention(
            heads,
            attention_dropout,
            stream,
            implementation,
            axis,
            relative_positions,
            qk_norm,
            epsilon,
            key_bias,
            rotary,
            qkv_bias,
            name="attention",
            **policy,
        )
        self.attention_output_dropout = Dropout(dropout, stream=stream + 1, **policy)
        self.attention_branch = StochasticDepth(stochastic_depth, stream=stream + 2, **policy)
        self.norm_mlp = ResidualNorm(epsilon=epsilon, name="norm_mlp", **policy)
        self.mlp = MlpBlock(mlp_size, activation, dropout, stream + 3, name="mlp", **policy)
        self.mlp_branch = StochasticDepth(stochastic_depth, stream=stream + 5, **policy)
        self.attention_scale = self.mlp_scale = None
        if layer_scale:
            self.attention_scale = LayerScale(layer_scale, name="attention_scale", **policy)
            self.mlp_scale = LayerScale(layer_scale, name="mlp_scale", **policy)

    def build(self, input_shape):
        for layer in (self.norm_attention, self.attention, self.norm_mlp, self.mlp):
            layer.build(input_shape)
        if self.layer_scale:
            self.attention_scale.build(input_shape)
            self.mlp_scale.build(input_shape)

    def compute_output_spec(self, tokens, training=False, taps=(), grid=None):
        if taps:
            return super().compute_output_spec(tokens, training=training, taps=taps, grid=grid)
        return keras.KerasTensor(tokens.shape, self.compute_dtype), {}

    def call(self, tokens, training=False, taps=(), grid=None):
        with ops_of(self.implementation):
            branch, tap_values = self.attention(
                self.norm_attention(tokens), training=training, taps=taps, grid=grid
            )
            branch = self.attention_output_dropout(branch, training=training)
            if self.layer_scale:
                branch = self.attention_scale(branch)
            branch = self.attention_branch(branch, training=training)
            tokens, normalized = self.norm_mlp(tokens, branch)  # eq. 2
            branch = self.mlp(normalized, training=training)
            if self.layer_scale:
                branch = self.mlp_scale(branch)
            return tokens + self.mlp_branch(branch, training=training), tap_values  # eq. 3

    def get_config(self):
        return super().get_config() | {
            "heads": self.heads,
            "mlp_size": self.mlp_size,
            "activation": self.activation,
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "stochastic_depth": self.stochastic_depth,
            "epsilon": self.epsilon,
            "stream": self.stream,
            "implementation": "auto",
            "axis": self.axis,
            "relative_positions": self.relative_positions,
            "layer_scale": self.layer_scale,
            "qk_norm": self.qk_norm,
            "key_bias": self.key_bias,
            "rotary": self.rotary,
            "qkv_bias": self.qkv_bias,
        }


@keras.saving.register_keras_serializable(package="vit_tf")
class TappedBlock(keras.layers.Wrapper):
    """An encoder block with its taps, for symbolic calls.

    In Keras, every symbolic call of a layer must return the same number of outputs. So a
    block that was called without taps cannot be called with taps.

    Args:
        layer: `EncoderBlock`.
        taps, grid: see `MultiHeadAttention`.

    Call arguments:
        tokens: `[B, N, D]`.
        training: bool.

    Returns:
        `(tokens [B, N, D], dict of taps)`.
    """

    def __init__(self, layer, taps, grid, **kwargs):
        super().__init__(layer, **kwargs)
        self.taps = tuple(taps)
        self.grid = tuple(grid)

    def call(self, tokens, training=False):
        return self.layer(tokens, training=training, taps=self.taps, grid=self.grid)

    def get_config(self):
        return super().get_config() | {"taps": self.taps, "grid": self.grid}
