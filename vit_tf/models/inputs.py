"""Checks of the images that a model receives."""

import warnings
import weakref

import tensorflow as tf

# Larger than values after crops, noise or another normalization, much smaller than 255.
_LARGEST_VALUE = 10.0

# Models that got images with a value above zero: they are not checked again.
_checked = weakref.WeakSet()


def check_images(model, images):
    """Raises `ValueError` unless images `[B, H, W, 3]` have the size that a model was built for.

    In eager mode it calls `check_range` too. In graphs, values are not checked.

    Args:
        model: has `config.image_size`.
        images: tensor.
    """
    _check_shape(images, model.config.image_size)
    if tf.executing_eagerly() and tf.is_tensor(images):
        check_range(model, images)


def check_range(model, images):
    """Warns, once for each model, if the values of float images look like 0 .. 255.

    Args:
        model: a Keras model.
        images: eager tensor or NumPy array.
    """
    # Keras also takes arrays of other libraries, whose dtypes TensorFlow may not know.
    if model in _checked or "float" not in str(images.dtype):
        return
    largest = float(tf.reduce_max(images)) if tf.size(images) else 0.0
    if largest > 0:
        _checked.add(model)
    if largest > _LARGEST_VALUE:  # NaN is not larger.
        warnings.warn(
            f"{model.name} reads float images as values in [-1, 1]. The largest one here is "
            f"{largest:g}: pass 0 .. 255 as uint8, or as images / 127.5 - 1.",
            stacklevel=2,
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
