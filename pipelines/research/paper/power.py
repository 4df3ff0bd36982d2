"""How many seeds a study needs, estimated from pilots: trainings with seeds of their own."""

import dataclasses
import statistics
from collections.abc import Sequence

from scipy import stats

from pipelines.research.paper.findings import LEAST_SEEDS, Cell, quantile

# The power that is asked for: the chance to see an effect that is there.
_POWER = 0.8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Power:
    """The number of seeds of a study, and why.

    Attributes:
        deviation: standard deviation of the difference of two arms, as a fraction.
        effect: the difference, or the margin of equality, that is to be seen.
        seeds: their number.
        power: the chance to see it with them.
        tests: number of comparisons, each of which has the interval of Bonferroni.
        equality: whether a margin is tested.
    """

    deviation: float
    effect: float
    seeds: int
    power: float
    tests: int = 1
    equality: bool = False

    @property
    def text(self) -> str:
        """A sentence."""
        what = "an equality within" if self.equality else "a difference of"
        return (
            f"power, by pilots with seeds of their own: paired differences have a standard "
            f"deviation of {100 * self.deviation:.1f} points, so {self.seeds} seeds see {what} "
            f"{100 * self.effect:g} points with a chance of {self.power:.0%}"
        )


def seeds_for(
    pilots: Sequence[Cell], effect, *, most, tests=1, equality=False, least=LEAST_SEEDS
) -> Power:
    """The smallest number of seeds with a power of 80 %, within limits.

    The variance within the arms is pooled, and the difference of two arms has twice that of one:
    with three pilots for each arm, their own differences would say less.

    Args:
        pilots: the accuracies of each arm, one for each seed.
        effect: the difference, or the margin of equality, that is to be seen, as a fraction.
        most: the largest number, whatever its power.
        tests: number of comparisons; see `findings.half_interval`.
        equality: whether a margin is tested, of arms that do not differ.
        least: the smallest number.
    """
    variance = statistics.fmean(statistics.variance(each.values) for each in pilots)
    deviation = (2 * variance) ** 0.5
    compute = power_of_equality if equality else power_of_difference
    seeds = least
    while seeds < most and compute(seeds, effect, deviation, tests) < _POWER:
        seeds += 1
    return Power(
        deviation=deviation,
        effect=effect,
        seeds=seeds,
        power=compute(seeds, effect, deviation, tests),
        tests=tests,
        equality=equality,
    )


def power_of_difference(seeds, effect, deviation, tests=1) -> float:
    """The chance that the interval of a mean difference of `effect` is above 0.

    By the noncentral distribution of Student's t.
    """
    if not deviation:
        return 1.0
    return float(stats.nct.sf(quantile(seeds, tests), seeds - 1, effect * seeds**0.5 / deviation))


def power_of_equality(seeds, margin, deviation, tests=1) -> float:
    """The chance that the interval of arms that do not differ lies within a margin on both sides.

    With s^2 as it is expected; this is the usual approximation for two one-sided tests.
    """
    if not deviation:
        return 1.0
    room = margin * seeds**0.5 / deviation - quantile(seeds, tests)
    return float(max(0.0, 2 * stats.t.cdf(room, seeds - 1) - 1))
