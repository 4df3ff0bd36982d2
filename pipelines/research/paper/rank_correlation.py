"""Spearman's correlation within strata, and what it is where there is no relation."""

import dataclasses
import itertools
import math
from collections.abc import Hashable, Sequence

import numpy as np
from scipy import stats

# All orders are counted up to this number, else as many are drawn.
_MOST = 20_000
_TAIL = 0.025


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankCorrelation:
    """A correlation of ranks.

    Attributes:
        value: in -1 .. 1; 0 if one side does not vary within the strata.
        low, high: without a relation, it lies within with a chance of 95 % at least.
    """

    value: float
    low: float
    high: float

    @property
    def is_above(self) -> bool:
        """Whether it is larger than it is without a relation."""
        return self.value > self.high

    @property
    def text(self) -> str:
        """The numbers."""
        return f"{self.value:+.2f}; without a relation {self.low:+.2f} to {self.high:+.2f}"


def correlation(x: Sequence[float], y: Sequence[float], seed=0) -> RankCorrelation:
    """Spearman's rank correlation: that of a single stratum; see `within_strata`."""
    return within_strata(x, y, [None] * len(x), seed)


def within_strata(
    x: Sequence[float], y: Sequence[float], strata: Sequence[Hashable], seed=0
) -> RankCorrelation:
    """The partial rank correlation of two quantities, with the strata removed.

    Both are ranked over all examples. Each rank then loses the mean of its stratum: what is left
    is what a regression on the strata, as categories, leaves. The value is the correlation of what
    is left. Without a relation, all orders of `y` within the strata are equally likely: the
    interval is that of the values of all these orders, or of 20,000 drawn ones if there are more.

    Args:
        x, y: the quantities, one number for each example.
        strata: the stratum of each example.
        seed: of the orders.

    Raises:
        ValueError: if their lengths differ.
    """
    groups = {}
    for place, (_, _, stratum) in enumerate(zip(x, y, strata, strict=True)):
        groups.setdefault(stratum, []).append(place)
    places = list(groups.values())
    first, second = (_centered(stats.rankdata(each), places) for each in (x, y))
    size = float(np.linalg.norm(first) * np.linalg.norm(second))
    if size < 1e-9:
        return RankCorrelation(value=0.0, low=0.0, high=0.0)
    if math.prod(math.factorial(len(each)) for each in places) <= _MOST:
        sums = _all_orders(first, second, places)
    else:
        sums = _drawn_orders(first, second, places, np.random.default_rng(seed))
    # Equal orders have equal values, also after the rounding of another order of additions.
    found = np.sort(np.round(sums / size, 12))
    outside = int(_TAIL * len(found))
    return RankCorrelation(
        value=round(float(first @ second) / size, 12),
        low=float(found[outside]),
        high=float(found[-1 - outside]),
    )


def _centered(ranks, places):
    """The ranks without the means of their strata."""
    left = np.array(ranks, float)
    for each in places:
        left[each] -= left[each].mean()
    return left


def _all_orders(first, second, places):
    """The sum of products for each combination of the orders of all strata."""
    sums = np.zeros(1)
    for each in places:
        orders = np.array([*itertools.permutations(second[each])])
        sums = np.add.outer(sums, orders @ first[each]).reshape(-1)
    return sums


def _drawn_orders(first, second, places, random):
    sums = np.zeros(_MOST)
    for each in places:
        orders = random.permuted(np.tile(second[each], [_MOST, 1]), axis=1)
        sums += orders @ first[each]
    return sums
