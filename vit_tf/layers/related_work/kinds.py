"""The layer of each value of `ResNetConfig.spatial`, with its published sizes."""

from vit_tf.config import spatial
from vit_tf.layers.related_work.augmented_convolution import AugmentedConvolution
from vit_tf.layers.related_work.full_attention import FullAttention
from vit_tf.layers.related_work.local_attention import LocalAttention1D, LocalAttention2D
from vit_tf.layers.related_work.sparse_attention import SparseAttention
from vit_tf.layers.related_work.spatial_layer import known_sides
from vit_tf.layers.related_work.stand_alone_attention import StandAloneAttention


def spatial_layer(kind, filters, sides, standardization, **kwargs):
    """A layer that takes the place of a 3 x 3 convolution from `filters` to `filters` channels.

    Args:
        kind: value of `ResNetConfig.spatial` other than "convolution".
        filters: channels.
        sides: (height, width) of the map.
        standardization: arguments of the `StandardizedConv` in "augmented".
        **kwargs: further arguments of the layer.
    """
    heads = spatial.HEADS
    if kind == "local_1d":
        return LocalAttention1D(heads, spatial.BLOCK_1D, **kwargs)
    if kind == "local_2d":
        return LocalAttention2D(heads, spatial.BLOCK_2D, spatial.REACH_2D, **kwargs)
    if kind == "stand_alone":
        return StandAloneAttention(heads, spatial.KERNEL_SIZE, **kwargs)
    if kind == "sparse":
        return SparseAttention(heads, spatial.sparse_block(known_sides(sides, kind)), **kwargs)
    if kind == "full":
        return FullAttention(heads, **kwargs)
    if kind == "augmented":
        fractions = spatial.KEY_FRACTION, spatial.VALUE_FRACTION
        return AugmentedConvolution(filters, heads, *fractions, **standardization, **kwargs)
    raise ValueError(f"spatial must be one of {', '.join(spatial.SPATIAL)}. Received: {kind!r}.")
