"""Group normalization (Wu and He, 2018)."""

import keras
import tensorflow as tf

from vit_tf.config import GROUPS


@keras.saving.register_keras_serializable(package="vit_tf")
class GroupNorm(keras.layers.Layer):
    """Normalizes groups of channels of each example (Wu and He, 2018), in float32.

    Args:
        epsilon: added to the variance.
        groups: number of groups; must divide `C`.
        scale: initial value of the scale `gamma`.
        axis: the axis of the channels.

    Call arguments:
        inputs: `[B, H, W, C]`, or any other shape in which `axis` is not the first axis.

    Returns:
        A tensor of the same shape and dtype.
    """

    def __init__(self, epsilon, groups=GROUPS, scale=1.0, axis=-1, **kwargs):
        super().__init__(**kwargs)
        self.groups = groups
        self.epsilon = epsilon
        self.scale = scale
        self.axis = axis

    def build(self, input_shape):
        channels = input_shape[self.axis]
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
        after = [1] * (len(x.shape) - 1 - self.axis % len(x.shape))
        gamma, beta = (
            tf.reshape(tf.cast(v.value, tf.float32), [-1, *after]) for v in (self.gamma, self.beta)
        )
        return tf.cast(x * (scale * gamma) + beta, inputs.dtype)

    def compute_output_shape(self, input_shape):
        return input_shape

    def _group_means(self, x):
        """For each channel the mean of its group, in a shape that broadcasts with `x`."""
        axis = self.axis % len(x.shape)
        channels = x.shape[axis]
        # The mean over pixels comes first: it adds whole vectors of channels.
        others = [i for i in range(1, len(x.shape)) if i != axis]
        means = tf.reshape(
            tf.reduce_mean(x, axis=others), [-1, self.groups, channels // self.groups]
        )
        means = tf.reduce_mean(means, axis=-1, keepdims=True)
        shape = [channels if i == axis else 1 for i in range(1, len(x.shape))]
        return tf.reshape(tf.tile(means, [1, 1, channels // self.groups]), [-1, *shape])

    def get_config(self):
        return super().get_config() | {
            "groups": self.groups,
            "epsilon": self.epsilon,
            "scale": self.scale,
            "axis": self.axis,
        }
