"""Losses against NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from pipelines.tasks.classification import Classification
from pipelines.tasks.losses import cross_entropy
from tests.pipelines.tasks.formulas import sigmoid_loss, softmax_loss


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("mixed", [False, True])
def test_losses_are_the_formulas(loss, smoothing, mixed):
    rng = np.random.default_rng(1)
    logits, labels = rng.normal(size=(6, 5)), rng.integers(0, 5, 6)
    targets = np.eye(5)[labels]
    if mixed:
        targets = 0.7 * targets + 0.3 * np.roll(targets, 1, axis=0)
    given = tf.constant(targets, tf.float32) if mixed else tf.constant(labels, tf.int32)
    received = cross_entropy(given, tf.constant(logits, tf.float32), loss, smoothing)
    if loss == "softmax":
        expected = softmax_loss(logits, targets * (1 - smoothing) + smoothing / 5)
    else:  # Each class is right with probability 1 - s.
        kept, flipped = (sigmoid_loss(logits, x) for x in (targets, 1 - targets))
        expected = (1 - smoothing) * kept + smoothing * flipped
    np.testing.assert_allclose(received, expected, rtol=1e-5)


def test_smoothed_targets_of_the_sigmoid_loss_are_its_minimum():
    """1 - s for the classes of an image and s for the others, however many there are."""
    for classes in (2, 1000):
        logits = tf.Variable(tf.fill([1, classes], np.log(0.01 / 0.99).astype(np.float32)))
        logits[:, :1].assign([[np.log(0.99 / 0.01)]])
        with tf.GradientTape() as tape:
            loss = cross_entropy(tf.constant([0]), logits, "sigmoid", 0.01)
        np.testing.assert_allclose(tape.gradient(loss, logits), np.zeros([1, classes]), atol=1e-7)


def test_unknown_loss():
    with pytest.raises(ValueError, match="Received: 'mse'"):
        cross_entropy(tf.constant([0]), tf.zeros([1, 2]), "mse")


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("mixed", [False, True])
def test_class_weights_are_linear_in_the_label(loss, smoothing, mixed):
    """The loss of a mixed label sums its classes' losses by share and weight."""
    rng, weights = np.random.default_rng(2), (2.0, 0.5, 0.0, 3.0, 1.0)
    logits, labels = rng.normal(size=(6, 5)), np.array([0, 1, 3, 4, 3, 0])
    targets = np.eye(5)[labels]
    if mixed:
        targets = 0.7 * targets + 0.3 * np.roll(targets, 1, axis=0)
    images = tf.constant(logits, tf.float32)
    expected = np.zeros(6)
    for label, weight in enumerate(weights):
        alone = cross_entropy(tf.fill([6], label), images, loss, smoothing).numpy()
        expected += targets[:, label] * weight * alone
    given = tf.constant(targets, tf.float32) if mixed else tf.constant(labels, tf.int32)
    task = Classification(loss=loss, label_smoothing=smoothing, class_weights=weights)

    def model(images, training):
        assert training
        return images

    received = task.losses(model, {"image": images, "label": given})
    np.testing.assert_allclose(received, expected, rtol=1e-5)
    # A row that is left out has no class; its loss is finite, since it is multiplied by 0.
    empty = task.losses(model, {"image": images, "label": tf.zeros([6, 5])})
    np.testing.assert_array_equal(empty, np.zeros(6))
