"""Layers of the models that the paper's related work compares with (docs/paper.md C.4)."""

from vit_tf.layers.related_work.augmented_convolution import AugmentedConvolution
from vit_tf.layers.related_work.full_attention import FullAttention
from vit_tf.layers.related_work.local_attention import LocalAttention1D, LocalAttention2D
from vit_tf.layers.related_work.sparse_attention import SparseAttention
from vit_tf.layers.related_work.squeeze_excite import SqueezeExcite
from vit_tf.layers.related_work.stand_alone_attention import StandAloneAttention

__all__ = [
    "AugmentedConvolution",
    "FullAttention",
    "LocalAttention1D",
    "LocalAttention2D",
    "SparseAttention",
    "SqueezeExcite",
    "StandAloneAttention",
]
