"""What is shown of a table or figure at full scale: which number of which command stands where."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

from pipelines.research.paper.full.commands import Command, on_imagenet, real, suite

# What is read from a command: the command, and the name of the number in its result.
Place = tuple[Command, str]
# The number of a pre-training with few-shot evaluations that the paper reports.
FIVE_SHOTS = "few_shot_5_accuracy"


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
        alike: a sentence about two columns whose rows have nearly the same order; None: no such.
        unit: of the numbers; with "%", they are fractions.
    """

    title: str
    columns: Sequence[str | int]
    rows: Mapping[str, Sequence[Place | None]]
    paper: Mapping[str, Sequence[float | None]] | None = None
    curve: str | None = None
    compares: Literal["columns", "rows"] = "columns"
    costs: Mapping[str, float] | None = None
    expected: Sequence[Expectation] = ()
    alike: str | None = None
    unit: str = "%"


def after_tuning(task, start, recipe="finetune_imagenet") -> Place:
    """Where the accuracy of a pre-training on a data set of the tables comes from."""
    if task == "imagenet":
        return on_imagenet(start, recipe), "mean"
    if task == "real":
        return real(on_imagenet(start, recipe)), "accuracy"
    if task == "vtab":
        return suite("vtab", start), "mean"
    if task.startswith("vtab/"):
        return suite("vtab", start), task.removeprefix("vtab/")
    return suite(task, start), task
