"""Classification metrics as sums over examples; padding is not counted."""

import tensorflow as tf

# The metric that chooses the best checkpoint: of single-label and of multi-label data, and of the
# targets of masked patch prediction.
_MAIN_METRICS = ("accuracy", "mean_average_precision", "patch_accuracy", "psnr")


def metric_sums(labels, logits, weights, losses):
    """Weighted sums over a batch, the input of `metric_means`.

    Args:
        labels: int `[b]`, or multi-label: float `[b, K]`, 1 for each label of an image.
        logits: float32 `[b, K]`.
        weights: float32 `[b]`, 1 for an example and 0 for padding.
        losses: float32 `[b]`, see `losses.cross_entropy`.

    Returns:
        Dict of float32 scalars: "examples", "loss", "accuracy" and "top_5_accuracy"; multi-label:
        "examples", "loss", "labeled" (images with a label) and "precision_at_1" (of these, the
        images whose most probable class is one of their labels).
    """
    own = _accuracies if labels.dtype.is_integer else _precision
    return weighted_sums({"loss": losses, **own(labels, logits)}, weights)


def weighted_sums(values, weights):
    """Weighted sums of values of each image, and the number of "examples"; padding may be NaN."""
    values = {"examples": tf.ones_like(weights), **values}
    padding = weights == 0
    return {
        name: tf.reduce_sum(tf.where(padding, 0.0, value * weights))
        for name, value in values.items()
    }


def _accuracies(labels, logits):
    # In a tie the lower class index is better, as in predictions: equal logits do not all count as
    # right. NaN counts as better, so a true class with a NaN logit has rank K.
    classes = logits.shape[-1]
    true_logit = tf.gather(logits, labels, axis=1, batch_dims=1)[:, None]
    not_before = tf.range(classes, dtype=labels.dtype) >= labels[:, None]
    not_better = (logits < true_logit) | ((logits == true_logit) & not_before)
    rank = classes - tf.reduce_sum(tf.cast(not_better, tf.int32), axis=-1)
    return {
        "accuracy": tf.cast(rank < 1, tf.float32),
        "top_5_accuracy": tf.cast(rank < min(5, classes), tf.float32),
    }


def _precision(labels, logits):
    # As for the accuracy, the first of equal logits wins, and a row with NaN is never right.
    top = tf.argmax(logits, axis=1)
    is_label = tf.gather(labels, top, axis=1, batch_dims=1) > 0
    has_nan = tf.reduce_any(tf.math.is_nan(logits), axis=1)
    return {
        "labeled": tf.cast(tf.reduce_any(labels > 0, axis=1), tf.float32),
        "precision_at_1": tf.cast(is_label & ~has_nan, tf.float32),
    }


def metric_means(sums):
    """`{"examples": n, "loss": ..., ...}`: sums divided by the number of examples.

    "precision_at_1" is divided by "labeled", which is left out.
    """
    sums = {name: float(value) for name, value in sums.items()}
    examples = sums.pop("examples")
    counts = {"precision_at_1": sums.pop("labeled", 0.0)}
    means = {name: value / counts.get(name, examples) for name, value in sums.items()}
    return {"examples": round(examples)} | means


def main_metric(means):
    """The name of the metric by which evaluations are compared; higher is better.

    Args:
        means: result of an evaluation.
    """
    return next(name for name in _MAIN_METRICS if name in means)


def as_text(metric, value) -> str:
    """The value of a main metric for people: "97.31%", or "12.36 dB"."""
    return f"{value:.2f} dB" if metric == "psnr" else f"{value:.2%}"
