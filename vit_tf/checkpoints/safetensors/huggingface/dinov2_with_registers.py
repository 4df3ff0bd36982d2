"""Tensors of Hugging Face's DINOv2 with register tokens <-> published arrays.

Checked against `Dinov2WithRegistersModel` of transformers 5.24.0. It differs from `dinov2.py` by
the register tokens, which have no positions, and by the resize of the positions: bicubic, with
antialiasing.
"""

import functools

from vit_tf.checkpoints.safetensors.huggingface import dinov2

_KIND = dinov2.Kind(
    "dinov2_with_registers",
    "Dinov2WithRegistersModel",
    "bicubic_antialias",
    has_registers=True,
)
recognizes = _KIND.recognizes
read = functools.partial(dinov2.read, kind=_KIND)
write = functools.partial(dinov2.write, kind=_KIND)
