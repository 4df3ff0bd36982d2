"""Compiles a function that was traced with the compiled ops, without the library for XLA.

Prints what a command says about the error.
"""

import ctypes

import tensorflow as tf

import custom_ops
from pipelines import errors

ctypes.CDLL("./alone.so")  # It registers nothing, because there are no ops.
report, qkv = custom_ops.describe(), tf.ones([2, 5, 36])
assert report["xla_library"] is None and "for XLA has not been built" in report["xla_reason"]
traced = tf.function(lambda x: custom_ops.attention(x, 3)).get_concrete_function(qkv)
try:
    tf.function(lambda x: traced(x), jit_compile=True)(qkv)
except tf.errors.OpError as error:
    assert "No registered 'VitAttention' OpKernel for XLA_CPU_JIT" in error.message
    print(errors.first_line(error))
