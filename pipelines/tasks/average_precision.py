"""Mean average precision over a whole data set, for multi-label evaluation."""

import numpy as np
from sklearn.metrics import average_precision_score


def score_bytes(num_examples, num_classes):
    """Bytes that `AveragePrecision` holds in memory; most of them are scores."""
    return 4 * num_examples * num_classes


class AveragePrecision:
    """Collects the scores of all images, then ranks the images of each class (docs/paper.md F.8).

    The result is exact, and does not depend on batches or their order. Memory holds all scores,
    `score_bytes`.

    Args:
        num_examples: upper limit of the number of images.
        num_classes: `K`.
    """

    def __init__(self, num_examples, num_classes):
        # The system provides this memory when it is first written.
        self._scores = np.empty([num_examples, num_classes], np.float32)
        self._count = 0
        self._rows, self._classes = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]

    def add(self, labels, scores, weights):
        """Adds a batch.

        Args:
            labels: float `[b, K]`, 1 for each label of an image.
            scores: float32 `[b, K]`, such as logits.
            weights: float32 `[b]`, 1 for an image and 0 for padding, which is left out.
        """
        there = weights > 0
        labels, scores = labels[there], scores[there]
        rows, classes = np.nonzero(labels)
        self._rows.append(rows + self._count)
        self._classes.append(classes)
        # A score that is not a number ranks last.
        self._scores[self._count : self._count + len(scores)] = np.where(
            np.isnan(scores), -np.inf, scores
        )
        self._count += len(scores)

    def by_class(self):
        """The average precision of each class, float64 `[K]`; NaN of classes without an image."""
        rows, classes = np.concatenate(self._rows), np.concatenate(self._classes)
        by_class = np.argsort(classes, kind="stable")
        found, begins = np.unique(classes[by_class], return_index=True)
        values = np.full(self._scores.shape[1], np.nan)
        for one, members in zip(found, np.split(by_class, begins[1:]), strict=True):
            values[one] = average_precision(self._scores[: self._count, one], rows[members])
        return values


def average_precision(scores, positives):
    """The mean over the positives of the precision at their rank (docs/paper.md F.8).

    Args:
        scores: float `[n]`, of one class; infinite values are allowed.
        positives: integers `[p]`, the images that have the class; at least one.

    Returns:
        float; equal scores share the last rank.
    """
    # `average_precision_score` refuses infinite scores; ranks are in the same order.
    ranks = np.unique(scores, return_inverse=True)[1]
    is_positive = np.zeros(len(scores), bool)
    is_positive[positives] = True
    return average_precision_score(is_positive, ranks)
