"""Prints the GPUs of the libraries, and where each op is registered, also with float64."""

import json

import tensorflow as tf
from tensorflow.python.framework import kernels

import custom_ops


def devices(op):
    found = kernels.get_registered_kernels_for_op(op).kernel
    return sorted({kernel.device_type for kernel in found})


def devices_of_float64(op):
    found = kernels.get_registered_kernels_for_op(op).kernel
    return sorted({kernel.device_type for kernel in found if takes_float64(kernel)})


def takes_float64(kernel):
    allowed = {c.name: c.allowed_values.list.type for c in kernel.constraint}
    return all(tf.float64.as_datatype_enum in types for types in allowed.values())


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
    "VitRotaryEncoder",
)
print(
    json.dumps(
        [
            report["cuda_archs"],
            {name: devices(name) for name in names},
            {name: devices_of_float64(name) for name in names},
        ]
    )
)
