"""Compares the compiled ops with the reference; prints the path of the library."""

import tensorflow as tf

import custom_ops

qkv = tf.random.stateless_normal([2, 17, 96], [1, 2])
compiled = custom_ops.attention(qkv, 2, implementation="compiled")
function = tf.function(lambda x: custom_ops.attention(x, 2), jit_compile=True)
assert bool(tf.reduce_all(function(qkv) == compiled))
reference = custom_ops.attention(qkv, 2, implementation="reference")
assert float(tf.reduce_max(tf.abs(compiled - reference))) < 1e-5
report = custom_ops.describe()
assert not report["outdated"]
print(report["path"])
