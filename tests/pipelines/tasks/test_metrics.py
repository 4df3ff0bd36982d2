"""Metrics of a batch against NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from pipelines.tasks.losses import cross_entropy
from pipelines.tasks.metrics import metric_means, metric_sums
from tests.pipelines.tasks.formulas import softmax_loss


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
