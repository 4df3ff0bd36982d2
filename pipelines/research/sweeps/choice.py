"""Choosing settings by trials on held-out examples, and training with the best of them."""

import csv
import dataclasses
import io
import json
import logging
import os
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.distribution.group import current_group
from pipelines.errors import RunError
from pipelines.reports.text_table import aligned
from pipelines.research.lab.lab import Lab, Stage
from pipelines.research.lab.unit import Training
from pipelines.runs.json_file import write_json
from pipelines.tasks.metrics import main_metric
from vit_tf.files.atomic_file import write_atomically

_log = logging.getLogger(__name__)

# The stages of a choice.
_TRIAL, _FINAL = "trial", "final run"
# Each result has it: it decides between equal accuracies.
LOSS = "loss"
# The text of a table in place of a number of a training that failed.
NOT_FINITE = "not finite"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """Settings that all tasks are trained with.

    Attributes:
        name: name of its folders, such as "optimizer.learning_rate=0.01,train.steps=500".
        values: the value of each field that is tried, by path, as in config.json.
        tuning: by task, the training without the examples on which settings are compared.
        final: by task, the trainings on all training examples, by seed; at least one.
        differences: of a suite, a line `path: paper's -> own` for each other setting that is not
            the paper's, with the names of the tasks unless it is all that have data.
    """

    name: str
    values: dict[str, Any]
    tuning: Mapping[str, Training]
    final: Mapping[str, tuple[Training, ...]]
    differences: tuple[str, ...] = ()

    def __str__(self):
        return ", ".join(f"{path}={value_text(value)}" for path, value in self.values.items())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
    """What sweeps and suites have in common: the units that a lab runs.

    Attributes:
        settings: to choose from, in the order of the grid; its last field changes fastest.
        seeds: number of final trainings of each task with the best settings.
    """

    settings: tuple[Setting, ...]
    seeds: int

    @property
    def tasks(self) -> Sequence[str]:
        """The tasks that have data."""
        return list(self.settings[0].final)

    @property
    def compares(self) -> bool:
        """Whether settings are compared before the final trainings."""
        return True

    def trials(self) -> list[Training]:
        """The trainings that are compared."""
        if not self.compares:
            return []
        return [setting.tuning[task] for setting in self.settings for task in self.tasks]

    def finals(self, picked: Setting) -> list[Training]:
        """The final trainings with some settings."""
        return [unit for task in self.tasks for unit in picked.final[task][: self.seeds]]

    def stages(self) -> dict[str, Stage]:
        """The stages of the lab; which settings are the best is not known yet."""
        finals = [_stage(self.finals(setting)) for setting in self.settings]
        mean = statistics.fmean(stage.cost or 0 for stage in finals)
        return {_TRIAL: _stage(self.trials()), _FINAL: Stage(finals[0].units, mean)}

    def picked(self, lab: Lab) -> Setting | None:
        """The best settings, after their trials; None if a trial of each failed. See `pick`."""
        if not self.compares:
            return self.settings[0]
        lab.begin(_TRIAL)
        results, count = lab.results(self.trials()), len(self.tasks)
        best = pick([results[i : i + count] for i in range(0, len(results), count)])
        if best is None:
            return None
        _log.info(f"picked: {self.settings[best]}")
        return self.settings[best]

    def train(self, lab: Lab, picked: Setting | None) -> list[dict]:
        """The results of the final trainings; runs those that have none."""
        if picked is None:
            return []
        units = self.finals(picked)
        lab.begin(_FINAL, _stage(units))
        return lab.results(units)

    def refuse_failures(self, picked: Setting | None, results, where):
        """Raises `RunError` if no setting was picked, or a final training failed.

        The message names `where` the results of the trials are.
        """
        if picked is None:
            raise RunError(
                f"None of the settings ended with a finite loss; see {where}. Lower the learning "
                "rates."
            )
        units = self.finals(picked)
        pairs = zip(units, results, strict=True)
        if failed := [unit.folder for unit, result in pairs if "failed" in result]:
            raise RunError(
                f"The loss of {len(failed)} of {len(units)} final runs is not finite, so there is "
                f"no mean: {', '.join(failed)}. Lower the learning rates in another --workdir."
            )


def _stage(units):
    return Stage(len(units), sum(unit.cost or 0 for unit in units))


def write_tables(path, name, record, content, text, check=lambda: None):
    """Writes `<name>.json` and `<name>.csv` in the chief, and prints the table."""
    if not current_group().is_chief:
        return
    files = [os.path.join(path, f"{name}.{end}") for end in ("json", "csv")]
    check()
    write_json(files[0], record)
    check()
    write_atomically(files[1], lambda file: file.write(content))
    _log.info(f"\n{text}\nwrote {' and '.join(files)}")


def picked_table(rows, header, picked, metric) -> list[str]:
    """Lines about settings that were compared, of which * marks the best.

    Args:
        rows: `(values by path, further cells)` of each.
        header: of the further cells.
        picked: the values of the best, or None.
        metric: name of the metric that they were compared by.
    """
    paths = list(dict.fromkeys(path for values, _ in rows for path in values))
    lines = [["", *paths, *header]]
    for values, cells in rows:
        shown = [value_text(values[path]) if path in values else "" for path in paths]
        lines.append(["*" if values == picked else "", *shown, *cells])
    end = [f"* picked: highest {metric}, then lowest loss, then first"] if picked else []
    return [*aligned(lines), *end]


def csv_bytes(rows) -> bytes:
    """A CSV file of rows of cells."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(rows)
    return file.getvalue().encode()


def value_text(value) -> str:
    """The value of a field as in `--grid`."""
    if isinstance(value, list):
        return f"({','.join(map(value_text, value))})"
    return value if isinstance(value, str) else "none" if value is None else json.dumps(value)


def main_value(result) -> float | None:
    """The main metric of a training (see `metrics.main_metric`), a fraction; None if it failed.

    Args:
        result: its metrics by name, or {"failed": the reason}.
    """
    return None if "failed" in result else result[main_metric(result)]


def pick(groups) -> int | None:
    """The index of the best settings; None if a training of each failed.

    The best have the highest mean of the main metric over their trainings. In a tie the lower mean
    loss decides, then the order.

    Args:
        groups: for each of the settings, a list of the results of its trainings.
    """
    finite = [i for i, group in enumerate(groups) if None not in map(main_value, group)]

    def rank(index):
        group = groups[index]
        losses = [result["loss"] for result in group]
        return statistics.fmean(map(main_value, group)), -statistics.fmean(losses)

    return max(finite, key=rank, default=None)


def mean_and_deviation(values) -> dict:
    """Mean and sample standard deviation (divisor n - 1) of values, which may be None.

    Returns:
        {"mean": float, "standard_deviation": float}; None for both without values or if one is
        None, and for the deviation of a single one.
    """
    known = bool(values) and None not in values
    return {
        "mean": statistics.fmean(values) if known else None,
        "standard_deviation": statistics.stdev(values) if known and len(values) > 1 else None,
    }
