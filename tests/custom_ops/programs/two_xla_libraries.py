"""Loads the library for XLA after XLA's first use, a copy of it, and calls ops on its threads."""

import ctypes

import tensorflow as tf

import custom_ops
from tests.custom_ops.processor_ticks import by_thread

qkv = tf.function(lambda x: x * 2, jit_compile=True)(tf.ones([2, 5, 12]))
assert custom_ops.describe()["xla_library"]
ctypes.CDLL("./second.so")
function = tf.function(lambda x: custom_ops.attention(x, 2), jit_compile=True)
assert bool(tf.reduce_all(function(qkv) == custom_ops.attention(qkv, 2)))
assert "VitAttention" in function.experimental_get_compiler_ir(qkv)(stage="hlo")

qkv = tf.random.stateless_normal([16, 197, 192], [1, 2])
expected = custom_ops.attention(qkv, 4)


@tf.function(jit_compile=True)
def independent(qkv):  # XLA may start several at once, on the threads that also run their parts.
    return [custom_ops.attention(tf.roll(qkv, i, 0), 4) for i in range(6)]


for i, out in enumerate(independent(qkv)):
    assert bool(tf.reduce_all(out == tf.roll(expected, i, 0)))
one = tf.function(lambda x: custom_ops.attention(x, 4), jit_compile=True)
one(qkv)
before = by_thread()
for _ in range(500):
    one(qkv)
    used = by_thread() - before
    if sum(ticks > 2 for ticks in used.values()) > 1:
        break
else:
    raise AssertionError("only one thread worked")
