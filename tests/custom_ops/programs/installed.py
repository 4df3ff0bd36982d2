"""Calls an op where the package is installed; prints the path of the library.

Usage: installed.py compiled|reference
"""

import sys
import warnings

import tensorflow as tf

import custom_ops

warnings.simplefilter("error", RuntimeWarning)
out = custom_ops.attention(tf.random.normal([2, 5, 12]), 2)
assert out.shape == [2, 5, 4]
report = custom_ops.describe()
assert custom_ops.dispatch.resolve() == sys.argv[1], report
assert not report["outdated"] and not report["broken"], report
print(report["path"])
