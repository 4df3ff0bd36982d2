"""The checks that every model makes of its images."""

import warnings
import weakref

import tensorflow as tf

# Above what crops, noise and other normalizations reach, far below what 0 .. 255 does.
_LARGEST_VALUE = 10.0

# Models that have seen float images outside of a graph; only the first batch is looked at.
_checked = weakref.WeakSet()


def check_images(model, images):
    """Raises `ValueError` unless images `[B, H, W, 3]` have the size that a model was built for.

    The first batch of float images that a model sees outside of a graph gets the warning of
    `range_note`. Graphs are left as they are.

    Args:
        model: with `config.image_size`.
        images: tensor.
    """
    _check_shape(images, model.config.image_size)
    if not tf.executing_eagerly() or model in _checked or not tf.is_tensor(images):
        return
    if images.dtype.is_floating:
        _checked.add(model)
        if note := range_note(images):
            warnings.warn(note, stacklevel=2)


def range_note(images):
    """What to say of float images whose values look like 0 .. 255; None for others.

    Args:
        images: eager float tensor.
    """
    largest = float(tf.reduce_max(images))
    if not largest > _LARGEST_VALUE:  # Values that are not numbers are not larger.
        return None
    return (
        f"Float images are read as values in [-1, 1]. The largest one here is {largest:g}: pass "
        "0 .. 255 as uint8, or as images / 127.5 - 1."
    )


def _check_shape(images, image_size):
    if len(images.shape) != 4 or images.shape[-1] != 3:
        raise ValueError(f"Expected images [B, H, W, 3]. Received: shape {tuple(images.shape)}.")
    for received, expected in zip(images.shape[1:3], image_size, strict=True):
        if received not in (None, expected):
            raise ValueError(
                f"This model reads images of {image_size[0]} x {image_size[1]} (height x width). "
                f"Received: shape {tuple(images.shape)}. Resize them with vit_tf.Preprocessing, or "
                "create the model with that image_size."
            )
