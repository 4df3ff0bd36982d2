"""Uses the ops where a library that the program loaded before lacks some of them."""

import importlib

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import kernels

tf.load_op_library("./older.so")  # As a program that serves an older model does.


def devices(op):
    return [kernel.device_type for kernel in kernels.get_registered_kernels_for_op(op).kernel]


assert devices("VitPatchEmbed") == ["CPU"] and devices("VitExtractPatches") == []
custom_ops = importlib.import_module("custom_ops")

images = np.arange(2 * 4 * 4 * 3, dtype=np.float32).reshape(2, 4, 4, 3)
qkv = tf.random.stateless_normal([2, 5, 12], [1, 2])
custom_ops.attention(qkv, 2, implementation="compiled")
assert "of another installation" in custom_ops.describe()["xla_reason"]
for op in ("VitPatchEmbed", "VitAttention", "VitAttentionTaps", "VitExtractPatches"):
    assert devices(op).count("CPU") == 1, op
with custom_ops.implementation("compiled"):
    patches = custom_ops.extract_patches(images, 2)
with custom_ops.implementation("reference"):
    assert (patches == custom_ops.extract_patches(images, 2)).numpy().all()
