"""How a table or figure at full scale is declared."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

from pipelines.research.paper.full.commands import Command

# What is read from a command: the command, and the name of the number in its result.
Place = tuple[Command, str]


@dataclasses.dataclass(frozen=True)
class Expectation:
    """Something that the paper says of a table: some places are above others.

    Attributes:
        text: the sentence.
        above: `((row, column), (row, column))` pairs: the first is above the second.
    """

    text: str
    above: Sequence[tuple[tuple[str, int], tuple[str, int]]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grid:
    """A table of places.

    Attributes:
        title: what the numbers are.
        columns: names of the columns.
        rows: name -> a place for each column, or None where the paper has no number.
        paper: the paper's numbers in percent by row, or None where it only plots them.
        curve: name of the axis if the columns are numbers of a curve; None: no chart.
        compares: where the paper's order is looked for: between the columns of a row, or between
            the rows of a column.
        costs: exaFLOPs of pre-training of each row, for a chart over them; None: no chart.
        expected: what else the paper says of it.
    """

    title: str
    columns: Sequence[str | int]
    rows: Mapping[str, Sequence[Place | None]]
    paper: Mapping[str, Sequence[float | None]] | None = None
    curve: str | None = None
    compares: Literal["columns", "rows"] = "columns"
    costs: Mapping[str, float] | None = None
    expected: Sequence[Expectation] = ()
