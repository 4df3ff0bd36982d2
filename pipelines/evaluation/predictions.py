"""The predictions for every image of an evaluation, collected batch by batch."""

import dataclasses

import numpy as np

from pipelines.errors import NonFiniteError

# Classes that are kept of each image.
_TOP = 5


@dataclasses.dataclass(frozen=True)
class Predicted:
    """The predictions for `n` images, sorted by id.

    Attributes:
        ids: int64 `[n]`, see `sources.source.DataSource`.
        labels: int64 `[n]`; or multi-label: a list of int64 arrays.
        classes: int64 `[n, k]`, the k = min(5, K) most probable classes, the most probable first;
            of equal ones the lower index is first, as in the metrics.
        probabilities: float64 `[n, k]` of these classes.
    """

    ids: np.ndarray
    labels: np.ndarray | list
    classes: np.ndarray
    probabilities: np.ndarray

    @property
    def is_right(self):
        """Whether the most probable class of an image is its label, or one of them: bool `[n]`."""
        best = self.classes[:, 0]
        if isinstance(self.labels, np.ndarray):
            return best == self.labels
        return np.array([x in own for x, own in zip(best, self.labels, strict=True)], bool)


class Predictions:
    """Collects the predictions of an evaluation, in memory for 5 classes of each image.

    Args:
        activation: "softmax" or "sigmoid": how logits become probabilities.
    """

    def __init__(self, activation):
        self._activation = activation
        self._batches = []

    def add(self, labels, logits, weights, ids):
        """Adds a batch.

        Args:
            labels: int `[b]`, or multi-label: float `[b, K]`, 1 for each label of an image.
            logits: float32 `[b, K]`.
            weights: float32 `[b]`, 1 for an image and 0 for a row that is left out.
            ids: int64 `[b]`.

        Raises:
            NonFiniteError: if a logit is not finite.
        """
        kept = weights > 0
        labels, logits, ids = labels[kept], logits[kept].astype(np.float64), ids[kept]
        if not np.isfinite(logits).all():
            raise NonFiniteError(
                "The model gives logits that are NaN or infinite, so there is no report, and no "
                "result of a benchmark. Do its weights have such values? Evaluate an earlier "
                "checkpoint, or without --report and --benchmark."
            )
        classes = _largest(logits, min(_TOP, logits.shape[1]))
        best = np.take_along_axis(logits, classes, axis=1)
        if self._activation == "softmax":
            top = best[:, :1]
            probabilities = np.exp(best - top) / np.exp(logits - top).sum(axis=1, keepdims=True)
        else:
            probabilities = 1 / (1 + np.exp(-np.clip(best, -700, None)))
        if labels.ndim == 2:
            labels = [np.flatnonzero(row) for row in labels]
        self._batches.append((ids, labels, classes, probabilities))

    def collected(self) -> Predicted:
        """All of them; at least one batch has been added."""
        ids, labels, classes, probabilities = zip(*self._batches, strict=True)
        ids, classes, probabilities = map(np.concatenate, (ids, classes, probabilities))
        order = np.argsort(ids, kind="stable")
        if isinstance(labels[0], list):
            flat = [own for batch in labels for own in batch]
            labels = [flat[place] for place in order]
        else:
            labels = np.concatenate(labels).astype(np.int64)[order]
        return Predicted(ids[order], labels, classes[order], probabilities[order])


def top_classes(logits, count):
    """The most probable classes of each image, the most probable first.

    Args:
        logits: finite floats `[n, K]`; of equal ones the lower index is first, as in the metrics.
        count: how many; all if there are fewer classes.

    Returns:
        int64 `[n, min(count, K)]`.

    Raises:
        ValueError: for another shape, or logits that are not finite.
    """
    logits = np.asarray(logits, np.float64)
    if logits.ndim != 2 or not logits.shape[1] or not np.isfinite(logits).all():
        raise ValueError(
            f"Expected finite logits [n, K]. Received: shape {list(logits.shape)}, or NaN or "
            "infinity."
        )
    return _largest(logits, min(count, logits.shape[1]))


def _largest(values, count):
    """The columns of the `count` largest finite values of each row; of equal ones the first."""
    left, found = values.copy(), []
    for _ in range(count):  # Faster than sorting thousands of classes.
        found.append(left.argmax(axis=1))
        np.put_along_axis(left, found[-1][:, None], -np.inf, axis=1)
    return np.stack(found, axis=1)
