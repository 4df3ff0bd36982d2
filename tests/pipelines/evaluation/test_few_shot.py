"""Few-shot least squares: the published code's golden values, and the equations in float64."""

import json

import numpy as np
import pytest

from pipelines.errors import UserError
from pipelines.evaluation import few_shot
from pipelines.evaluation.features import Features
from pipelines.evaluation.few_shot import few_shot_accuracy, few_shot_grid, select
from tests.pipelines.evaluation.clusters import clusters


@pytest.mark.parametrize("case", [f"shots{n}_l2_{l2}" for n in (1, 4) for l2 in (1, 1024)])
def test_golden_values(golden, case):
    """big_vision's selection, predictions, accuracy; its scores in a float64 solve."""
    values = golden("fewshot_small")
    description = json.loads(str(values["description"]))
    protocol, classes = description["cases"][case], description["num_classes"]
    names = ("train_features", "train_labels", "test_features", "test_labels")
    train, labels, test, test_labels = (values[name] for name in names)
    shots, seed, l2 = protocol["shots"], protocol["seed"], protocol["l2_reg"]
    rows = select(labels, classes, shots, seed)
    np.testing.assert_array_equal(rows, values[f"{case}/indices"])
    (block,) = few_shot.scores(train[rows], labels[rows], test, classes, [l2])
    expected = values[f"{case}/scores"]
    np.testing.assert_allclose(block[0], expected, rtol=0, atol=1e-9 * np.abs(expected).max())
    predicted = few_shot.predict(train[rows], labels[rows], test, classes, [l2])
    np.testing.assert_array_equal(predicted[0], values[f"{case}/predictions"])
    accuracy = few_shot_accuracy(train, labels, test, test_labels, classes, shots, seed, l2)
    assert accuracy == pytest.approx(protocol["accuracy"], abs=1e-6)


def plain_scores(train, labels, test, classes, l2):
    """The equations, one by one, with `numpy.linalg.solve`."""
    train, test = train.astype(np.float64), test.astype(np.float64)
    mean = train.sum(axis=0) / len(train)
    deviation = np.sqrt(((train - mean) ** 2).sum(axis=0) / len(train)) + 1e-5
    x, x_test = (
        np.hstack([(part - mean) / deviation, np.full((len(part), 1), 100.0)])
        for part in (train, test)
    )
    y = np.full((len(train), classes), -1.0)
    for row, label in enumerate(labels):
        y[row, label] = 1.0
    return x_test @ np.linalg.solve(x.T @ x + l2 * np.eye(x.shape[1]), x.T @ y)


@pytest.mark.parametrize("width", [1, 3, 19, 20, 21, 70])
def test_both_forms_solve_the_equations(width):
    """Fewer, as many and more examples than features; one constant feature; several strengths."""
    train, labels = clusters(20, width, 4)
    test, _ = clusters(13, width, 4, seed=1)
    train[:, 0] = test[:, 0] = 0.3
    strengths = [0.5, 32.0, 1024.0]
    mean, deviation = few_shot.whitening(train)
    x, y = few_shot.inputs(train, mean, deviation), 2.0 * np.eye(4)[labels] - 1.0
    by_features, by_examples = (
        few_shot.solve(x, y, strengths, form) for form in ("features", "examples")
    )
    x_test = few_shot.inputs(test, mean, deviation)
    assert not np.any(x_test[:, 0])
    (received,) = few_shot.scores(train, labels, test, 4, strengths)
    for place, l2 in enumerate(strengths):
        expected = plain_scores(train, labels, test, 4, l2)
        error = 1e-9 * np.abs(expected).max()
        np.testing.assert_allclose(received[place], expected, rtol=0, atol=error)
        for weights in (by_features, by_examples):
            np.testing.assert_allclose(x_test @ weights[place], expected, rtol=0, atol=error)


def test_the_solve_is_float64():
    """Although the features are float32: a float32 solve with a small strength loses digits."""
    train, labels = clusters(70, 64, 5)
    test, _ = clusters(30, 64, 5, seed=1)
    expected = plain_scores(train, labels, test, 5, 0.1)
    (received,) = few_shot.scores(train, labels, test, 5, [0.1])
    largest = np.abs(expected).max()
    assert np.abs(received[0] - expected).max() < 1e-9 * largest
    mean, deviation = few_shot.whitening(train)
    x, x_test = (few_shot.inputs(part, mean, deviation) for part in (train, test))
    y = 2.0 * np.eye(5)[labels] - 1.0
    narrow = few_shot.solve(x.astype(np.float32), y.astype(np.float32), [0.1])[0]
    assert np.abs(x_test @ narrow - expected).max() > 1e-6 * largest


@pytest.mark.parametrize(("values", "blocks"), [(7 * 4 * 7, 8), (7 * 4 * 7 - 1, 9), (1, 50)])
def test_blocks_of_test_rows_change_nothing(monkeypatch, values, blocks):
    """Four arrays of 6 features and the constant are larger than the 2 * 3 scores of a row."""
    train, labels = clusters(30, 6, 3)
    test, test_labels = clusters(50, 6, 3, seed=1)
    whole = few_shot.predict(train, labels, test, 3, [1.0, 32.0])
    monkeypatch.setattr(few_shot, "_BLOCK_VALUES", values)
    assert len(list(few_shot.scores(train, labels, test, 3, [1.0, 32.0]))) == blocks
    np.testing.assert_array_equal(few_shot.predict(train, labels, test, 3, [1.0, 32.0]), whole)
    assert np.mean(whole[0] == test_labels) > 0.5


def test_selection():
    """One generator for all classes, in ascending order; a small class gives all it has."""
    labels = np.array([2, 0, 2, 1, 0, 2, 0, 0])
    generator = np.random.default_rng(5)
    permuted = [generator.permutation(rows) for rows in ([1, 4, 6, 7], [3], [0, 2, 5], [])]
    for shots in (1, 2, 3, 9):
        expected = np.concatenate([rows[:shots] for rows in permuted])
        np.testing.assert_array_equal(select(labels, 4, shots, 5), expected)


def test_a_grid_holds_each_accuracy():
    train = Features(*clusters(60, 5, 3), np.arange(60))
    test = Features(*clusters(40, 5, 3, seed=1), np.arange(40))
    shots, l2, seeds = [1, 4], [1.0, 1024.0, 32.0], [0, 7]
    grid = few_shot_grid(train, test, 3, shots, l2, seeds)
    parts = (train.values, train.labels, test.values, test.labels, 3)
    expected = [[[few_shot_accuracy(*parts, n, s, x) for s in seeds] for x in l2] for n in shots]
    np.testing.assert_array_equal(grid, expected)
    assert np.unique(grid).size > 3


def wrong(name, value):
    train, labels = clusters(8, 3, 2)
    arguments = {
        "train_features": train,
        "train_labels": labels,
        "test_features": train.copy(),
        "test_labels": labels,
        "num_classes": 2,
        "shots": 1,
        "seed": 0,
        "l2": 1.0,
    }
    return arguments | {name: value(arguments[name])}


def put(value):
    def change(array):
        array[[2, 5], 1] = value
        return array

    return change


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("train_features", put(np.nan), "2 of 8 .*training.*row 2"),
        ("test_features", put(np.inf), "2 of 8 .*test features"),
        ("test_features", put([np.inf, -np.inf]), "2 of 8 .*test features"),
        ("train_features", lambda x: x[0], "as \\[n, F\\] with n labels"),
        ("train_features", lambda x: x[:0], "as \\[n, F\\] with n labels"),
        ("train_labels", lambda x: x[:3], "shapes \\[8, 3\\] and \\[3\\]"),
        ("test_features", lambda x: x[:, :2], "3 columns.* 2"),
        ("test_labels", lambda x: x + 1, "from 1 to 2.* 0 to 1"),
        ("train_labels", lambda x: x - 1, "go from -1 to 0"),
        ("train_labels", lambda x: x.astype(np.float64), "training.*float64"),
        ("test_labels", lambda x: x.astype(np.float32), "test .*dtype float32"),
        ("train_features", lambda x: x.astype(np.float64) * 1e200, "large.*overflow"),
        ("test_features", lambda x: np.full(x.shape, 1e308), "large.*overflow"),
        ("shots", lambda x: 0, r"shots.*\[0\]"),
        ("l2", lambda x: 0.0, "positive.* l2"),
        ("l2", lambda x: np.nan, "positive.* l2"),
    ],
)
def test_wrong_input(name, value, text):
    with pytest.raises(UserError, match=text):
        few_shot_accuracy(**wrong(name, value))


def test_wrong_features_are_named_by_their_id():
    values, labels = clusters(8, 3, 2)
    good = Features(values, labels, np.arange(8))
    bad = Features(put(np.nan)(values.copy()), labels, np.arange(100, 108))
    with pytest.raises(UserError, match="the first is id 102"):
        few_shot_grid(good, bad, 2, [1], [1.0], [0])
