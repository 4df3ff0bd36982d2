"""The numbers of the evaluation report against scikit-learn and plain loops."""

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from pipelines.errors import NonFiniteError
from pipelines.evaluation.predictions import Predictions
from pipelines.evaluation.report import (
    calibration,
    classification_report,
    confusion,
    most_confused,
)


def _evaluation(images, classes, seed=0):
    """Labels, and probabilities that are often right; the last class is neither."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes - 1, images)
    logits = rng.normal(size=[images, classes]) + 2 * (np.arange(classes) == labels[:, None])
    logits[:, -1] -= 50
    probabilities = np.exp(logits)
    return labels, probabilities / probabilities.sum(axis=1, keepdims=True)


@pytest.mark.parametrize(("images", "classes"), [(1, 2), (300, 2), (500, 7), (200, 60)])
def test_numbers_of_classes_are_those_of_scikit_learn(images, classes):
    labels, probabilities = _evaluation(images, classes)
    found = classification_report(labels, probabilities)
    predicted = probabilities.argmax(axis=1)
    names = np.arange(classes)
    np.testing.assert_array_equal(
        found["confusion"], confusion_matrix(labels, predicted, labels=names)
    )
    expected = precision_recall_fscore_support(labels, predicted, labels=names, zero_division=0)
    for name, column in zip(("precision", "recall", "f1", "support"), expected, strict=True):
        np.testing.assert_allclose(found[name], column, rtol=1e-12, err_msg=name)
    assert found["confusion"].sum() == found["support"].sum() == images


def test_the_first_of_equal_probabilities_is_predicted():
    found = classification_report([1, 2, 0], [[0.4, 0.4, 0.2]] * 3)
    np.testing.assert_array_equal(found["confusion"], [[1, 0, 0], [1, 0, 0], [1, 0, 0]])


@pytest.mark.parametrize("images", [1, 2000])
def test_calibration_error_is_that_of_a_plain_loop(images):
    """Bins hold their upper edge; the first one also holds 0."""
    rng = np.random.default_rng(images)
    confidence = np.append(rng.random(images), [0.0, 1.0, 0.2, 1 / 15, 2 / 3])
    right = rng.random(len(confidence)) < confidence**2
    found, error = calibration(confidence, right), 0.0
    for number in range(15):
        low, high = np.linspace(0, 1, 16)[number : number + 2]
        inside = (confidence > low) & (confidence <= high) | (confidence == 0) & (number == 0)
        assert found["images"][number] == inside.sum()
        if inside.any():
            accuracy, mean = right[inside].mean(), confidence[inside].mean()
            assert found["accuracy"][number] == pytest.approx(accuracy, rel=1e-12)
            assert found["confidence"][number] == pytest.approx(mean, rel=1e-12)
            error += inside.mean() * abs(accuracy - mean)
    assert found["images"].sum() == len(confidence)
    assert found["error"] == pytest.approx(error, rel=1e-12)


def test_calibration_error_has_its_closed_forms():
    labels, probabilities = np.repeat([0, 1], [3, 1]), np.tile([0.75, 0.25], (4, 1))
    assert classification_report(labels, probabilities)["calibration_error"] == 0
    found = classification_report(1 - labels, probabilities)
    assert found["calibration_error"] == pytest.approx(0.5)


def test_blocks_of_classes_add_up():
    labels, probabilities = _evaluation(400, 7)
    whole = confusion(labels, probabilities.argmax(axis=1), 7)
    padded = np.pad(whole, [[0, 2], [0, 2]])
    expected = padded.reshape(3, 3, 3, 3).sum(axis=(1, 3))
    np.testing.assert_array_equal(confusion(labels, probabilities.argmax(axis=1), 7, 3), expected)


def test_most_confused_pairs_are_the_largest_off_the_diagonal():
    labels, predicted = np.array([0, 0, 1, 1, 1, 2, 2, 2]), np.array([1, 1, 0, 1, 1, 0, 0, 1])
    assert most_confused(labels, predicted, 3) == [(0, 1, 2), (2, 0, 2), (1, 0, 1)]
    assert most_confused(labels, labels, 3) == []


@pytest.mark.parametrize(
    ("labels", "probabilities", "message"),
    [
        ([0], [0.5, 0.5], "Expected labels"),
        ([0, 1], [[0.5, 0.5]], "Expected labels"),
        ([], np.zeros([0, 2]), "at least one image"),
        ([2], [[0.5, 0.5]], "from 0 to 1"),
        ([-1], [[0.5, 0.5]], "from 0 to 1"),
        ([0.5], [[0.5, 0.5]], "integer labels"),
        ([0], [[1.5, 0.5]], "probabilities from 0 to 1"),
        ([0], [[np.nan, 0.5]], "probabilities from 0 to 1"),
    ],
)
def test_wrong_input_is_refused(labels, probabilities, message):
    with pytest.raises(ValueError, match=message):
        classification_report(labels, probabilities)


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_predictions_are_collected_in_the_order_of_ids(activation):
    """In batches in any order, without rows of weight 0; equal logits in label order."""
    rng = np.random.default_rng(3)
    logits = rng.integers(-3, 4, [40, 8]).astype(np.float32)
    logits[5] = 1000 * logits[5]
    labels, ids = rng.integers(0, 8, 40), rng.permutation(100)[:40]
    weights = (rng.random(40) < 0.7).astype(np.float32)
    logits[weights == 0] = np.nan
    collector = Predictions(activation)
    for part in (slice(30, 40), slice(0, 13), slice(13, 30)):
        collector.add(labels[part], logits[part], weights[part], ids[part])
    found = collector.collected()
    rows = np.flatnonzero(weights)
    rows = rows[np.argsort(ids[rows])]
    np.testing.assert_array_equal(found.ids, ids[rows])
    np.testing.assert_array_equal(found.labels, labels[rows])
    best = np.argsort(-logits[rows], axis=1, kind="stable")[:, :5]
    np.testing.assert_array_equal(found.classes, best)
    values = logits[rows].astype(np.float64)
    if activation == "softmax":
        shifted = np.exp(values - values.max(axis=1, keepdims=True))
        expected = shifted / shifted.sum(axis=1, keepdims=True)
    else:
        small = np.exp(-abs(values))
        expected = np.where(values > 0, 1, small) / (1 + small)
    np.testing.assert_allclose(
        found.probabilities, np.take_along_axis(expected, best, axis=1), rtol=1e-12, atol=1e-300
    )
    np.testing.assert_array_equal(found.is_right, best[:, 0] == labels[rows])


def test_lists_of_labels_are_right_if_one_is():
    collector = Predictions("sigmoid")
    labels = np.array([[1, 1, 0], [0, 1, 1], [0, 0, 0]], np.float32)
    collector.add(labels, np.eye(3, dtype=np.float32)[[0, 0, 2]], np.ones(3), np.arange(3)[::-1])
    found = collector.collected()
    assert [own.tolist() for own in found.labels] == [[], [1, 2], [0, 1]]
    assert found.is_right.tolist() == [False, False, True]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_logits_that_are_not_finite_are_refused(value):
    with pytest.raises(NonFiniteError, match="NaN or infinite"):
        Predictions("softmax").add(
            np.zeros(1, int), np.float32([[0, value]]), np.ones(1), np.zeros(1, int)
        )
