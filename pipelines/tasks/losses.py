"""What is learned: single-label or multi-label classification (paper.md F.2)."""

import tensorflow as tf


def example_losses(labels, logits, loss="softmax", label_smoothing=0.0):
    """Cross-entropy of each example.

    Args:
        labels: int `[b]`, or float `[b, K]` once mixed.
        logits: float32 `[b, K]`.
        loss: "softmax", or "sigmoid" summed over classes (not averaged, as Keras would).
        label_smoothing: mass `s` moved from the targets to the uniform distribution:
            `(1 - s) target + s / K`.

    Returns:
        float32 `[b]`.
    """
    classes = logits.shape[-1]
    targets = tf.one_hot(labels, classes) if labels.dtype.is_integer else labels
    if label_smoothing:
        targets = targets * (1 - label_smoothing) + label_smoothing / classes
    if loss == "softmax":
        return tf.nn.softmax_cross_entropy_with_logits(targets, logits)
    if loss == "sigmoid":
        losses = tf.nn.sigmoid_cross_entropy_with_logits(targets, logits)
        return tf.reduce_sum(losses, axis=-1)
    raise ValueError(f"loss must be softmax or sigmoid. Received: {loss!r}.")


def evaluation_sums(labels, logits, weights, loss="softmax"):
    """Weighted sums over a batch, from which `evaluation_means` makes metrics.

    Args:
        labels: int `[b]`.
        logits: float32 `[b, K]`.
        weights: float32 `[b]`, 1 for an example and 0 for padding.
        loss: see `example_losses`.

    Returns:
        Dict of float32 scalars: "examples", "loss", "accuracy" and "top_5_accuracy".
    """
    # Of equal logits the first class wins, as in predictions: where all are equal, nothing has been
    # learned. NaN compares as better, so a true class that is NaN has rank K.
    classes = logits.shape[-1]
    true_logit = tf.gather(logits, labels, axis=1, batch_dims=1)[:, None]
    not_before = tf.range(classes, dtype=labels.dtype) >= labels[:, None]
    not_better = (logits < true_logit) | ((logits == true_logit) & not_before)
    rank = classes - tf.reduce_sum(tf.cast(not_better, tf.int32), axis=-1)
    values = {
        "examples": tf.ones_like(weights),
        "loss": example_losses(labels, logits, loss),
        "accuracy": tf.cast(rank < 1, tf.float32),
        "top_5_accuracy": tf.cast(rank < min(5, classes), tf.float32),
    }
    padding = weights == 0
    return {
        name: tf.reduce_sum(tf.where(padding, 0.0, value * weights))
        for name, value in values.items()
    }


def evaluation_means(sums):
    """`{"examples": n, "loss": ..., ...}`: sums divided by the number of examples."""
    examples = float(sums["examples"])
    means = {name: float(value) / examples for name, value in sums.items() if name != "examples"}
    return {"examples": int(round(examples))} | means
