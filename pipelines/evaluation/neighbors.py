"""k-nearest-neighbor classification of features, beside the few-shot evaluation."""

import numpy as np

NEIGHBORS = (1, 10, 20)
# In the weights exp(similarity / temperature); as in Wu et al., arXiv 1805.01978.
TEMPERATURE = 0.07
# Similarities that are in memory at the same time, as float32 and with int64 row numbers.
_BLOCK_SIMILARITIES = 2**25


def neighbor_accuracies(train, test, num_classes, neighbors=NEIGHBORS):
    """Accuracies of the weighted vote of the nearest training features (docs/paper.md H.2).

    Args:
        train, test: `features.Features`, finite.
        num_classes: number of classes.
        neighbors: numbers of neighbors k that vote.

    Returns:
        The accuracies, k -> fraction; and notes, sentences about each k that was left out because
        there are fewer training rows.
    """
    possible = [k for k in neighbors if k <= len(train.ids)]
    notes = [
        f"k-NN with k={k} needs {k} training rows; there are {len(train.ids)}."
        for k in neighbors
        if k not in possible
    ]
    if not possible:
        return {}, notes
    directions, test_directions = _normalized(train.values), _normalized(test.values)
    correct = dict.fromkeys(possible, 0)
    block = max(1, _BLOCK_SIMILARITIES // len(train.ids))
    for start in range(0, len(test.ids), block):
        rows = slice(start, start + block)
        similarities, nearest = _nearest(test_directions[rows], directions, max(possible))
        weights, labels = np.exp(similarities / TEMPERATURE), train.labels[nearest]
        for k in possible:
            votes = np.zeros([len(labels), num_classes])
            np.add.at(votes, (np.arange(len(labels))[:, None], labels[:, :k]), weights[:, :k])
            correct[k] += int(np.sum(votes.argmax(axis=1) == test.labels[rows]))
    return {k: count / len(test.ids) for k, count in correct.items()}, notes


def _normalized(values):
    """Rows divided by their lengths, float32 `[n, F]`; a row of zeros stays."""
    # Squares of large float32 values overflow.
    lengths = np.sqrt(np.einsum("nf,nf->n", values, values, dtype=np.float64))
    lengths[lengths == 0.0] = 1.0
    return np.divide(values, lengths[:, None], out=np.empty(values.shape, np.float32))


def _nearest(rows, directions, count):
    """The highest similarities of some rows, descending, and the training rows that they are with.

    Args:
        rows: float32 `[b, F]`.
        directions: float32 `[n, F]`, the training rows.
        count: how many.

    Returns:
        float64 and integers, `[b, count]` each.
    """
    similarities = rows @ directions.T
    nearest = np.argpartition(similarities, -count, axis=1)[:, -count:]
    found = np.take_along_axis(similarities, nearest, axis=1).astype(np.float64)
    order = np.argsort(-found, axis=1, kind="stable")
    return np.take_along_axis(found, order, axis=1), np.take_along_axis(nearest, order, axis=1)
