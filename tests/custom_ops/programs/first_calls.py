"""The first calls of the ops are in a function that AutoGraph converts."""

import os

import tensorflow as tf

import custom_ops


@tf.function
def first(qkv, images, kernel):
    assert custom_ops.is_compiled() and custom_ops.describe()["compiled"]
    out, _ = custom_ops.attention_with_taps(qkv, 2, ("entropy",))
    patches = custom_ops.extract_patches(images, 4)
    return out, patches, custom_ops.patch_embed(images, kernel, tf.zeros([6]))


arguments = tf.ones([2, 5, 12]), tf.ones([1, 8, 8, 3]), tf.ones([4, 4, 3, 6])
for chosen in ("auto", "compiled", "reference"):
    os.environ["VIT_OPS"] = chosen
    tf.function(first.python_function)(*arguments)
print(custom_ops.describe()["path"])
