"""What an experiment has found: tables, curves and claims, whose numbers lead to their runs."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

from scipy import stats

# Fewer seeds give numbers and no verdict.
LEAST_SEEDS = 5
_CONFIDENCE = 0.95
# Accuracies between which a model has learned its task and has not finished it.
_HEADROOM = (0.60, 0.85)


@dataclasses.dataclass(frozen=True)
class Reading:
    """One number that a run has measured.

    Attributes:
        folder: of the unit, relative to that of all units.
        metric: its name in the unit's result.
        value: as stored there; accuracies are fractions.
    """

    folder: str
    metric: str
    value: float


@dataclasses.dataclass(frozen=True)
class Cell:
    """The readings of one entry of a table: one for each seed, in the order of the seeds."""

    readings: tuple[Reading, ...]

    @property
    def values(self) -> list[float]:
        """The numbers."""
        return [reading.value for reading in self.readings]

    @property
    def mean(self) -> float:
        """Their mean."""
        return statistics.fmean(self.values)

    @property
    def half_interval(self) -> float | None:
        """Half of the 95 % interval of the mean (Student); None for a single reading."""
        return half_interval(self.values)


@dataclasses.dataclass(frozen=True)
class Difference:
    """The difference of two cells, paired by seed.

    Attributes:
        mean: of the differences.
        half: half of its 95 % interval (Student); None for a single seed.
        seeds: number of pairs.
    """

    mean: float
    half: float | None
    seeds: int = LEAST_SEEDS

    @property
    def shows(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.half is not None and abs(self.mean) > self.half

    @property
    def is_above(self) -> bool | None:
        """Whether the interval is above 0; None, no verdict, with fewer than `LEAST_SEEDS`."""
        return self._verdict(self.shows and self.mean > 0)

    @property
    def is_below(self) -> bool | None:
        """Whether the interval is below 0; None as for `is_above`."""
        return self._verdict(self.shows and self.mean < 0)

    def is_within(self, margin) -> bool | None:
        """Whether the interval lies within a margin on both sides of 0: a test of equality.

        None, no verdict, with fewer than `LEAST_SEEDS`.
        """
        return self._verdict(self.half is not None and abs(self.mean) + self.half < margin)

    def is_no_worse(self, margin) -> bool | None:
        """Whether the interval lies above `-margin`: a test that at most the margin is lost.

        None as for `is_above`.
        """
        return self._verdict(self.half is not None and self.mean - self.half > -margin)

    def _verdict(self, shows):
        return bool(shows) if self.seeds >= LEAST_SEEDS else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of cells.

    Attributes:
        title: what the numbers are.
        columns: their names.
        rows: name -> a cell for each column; None where there is no number.
        reference: the row that the others are compared with, or None.
        curve: name of the axis if the columns are numbers of a curve for each row; None: no chart.
        log: whether that axis is logarithmic.
        unit: of the values; with "%", they are fractions.
        over: what the readings of a cell are, in the singular.
        paper: the paper's numbers in percent, by row; None where it prints none.
    """

    title: str
    columns: Sequence[str | int | float]
    rows: Mapping[str, Sequence[Cell | None]]
    reference: str | None = None
    curve: str | None = None
    log: bool = False
    unit: str = "%"
    over: str = "seed"
    paper: Mapping[str, Sequence[float | None]] | None = None

    def cell(self, row, column) -> Cell:
        """A cell that is there."""
        found = self.rows[row][column]
        if found is None:
            raise KeyError(f"{self.title}: there is no number for {row}, column {column}")
        return found

    def difference(self, row, column, tests=1) -> Difference:
        """The difference of a row to the reference, in a column; see `difference`."""
        if self.reference is None:
            raise KeyError(f"{self.title} has no reference")
        return difference(self.cell(row, column), self.cell(self.reference, column), tests)

    @property
    def chart(self) -> "Chart | None":
        """The curves of the rows, if the columns are numbers of a curve."""
        if self.curve is None:
            return None
        curves = {
            name: [Point.of(x, each) for x, each in zip(self.columns, cells, strict=True) if each]
            for name, cells in self.rows.items()
        }
        return Chart(title=self.title, x_label=self.curve, curves=curves, log=self.log)


@dataclasses.dataclass(frozen=True)
class Point:
    """A place in a chart.

    Attributes:
        x, y: where it is; `y` is a fraction.
        half: half of the 95 % interval of `y`; None for a single reading.
    """

    x: float
    y: float
    half: float | None = None

    @classmethod
    def of(cls, x, each: Cell) -> "Point":
        """The point of a cell."""
        return cls(x, each.mean, each.half_interval)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chart:
    """Numbers of the tables over another quantity.

    Attributes:
        title: what `y` is.
        x_label: what `x` is.
        curves: name -> points.
        log: whether the axis of `x` is logarithmic.
        joined: whether lines join the points of a curve.
        x_percent: whether `x` are fractions.
        percent: whether `y` are fractions.
        lines: name -> `y` that a line marks, such as that of chance.
        categories: names of `x` = 0, 1, ..., if it is no quantity.
    """

    title: str
    x_label: str
    curves: Mapping[str, Sequence[Point]]
    log: bool = False
    joined: bool = True
    x_percent: bool = False
    percent: bool = True
    lines: Mapping[str, float] = dataclasses.field(default_factory=dict)
    categories: Sequence[str] | None = None


@dataclasses.dataclass(frozen=True)
class Claim:
    """Something that was expected before the run.

    Attributes:
        text: the expectation, as a sentence.
        shows: whether it shows; None where it is only reported.
        numbers: the numbers that say so.
        must: whether the experiment is broken if it does not show.
    """

    text: str
    shows: bool | None
    numbers: str
    must: bool = False


@dataclasses.dataclass(frozen=True)
class Choice:
    """A setting of each arm that was chosen by the loss of held-out examples.

    Attributes:
        what: such as "learning rate".
        losses: arm -> value -> the losses of trainings with other seeds than those of the results;
            infinite where one was not finite.
        pilots: arm -> the accuracies with the value that was chosen.
    """

    what: str
    losses: Mapping[str, Mapping[float, Cell]]
    pilots: Mapping[str, Cell]

    @property
    def chosen(self) -> dict[str, float]:
        """The value of each arm with the lowest mean loss; of equal ones, that in the middle."""
        return {arm: _lowest(found) for arm, found in self.losses.items()}

    @property
    def at_edge(self) -> list[str]:
        """The arms whose value is the smallest or the largest that was tried."""
        return [arm for arm, value in self.chosen.items() if edge(self.losses[arm], value)]

    @property
    def text(self) -> str:
        """A sentence."""
        shown = ", ".join(f"{arm} {value:g}" for arm, value in self.chosen.items())
        return (
            f"{self.what}s, by the loss of held-out examples: {shown}; "
            f"at an edge of what was tried: {', '.join(self.at_edge) or 'none'}"
        )

    @property
    def chart(self) -> "Chart":
        """The losses over the values."""
        return Chart(
            title="loss of held-out examples",
            x_label=self.what,
            curves={
                arm: [Point.of(x, each) for x, each in sorted(found.items()) if each.mean < 1e9]
                for arm, found in self.losses.items()
            },
            log=True,
            percent=False,
        )


def _lowest(losses):
    values = sorted(losses)
    return min(values, key=lambda x: (losses[x].mean, abs(2 * values.index(x) - len(values) + 1)))


def edge(losses: Mapping[float, Cell], value) -> int:
    """-1 if a value is the smallest of those that were tried, 1 if it is the largest, else 0."""
    return (value == max(losses)) - (value == min(losses))


@dataclasses.dataclass(frozen=True)
class Findings:
    """The result of an experiment.

    Attributes:
        tables, claims, charts: what was found.
        notes: sentences.
        choices: what was chosen before; a claim has no verdict if one is at an edge.
    """

    tables: Sequence[Table]
    claims: Sequence[Claim]
    notes: Sequence[str] = ()
    charts: Sequence[Chart] = ()
    choices: Sequence[Choice] = ()


def cell(units, results, metric="accuracy") -> Cell:
    """The cell of some units, one for each seed; `results` are theirs."""
    return Cell(
        tuple(
            Reading(unit.folder, metric, result[metric])
            for unit, result in zip(units, results, strict=True)
        )
    )


def difference(first: Cell, second: Cell, tests=1) -> Difference:
    """First minus second, paired by seed.

    Args:
        first, second: the cells.
        tests: number of differences of which any may be the one that shows; the interval is wider
            for more (Bonferroni).
    """
    return mean_difference([first], second, tests)


def mean_difference(cells: Sequence[Cell], reference: Cell, tests=1) -> Difference:
    """The mean of some cells minus another one, paired by seed; see `difference`."""
    means = [statistics.fmean(each) for each in zip(*(x.values for x in cells), strict=True)]
    return paired(means, reference.values, tests)


def paired(first: Sequence[float], second: Sequence[float], tests=1) -> Difference:
    """First minus second, value by value; see `difference`."""
    each = differences(first, second)
    return Difference(statistics.fmean(each), half_interval(each, tests), len(each))


def differences(first: Sequence[float], second: Sequence[float]) -> list[float]:
    """First minus second, one for each pair."""
    return [a - b for a, b in zip(first, second, strict=True)]


def half_interval(values, tests=1) -> float | None:
    """Half of the 95 % interval of a mean by Student's distribution; None for a single value.

    Args:
        values: the values.
        tests: see `difference`.
    """
    if len(values) < 2:
        return None
    return quantile(len(values), tests) * statistics.stdev(values) / len(values) ** 0.5


def quantile(count, tests=1) -> float:
    """The quantile of Student's distribution for the interval of a mean; see `half_interval`."""
    return float(stats.t.ppf(1 - (1 - _CONFIDENCE) / (2 * tests), count - 1))


def jointly(*verdicts: bool | None) -> bool | None:
    """Whether all show; None if one of them is no verdict."""
    return None if None in verdicts else all(verdicts)


def with_headroom(bases: Mapping[str, Cell], claims: Sequence[Claim]) -> list[Claim]:
    """The claims of a study, on the condition that its base models have headroom.

    A model that has not learned, or that makes hardly an error, says nothing about what would help
    it.

    Args:
        bases: name -> the accuracies of a base model.
        claims: the others.
    """
    low, high = _HEADROOM
    return on_condition(
        f"headroom: accuracies from {low:.0%} to {high:.0%}",
        all(low <= each.mean <= high for each in bases.values()),
        ", ".join(f"{name} {each.mean:.1%}" for name, each in bases.items()),
        claims,
    )


def on_condition(text, holds, numbers, claims: Sequence[Claim], must=False) -> list[Claim]:
    """A claim about a condition, and the others, which have no verdict unless it holds.

    A condition that holds is only reported, so it adds nothing to the number of claims that show.

    Args:
        text, numbers, must: see `Claim`.
        holds: whether the condition holds.
        claims: the others.
    """
    if not holds:
        numbers += "; it does not hold, so no other expectation has a verdict"
        claims = [dataclasses.replace(each, shows=None) for each in claims]
    return [Claim(text, None if holds or not must else False, numbers, must), *claims]


def points(found: Difference) -> str:
    """A difference of fractions as text in percentage points."""
    half = "" if found.half is None else f" ± {100 * found.half:.1f}"
    return f"{100 * found.mean:+.1f}{half} points"
