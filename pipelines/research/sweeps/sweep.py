"""Runs a sweep: the trials of a grid, then the best of them on the whole training split.

The protocol of the paper's fine-tuning (appendix B.1.1): a part of the training split is held out;
the settings with the highest accuracy on it are trained again on the whole split, with several
seeds; the report is the mean and the deviation of their accuracy on the evaluation split.

The directory of a sweep holds an ordinary workdir for each training, `trials/<values>` and
`final/<values>,seed=<seed>`, and the results, `sweep.json` and `sweep.csv`. One process holds it.
"""

import contextlib
import functools
import os

from pipelines.config import Experiment
from pipelines.distribution.group import current_group
from pipelines.distribution.signals import interruptible
from pipelines.errors import UserError, counted
from pipelines.research.lab.folder import OTHER_WORKDIR, changed_settings, read_mark
from pipelines.research.lab.lab import Lab
from pipelines.research.lab.unit import is_result
from pipelines.research.sweeps.choice import (
    LOSS,
    NOT_FINITE,
    csv_bytes,
    main_value,
    mean_and_deviation,
    picked_table,
    value_text,
    write_tables,
)
from pipelines.research.sweeps.sweep_plan import SweepPlan
from pipelines.runs.json_file import read_json, write_json
from pipelines.runs.lock import written_by_chief
from pipelines.runs.workdir import keep_later_fields
from pipelines.tasks.metrics import as_text, main_metric
from pipelines.training.dry_run import with_prefix
from vit_tf.files import storage

_COMMAND, _NAME = "pipelines.sweep", "sweep"
_RECORD = f"{_NAME}.json"


def describe(plan: SweepPlan) -> list[str]:
    """Returns lines about the trials of a sweep and their cost."""
    total, tuning = len(plan.settings), plan.trials()[0].experiment.data
    wholes = [setting.final[task][0] for setting in plan.settings for task in plan.tasks]
    flops = [unit.cost or 0 for unit in wholes]
    most = sum(flops) + plan.seeds * max(flops)
    return [
        *(
            f"trial {number} of {total}: {setting}: "
            f"{counted(unit.experiment.train.steps, 'step')}, {with_prefix(unit.cost, 'FLOPs')}"
            for number, (setting, unit) in enumerate(zip(plan.settings, wholes, strict=True), 1)
        ),
        f"trials train on {tuning.train_split} and are compared on {tuning.eval_split}",
        f"final runs of the best: {plan.seeds}, on {plan.base.data.train_split}, tested on "
        f"{plan.base.data.eval_split}",
        f"all runs: at most {with_prefix(most, 'FLOPs')}",
    ]


def with_own_fields(experiment, assignments, path) -> Experiment:
    """Keeps the fields than which the sweep in a folder may be older, see `keep_later_fields`.

    Args:
        experiment: the experiment of the sweep now.
        assignments: those of the user; an assigned value is not changed.
        path: the folder; without a sweep in it, or with a damaged one, nothing is changed.
    """
    file = os.path.join(path, _RECORD)
    if not storage.exists(file):
        return experiment
    try:
        own = Experiment.from_stored(read_json(file)["experiment"])
    except (AttributeError, KeyError, TypeError):
        return experiment  # `run` says that it is damaged, or no sweep.
    return keep_later_fields(own, experiment, assignments)


def run(plan: SweepPlan, path, strategy) -> dict:
    """Runs a sweep, or its remaining trials, and prints its table.

    Args:
        plan: the trials.
        path: directory of the sweep; created if missing. The trials that are finished there are
            not run again.
        strategy: where to train and evaluate.

    Returns:
        The content of `sweep.json`: "trials" and "final", one dict for each training with its
        "values", "seed", evaluation "split", "workdir" and "result" (metrics by name, or "failed"
        with the reason); "picked", the values of the best trial; "metric", by which it was picked;
        "mean" and "standard_deviation" of this metric over the final runs, fractions, or None.

    Raises:
        UserError: if the directory holds another sweep or something else, or for wrong input.
        RunError: if all trials, or a final run, ended with a loss that is not finite; after
            everything is written. If another process has taken the lease of the directory.
        Interrupted: after a signal.
    """
    with written_by_chief(path) as check, interruptible():
        return _SweepLab(plan, path, strategy, check).run()


class _SweepLab(Lab):
    """Keeps the results in `sweep.json`, of a directory that it holds.

    Args:
        plan, path, strategy: as for `run`.
        check: from `only_writer`.
    """

    def __init__(self, plan, path, strategy, check):
        super().__init__(path, strategy, plan.stages())
        self._plan, self._check = plan, check
        # Rows of an earlier start that have a result, by workdir.
        self._before = current_group().from_chief(lambda: _read_results(plan, path))
        self._rows = {}  # By workdir.
        self._record = {
            "command": _COMMAND,
            "hold_out": plan.hold_out,
            "experiment": plan.base.to_dict(),
            "trials": [
                self._row(setting, unit)
                for setting in plan.settings
                for unit in setting.tuning.values()
            ],
            "final": [],
        }

    def run(self):
        """Runs the sweep; returns its record."""
        plan, record = self._plan, self._record
        self._write()
        picked = plan.picked(self)
        if picked is not None:
            trial = self._rows[picked.tuning[plan.tasks[0]].folder]
            record |= {"picked": picked.values, "metric": main_metric(trial["result"])}
            record["final"] += [self._row(picked, unit) for unit in plan.finals(picked)]
        results = plan.train(self, picked)
        record |= mean_and_deviation(_final_values(record))
        content, text = _csv(record), _text(record)
        write_tables(self.root, _NAME, record, content, text, self._check)
        plan.refuse_failures(picked, results, os.path.join(self.root, _RECORD))
        return record

    def _row(self, setting, unit):
        new = {
            "values": setting.values,
            "seed": unit.experiment.seed,
            "split": unit.experiment.data.eval_split,
            "workdir": unit.folder,
            "result": None,
        }
        return self._rows.setdefault(unit.folder, self._before.get(unit.folder, new))

    def _locked(self, unit):
        del unit
        return contextlib.nullcontext()

    def _read(self, unit):
        return self._rows[unit.folder]["result"]

    def _keep(self, unit, result, seconds):
        del seconds
        self._rows[unit.folder]["result"] = result
        self._write()

    def _write(self):
        if current_group().is_chief:
            self._check()
            write_json(os.path.join(self.root, _RECORD), self._record)


def _read_results(plan, path) -> dict:
    """The rows of an earlier start that have a result, by workdir.

    Args:
        plan, path: as for `run`.

    Raises:
        UserError: if the directory holds something other than this sweep with fewer trials.
    """
    record = read_mark(path, _RECORD, _COMMAND, "sweep")
    if record is None:
        return {}
    try:
        rows = {row["workdir"]: row for row in [*record["trials"], *record["final"]]}
        changed = changed_settings(Experiment.from_stored(record["experiment"]), plan.base)
        if record["hold_out"] != plan.hold_out:
            changed.append(f"hold_out: {record['hold_out']} -> {plan.hold_out}")
        if changed:
            raise UserError(
                f"{path} holds a sweep with another configuration ({'; '.join(changed)}). "
                f"{OTHER_WORKDIR}"
            )
        now = {unit.folder: unit.experiment.data.eval_split for unit in plan.trials()}
        for row in record["trials"]:
            _check_known(row, now.get(row["workdir"]), path)
        found = {name: row for name, row in rows.items() if row["result"] is not None}
        if not all(is_result(row["result"], [LOSS]) for row in found.values()):
            raise TypeError
    except (AttributeError, KeyError, TypeError):
        file = os.path.join(path, _RECORD)
        raise UserError(f"{file} is damaged. Restore it, or choose another --workdir.") from None
    return found


def _check_known(before, split, path):
    """Refuses a trial that the grid no longer has, or whose held-out part has changed."""
    if split is None:
        values = ", ".join(f"{k}={value_text(v)}" for k, v in before["values"].items())
        raise UserError(
            f"{path} holds a trial that --grid no longer has: {values}. Values may be added to a "
            f"grid, but not removed. {OTHER_WORKDIR}"
        )
    if before["split"] != split:
        raise UserError(
            f"The training data of {path} have changed: {before['split']} was held out, now it is "
            f"{split}. Restore the data, or choose another --workdir."
        )


def _final_values(record) -> list[float | None]:
    """The main metric of each final run; None for one that failed.

    Args:
        record: see `run`.
    """
    return [main_value(row["result"]) for row in record["final"]]


def _text(record) -> str:
    """The table of a sweep and its conclusion, as text."""
    metric = record.get("metric", "accuracy").replace("_", " ")
    lines = picked_table(
        [(row["values"], _shown(row["result"])) for row in record["trials"]],
        [f"{metric} on {record['trials'][0]['split']}", "loss"],
        record.get("picked"),
        metric,
    )
    return "\n".join([*lines, *_conclusion(record, metric)])


def _csv(record) -> bytes:
    """A line for each training: its stage, values, seed, evaluation split, metrics and workdir."""
    rows = [
        {
            "stage": stage,
            **{path: value_text(value) for path, value in row["values"].items()},
            "seed": row["seed"],
            "split": row["split"],
            "workdir": row["workdir"],
            **row["result"],
        }
        for stage, key in (("trial", "trials"), ("final", "final"))
        for row in record[key]
    ]
    names = list(dict.fromkeys(name for row in rows for name in row))
    return csv_bytes([names, *([row.get(name) for name in names] for row in rows)])


def _shown(result):
    """The cells of the main metric and the loss."""
    if "failed" in result:
        return [NOT_FINITE, ""]
    metric = main_metric(result)
    return [as_text(metric, result[metric]), f"{result['loss']:.4f}"]


def _conclusion(record, metric):
    """A line about the final runs, if there are any."""
    if not record["final"]:
        return []
    of_metric = functools.partial(as_text, record["metric"])
    each = ", ".join(
        f"{NOT_FINITE if value is None else of_metric(value)} (seed {row['seed']})"
        for row, value in zip(record["final"], _final_values(record), strict=True)
    )
    line = f"{metric} on {record['final'][0]['split']} after training on the whole split: "
    if record["standard_deviation"] is None:
        return [line + each]
    return [
        f"{line}{of_metric(record['mean'])} +- {of_metric(record['standard_deviation'])}, mean and "
        f"sample standard deviation of {each}"
    ]
