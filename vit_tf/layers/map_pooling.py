"""Attention pooling: one learned query attends to all tokens (big_vision; Zhai et al., 2022)."""

import keras
import tensorflow as tf

from vit_tf.layers.attention import projections
from vit_tf.layers.encoder import MlpBlock, ops_of


@keras.saving.register_keras_serializable(package="vit_tf")
class MapPooling(keras.layers.Layer):
    """Attention from a learned probe to the tokens, then a residual branch of LayerNorm and MLP.

    Args:
        heads: number of heads; must divide the width `D`.
        mlp_size, activation: see `MlpBlock`.
        epsilon: added to the variance in the LayerNorm.
        implementation: of the MLP, see `custom_ops.bias_gelu`.

    Call arguments:
        tokens: `[B, N, D]`.

    Returns:
        `[B, D]`.
    """

    def __init__(self, heads, mlp_size, activation, epsilon, implementation="auto", **kwargs):
        super().__init__(**kwargs)
        self.heads = heads
        self.mlp_size = mlp_size
        self.activation = activation
        self.epsilon = epsilon
        self.implementation = implementation
        policy = {"dtype": self.dtype_policy}
        self.norm = keras.layers.LayerNormalization(epsilon=epsilon, name="norm", **policy)
        self.mlp = MlpBlock(mlp_size, activation, name="mlp", **policy)

    def build(self, input_shape):
        width = input_shape[-1]
        self.probe = self.add_weight(
            name="probe", shape=(1, width), initializer=keras.initializers.GlorotUniform()
        )
        # The probe uses the first third of q | k | v.
        self.qkv, self.out = projections(width, self.dtype_policy)
        for layer in (self.qkv, self.out, self.norm, self.mlp):
            layer.build((None, None, width))

    def compute_output_shape(self, input_shape):
        return (input_shape[0], input_shape[-1])

    def call(self, tokens):
        width = tokens.shape[-1]
        kernel, bias, probe = (
            tf.cast(variable.value, tokens.dtype)
            for variable in (self.qkv.kernel, self.qkv.bias, self.probe)
        )
        query = probe @ kernel[:, :width] + bias[:width]
        keys, values = tf.split(tokens @ kernel[:, width:] + bias[width:], 2, axis=-1)
        # [heads, D / heads], and [B, N, heads, D / heads] twice.
        query = tf.reshape(query, [self.heads, -1])
        shape = [-1, tf.shape(tokens)[1], self.heads, width // self.heads]
        keys, values = (tf.reshape(part, shape) for part in (keys, values))
        logits = tf.einsum("hd,bnhd->bhn", query * (width // self.heads) ** -0.5, keys)
        weights = tf.cast(tf.nn.softmax(tf.cast(logits, tf.float32)), tokens.dtype)
        pooled = self.out(tf.reshape(tf.einsum("bhn,bnhd->bhd", weights, values), [-1, 1, width]))
        with ops_of(self.implementation):
            return (pooled + self.mlp(self.norm(pooled)))[:, 0]

    def get_config(self):
        return super().get_config() | {
            "heads": self.heads,
            "mlp_size": self.mlp_size,
            "activation": self.activation,
            "epsilon": self.epsilon,
            "implementation": "auto",
        }
