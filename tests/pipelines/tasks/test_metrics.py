"""Metrics of a batch against NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from pipelines.tasks.average_precision import AveragePrecision
from pipelines.tasks.losses import cross_entropy
from pipelines.tasks.metrics import metric_means, metric_sums
from tests.pipelines.tasks.formulas import sigmoid_loss, softmax_loss


def sums_of(labels, logits, weights):
    return metric_sums(labels, logits, weights, cross_entropy(labels, logits, "softmax"))


def test_sums_leave_padding_out_even_if_it_is_not_finite():
    logits = tf.constant([[3.0, 1.0, 0.0], [0.0, 2.0, 5.0], [np.nan, np.nan, np.nan]])
    sums = sums_of(tf.constant([0, 1, 0]), logits, tf.constant([1.0, 1.0, 0.0]))
    means = metric_means(sums)
    assert means["examples"] == 2
    assert means["accuracy"] == 0.5
    assert means["top_5_accuracy"] == 1.0
    expected = softmax_loss(logits.numpy()[:2], np.eye(3)[[0, 1]]).mean()
    assert means["loss"] == pytest.approx(expected, rel=1e-5)


def test_top_5_counts_strictly_better_classes():
    logits = tf.constant([np.arange(8.0)] * 8, tf.float32)
    labels = tf.range(8)
    sums = sums_of(labels, logits, tf.ones([8]))
    means = metric_means(sums)
    assert means["accuracy"] == pytest.approx(1 / 8)
    assert means["top_5_accuracy"] == pytest.approx(5 / 8)


def test_of_equal_logits_the_first_class_wins():
    """The same as in predictions; so a head of zeros has the accuracy of chance."""
    for logits, right, among_five in (
        (tf.zeros([8, 8]), 1, 5),
        (tf.constant([[9.0] * 3 + [0.0] * 5] * 8), 1, 5),
        (tf.constant([[0.0, 9.0, 0.0, 9.0, 0.0, 0.0, 0.0, 0.0]] * 8), 1, 5),
    ):
        sums = sums_of(tf.range(8), logits, tf.ones([8]))
        assert (float(sums["accuracy"]), float(sums["top_5_accuracy"])) == (right, among_five)
        predicted = np.argsort(-logits.numpy(), axis=1, kind="stable")
        assert (predicted[:, 0] == np.arange(8)).sum() == right
        assert (predicted[:, :5] == np.arange(8)[:, None]).sum() == among_five


@pytest.mark.parametrize("classes", [2, 8])
def test_not_a_number_is_never_right(classes):
    logits = tf.fill([classes, classes], np.float32(np.nan))
    sums = sums_of(tf.range(classes), logits, tf.ones([classes]))
    assert (float(sums["accuracy"]), float(sums["top_5_accuracy"])) == (0, 0)
    # A finite logit beside a NaN does not count as right either.
    sums = sums_of(tf.constant([1]), tf.constant([[np.nan, 1.0]]), tf.ones([1]))
    assert float(sums["accuracy"]) == 0


@pytest.mark.parametrize("distinct", [3, 1000])
def test_average_precision_is_the_documented_formula(distinct):
    """With equal scores, in batches with padding, a class without an image, infinity and NaN."""
    rng = np.random.default_rng(distinct)
    labels = (rng.random([60, 7]) < 0.3).astype(np.float32)
    labels[:, 2] = 0
    scores = rng.integers(0, distinct, labels.shape).astype(np.float32)
    weights = (rng.random(60) < 0.8).astype(np.float32)
    scores[weights == 0] = np.nan  # padding is not read
    counted = np.flatnonzero(weights)
    scores[counted[:4], 1:] = [[np.nan], [-np.inf], [np.inf], [np.inf]]
    labels[counted[:4], 1] = labels[counted[1:5], 3] = [0, 1, 1, 0]
    collected = AveragePrecision(60, 7)
    for part in (slice(0, 25), slice(25, 26), slice(26, 60)):
        collected.add(labels[part], scores[part], weights[part])
    expected = [
        _average_precision(labels[counted, one], scores[counted, one])
        if labels[counted, one].any()
        else np.nan
        for one in range(7)
    ]
    assert np.isnan(expected).sum() == 1
    np.testing.assert_allclose(collected.by_class(), expected, rtol=1e-12)


def _average_precision(labels, scores):
    """docs/paper.md F.8; NaN ranks last, beside negative infinity."""
    scores = np.where(np.isnan(scores), -np.inf, scores)
    return np.mean([(labels == 1)[scores >= one].mean() for one in scores[labels == 1]])


def test_precision_at_1_counts_images_with_a_label():
    labels = tf.constant([[1.0, 0, 1], [0, 1, 0], [0, 0, 0], [0, 1, 1], [1, 1, 1], [1, 0, 0]])
    logits = tf.constant([[0, 1, 2], [0, 1, 2], [5, 0, 0], [2, 2, 2], [1, np.nan, 0], [1.0, 0, 0]])
    weights = tf.constant([1.0, 1, 1, 1, 1, 0])
    losses = cross_entropy(labels, logits, "sigmoid")
    means = metric_means(metric_sums(labels, logits, weights, losses))
    # Right, wrong, without a label, wrong (the first of equal logits), wrong (NaN), padding.
    assert means["precision_at_1"] == 1 / 4
    assert means["examples"] == 5
    assert means.keys() == {"examples", "loss", "precision_at_1"}
    sums = metric_sums(labels[:4], logits[:4], weights[:4], losses[:4])
    expected = sigmoid_loss(logits.numpy()[:4].astype(float), labels.numpy()[:4]).mean()
    assert metric_means(sums)["loss"] == pytest.approx(expected, rel=1e-6)
