"""The hot operations of a Vision Transformer, for TensorFlow.

`attention`, `attention_with_taps`, `axial_attention`, `patch_embed` and `extract_patches` are
ordinary differentiable functions on tensors: eager, in `tf.function`, in `tf.data`, under
`jit_compile=True`. `custom_ops.reference` defines what they compute, in plain TensorFlow; a
compiled library computes the same faster on CPUs. `encoder`, for inference, runs a whole stack of
encoder blocks over weights that `pack_encoder` packed once. `bias_gelu`, `layer_norm`,
`sgd_update` and `adamw_update` are what a training step computes between its products. An argument
of each call, a block `with implementation(...)` or the environment variable `VIT_OPS` chooses
between compiled and plain ops. `describe()` reports which library is loaded, or why none is. Call
`load()` before you load a SavedModel that contains the compiled ops.

Importing this package does not import TensorFlow; the first call does.
"""

from custom_ops.attention import attention, attention_with_taps, axial_attention
from custom_ops.dispatch import describe, implementation, load
from custom_ops.encoder import EncoderPlan, encoder, pack_encoder
from custom_ops.loader import is_compiled
from custom_ops.patch_embed import extract_patches, patch_embed
from custom_ops.training import adamw_update, bias_gelu, layer_norm, sgd_update

__all__ = [
    "EncoderPlan",
    "adamw_update",
    "attention",
    "attention_with_taps",
    "axial_attention",
    "bias_gelu",
    "describe",
    "encoder",
    "extract_patches",
    "implementation",
    "is_compiled",
    "layer_norm",
    "load",
    "pack_encoder",
    "patch_embed",
    "sgd_update",
]
