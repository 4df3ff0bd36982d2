"""What an experiment has found: tables, curves and claims, whose numbers lead to their runs."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

from scipy import stats

_CONFIDENCE = 0.95


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
    """

    mean: float
    half: float | None

    @property
    def shows(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.half is not None and abs(self.mean) > self.half

    @property
    def is_above(self) -> bool:
        """Whether the interval is above 0."""
        return self.shows and self.mean > 0


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
    """

    title: str
    x_label: str
    curves: Mapping[str, Sequence[Point]]
    log: bool = False
    joined: bool = True
    x_percent: bool = False


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
class Findings:
    """The result of an experiment."""

    tables: Sequence[Table]
    claims: Sequence[Claim]
    notes: Sequence[str] = ()
    charts: Sequence[Chart] = ()


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
    each = [a - b for a, b in zip(first, second, strict=True)]
    return Difference(statistics.fmean(each), half_interval(each, tests))


def half_interval(values, tests=1) -> float | None:
    """Half of the 95 % interval of a mean by Student's distribution; None for a single value.

    Args:
        values: the values.
        tests: see `difference`.
    """
    if len(values) < 2:
        return None
    quantile = stats.t.ppf(1 - (1 - _CONFIDENCE) / (2 * tests), len(values) - 1)
    return float(quantile * statistics.stdev(values) / len(values) ** 0.5)


def points(found: Difference) -> str:
    """A difference of fractions as text in percentage points."""
    half = "" if found.half is None else f" ± {100 * found.half:.1f}"
    return f"{100 * found.mean:+.1f}{half} points"
