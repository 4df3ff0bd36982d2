"""A linear probe: logistic regression on frozen features, beside the few-shot evaluation."""

import dataclasses
import logging
import warnings

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from pipelines.evaluation.few_shot import whitening

_log = logging.getLogger(__name__)

# Inverse strengths of the L2 penalty: `C` of scikit-learn, the factor of the summed loss.
GRID = (1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)
_MAX_ITERATIONS = 1000
# Every fifth row of a class is held out.
_PART = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Probe:
    """A fitted linear probe.

    Attributes:
        accuracy: on the test features.
        c: the chosen inverse strength of the L2 penalty.
        held_out_accuracy: of the choice, on the held-out training features.
    """

    accuracy: float
    c: float
    held_out_accuracy: float


def linear_probe(train, test, grid=GRID, max_iterations=_MAX_ITERATIONS):
    """Fits logistic regression (L-BFGS) to whitened features (docs/paper.md H.2).

    The strength of the L2 penalty is chosen on held-out training rows: of each class the second and
    every fifth row after it, in the order of the ids. The first of equal accuracies in the grid is
    taken. The final fit is on all training rows.

    Args:
        train, test: `features.Features`, finite.
        grid: inverse strengths to try, in ascending order.
        max_iterations: of each fit.

    Returns:
        The `Probe`, or None if it cannot be fitted; and notes, sentences about why it cannot or
        about fits that did not converge.
    """
    present, counts = np.unique(train.labels, return_counts=True)
    if len(present) < 2:
        return None, ["The linear probe needs training rows of two classes; there is one class."]
    if counts.min() < 2:
        label = int(present[counts.argmin()])
        return None, [
            f"The linear probe needs two training rows of each class; label {label} has one."
        ]
    mean, deviation = whitening(train.values)
    # One float32 copy; the grid is fitted to its first rows, since slices are no copies.
    held_out = _held_out(train.labels)
    order, fitted = np.argsort(held_out, kind="stable"), int(np.sum(~held_out))
    x, labels = train.values[order], train.labels[order]
    np.divide(np.subtract(x, mean, out=x), deviation, out=x)
    notes, accuracies = [], []

    def fit(regression, rows):
        number = len(accuracies) + 1
        _log.info(
            f"linear probe: fit {number} of {len(grid) + 1}, C={regression.C:g}, {rows:,} images"
        )
        notes.extend(_fit(regression, x[:rows], labels[:rows]))

    # Each fit of the grid starts from the one before.
    search = LogisticRegression(max_iter=max_iterations, warm_start=True)
    for c in grid:
        fit(search.set_params(C=c), fitted)
        accuracies.append(float(search.score(x[fitted:], labels[fitted:])))
    best = int(np.argmax(accuracies))
    final = LogisticRegression(max_iter=max_iterations, C=grid[best])
    fit(final, len(x))
    # Test rows can be so far from the mean that they overflow float32.
    x_test = (test.values - mean) / deviation
    probe = Probe(
        accuracy=float(np.mean(final.predict(x_test) == test.labels)),
        c=grid[best],
        held_out_accuracy=accuracies[best],
    )
    return probe, notes


def _held_out(labels):
    """Which rows are held out, bool `[n]`."""
    by_class = np.argsort(labels, kind="stable")
    ordered = labels[by_class]
    rank = np.arange(len(labels)) - np.searchsorted(ordered, ordered)
    held_out = np.empty(len(labels), bool)
    held_out[by_class] = rank % _PART == 1
    return held_out


def _fit(regression, x, labels):
    """Fits; returns a list with a sentence if it did not converge."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        regression.fit(x, labels)
    if not any(issubclass(warning.category, ConvergenceWarning) for warning in caught):
        return []
    return [
        f"The linear probe with C={regression.C:g} on {len(x):,} rows did not converge in "
        f"{regression.n_iter_.max()} iterations."
    ]
