"""Numbers of a single-label evaluation: per class, and how well probabilities fit the accuracy.

`n` images, `K` classes.
"""

import numpy as np

# Equal bins of the largest probability, as Guo et al. (2017), On Calibration of Modern Neural
# Networks, section 2.
BINS = 15


def classification_report(labels, probabilities) -> dict:
    """Confusions, precision, recall and F1 of each class, and the expected calibration error.

    The predicted class is the first class with the largest probability.

    Args:
        labels: int `[n]`, classes 0 .. K - 1.
        probabilities: float `[n, K]` in [0, 1]; rows of a softmax sum to 1, of sigmoids not.

    Returns:
        A dict: "confusion" int64 `[K, K]`, the images by label (row) and predicted class (column);
        "precision", "recall" and "f1" float64 `[K]`, 0 where their divisor is 0, as in scikit-learn
        with `zero_division=0`; "support" int64 `[K]`, images of each class; "calibration_error",
        see `calibration`.

    Raises:
        ValueError: if the shapes do not fit, there is no image, or a value is out of range.
    """
    labels, probabilities = np.asarray(labels), np.asarray(probabilities)
    if probabilities.ndim != 2 or labels.shape != probabilities.shape[:1] or not labels.size:
        raise ValueError(
            "Expected labels [n] and probabilities [n, K] of at least one image. Received: shapes "
            f"{labels.shape} and {probabilities.shape}."
        )
    classes = probabilities.shape[1]
    if labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= classes:
        raise ValueError(f"Expected integer labels from 0 to {classes - 1}. Received: {labels}.")
    if not ((probabilities >= 0) & (probabilities <= 1)).all():
        raise ValueError("Expected probabilities from 0 to 1. Received: others, or NaN.")
    predicted = probabilities.argmax(axis=1)
    error = calibration(probabilities.max(axis=1), predicted == labels)["error"]
    return {
        "confusion": confusion(labels, predicted, classes),
        **per_class(labels, predicted, classes),
        "calibration_error": error,
    }


def confusion(labels, predicted, classes, block=1):
    """The number of images by label and predicted class.

    Args:
        labels, predicted: int `[n]`.
        classes: `K`.
        block: this many neighboring classes share a row and a column.

    Returns:
        int64 `[m, m]`, rows are labels, where m is `K / block`, rounded up; the sum is `n`.
    """
    side = -(-classes // block)
    cells = np.asarray(labels, np.int64) // block * side + np.asarray(predicted) // block
    return np.bincount(cells, minlength=side * side).reshape(side, side)


def per_class(labels, predicted, classes) -> dict:
    """The numbers of each class of `classification_report`, without a matrix."""
    right, given, support = (
        np.bincount(values, minlength=classes)
        for values in (labels[labels == predicted], predicted, labels)
    )
    return {
        "precision": _quotient(right, given),
        "recall": _quotient(right, support),
        "f1": _quotient(2 * right, given + support),
        "support": support,
    }


def calibration(confidence, is_right, bins=BINS) -> dict:
    """The accuracy at each confidence, and the expected calibration error.

    The error is sum_b n_b / n |accuracy_b - confidence_b|, with the means over the n_b images of a
    bin (Guo et al., 2017, eq. 3). Bin b holds confidences above b / bins, up to (b + 1) / bins;
    the first one also holds 0.

    Args:
        confidence: float `[n]` in [0, 1], the largest probability of each image.
        is_right: bool `[n]`, whether the class of this probability is the label.
        bins: number of bins.

    Returns:
        A dict: "error", a float; of each bin "images" int64, "accuracy" and "confidence" float64,
        0 in empty bins.
    """
    confidence = np.asarray(confidence, np.float64)
    place = np.searchsorted(np.linspace(0, 1, bins + 1), confidence, side="left") - 1
    place = np.clip(place, 0, bins - 1)
    images = np.bincount(place, minlength=bins)
    accuracy, mean = (
        _quotient(np.bincount(place, weights=values, minlength=bins), images)
        for values in (np.asarray(is_right, np.float64), confidence)
    )
    error = float(np.sum(images * np.abs(accuracy - mean)) / len(confidence))
    return {"error": error, "images": images, "accuracy": accuracy, "confidence": mean}


def most_confused(labels, predicted, count):
    """The pairs of a label and another predicted class with the most images.

    Args:
        labels, predicted: int `[n]`.
        count: largest number of pairs.

    Returns:
        A list of `(label, predicted, images)`, the largest number first, else by class.
    """
    wrong = labels != predicted
    pairs, images = np.unique(
        np.stack([labels[wrong], predicted[wrong]], axis=1), axis=0, return_counts=True
    )
    order = np.argsort(-images, kind="stable")[:count]
    return [(*map(int, pairs[i]), int(images[i])) for i in order]


def _quotient(above, below):
    above = np.asarray(above, np.float64)
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)
