"""k-NN against a slow NumPy version; the linear probe against its optimality conditions."""

import numpy as np
import pytest

from pipelines.evaluation import linear_probe as probe_module
from pipelines.evaluation import neighbors
from pipelines.evaluation.features import Features
from pipelines.evaluation.few_shot import whitening
from pipelines.evaluation.linear_probe import GRID, linear_probe
from pipelines.evaluation.neighbors import neighbor_accuracies
from tests.pipelines.evaluation.clusters import clusters


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
    # Squares of these features overflow float32.
    large = (Features(1e30 * part.values, part.labels, part.ids) for part in (train, test))
    assert neighbor_accuracies(*large, 4, (1, 3, 10, 60))[0] == received


def test_neighbors_are_found_in_blocks_of_rows_that_are_normalized_once(monkeypatch):
    train, test = features(60, 5, 4, spread=1.0), features(50, 5, 4, seed=1, spread=1.0)
    whole = neighbor_accuracies(train, test, 4)
    calls = []
    for name in ("_normalized", "_nearest"):
        function = getattr(neighbors, name)

        def noted(*arguments, name=name, function=function):
            calls.append(name)
            return function(*arguments)

        monkeypatch.setattr(neighbors, name, noted)
    monkeypatch.setattr(neighbors, "_BLOCK_SIMILARITIES", 7 * 60)
    assert neighbor_accuracies(train, test, 4) == whole
    assert calls == ["_normalized"] * 2 + ["_nearest"] * 8


def test_a_row_of_zeros_has_no_direction():
    train = Features(np.array([[0, 0], [-1, 0], [1, 0]], np.float32), np.arange(3), np.arange(3))
    test = Features(np.array([[2, 0], [-3, 0]], np.float32), np.array([2, 1]), np.arange(2))
    assert neighbor_accuracies(train, test, 3, (1,))[0] == {1: 1.0}
    zeros = Features(np.zeros((2, 2), np.float32), test.labels, test.ids)
    # All similarities are 0: each class has one vote, and the first class wins.
    assert neighbor_accuracies(train, zeros, 3, (3,))[0] == {3: 0.0}


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


def test_the_probe_of_two_classes_has_one_weight_vector():
    """Its penalty is |w|^2 / 2; two vectors of opposite sign would have half of it."""
    train, test = features(100, 4, 2), features(80, 4, 2, seed=1)
    fitted = []
    grid, original = (0.01,), probe_module.LogisticRegression.fit
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            probe_module.LogisticRegression,
            "fit",
            lambda self, *arguments: fitted.append(original(self, *arguments)),
        )
        probe, notes = linear_probe(train, test, grid)
    mean, deviation = whitening(train.values)
    x, x_test = ((part.values - mean) / deviation for part in (train, test))
    w, bias, sign = np.zeros(4), 0.0, 2.0 * train.labels - 1
    for _ in range(4000):
        error = -sign / (1 + np.exp(sign * (x @ w + bias)))
        w -= 0.1 * (grid[0] * x.T @ error + w)
        bias -= 0.1 * grid[0] * error.sum()
    np.testing.assert_allclose(fitted[-1].coef_, [w], rtol=0, atol=1e-3 * np.abs(w).max())
    assert probe.accuracy == np.mean((x_test @ w + bias > 0) == test.labels) > 0.6
    assert notes == []


def test_fits_are_logged_and_share_one_float32_copy(monkeypatch, logged):
    train, test = features(50, 4, 3), features(20, 4, 3, seed=1)
    fitted, original = [], probe_module._fit
    before = train.values.copy()
    monkeypatch.setattr(
        probe_module, "_fit", lambda *arguments: fitted.append(arguments[1]) or original(*arguments)
    )
    linear_probe(train, test, grid=(0.1, 1.0))
    assert [line.partition(",")[0] for line in logged] == [
        f"linear probe: fit {number} of 3" for number in (1, 2, 3)
    ]
    assert logged[1] == "linear probe: fit 2 of 3, C=1, 39 images" and "50 images" in logged[2]
    assert [len(x) for x in fitted] == [39, 39, 50]
    assert all(np.shares_memory(x, fitted[2]) and x.dtype == np.float32 for x in fitted)
    np.testing.assert_array_equal(train.values, before)


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
