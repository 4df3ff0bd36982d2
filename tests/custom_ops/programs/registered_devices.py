"""Prints the GPUs of the libraries, and the devices that each op is registered for."""

import json

import tensorflow as tf
from tensorflow.python.framework import kernels

import custom_ops


def devices(op):
    found = kernels.get_registered_kernels_for_op(op).kernel
    return sorted({kernel.device_type for kernel in found})


qkv = tf.random.normal([2, 5, 12])
out = custom_ops.attention(qkv, 2, implementation="compiled")
under_xla = tf.function(lambda x: custom_ops.attention(x, 2), jit_compile=True)(qkv)
assert bool(tf.reduce_all(out == under_xla))
report = custom_ops.describe()
assert report["compiled"] and report["xla_library"], report
names = (
    "VitAttention",
    "VitAttentionGrad",
    "VitAttentionBiasGrad",
    "VitAttentionTaps",
    "VitPatchEmbed",
    "VitPatchEmbedKernelGrad",
    "VitPatchEmbedImagesGrad",
    "VitPatchEmbedTablesGrad",
    "VitExtractPatches",
    "VitExtractPatchesGrad",
    "VitEncoder",
)
print(json.dumps([report["cuda_archs"], {name: devices(name) for name in names}]))
