"""Squeeze-and-excitation (Hu et al., 2018)."""

import keras
import tensorflow as tf

from vit_tf.layers.related_work.windows import wide


@keras.saving.register_keras_serializable(package="vit_tf")
class SqueezeExcite(keras.layers.Layer):
    """Multiplies every channel by a number in (0, 1) that depends on the means of all channels.

    Means over the pixels, a dense layer to `C / reduction` with ReLU, a dense layer to `C` with a
    sigmoid; both layers have a bias.

    Args:
        reduction: published: 16; must divide `C`.

    Call arguments:
        inputs: `[B, H, W, C]`.
        training: bool; changes nothing.

    Returns:
        `[B, H, W, C]`.
    """

    def __init__(self, reduction, **kwargs):
        super().__init__(**kwargs)
        self.reduction = reduction

    def build(self, input_shape):
        channels = input_shape[-1]
        if channels % self.reduction:
            raise ValueError(
                f"{channels} channels are not a multiple of reduction={self.reduction}."
            )
        inside = channels // self.reduction
        policy = {"dtype": self.dtype_policy}
        self.squeeze = keras.layers.Dense(inside, activation="relu", name="squeeze", **policy)
        self.excite = keras.layers.Dense(channels, activation="sigmoid", name="excite", **policy)
        self.squeeze.build((None, channels))
        self.excite.build((None, inside))

    def compute_output_shape(self, input_shape):
        return input_shape

    def call(self, inputs, training=False):
        del training
        means = tf.reduce_mean(tf.cast(inputs, wide(inputs.dtype)), axis=[1, 2])
        scale = self.excite(self.squeeze(tf.cast(means, inputs.dtype)))
        return inputs * scale[:, None, None]

    def get_config(self):
        return super().get_config() | {"reduction": self.reduction}
