"""What the checks of exports compare a model on: pictures, and a head that tells them apart."""

import contextlib

import numpy as np
import tensorflow as tf

import custom_ops

# Logits that differ less between pictures than this part of the largest one count as constant.
_CONSTANT = 0.01


def pictures(count, height, width):
    """Random pictures with the spectrum of photos, whose amplitudes are 1 / frequency.

    Neighboring pixels of noise are independent. A resize of noise multiplies the rounding of its
    coordinates by steps of up to 255 levels, which no photo has.

    Returns:
        float32 `[count, height, width, 3]`, whole levels 0 .. 255; the same in each call.
    """
    noise = np.random.default_rng(0).normal(size=(count, height, width, 3))
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width))
    frequency = np.maximum(frequency, 1 / max(height, width))[:, :, None]
    spectrum = np.fft.rfft2(noise, axes=(1, 2)) / frequency
    values = np.fft.irfft2(spectrum, s=(height, width), axes=(1, 2))
    low, high = (edge(values, axis=(1, 2, 3), keepdims=True) for edge in (np.min, np.max))
    return np.round(255 * (values - low) / np.maximum(high - low, 1e-9)).astype(np.float32)


def has_constant_logits(model, preprocessing) -> bool:
    """Whether the head gives different pictures the same logits, as a head of zeros does.

    Then logits say nothing about the rest of the model. False without a head.
    """
    if model.head is None:
        return False
    images = preprocessing.normalized(pictures(2, *preprocessing.image_size))
    with custom_ops.implementation("reference"), tf.device("CPU:0"):
        logits = tf.cast(model(images, training=False), tf.float32).numpy()
    return bool(np.ptp(logits, axis=0).max() <= _CONSTANT * np.abs(logits).max())


@contextlib.contextmanager
def random_head(model):
    """A context in which the head has random weights, so that logits depend on all features."""
    variables = model.head.weights
    kept = [variable.numpy() for variable in variables]
    generator = np.random.default_rng(0)
    try:
        for variable in variables:
            variable.assign(generator.normal(size=variable.shape) / np.sqrt(variable.shape[0]))
        yield
    finally:
        for variable, value in zip(variables, kept, strict=True):
            variable.assign(value)
