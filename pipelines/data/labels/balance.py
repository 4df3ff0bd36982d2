"""Balances rare classes: `data.balance`. NumPy only."""

import numpy as np

from pipelines.errors import DataError


def check_single_labels(source, balance):
    """Raises `DataError` if a `DataSource` has lists of labels, which no class is rare in."""
    if source.multi_label:
        raise DataError(
            f"data.balance={balance} needs one class per image, but {source.name} has lists of "
            "labels. Set data.balance=none."
        )


def class_weights(counts) -> np.ndarray:
    """Returns the weight of each class: n / (K n_c), for which the mean over the examples is 1.

    Args:
        counts: `n_c`, the number of examples of each class, int64 `[num_classes]`.

    Returns:
        float64 `[num_classes]`; `n` examples are of `K` classes. A class without any has weight 0.
    """
    present = np.count_nonzero(counts)
    return np.where(counts > 0, counts.sum() / (present * np.maximum(counts, 1)), 0.0)


def repeats(labels, words, ids) -> np.ndarray:
    """Returns how often each example is in an epoch where all classes are equally frequent.

    Every class gets the number of examples of the largest class. Its examples are repeated equally
    often; for the remainder, the examples with the lowest random words are taken once more.

    Args:
        labels: integers `[n]`.
        words: a random word of each example, uint64 `[n]`.
        ids: unique integers `[n]`, which decide between equal words.

    Returns:
        int64 `[n]`, each at least 1.
    """
    counts = np.bincount(labels)
    order = np.lexsort((ids, words, labels))
    begins = np.cumsum(counts) - counts
    ranks = np.empty(len(labels), np.int64)  # of each example in its class
    ranks[order] = np.arange(len(order)) - begins[labels[order]]
    own = counts[labels]
    return counts.max() // own + (ranks < counts.max() % own)
