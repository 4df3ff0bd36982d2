"""The base class of the layers that take the place of a 3 x 3 convolution."""

import keras

from vit_tf.layers.attention import projections


class SpatialLayer(keras.layers.Layer):
    """A layer from `[B, H, W, C]` to a map of the same sides, `[B, H, W, C]` unless it says else.

    A residual unit has one in place of its 3 x 3 convolution.
    """

    def compute_output_shape(self, input_shape):
        return input_shape

    def standardized_convs(self):
        """The `StandardizedConv` layers inside; see `StandardizedKernels`."""
        return []


class HeadsLayer(SpatialLayer):
    """Base of multi-head attention with one q | k | v projection and an output projection.

    Args:
        heads: number of heads; must divide `C`.
    """

    def __init__(self, heads, **kwargs):
        super().__init__(**kwargs)
        self.heads = heads

    def build(self, input_shape):
        channels = input_shape[-1]
        check_heads(channels, self.heads)
        self.qkv, self.out = projections(channels, self.dtype_policy)
        self.qkv.build(input_shape)
        self.out.build(input_shape)

    def get_config(self):
        return super().get_config() | {"heads": self.heads}


def check_heads(channels, heads):
    """Raises `ValueError` unless `heads` divides `channels`."""
    if channels % heads:
        raise ValueError(f"{channels} channels are not a multiple of heads={heads}.")


def known_sides(sides, name):
    """(height, width) of the maps that a layer of this name is built for.

    Raises:
        ValueError: if they are unknown.
    """
    if None in sides:
        raise ValueError(
            f"The layer {name} is made for maps of one size. Received: {tuple(sides)}. Build it "
            "with known sides."
        )
    return tuple(sides)
