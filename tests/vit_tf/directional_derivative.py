"""The derivative of a model's logits along the way from its weights to another model's weights."""

import numpy as np
import pytest
import tensorflow as tf


def check_derivative(model, other, images, function, training=False):
    """Compares a model's gradients with central differences of a float64 function.

    Args:
        model, other: models of the same variables; their difference is the direction.
        images: input of the model.
        function: returns the logits for a place on the way, 0 for `model` and 1 for `other`.
        training: argument of the model.
    """
    with tf.GradientTape() as tape:
        logits = model(images, training=training)
        weights = np.random.default_rng(0).normal(size=logits.shape)
        value = tf.reduce_sum(logits * weights)
    gradients = tape.gradient(value, model.trainable_variables)
    received = sum(
        float(np.sum(np.float64(gradient) * (np.float64(end) - np.float64(begin))))
        for gradient, begin, end in zip(
            gradients, model.trainable_variables, other.trainable_variables, strict=True
        )
    )
    # A small step, so that no ReLU changes its side.
    step = 1e-7
    difference = np.sum(weights * (function(step) - function(-step)))
    assert received == pytest.approx(difference / (2 * step), rel=2e-4)
