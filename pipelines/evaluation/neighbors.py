"""k-nearest-neighbour classification of features, beside the few-shot evaluation."""

import numpy as np
from sklearn.neighbors import NearestNeighbors

NEIGHBORS = (1, 10, 20)
# Of the weights exp(similarity / temperature); as in Wu et al., arXiv 1805.01978.
TEMPERATURE = 0.07
# Test rows whose distances to all training rows are in memory at the same time.
_BLOCK = 512


def neighbor_accuracies(train, test, num_classes, neighbors=NEIGHBORS):
    """Accuracies of the weighted vote of the nearest training features (docs/paper.md H.2).

    Args:
        train, test: `features.Features`, finite.
        num_classes: number of classes.
        neighbors: numbers of neighbours k that vote.

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
    search = NearestNeighbors(n_neighbors=max(possible), metric="cosine", algorithm="brute")
    search.fit(train.values)
    correct = dict.fromkeys(possible, 0)
    for start in range(0, len(test.ids), _BLOCK):
        rows = slice(start, start + _BLOCK)
        distances, nearest = search.kneighbors(test.values[rows])
        weights, labels = np.exp((1.0 - distances) / TEMPERATURE), train.labels[nearest]
        for k in possible:
            votes = np.zeros([len(labels), num_classes])
            np.add.at(votes, (np.arange(len(labels))[:, None], labels[:, :k]), weights[:, :k])
            correct[k] += int(np.sum(votes.argmax(axis=1) == test.labels[rows]))
    return {k: count / len(test.ids) for k, count in correct.items()}, notes
