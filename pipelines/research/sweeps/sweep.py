"""Runs a sweep: the trials of a grid, then the best of them on the whole training split.

The protocol of the paper's fine-tuning (appendix B.1.1): a part of the training split is held out;
the settings with the highest accuracy on it are trained again on the whole split, with several
seeds; the report is the mean and the deviation of their accuracy on the evaluation split.

The directory of a sweep holds an ordinary workdir for each training, `trials/<values>` and
`final/<values>,seed=<seed>`, and the results, `sweep.json` and `sweep.csv`.
"""

import contextlib
import datetime
import logging
import os
import time

import keras
import tensorflow as tf

from pipelines.config import Experiment
from pipelines.config.experiment import lasting_differences
from pipelines.distribution.group import current_group
from pipelines.distribution.signals import interruptible
from pipelines.errors import NonFiniteError, RunError, UserError, counted
from pipelines.research.sweeps import sweep_table
from pipelines.research.sweeps.sweep_plan import Plan
from pipelines.runs.json_file import read_json, write_json
from pipelines.runs.lock import LOCKS, written_by_chief
from pipelines.runs.workdir import keep_later_fields
from pipelines.tasks.metrics import main_metric
from pipelines.training.dry_run import with_prefix
from pipelines.training.train import train
from vit_tf.files import storage
from vit_tf.files.atomic_file import write_atomically

_log = logging.getLogger(__name__)

_COMMAND = "pipelines.sweep"
_RECORD, _CSV = "sweep.json", "sweep.csv"
_OTHER_WORKDIR = "Choose another --workdir."


def describe(plan: Plan) -> list[str]:
    """Returns lines about the trials of a sweep and their cost."""
    total, tuning = len(plan.trials), plan.trials[0].tuning.data
    flops = [trial.flops for trial in plan.trials]
    most = sum(flops) + plan.seeds * max(flops)
    return [
        *(
            f"trial {number} of {total}: {trial}: {counted(trial.whole.train.steps, 'step')}, "
            f"{with_prefix(trial.flops, 'FLOPs')}"
            for number, trial in enumerate(plan.trials, 1)
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


def run(plan: Plan, path, strategy) -> dict:
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
    with written_by_chief(path) as check, interruptible(), no_retracing_warnings():
        return _Sweep(plan, path, strategy, check).run()


class _Sweep:
    """A sweep in its locked directory; arguments as for `run`, and `check` from `only_writer`."""

    def __init__(self, plan, path, strategy, check):
        self._plan, self._path, self._strategy, self._check = plan, path, strategy, check
        trials = [_row(trial, trial.tuning, f"trials/{trial.name}") for trial in plan.trials]
        self._done = current_group().from_chief(lambda: _read_results(plan, trials, path))
        self._time_left = TimeLeft("sweep")
        self._record = {
            "command": _COMMAND,
            "hold_out": plan.hold_out,
            "experiment": plan.base.to_dict(),
            "trials": [self._with_result(row) for row in trials],
            "final": [],
        }

    def run(self):
        plan, record = self._plan, self._record
        self._write()
        costs = [trial.flops for trial in plan.trials]
        final_cost = plan.seeds * sum(costs) / len(costs)  # The pick is not known yet.
        for index, (trial, row) in enumerate(zip(plan.trials, record["trials"], strict=True)):
            title = f"trial {index + 1} of {len(costs)}: {trial}"
            self._train(title, row, trial.tuning, trial.flops, sum(costs[index:]) + final_cost)

        results = [row["result"] for row in record["trials"]]
        best = sweep_table.pick([[result] for result in results])
        if best is None:
            self._conclude()
            raise RunError(
                f"No trial ended with a finite loss; see {self._file(_RECORD)}. Lower the learning "
                "rates."
            )
        trial = plan.trials[best]
        record["picked"], record["metric"] = trial.values, main_metric(results[best])
        for index in range(plan.seeds):
            experiment = trial.final(index)
            row = _row(trial, experiment, f"final/{trial.name},seed={experiment.seed}")
            record["final"].append(self._with_result(row))
        for index, row in enumerate(record["final"]):
            title = f"final run {index + 1} of {plan.seeds}: {trial}, seed {row['seed']}"
            left = (plan.seeds - index) * trial.flops
            self._train(title, row, trial.final(index), trial.flops, left)
        self._conclude()
        if failed := [row["workdir"] for row in record["final"] if "failed" in row["result"]]:
            raise RunError(
                f"The loss of {len(failed)} of {plan.seeds} final runs is not finite, so there is "
                f"no mean: {', '.join(failed)}. Lower the learning rates in a new sweep."
            )
        return record

    def _train(self, title, row, experiment, flops, flops_left):
        """Trains one row of the record, unless it has a result."""
        if row["result"]:
            _log.info(f"{title}: done before")
            return
        _log.info(f"\n{title}{self._time_left.text(flops_left)}")
        begin = time.perf_counter()
        row["result"] = train_once(experiment, self._file(row["workdir"]), self._strategy)
        self._time_left.add(time.perf_counter() - begin, flops)
        self._write()

    def _with_result(self, row):
        return self._done.get(row["workdir"], row)

    def _conclude(self):
        record = self._record
        record |= sweep_table.mean_and_deviation(sweep_table.final_values(record))
        self._write()
        if not current_group().is_chief:
            return
        self._check()
        write_atomically(self._file(_CSV), lambda file: file.write(sweep_table.csv_bytes(record)))
        _log.info("\n" + sweep_table.text(record))
        _log.info(f"wrote {self._file(_RECORD)} and {self._file(_CSV)}")

    def _write(self):
        if not current_group().is_chief:
            return
        self._check()
        write_json(self._file(_RECORD), self._record)

    def _file(self, name):
        return os.path.join(self._path, name)


@contextlib.contextmanager
def no_retracing_warnings():
    """Hides TensorFlow's warning about repeated tracing: each run traces its own functions."""

    def is_other(record):
        return "triggered tf.function retracing" not in record.getMessage()

    tf.get_logger().addFilter(is_other)
    try:
        yield
    finally:
        tf.get_logger().removeFilter(is_other)


class TimeLeft:
    """Estimates the time that is left, from the costs and times of the trainings so far.

    Args:
        what: what the trainings belong to.
    """

    def __init__(self, what):
        self._what = what
        self._seconds = self._flops = 0

    def add(self, seconds, flops):
        """Adds a training that has ended in this process."""
        self._seconds += seconds
        self._flops += flops

    def text(self, flops_left) -> str:
        """The end of a line about the next training; "" before one has ended."""
        if not self._flops:
            return ""
        seconds = self._seconds / self._flops * flops_left
        return f"  ETA of the {self._what} {datetime.timedelta(seconds=round(seconds))}"


def _row(trial, experiment, workdir):
    return {
        "values": trial.values,
        "seed": experiment.seed,
        "split": experiment.data.eval_split,
        "workdir": workdir,
        "result": None,
    }


def train_once(experiment, workdir, strategy) -> dict:
    """Trains one run of several in this process.

    Returns:
        The metrics of its last evaluation by name, or {"failed": the reason} after a loss that is
        not finite.

    Raises:
        As `train`.
    """
    try:
        last = train(experiment, workdir, strategy)
    except NonFiniteError as error:
        _log.info(f"failed: {error}")
        return {"failed": str(error)}
    finally:
        # Frees the model, its optimizer and its graphs before the next run.
        keras.utils.clear_session()
    prefix = "eval_"
    return {k.removeprefix(prefix): v for k, v in last.items() if k.startswith(prefix)}


def _read_results(plan, trials, path) -> dict:
    """The rows of an earlier start that have a result, by workdir.

    Args:
        plan, path: as for `run`.
        trials: the rows of the trials now.

    Raises:
        UserError: if the directory holds something other than this sweep with fewer trials.
    """
    file = os.path.join(path, _RECORD)
    if not storage.exists(file):
        if not set(storage.list_names(path)) <= LOCKS:
            raise UserError(f"{path} exists and holds no sweep. {_OTHER_WORKDIR}")
        return {}
    record = read_json(file)
    if record.get("command") != _COMMAND:
        raise UserError(f"{file} was not written by a sweep. {_OTHER_WORKDIR}")
    try:
        rows = {row["workdir"]: row for row in [*record["trials"], *record["final"]]}
        before = Experiment.from_stored(record["experiment"])
        changed = lasting_differences(before, plan.base)
        for name, old, new in (
            ("hold_out", record["hold_out"], plan.hold_out),
            # A run may change it, but trials are compared by the same images.
            ("train.eval_batches", before.train.eval_batches, plan.base.train.eval_batches),
        ):
            if old != new:
                changed.append(f"{name}: {old} -> {new}")
        if changed:
            raise UserError(
                f"{path} holds a sweep with another configuration ({'; '.join(changed)}). "
                f"{_OTHER_WORKDIR}"
            )
        now = {row["workdir"]: row for row in trials}
        for row in record["trials"]:
            _check_known(row, now.get(row["workdir"]), path)
        if not all(is_result(row["result"]) for row in rows.values()):
            raise TypeError
    except (AttributeError, KeyError, TypeError):
        raise UserError(f"{file} is damaged. Restore it, or choose another --workdir.") from None
    return {name: row for name, row in rows.items() if row["result"]}


def _check_known(before, now, path):
    if now is None:
        values = ", ".join(f"{k}={sweep_table.value_text(v)}" for k, v in before["values"].items())
        raise UserError(
            f"{path} holds a trial that --grid no longer has: {values}. Values may be added to a "
            f"grid, but not removed. {_OTHER_WORKDIR}"
        )
    if before["split"] != now["split"]:
        raise UserError(
            f"The training data of {path} have changed: {before['split']} was held out, now it is "
            f"{now['split']}. Restore the data, or choose another --workdir."
        )


def is_result(result) -> bool:
    """Whether a value that was read is a result of `train_once`, or None."""
    if result is None or (isinstance(result, dict) and isinstance(result.get("failed"), str)):
        return True
    return all(type(value) in (int, float) for value in result.values()) and "loss" in result
