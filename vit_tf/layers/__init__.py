"""Keras layers of the Vision Transformer."""

from vit_tf.layers.attention import MultiHeadAttention
from vit_tf.layers.attention_positions import RelativeLogits
from vit_tf.layers.axial_resnet import AxialResidualUnit, PositionSensitiveAttention
from vit_tf.layers.dropout import Dropout, RandomContext, StochasticDepth
from vit_tf.layers.embeddings import ClassToken, PatchEmbedding, RegisterTokens
from vit_tf.layers.encoder import EncoderBlock, LayerScale, MlpBlock
from vit_tf.layers.map_pooling import MapPooling
from vit_tf.layers.masking import (
    Corruption,
    PatchMasking,
    corrupted_counts,
    draw_corruption,
    draw_corruption_by_id,
)
from vit_tf.layers.normalization import BatchNorm, BatchStatistics, GroupNorm
from vit_tf.layers.positions import (
    FactorizedPositions,
    NoPositions,
    PositionEmbedding,
    RelativePositions,
    SinCosPositions,
    resize_position_table,
)
from vit_tf.layers.related_work import (
    AugmentedConvolution,
    FullAttention,
    LocalAttention1D,
    LocalAttention2D,
    SparseAttention,
    SqueezeExcite,
    StandAloneAttention,
)
from vit_tf.layers.resnet import BottleneckUnit, PreActivationUnit, ResNetStem
from vit_tf.layers.standardized_conv import StandardizedConv, StandardizedKernels

__all__ = [
    "AugmentedConvolution",
    "AxialResidualUnit",
    "BatchNorm",
    "BatchStatistics",
    "BottleneckUnit",
    "ClassToken",
    "Corruption",
    "Dropout",
    "EncoderBlock",
    "FactorizedPositions",
    "FullAttention",
    "GroupNorm",
    "LayerScale",
    "LocalAttention1D",
    "LocalAttention2D",
    "MapPooling",
    "MlpBlock",
    "MultiHeadAttention",
    "NoPositions",
    "PatchEmbedding",
    "PatchMasking",
    "PositionEmbedding",
    "PositionSensitiveAttention",
    "PreActivationUnit",
    "RandomContext",
    "RegisterTokens",
    "RelativeLogits",
    "RelativePositions",
    "ResNetStem",
    "SinCosPositions",
    "SparseAttention",
    "SqueezeExcite",
    "StandAloneAttention",
    "StandardizedConv",
    "StandardizedKernels",
    "StochasticDepth",
    "corrupted_counts",
    "draw_corruption",
    "draw_corruption_by_id",
    "resize_position_table",
]
