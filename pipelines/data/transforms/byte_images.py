"""Images of batches as uint8: a quarter of the bytes that travel to the devices as float32."""

import dataclasses

import tensorflow as tf

from vit_tf.preprocessing import Preprocessing


class BytePreprocessing(Preprocessing):
    """Preprocessing whose results are uint8: rounded to whole levels, not normalised.

    Models map uint8 to [-1, 1] themselves, so it is for the default `mean` and `std` only. It is
    for batches; what is stored with weights is a `Preprocessing`.
    """

    def normalized(self, pixels):
        """The second step: values 0 .. 255, `[..., 3]`, as uint8; uint8 stays as it is."""
        pixels = tf.convert_to_tensor(pixels)
        return pixels if pixels.dtype == tf.uint8 else to_uint8(pixels)


def for_batches(preprocessing, image_dtype):
    """Returns a `Preprocessing` whose results have a dtype.

    Args:
        preprocessing: `vit_tf.Preprocessing`, whose results are float32.
        image_dtype: "float32" or "uint8".
    """
    if image_dtype == "float32":
        return preprocessing
    names = [field.name for field in dataclasses.fields(preprocessing)]
    return BytePreprocessing(**{name: getattr(preprocessing, name) for name in names})


def to_uint8(image):
    """Rounds values 0 .. 255 to integers; halves are rounded up."""
    return tf.cast(image + 0.5, tf.uint8)
