"""Group normalisation (Wu and He, 2018)."""

import keras
import tensorflow as tf

from vit_tf.config import GROUPS


@keras.saving.register_keras_serializable(package="vit_tf")
class GroupNorm(keras.layers.Layer):
    """Normalises groups of channels of each example (Wu and He, 2018), in float32.

    Args:
        epsilon: added to the variance.
        groups: number of groups; must divide `C`.
        scale: initial value of the scale `gamma`.

    Call arguments:
        inputs: `[B, H, W, C]`.

    Returns:
        `[B, H, W, C]` of the same dtype.
    """

    def __init__(self, epsilon, groups=GROUPS, scale=1.0, **kwargs):
        super().__init__(**kwargs)
        self.groups = groups
        self.epsilon = epsilon
        self.scale = scale

    def build(self, input_shape):
        channels = input_shape[-1]
        if channels % self.groups:
            raise ValueError(f"{channels} channels are not a multiple of groups={self.groups}.")
        for name, initial in (("gamma", self.scale), ("beta", 0.0)):
            weight = self.add_weight(
                name=name,
                shape=(channels,),
                initializer=keras.initializers.Constant(initial),
                autocast=False,
            )
            setattr(self, name, weight)

    def call(self, inputs):
        x = tf.cast(inputs, tf.float32)
        x -= self._group_means(x)
        scale = tf.math.rsqrt(self._group_means(tf.square(x)) + self.epsilon)
        gamma, beta = (tf.cast(v.value, tf.float32) for v in (self.gamma, self.beta))
        return tf.cast(x * (scale * gamma) + beta, inputs.dtype)

    def compute_output_shape(self, input_shape):
        return input_shape

    def _group_means(self, x):
        """`[B, 1, 1, C]`: for each channel the mean of its group."""
        channels = x.shape[-1]
        # The mean over pixels comes first: it adds whole vectors of channels.
        means = tf.reshape(
            tf.reduce_mean(x, axis=[1, 2]), [-1, self.groups, channels // self.groups]
        )
        means = tf.reduce_mean(means, axis=-1, keepdims=True)
        return tf.reshape(tf.tile(means, [1, 1, channels // self.groups]), [-1, 1, 1, channels])

    def get_config(self):
        return super().get_config() | {
            "groups": self.groups,
            "epsilon": self.epsilon,
            "scale": self.scale,
        }
