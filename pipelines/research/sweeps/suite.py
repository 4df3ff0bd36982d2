"""Runs a suite: chooses settings if there are several, then trains each task with several seeds.

Every training is an ordinary workdir, `trials/<settings>/<task>` or
`final/<settings>/<task>,seed=<seed>`, with its result in `result.json`, which a lab runs: several
processes on one directory train different tasks and seeds, and each waits for the others' results.
`suite.json` and `suite.csv` follow from the results alone.
"""

import logging
import os

from pipelines.config.summary import summary
from pipelines.distribution.group import current_group
from pipelines.distribution.signals import interruptible
from pipelines.errors import MissingDataError, UserError, counted
from pipelines.reports.text_table import aligned
from pipelines.research.lab.folder import OTHER_WORKDIR, changed_settings, mark
from pipelines.research.lab.lab import RESULT, Lab
from pipelines.research.sweeps import suite_table
from pipelines.research.sweeps.choice import LOSS, write_tables
from pipelines.research.sweeps.suite_plan import SuitePlan
from pipelines.runs.workdir import Workdir
from vit_tf.files import storage

_log = logging.getLogger(__name__)

_NAME = "suite"


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
        costs = [setting.final[task][0].cost for setting in settings]
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
    with interruptible():
        current_group().from_chief(lambda: _begin(plan, path))
        _log.info("\n".join(describe(plan)))
        lab = Lab(path, strategy, plan.stages(), required=[LOSS])
        picked = plan.picked(lab)
        results, record = plan.train(lab, picked), {}
        if picked is not None:
            units = [*plan.trials(), *plan.finals(picked)]
            found = dict(zip((x.folder for x in units), lab.results(units), strict=True))
            record = suite_table.make_record(plan, found, picked)
            content, text = suite_table.csv_of(plan, record), suite_table.text(plan, record)
            write_tables(path, _NAME, record, content, text)
        where = f"the {RESULT} files in {os.path.join(path, 'trials')}"
        plan.refuse_failures(picked, results, where)
    return record


def _begin(plan, path):
    """Marks the directory as that of the suite, or checks that it is.

    Raises:
        UserError: if it holds something else, or trainings with other settings.
    """
    name = plan.suite.name
    found = mark(path, f"{_NAME}.json", suite_table.COMMAND, _NAME, {"suite": name}).get("suite")
    if found != name:
        raise UserError(f"{path} holds the suite {found!r}, not {name}. {OTHER_WORKDIR}")
    for setting in plan.settings:
        finals = [unit for units in setting.final.values() for unit in units]
        for unit in (*setting.tuning.values(), *finals):
            _check_unit(unit, os.path.join(path, unit.folder), path)


def _check_unit(unit, folder, path):
    """Refuses a training that began with other settings, also if it is finished."""
    workdir = Workdir(folder)
    if not storage.exists(workdir.config):
        return
    if workdir.starts_over() and not storage.exists(os.path.join(folder, RESULT)):
        return  # Nothing of it is left.
    changed = changed_settings(workdir.read_experiment(), unit.experiment)
    if changed:
        raise UserError(
            f"{path} holds a suite with another configuration ({unit.folder}: "
            f"{'; '.join(changed[:3])}). {OTHER_WORKDIR}"
        )
