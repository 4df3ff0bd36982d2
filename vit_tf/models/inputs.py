"""Checks of the images that a model receives."""

import warnings
import weakref

import tensorflow as tf

# Larger than values after crops, noise or another normalization, much smaller than 255.
_LARGEST_VALUE = 10.0

# Models that got images with a value above zero: they are not checked again.
_checked = weakref.WeakSet()
# The variable with the largest value of the first images that a model was trained on.
_largest = weakref.WeakKeyDictionary()
# The first images of a training batch, whose values are read.
_NOTED_IMAGES = 4


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
    _check_largest(model, float(tf.reduce_max(images)) if tf.size(images) else 0.0)


def checked_first_step(model, step):
    """A training function of Keras whose first call checks the images that `note_range` has seen.

    After that call, `model.train_function` is `step`. A data set is read as it would be without the
    check, since the step itself reads the same images.

    Args:
        model: a Keras model, whose `train_step` calls `note_range`.
        step: the function that `make_train_function` made.
    """
    if model in _checked:
        return step
    # It stays in the dictionary: the graph of the step holds it only weakly.
    if model not in _largest:
        with model.distribute_strategy.scope():
            _largest[model] = tf.Variable(
                0.0,
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )

    def first(iterator):
        model.train_function = step
        logs = step(iterator)
        _check_largest(model, float(_largest[model].read_value()))
        return logs

    return first


def note_range(model, images):
    """Keeps the largest value of the first images of a batch for `checked_first_step`.

    It is a part of the graph of the training step, and costs as much as a maximum over
    `_NOTED_IMAGES` images. In eager mode, `check_images` reads the values.

    Args:
        model: a Keras model.
        images: the batch, in a graph; only float tensors are read.
    """
    if model in _checked or model not in _largest or tf.executing_eagerly():
        return
    if tf.is_tensor(images) and images.dtype.is_floating:
        largest, seen = _largest[model], tf.reduce_max(images[:_NOTED_IMAGES])
        largest.assign(tf.maximum(largest, tf.cast(seen, tf.float32)))


def _check_largest(model, largest):
    if largest > 0:
        _checked.add(model)
    if largest > _LARGEST_VALUE:  # NaN is not larger.
        warnings.warn(
            f"{model.name} reads float images as values in [-1, 1]. The largest one here is "
            f"{largest:g}: pass 0 .. 255 as uint8, or as images / 127.5 - 1.",
            stacklevel=3,
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
