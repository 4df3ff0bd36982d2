"""Where a difference that changes with the logarithm of a quantity is 0, and its interval."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from pipelines.research.paper.findings import quantile


@dataclasses.dataclass(frozen=True)
class Crossing:
    """Where the mean line of several seeds is 0.

    Attributes:
        slope: of the line, for twice the size.
        at: the place; infinite for a line without a slope.
        low, high: of its 95 % interval; both None if the interval is unbounded.
    """

    slope: float
    at: float
    low: float | None
    high: float | None

    @property
    def text(self) -> str:
        """A part of a sentence."""
        if self.low is None or self.high is None:
            return f"{_shown(self.at)}, with an interval that is unbounded"
        return f"{_shown(self.at)}, 95 % interval {_shown(self.low)} to {_shown(self.high)}"


def crossing(sizes: Sequence[float], differences: Sequence[Sequence[float]]) -> Crossing:
    """The crossing of two curves by Fieller's theorem (Fieller 1954, J. R. Stat. Soc. B 16).

    A line of least squares through the differences of each seed over the logarithm of the size; the
    seeds are the independent observations. The interval holds the sizes at which the mean line may
    be 0 by Student's interval; it is unbounded if the mean slope may be 0.

    Args:
        sizes: two or more.
        differences: for each size, one for each of two or more seeds.
    """
    x = np.log2(np.asarray(sizes, float))
    middle = x.mean()
    slopes, heights = np.polyfit(x - middle, np.asarray(differences, float), 1)
    slope, height = slopes.mean(), heights.mean()
    at = _size(middle - height / slope) if slope else math.inf
    count = len(slopes)
    covariance = np.cov(slopes, heights) * quantile(count) ** 2 / count
    # Of (height + slope z)^2 <= the square of half its interval at z.
    a = slope**2 - covariance[0, 0]
    b = slope * height - covariance[0, 1]
    c = height**2 - covariance[1, 1]
    if a <= 0:
        return Crossing(float(slope), at, None, None)
    # Not negative where `a` is positive, but for rounding: the place itself solves it.
    root = math.sqrt(max(0.0, b * b - a * c))
    return Crossing(float(slope), at, *(_size(middle + (sign * root - b) / a) for sign in (-1, 1)))


def _shown(size):
    if size < 1:
        return "less than 1"
    return f"{size:,.0f}" if size < 1e12 else "more than 10^12"


def _size(logarithm):
    return float(2.0 ** min(logarithm, 1000.0))
