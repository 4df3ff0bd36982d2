"""Imports the package and loads the library again, in every way that a program may."""

import importlib
import sys

import tensorflow as tf

import custom_ops

qkv = tf.random.stateless_normal([2, 5, 12], [1, 2])


def gradient(package):
    with tf.GradientTape() as tape:
        tape.watch(qkv)
        out = package.attention(qkv, 2, implementation="compiled")
    return tape.gradient(out, qkv).numpy()


first, ops = gradient(custom_ops), custom_ops.loader.compiled_ops()
assert first.any()

importlib.reload(custom_ops.loader)
importlib.reload(custom_ops)
assert (gradient(custom_ops) == first).all() and custom_ops.loader.compiled_ops() is ops

for name in [name for name in sys.modules if name.split(".")[0] == "custom_ops"]:
    del sys.modules[name]
again = importlib.import_module("custom_ops")
assert again is not custom_ops
assert (gradient(again) == first).all() and again.loader.compiled_ops() is ops
assert again.describe()["path"] == custom_ops.describe()["path"]
assert again.describe()["path"].endswith("/custom_ops/_vit_ops.so")
assert again.describe()["isas"]["chosen"] is not None

# A copy of the library, as beside an exported model: TensorFlow takes it, and all goes on.
tf.load_op_library("./exported.so")  # Without a slash, only the paths of the loader count.
assert (gradient(again) == first).all()
