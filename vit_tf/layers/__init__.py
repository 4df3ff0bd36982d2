"""Keras layers of the Vision Transformer."""

from vit_tf.layers.attention import MultiHeadAttention
from vit_tf.layers.comparison import (
    AugmentedConvolution,
    FullAttention,
    LocalAttention1D,
    LocalAttention2D,
    SparseAttention,
    SqueezeExcite,
    StandAloneAttention,
)
from vit_tf.layers.dropout import Dropout, RandomContext, StochasticDepth
from vit_tf.layers.embeddings import ClassToken, PatchEmbedding
from vit_tf.layers.encoder import EncoderBlock, MlpBlock
from vit_tf.layers.group_norm import GroupNorm
from vit_tf.layers.map_pooling import MapPooling
from vit_tf.layers.positions import (
    NoPositions,
    PositionEmbedding,
    SinCosPositions,
    resize_position_table,
)
from vit_tf.layers.resnet import BottleneckUnit, PreActivationUnit, ResNetStem
from vit_tf.layers.standardized_conv import StandardizedConv, StandardizedKernels

__all__ = [
    "AugmentedConvolution",
    "BottleneckUnit",
    "ClassToken",
    "Dropout",
    "EncoderBlock",
    "FullAttention",
    "GroupNorm",
    "LocalAttention1D",
    "LocalAttention2D",
    "MapPooling",
    "MlpBlock",
    "MultiHeadAttention",
    "NoPositions",
    "PatchEmbedding",
    "PositionEmbedding",
    "PreActivationUnit",
    "RandomContext",
    "ResNetStem",
    "SinCosPositions",
    "SparseAttention",
    "SqueezeExcite",
    "StandAloneAttention",
    "StandardizedConv",
    "StandardizedKernels",
    "StochasticDepth",
    "resize_position_table",
]
