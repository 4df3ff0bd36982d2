"""Calls every function of the module for CPUs while `VIT_ISA` names a set that does not exist."""

import numpy as np

from custom_ops import _vit_kernels as kernels

qkv, kernel, table = np.zeros([1, 2, 6]), np.zeros([1, 1, 1, 2]), np.zeros(2)
images, tokens = np.zeros([1, 2, 2, 1]), np.zeros([1, 4, 2])
out, statistics = np.zeros([1, 2, 2]), np.zeros([1, 1, 2, 2])
gradient = (qkv, 1, out, statistics, out)
refused = 0
for call in (
    kernels.isa,
    lambda: kernels.attention(qkv, 1),
    lambda: kernels.attention_gradient(*gradient),
    lambda: kernels.attention_bias_gradient(*gradient, bias=np.zeros(1)),
    lambda: kernels.attention_taps(qkv, 1, statistics),
    lambda: kernels.patch_embed(images, kernel, table),
    lambda: kernels.patch_embed_gradient(images, kernel, tokens),
    lambda: kernels.extract_patches(images, 1),
):
    try:
        call()
    except ValueError as error:
        assert "VIT_ISA=avx999: This instruction set is unknown. Use one of" in str(error), error
        refused += 1
print(f"{refused} functions refuse")
