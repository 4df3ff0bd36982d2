"""Classification metrics as sums over examples; padding is not counted."""

import tensorflow as tf


def metric_sums(labels, logits, weights, losses):
    """Weighted sums over a batch, the input of `metric_means`.

    Args:
        labels: int `[b]`.
        logits: float32 `[b, K]`.
        weights: float32 `[b]`, 1 for an example and 0 for padding.
        losses: float32 `[b]`, see `losses.cross_entropy`.

    Returns:
        Dict of float32 scalars: "examples", "loss", "accuracy" and "top_5_accuracy".
    """
    # In a tie the lower class index is better, as in predictions: equal logits do not all count as
    # right. NaN counts as better, so a true class with a NaN logit has rank K.
    classes = logits.shape[-1]
    true_logit = tf.gather(logits, labels, axis=1, batch_dims=1)[:, None]
    not_before = tf.range(classes, dtype=labels.dtype) >= labels[:, None]
    not_better = (logits < true_logit) | ((logits == true_logit) & not_before)
    rank = classes - tf.reduce_sum(tf.cast(not_better, tf.int32), axis=-1)
    values = {
        "examples": tf.ones_like(weights),
        "loss": losses,
        "accuracy": tf.cast(rank < 1, tf.float32),
        "top_5_accuracy": tf.cast(rank < min(5, classes), tf.float32),
    }
    padding = weights == 0
    return {
        name: tf.reduce_sum(tf.where(padding, 0.0, value * weights))
        for name, value in values.items()
    }


def metric_means(sums):
    """`{"examples": n, "loss": ..., ...}`: sums divided by the number of examples."""
    examples = float(sums["examples"])
    means = {name: float(value) / examples for name, value in sums.items() if name != "examples"}
    return {"examples": round(examples)} | means
