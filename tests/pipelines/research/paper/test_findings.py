"""Means, intervals and paired differences against closed forms and SciPy."""

import numpy as np
import pytest
from scipy import stats

from pipelines.research.paper import power
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


def test_too_few_seeds_give_no_verdict():
    assert Difference(0.02, 0.01, 4).is_above is None
    assert Difference(0.02, 0.01, 5).is_above is True
    assert Difference(-0.02, 0.01, 5).is_below is True
    assert Difference(0.02, 0.01, 5).is_within(0.04) is True
    assert Difference(0.02, 0.02, 5).is_within(0.04) is False
    assert Difference(0.2, 0.02, 5).is_no_worse(0.04) is True
    assert Difference(-0.02, 0.01, 5).is_no_worse(0.04) is True
    assert Difference(-0.02, 0.03, 5).is_no_worse(0.04) is False
    assert Difference(0.2, 0.02, 4).is_no_worse(0.04) is None
    assert Difference(-0.02, 0.03, 4).is_within(0.06) is None


@pytest.mark.parametrize(("seeds", "tests"), [(5, 1), (8, 3)])
def test_power_is_that_of_drawn_experiments(seeds, tests):
    """How often intervals of drawn differences show, within three standard errors."""
    random, deviation, effect = np.random.default_rng(0), 0.02, 0.025
    trials = 4_000
    drawn = random.normal(0, deviation, [trials, seeds])
    halves = np.array([half_interval(list(each), tests) for each in drawn])
    shows = np.mean(drawn.mean(axis=1) + effect > halves)
    equal = np.mean(abs(drawn.mean(axis=1)) + halves < 2 * effect)
    error = 3 * (0.25 / trials) ** 0.5
    assert power.power_of_difference(seeds, effect, deviation, tests) == pytest.approx(
        shows, abs=error
    )
    # The approximation of the equality's takes the expected deviation for the drawn ones.
    assert power.power_of_equality(seeds, 2 * effect, deviation, tests) == pytest.approx(
        equal, abs=0.1
    )


def test_pilots_decide_the_number_of_seeds():
    steady, wild = cell_of(0.8, 0.801, 0.799), cell_of(0.7, 0.8, 0.9)
    assert power.seeds_for([steady, steady], 0.03, most=12).seeds == 5
    assert power.seeds_for([steady, steady], 0.03, most=12, least=8).seeds == 8
    found = power.seeds_for([wild, wild], 0.03, most=12)
    assert found.seeds == 12 and found.power < 0.8
    assert found.deviation == pytest.approx(2**0.5 * 0.1)
    assert "12 seeds" in found.text
