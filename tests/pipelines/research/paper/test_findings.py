"""Means, intervals and paired differences against closed forms and SciPy."""

import numpy as np
import pytest
from scipy import stats

from pipelines.research.paper.findings import (
    Cell,
    Difference,
    Reading,
    Table,
    difference,
    half_interval,
    points,
)


def cell_of(*values):
    return Cell(tuple(Reading(f"a,seed={i}", "accuracy", value) for i, value in enumerate(values)))


def test_intervals_are_students():
    """Three values: 4.303 s / sqrt 3, from any table of the distribution."""
    values = [0.5, 0.6, 0.9]
    deviation = np.std(values, ddof=1)
    assert half_interval(values) == pytest.approx(4.30265 * deviation / 3**0.5, rel=1e-5)
    low, high = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
    cell = cell_of(*values)
    assert (cell.mean - cell.half_interval, cell.mean + cell.half_interval) == (
        pytest.approx(low),
        pytest.approx(high),
    )
    single = cell_of(0.5)
    assert (single.mean, single.half_interval) == (0.5, None)
    three = stats.t.interval(1 - 0.05 / 3, 2, np.mean(values), stats.sem(values))
    assert 2 * half_interval(values, tests=3) == pytest.approx(three[1] - three[0])


def test_differences_are_paired_by_seed():
    first, second = cell_of(0.1, 0.5, 0.9), cell_of(0.0, 0.41, 0.79)
    found = difference(first, second)
    paired = stats.ttest_rel(first.values, second.values).confidence_interval(0.95)
    assert (found.mean - found.half, found.mean + found.half) == (
        pytest.approx(paired.low),
        pytest.approx(paired.high),
    )
    assert found.shows  # The values themselves differ far more from seed to seed.
    table = Table(title="", columns=["a"], rows={"x": [first], "y": [second]}, reference="y")
    assert table.difference("x", 0) == found
    with pytest.raises(ValueError):
        difference(first, cell_of(0.1))


@pytest.mark.parametrize(
    ("found", "shows", "text"),
    [
        (Difference(0.02, 0.01), True, "+2.0 ± 1.0 points"),
        (Difference(-0.02, 0.01), True, "-2.0 ± 1.0 points"),
        (Difference(0.02, 0.03), False, "+2.0 ± 3.0 points"),
        (Difference(0.02, None), False, "+2.0 points"),
    ],
)
def test_a_difference_shows_if_its_interval_leaves_out_0(found, shows, text):
    assert (found.shows, points(found)) == (shows, text)
