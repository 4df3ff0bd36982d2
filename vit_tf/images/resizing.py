"""Converts decoded images to the size and the value range that a model reads."""

import tensorflow as tf

from vit_tf.images.value_range import HALF_RANGE, SCALE


def resize(images, size):
    """Stretches images `[..., H, W, C]` to `size`, (height, width): bilinear, no antialiasing.

    Returns:
        float32.
    """
    return tf.image.resize(images, size, "bilinear", antialias=False)


def resize_small_and_crop(images, resize_to, crop_size):
    """Resizes the shorter side to `resize_to` and returns the central crop, float32.

    Only the pixels that the crop needs are read. Resizing the whole image first would take 15 GB
    for an image of 1 x 20,000 pixels.
    """
    size = tf.shape(images)[-3:-1]
    ratio = tf.cast(resize_to, tf.float32) / tf.cast(tf.reduce_min(size), tf.float32)
    resized = tf.cast(tf.round(tf.cast(size, tf.float32) * ratio), tf.int32)
    taps = [_taps(size[i], resized[i], crop_size[i]) for i in range(2)]
    (top, bottom), (left, right) = [(lower[0], upper[-1] + 1) for lower, upper, _ in taps]
    images = images[..., top:bottom, left:right, :]

    for axis, (lower, upper, fraction) in zip((-3, -2), taps, strict=True):
        before = tf.cast(tf.gather(images, lower - lower[0], axis=axis), tf.float32)
        after = tf.cast(tf.gather(images, upper - lower[0], axis=axis), tf.float32)
        fraction = tf.reshape(fraction, [-1] + [1] * (-axis - 1))
        images = before + (after - before) * fraction
    return images


def _taps(length, resized, crop):
    """Bilinear taps of the central `crop` positions of an axis resized from `length` to `resized`.

    Samples are at pixel centres and are clamped to the border, as in `tf.image.resize`.

    Returns:
        Source pixels before and after each position, int32 `[crop]`, and the weight of the second.
    """
    start = (resized - crop) // 2
    scale = tf.cast(length, tf.float32) / tf.cast(resized, tf.float32)
    source = (tf.range(crop, dtype=tf.float32) + tf.cast(start, tf.float32) + 0.5) * scale - 0.5
    lower = tf.floor(source)
    index = tf.cast(lower, tf.int32)
    return tf.maximum(index, 0), tf.minimum(index + 1, length - 1), source - lower


def to_model_range(images):
    """Maps values 0 .. 255 to float32 in [-1, 1]; computed after every resize, in float."""
    # Graphs replace a division by a constant with this product. With it, eager results are equal.
    return (tf.cast(images, tf.float32) - HALF_RANGE) * SCALE
