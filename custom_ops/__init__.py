"""The hot operations of a Vision Transformer, for TensorFlow.

`attention`, `attention_with_taps`, `axial_attention`, `patch_embed` and `extract_patches` are
ordinary differentiable functions on tensors: eager, in `tf.function`, in `tf.data`, under
`jit_compile=True`. `custom_ops.reference` defines what they compute, in plain TensorFlow; a
compiled library does it faster on CPUs. Which of the two runs is chosen per call, by
`with implementation(...)`, or by the environment variable `VIT_OPS`; `describe()` says what is
there and why. `load()` is for SavedModels that contain the compiled ops.

Importing this package does not import TensorFlow; the first call does.
"""

from custom_ops.attention import attention, attention_with_taps, axial_attention
from custom_ops.dispatch import describe, implementation, load
from custom_ops.loader import is_compiled
from custom_ops.patch_embed import extract_patches, patch_embed

__all__ = [
    "attention",
    "attention_with_taps",
    "axial_attention",
    "describe",
    "extract_patches",
    "implementation",
    "is_compiled",
    "load",
    "patch_embed",
]
