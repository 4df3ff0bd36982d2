"""Losses and evaluation sums against NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from pipelines.tasks import classification


def _softmax_loss(logits, targets):
    shifted = logits - logits.max(axis=-1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return -(targets * log_p).sum(axis=-1)


def _sigmoid_loss(logits, targets):
    p = 1 / (1 + np.exp(-logits))
    return -(targets * np.log(p) + (1 - targets) * np.log(1 - p)).sum(axis=-1)


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
    received = classification.example_losses(
        given, tf.constant(logits, tf.float32), loss, smoothing
    )
    formula = _softmax_loss if loss == "softmax" else _sigmoid_loss
    expected = formula(logits, targets * (1 - smoothing) + smoothing / 5)
    np.testing.assert_allclose(received, expected, rtol=1e-5)


def test_unknown_loss():
    with pytest.raises(ValueError, match="Received: 'mse'"):
        classification.example_losses(tf.constant([0]), tf.zeros([1, 2]), "mse")


def test_sums_leave_padding_out_even_if_it_is_not_finite():
    logits = tf.constant([[3.0, 1.0, 0.0], [0.0, 2.0, 5.0], [np.nan, np.nan, np.nan]])
    sums = classification.evaluation_sums(
        tf.constant([0, 1, 0]), logits, tf.constant([1.0, 1.0, 0.0])
    )
    means = classification.evaluation_means(sums)
    assert means["examples"] == 2
    assert means["accuracy"] == 0.5
    assert means["top_5_accuracy"] == 1.0
    expected = _softmax_loss(logits.numpy()[:2], np.eye(3)[[0, 1]]).mean()
    assert means["loss"] == pytest.approx(expected, rel=1e-5)


def test_top_5_counts_strictly_better_classes():
    logits = tf.constant([np.arange(8.0)] * 8, tf.float32)
    labels = tf.range(8)
    sums = classification.evaluation_sums(labels, logits, tf.ones([8]))
    means = classification.evaluation_means(sums)
    assert means["accuracy"] == pytest.approx(1 / 8)
    assert means["top_5_accuracy"] == pytest.approx(5 / 8)


def test_of_equal_logits_the_first_class_wins():
    """As where classes are predicted; a head of zeros has learned nothing."""
    for logits, right, among_five in (
        (tf.zeros([8, 8]), 1, 5),
        (tf.constant([[9.0] * 3 + [0.0] * 5] * 8), 1, 5),
        (tf.constant([[0.0, 9.0, 0.0, 9.0, 0.0, 0.0, 0.0, 0.0]] * 8), 1, 5),
    ):
        sums = classification.evaluation_sums(tf.range(8), logits, tf.ones([8]))
        assert (float(sums["accuracy"]), float(sums["top_5_accuracy"])) == (right, among_five)
        predicted = np.argsort(-logits.numpy(), axis=1, kind="stable")
        assert (predicted[:, 0] == np.arange(8)).sum() == right
        assert (predicted[:, :5] == np.arange(8)[:, None]).sum() == among_five


@pytest.mark.parametrize("classes", [2, 8])
def test_not_a_number_is_never_right(classes):
    logits = tf.fill([classes, classes], np.float32(np.nan))
    sums = classification.evaluation_sums(tf.range(classes), logits, tf.ones([classes]))
    assert (float(sums["accuracy"]), float(sums["top_5_accuracy"])) == (0, 0)
    # Nor is a number right beside one that is none.
    sums = classification.evaluation_sums(
        tf.constant([1]), tf.constant([[np.nan, 1.0]]), tf.ones([1])
    )
    assert float(sums["accuracy"]) == 0
