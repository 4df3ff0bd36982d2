"""k-NN against a slow NumPy version; the linear probe against its optimality conditions."""

import numpy as np
import pytest

from pipelines.evaluation import neighbors
from pipelines.evaluation.features import Features
from pipelines.evaluation.few_shot import whitening
from pipelines.evaluation.linear_probe import GRID, linear_probe
from pipelines.evaluation.neighbors import neighbor_accuracies
from tests.pipelines.evaluation.test_few_shot import clusters


def features(count, width, num_classes, seed=0, spread=2.0):
    return Features(*clusters(count, width, num_classes, seed, spread), np.arange(count))


def plain_neighbors(train, test, num_classes, k):
    correct = 0
    for value, label in zip(test.values.astype(np.float64), test.labels, strict=True):
        similarities = [
            value @ other / np.linalg.norm(value) / np.linalg.norm(other)
            for other in train.values.astype(np.float64)
        ]
        votes = np.zeros(num_classes)
        for row in np.argsort(similarities)[::-1][:k]:
            votes[train.labels[row]] += np.exp(similarities[row] / 0.07)
        correct += np.argmax(votes) == label
    return correct / len(test.labels)


def test_neighbors_vote_by_similarity(monkeypatch):
    """In blocks of any size. Without the weights, k=60 would always give the largest class."""
    train, test = features(60, 5, 4, spread=1.0), features(50, 5, 4, seed=1, spread=1.0)
    received, notes = neighbor_accuracies(train, test, 4, (1, 3, 10, 60))
    assert notes == []
    assert received == {k: plain_neighbors(train, test, 4, k) for k in (1, 3, 10, 60)}
    assert len(set(received.values())) > 1 and received[60] > 0.4
    monkeypatch.setattr(neighbors, "_BLOCK", 7)
    assert neighbor_accuracies(train, test, 4, (1, 3, 10, 60))[0] == received


def test_neighbors_that_are_not_there():
    train, test = features(9, 5, 3), features(20, 5, 3, seed=1)
    received, notes = neighbor_accuracies(train, test, 3)
    assert list(received) == [1]
    assert notes == [f"k-NN with k={k} needs {k} training rows; there are 9." for k in (10, 20)]
    assert neighbor_accuracies(train, test, 3, (10,))[0] == {}


def test_the_probe_is_the_minimum_for_the_chosen_strength():
    """Gradient descent in NumPy on the same loss finds the same classifier."""
    train, test = features(100, 4, 3), features(80, 4, 3, seed=1)
    probe, notes = linear_probe(train, test)
    assert notes == [] and probe.c in GRID
    mean, deviation = whitening(train.values)
    x, x_test = ((part.values - mean) / deviation for part in (train, test))
    y = np.eye(3)[train.labels]
    weights, bias = np.zeros((4, 3)), np.zeros(3)
    for _ in range(4000):
        scores = np.exp(x @ weights + bias)
        error = scores / scores.sum(axis=1, keepdims=True) - y
        weights -= 0.01 / max(probe.c, 1) * (probe.c * x.T @ error + weights)
        bias -= 0.01 / max(probe.c, 1) * probe.c * error.sum(axis=0)
    predicted = np.argmax(x_test @ weights + bias, axis=1)
    assert np.mean(predicted == test.labels) == pytest.approx(probe.accuracy, abs=0.02)
    assert probe.accuracy > 0.5


def test_the_probe_chooses_on_held_out_rows_of_the_training_features():
    """Rows 1, 6, 11 ... of each class decide: with all their labels wrong, no choice is right."""
    train, test = features(60, 4, 3, spread=0.1), features(30, 4, 3, seed=1, spread=0.1)
    probe, _ = linear_probe(train, test)
    assert (probe.accuracy, probe.held_out_accuracy, probe.c) == (1, 1, GRID[0])
    values = train.values.copy()
    for label in range(3):
        rows = np.flatnonzero(train.labels == label)[1::5]
        values[rows] = values[np.flatnonzero(train.labels == (label + 1) % 3)[0]]
    changed, _ = linear_probe(Features(values, train.labels, train.ids), test)
    assert changed.held_out_accuracy == 0


def test_a_probe_that_cannot_work():
    train, test = features(20, 4, 3), features(10, 4, 3, seed=1)
    few = Features(train.values[:4], np.array([0, 0, 2, 0]), train.ids[:4])
    assert linear_probe(few, test) == (
        None,
        ["The linear probe needs two training rows of each class; label 2 has one."],
    )
    same = Features(train.values[:4], np.zeros(4, np.int32), train.ids[:4])
    assert "there is one class" in linear_probe(same, test)[1][0]
    probe, notes = linear_probe(train, test, grid=(100.0,), max_iterations=2)
    assert probe is not None and len(notes) == 2
    assert "C=100 on 20 rows did not converge in 2 iterations" in notes[1]
