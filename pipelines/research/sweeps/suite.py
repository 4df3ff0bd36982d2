"""Runs a suite: chooses settings if there are several, then trains each task with several seeds.

Every training is an ordinary workdir, `trials/<settings>/<task>` or
`final/<settings>/<task>,seed=<seed>`, with its result in `result.json`. The lock of the workdir is
what a process takes, so several processes on one directory train different tasks and seeds; each
of them waits for the others' results. `suite.json` and `suite.csv` follow from the results alone.
"""

import logging
import os
import time

from pipelines.config.experiment import lasting_differences
from pipelines.config.summary import summary
from pipelines.distribution.group import current_group
from pipelines.distribution.signals import interruptible
from pipelines.errors import InUseError, MissingDataError, RunError, UserError, counted
from pipelines.reports.text_table import aligned
from pipelines.research.sweeps import suite_table, sweep
from pipelines.research.sweeps.suite_plan import SuitePlan
from pipelines.research.sweeps.sweep_table import pick
from pipelines.runs.json_file import read_json, write_json
from pipelines.runs.lock import LOCKS, only_writer
from pipelines.runs.workdir import Workdir
from vit_tf.files import storage
from vit_tf.files.atomic_file import write_atomically

_log = logging.getLogger(__name__)

_RECORD, _CSV, _RESULT = "suite.json", "suite.csv", "result.json"
_COMMAND = "pipelines.sweep --suite"
_OTHER_WORKDIR = "Choose another --workdir."
# Seconds between two looks at trainings of other processes.
_POLL = 2.0
# Two starts at the same time wait for each other: tries, and seconds between them.
_TRIES, _RETRY = 50, 0.1


def describe(plan: SuitePlan) -> list[str]:
    """Returns lines about a suite: its matrix of tasks and trainings, their cost, missing data."""
    suite, settings = plan.suite, plan.settings
    experiment = settings[0].final[next(iter(suite.tasks))][0].experiment
    lines = [
        f"--suite={suite.name}: {experiment.model.title()} from {plan.init_from}, "
        f"{counted(len(suite.tasks), 'task')}",
        *summary(experiment),
        *(f"settings {n} of {len(settings)}: {x}" for n, x in enumerate(settings, 1)),
    ]
    rows, here, gone = [["task", "data", "", "trials", "final runs", "exaFLOPs"]], 0.0, 0.0
    for task in suite.tasks:
        costs = [setting.final[task][0].flops for setting in settings]
        cost = None
        if None not in costs:
            cost = (plan.compares * sum(costs) + plan.seeds * max(costs)) / 1e18
            here += cost * (task not in plan.missing)
            gone += cost * (task in plan.missing)
        rows.append(
            [
                task,
                plan.sources[task],
                "missing" if task in plan.missing else "here",
                str(plan.compares * len(settings)),
                str(plan.seeds),
                "unknown without data" if cost is None else f"{cost:.4g}",
            ]
        )
    lines += aligned(rows)
    lines.append(
        f"all runs: at most {here:.4g} exaFLOPs"
        + f", and {gone:.4g} for the tasks whose data are missing" * bool(plan.missing)
    )
    lines += [f"no data of {task}, which is left out: {x}" for task, x in plan.missing.items()]
    return lines


def check_data(plan: SuitePlan):
    """Raises `MissingDataError` if no task of the suite has data."""
    if not plan.tasks:
        count, reason = len(plan.missing), next(iter(plan.missing.values()))
        raise MissingDataError(
            reason
            if count == 1
            else f"None of the {count} tasks has data here. The first: {reason}"
        )


def run(plan: SuitePlan, path, strategy) -> dict:
    """Runs a suite, or the trainings that are left of it, and prints its table.

    Args:
        plan: its trainings.
        path: directory of the suite; created if missing. Other processes may run it there too.
        strategy: where to train and evaluate.

    Returns:
        The content of `suite.json`, see `suite_table.make_record`.

    Raises:
        UserError: if the directory holds another suite or something else, or for wrong input.
        MissingDataError: if no task has data.
        RunError: if a final run, or a run of each of the settings, ended with a loss that is not
            finite; after everything is written.
        Interrupted: after a signal.
    """
    check_data(plan)
    path = storage.normal(path)
    with interruptible(), sweep.no_retracing_warnings():
        current_group().from_chief(lambda: _begin(plan, path))
        return _Suite(plan, path, strategy).run()


class _Suite:
    """A suite in its directory; arguments as for `run`."""

    def __init__(self, plan, path, strategy):
        self._plan, self._path, self._strategy = plan, path, strategy
        self._results = {}  # By folder; a result never changes.
        self._said = set()  # Trainings that were announced.
        self._time_left = sweep.TimeLeft("suite")  # If this process is alone.

    def run(self):
        plan, picked = self._plan, self._plan.settings[0]
        _log.info("\n".join(describe(plan)))
        if plan.compares:
            trials = [[x.tuning[task] for task in plan.tasks] for x in plan.settings]
            finals = [sum(x.final[task][0].flops for task in plan.tasks) for x in plan.settings]
            expected = plan.seeds * sum(finals) / len(finals)  # The pick is not known yet.
            self._complete("trial", [unit for units in trials for unit in units], expected)
            best = pick([[self._result(unit) for unit in units] for units in trials])
            if best is None:
                raise RunError(
                    "None of the settings ended with a finite loss on all tasks; see the "
                    f"{_RESULT} files in {self._file('trials')}. Lower the learning rates."
                )
            picked = plan.settings[best]
            _log.info(f"picked: {picked}")
        finals = [unit for task in plan.tasks for unit in picked.final[task]]
        self._complete("final run", finals)
        record = suite_table.make_record(plan, self._results, picked)
        if current_group().is_chief:
            write_json(self._file(_RECORD), record)
            content = suite_table.csv_bytes(plan, record)
            write_atomically(self._file(_CSV), lambda file: file.write(content))
        _log.info("\n" + suite_table.text(plan, record))
        _log.info(f"wrote {self._file(_RECORD)} and {self._file(_CSV)}")
        failed = [unit.folder for unit in finals if "failed" in self._result(unit)]
        if failed:
            raise RunError(
                f"The loss of {len(failed)} of {len(finals)} final runs is not finite, so there is "
                f"no mean: {', '.join(failed)}. Lower the learning rate in a new suite."
            )
        return record

    def _complete(self, kind, units, flops_after=0):
        """Trains units until all have a result; waits for those that other processes train.

        Args:
            kind: what a unit is called.
            units: the `Unit`s.
            flops_after: the cost of what follows, for the estimate of the time.
        """
        number = {unit.folder: index for index, unit in enumerate(units, 1)}
        while left := [unit for unit in units if self._result(unit) is None]:
            took = False
            for index, unit in enumerate(left):
                if self._result(unit) is not None:  # Another process has finished it meanwhile.
                    took = True
                    continue
                title = f"{kind} {number[unit.folder]} of {len(units)}: {unit.folder}"
                cost = sum(x.flops for x in left[index:]) + flops_after
                took = self._train(title, unit, cost) or took
            if not took:
                time.sleep(_POLL)

    def _train(self, title, unit, flops_left):
        """Trains one unit; returns whether it has a result, as other processes may train it."""
        is_new = title not in self._said
        if is_new:
            _log.info(f"\n{title}{self._time_left.text(flops_left)}")
            self._said.add(title)
        begin = time.perf_counter()
        folder = self._file(unit.folder)
        try:
            result = sweep.train_once(unit.experiment, folder, self._strategy)
        except InUseError:
            if is_new:
                _log.info("another process trains it")
            return False
        if current_group().is_chief:
            write_json(os.path.join(folder, _RESULT), result)
        self._time_left.add(time.perf_counter() - begin, unit.flops)
        return True

    def _result(self, unit):
        """The result of a unit, or None; of several workers, the chief reads it for all."""
        if unit.folder not in self._results:
            result = current_group().from_chief(lambda: self._read_result(unit))
            if result is None:
                return None
            self._results[unit.folder] = result
        return self._results[unit.folder]

    def _read_result(self, unit):
        file = self._file(os.path.join(unit.folder, _RESULT))
        if not storage.exists(file):
            return None
        result = read_json(file)
        if not sweep.is_result(result):
            raise UserError(f"{file} is damaged. Restore it, or delete {os.path.dirname(file)}.")
        return result

    def _file(self, name):
        return os.path.join(self._path, name)


def _begin(plan, path):
    """Marks the directory as that of the suite, or checks that it is.

    Raises:
        UserError: if it holds something else, or trainings with other settings.
    """
    for index in range(_TRIES):
        try:
            with only_writer(path):
                _mark(plan, path)
            break
        except InUseError:  # Another process does the same at this moment.
            if index == _TRIES - 1:
                raise
            time.sleep(_RETRY)
    for setting in plan.settings:
        for unit in (
            *setting.tuning.values(),
            *(x for each in setting.final.values() for x in each),
        ):
            _check_unit(unit, os.path.join(path, unit.folder), path)


def _mark(plan, path):
    file, own = os.path.join(path, _RECORD), {"command": _COMMAND, "suite": plan.suite.name}
    if not storage.exists(file):
        # A start that was killed may have left an unfinished record.
        names = {name for name in storage.list_names(path) if not name.startswith(f"{_RECORD}.")}
        if not names <= LOCKS:
            raise UserError(f"{path} exists and holds no suite. {_OTHER_WORKDIR}")
        write_json(file, own)
        return
    found = read_json(file)
    if found.get("command") != _COMMAND:
        raise UserError(f"{file} was not written by a suite. {_OTHER_WORKDIR}")
    if found.get("suite") != plan.suite.name:
        raise UserError(
            f"{path} holds the suite {found.get('suite')!r}, not {plan.suite.name}. "
            f"{_OTHER_WORKDIR}"
        )


def _check_unit(unit, folder, path):
    """Refuses a training that began with other settings, also if it is finished."""
    workdir = Workdir(folder)
    if not storage.exists(workdir.config):
        return
    if workdir.starts_over() and not storage.exists(os.path.join(folder, _RESULT)):
        return  # Nothing of it is left.
    before = workdir.read_experiment()
    changed = lasting_differences(before, unit.experiment)
    old, new = before.train.eval_batches, unit.experiment.train.eval_batches
    if old != new:  # A run may change it, but results are compared.
        changed.append(f"train.eval_batches: {old} -> {new}")
    if changed:
        raise UserError(
            f"{path} holds a suite with another configuration ({unit.folder}: "
            f"{'; '.join(changed[:3])}). {_OTHER_WORKDIR}"
        )
