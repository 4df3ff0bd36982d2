"""Photos that are stored sideways, for reports about files."""

import functools

import tensorflow as tf

from vit_tf.images.orientation import EXIF, orientation


def is_turned(data: bytes) -> bool:
    """Whether `data.exif=apply` turns a JPEG; its first bytes are enough."""
    may_be = data.startswith(b"\xff\xd8\xff") and EXIF in data
    return may_be and int(_orientation()(tf.constant(data))) != 1


@functools.cache
def _orientation():
    """Traced once for all files."""
    return tf.function(orientation, [tf.TensorSpec([], tf.string)], autograph=False)
