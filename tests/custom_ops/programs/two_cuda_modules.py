"""Loads two builds of `_vit_cuda` and uses both; prints whether they have different types."""

import sys

from tests.gpu.small_shapes import load_module

one, other = load_module(sys.argv[1]), load_module(sys.argv[2], "fast")
for module in (one, other):
    module.Attention(module.Array(16, [1, 2, 6], "float32"), 1)
print(one.Array is not other.Array)
