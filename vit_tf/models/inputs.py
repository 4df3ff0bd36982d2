"""Checks of the images that a model receives."""

import warnings
import weakref

import tensorflow as tf

# Larger than values after crops, noise or another normalization, much smaller than 255.
_LARGEST_VALUE = 10.0

# Models that were called eagerly with float images; only the first batch is checked.
_checked = weakref.WeakSet()


def check_images(model, images):
    """Raises `ValueError` unless images `[B, H, W, 3]` have the size that a model was built for.

    In eager mode, the values of a model's first batch of float images are checked too: `range_note`
    returns the warning. In graphs, values are not checked.

    Args:
        model: has `config.image_size`.
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
    """A warning if the values of float images look like 0 .. 255, else None.

    Args:
        images: eager float tensor.
    """
    largest = float(tf.reduce_max(images))
    if not largest > _LARGEST_VALUE:  # NaN is not larger.
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
