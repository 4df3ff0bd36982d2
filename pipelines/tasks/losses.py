"""Losses of single-label and multi-label classification (docs/paper.md F.2)."""

import tensorflow as tf

from pipelines.data.labels.encoding import as_targets
from pipelines.errors import DataError


def cross_entropy(labels, logits, loss, label_smoothing=0.0):
    """Cross-entropy of each example.

    Args:
        labels: int `[b]`, or float `[b, K]`: multi-label, or after MixUp or CutMix.
        logits: float32 `[b, K]`.
        loss: "softmax", or "sigmoid" summed over classes (Keras averages).
        label_smoothing: `s`. A target `y` of softmax becomes `(1 - s) y + s / K`, mixed with the
            uniform distribution; one of sigmoid, where each class is a decision of its own, becomes
            `(1 - s) y + s (1 - y)`.

    Returns:
        float32 `[b]`.

    Raises:
        ValueError: if `loss` is neither of them.
    """
    classes = logits.shape[-1]
    targets = as_targets(labels, classes)
    if label_smoothing:
        other = 1 / classes if loss == "softmax" else 1 - targets
        targets = targets * (1 - label_smoothing) + label_smoothing * other
    if loss == "softmax":
        return tf.nn.softmax_cross_entropy_with_logits(targets, logits)
    if loss == "sigmoid":
        losses = tf.nn.sigmoid_cross_entropy_with_logits(targets, logits)
        return tf.reduce_sum(losses, axis=-1)
    raise ValueError(f"loss must be softmax or sigmoid. Received: {loss!r}.")


def check_loss(source, loss):
    """Raises `DataError` if the labels of a `DataSource` do not fit `train.loss`."""
    if source.multi_label and loss == "softmax":
        is_real = source.name == "imagenet2012_real"
        raise DataError(
            f"{source.name} has lists of labels per image, and softmax gives each image one label. "
            f"{'Evaluate on ReaL with --benchmark real' if is_real else 'Set train.loss=sigmoid'}."
        )
