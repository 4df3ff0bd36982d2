"""Correlations of ranks within strata against SciPy, regressions and enumerations."""

import itertools

import numpy as np
import pytest
from scipy import stats

from pipelines.research.paper import rank_correlation
from pipelines.research.paper.rank_correlation import correlation, within_strata


def drawn(seed=0, slope=0.0, sizes=(10, 10, 10)):
    """Quantities that differ from stratum to stratum by far more than within them."""
    random = np.random.default_rng(seed)
    strata = np.repeat(range(len(sizes)), sizes)
    x = random.normal(size=len(strata))
    y = slope * x + random.normal(size=len(strata))
    return x + 10 * strata, y + 10 * strata, strata


def test_one_stratum_is_spearmans_correlation():
    """Also with ties; the interval is that of SciPy's permutation test, which counts all orders."""
    x, y = [3.0, 1.0, 2.0, 2.0, 5.0, 4.0], [1.0, 2.0, 2.0, 4.0, 3.0, 5.0]
    found = correlation(x, y)
    assert found.value == pytest.approx(stats.spearmanr(x, y).statistic)
    test = stats.permutation_test(
        (x,),
        lambda order: stats.spearmanr(order, y).statistic,
        permutation_type="pairings",
        n_resamples=np.inf,
    )
    null = np.sort(test.null_distribution.round(12))
    assert len(null) == 720
    assert found.high in null and np.mean(null > found.high) <= 0.025 < np.mean(null >= found.high)
    assert found.low in null and np.mean(null < found.low) <= 0.025 < np.mean(null <= found.low)


def test_strata_are_removed_as_by_a_regression():
    """The correlation of what is left of the ranks by regressions on indicators of the strata."""
    x, y, strata = drawn(slope=0.7, sizes=(6, 9, 5))
    indicators = np.equal.outer(strata, np.unique(strata)).astype(float)
    left = []
    for side in (x, y):
        ranks = stats.rankdata(side)
        weights = np.linalg.lstsq(indicators, ranks, rcond=None)[0]
        left.append(ranks - indicators @ weights)
    found = within_strata(x, y, strata)
    assert found.value == pytest.approx(np.corrcoef(*left)[0, 1])
    # Between the strata both rise together; a plain correlation has that too.
    assert correlation(x, y).value > 0.9 > found.value


def test_the_interval_is_that_of_all_orders_within_the_strata():
    x = [1.0, 2.0, 3.0, 11.0, 12.0, 13.0, 14.0]
    y = [2.0, 1.0, 3.0, 11.0, 14.0, 12.0, 13.0]
    strata = ["a"] * 3 + ["b"] * 4
    values = []
    for first, second in itertools.product(
        itertools.permutations(y[:3]), itertools.permutations(y[3:])
    ):
        values.append(within_strata(x, [*first, *second], strata).value)
    assert len(values) == 6 * 24
    found = within_strata(x, y, strata)
    assert found.high == sorted(values)[-1 - int(0.025 * 144)]
    assert found.low == sorted(values)[int(0.025 * 144)]


def test_drawn_orders_estimate_all_of_them(monkeypatch):
    x, y, strata = drawn(sizes=(4, 5))
    exact = within_strata(x, y, strata)
    monkeypatch.setattr(rank_correlation, "_MOST", 2_000)
    monkeypatch.setattr(rank_correlation, "_all_orders", lambda *_: pytest.fail("too many orders"))
    estimate = within_strata(x, y, strata)
    assert estimate == within_strata(x, y, strata) and estimate.value == exact.value
    assert (estimate.low, estimate.high) == (
        pytest.approx(exact.low, abs=0.05),
        pytest.approx(exact.high, abs=0.05),
    )


def test_without_a_relation_few_are_above(monkeypatch):
    """A rate of 2.5 %, within three standard errors; with a relation, most are."""
    monkeypatch.setattr(rank_correlation, "_MOST", 1_000)

    def rate(slope):
        return np.mean([within_strata(*drawn(seed, slope)).is_above for seed in range(300)])

    assert rate(0.0) <= 0.025 + 3 * (0.025 * 0.975 / 300) ** 0.5
    assert rate(1.0) > 0.8


def test_no_spread_is_no_correlation():
    found = within_strata([1.0, 1.0, 2.0, 2.0], [1.0, 2.0, 3.0, 4.0], [0, 0, 1, 1])
    assert (found.value, found.is_above) == (0.0, False)
    with pytest.raises(ValueError):
        within_strata([1.0, 2.0], [1.0, 2.0], [0])
