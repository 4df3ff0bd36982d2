"""Calls an op where the installation could not build the ops; prints the only warning."""

import warnings

import tensorflow as tf

import custom_ops

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always", RuntimeWarning)
    for _ in range(2):
        assert custom_ops.attention(tf.random.normal([2, 5, 12]), 2).shape == [2, 5, 4]
[warning] = [x for x in caught if "custom_ops" in str(x.message)]
report = custom_ops.describe()
assert report["broken"] and not report["compiled"] and report["path"] is None, report
print(warning.message)
