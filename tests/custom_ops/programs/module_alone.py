"""Computes with the module for CPUs where TensorFlow cannot be imported."""

import importlib
import sys

import numpy as np

sys.modules["tensorflow"] = None  # An import of it fails.
kernels = importlib.import_module("custom_ops._vit_kernels")

# Equal keys: the output is the mean of the values.
qkv = np.array([[[1.0, 0, 2.0], [3.0, 0, 6.0]]])
out, _ = kernels.attention(qkv, 1)
assert out.tolist() == [[[4.0], [4.0]]], out
assert kernels.isa() in kernels.available_isas()
print("computed")
