"""Prints the error of an instruction set that is unknown; only the compiled ops report it."""

import tensorflow as tf

import custom_ops

error = custom_ops.describe()["isas"]["error"]
try:
    custom_ops.attention(tf.zeros([1, 2, 6]), 2)
except ValueError as raised:
    assert str(raised) == error, raised
else:
    raise AssertionError("VIT_ISA is ignored")
out = custom_ops.attention(tf.zeros([1, 2, 6]), 2, implementation="reference")
assert out.shape == [1, 2, 2]
print(error)
