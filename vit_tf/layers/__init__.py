"""Keras layers of the Vision Transformer."""

from vit_tf.layers.attention import MultiHeadAttention
from vit_tf.layers.dropout import Dropout, RandomContext, StochasticDepth
from vit_tf.layers.embeddings import (
    ClassToken,
    PatchEmbedding,
    PositionEmbedding,
    resize_position_table,
)
from vit_tf.layers.encoder import EncoderBlock, MlpBlock

__all__ = [
    "ClassToken",
    "Dropout",
    "EncoderBlock",
    "MlpBlock",
    "MultiHeadAttention",
    "PatchEmbedding",
    "PositionEmbedding",
    "RandomContext",
    "StochasticDepth",
    "resize_position_table",
]
