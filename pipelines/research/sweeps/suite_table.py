"""The results of a suite: the picked settings, its score, the table beside the paper's, the CSV."""

from pipelines.evaluation.benchmarks.paper_results import (
    comparison,
    nearest_values,
    paper_value,
    paper_values,
)
from pipelines.evaluation.vtab import GROUPS, vtab_score
from pipelines.reports.text_table import aligned
from pipelines.research.sweeps.choice import (
    NOT_FINITE,
    csv_bytes,
    main_value,
    mean_and_deviation,
    picked_table,
)

COMMAND = "pipelines.sweep --suite"
_NO_RESULT = "-"


def make_record(plan, results, picked) -> dict:
    """Returns the content of `suite.json`.

    Args:
        plan: the `SuitePlan`.
        results: the result of each training by folder, see `Unit.run`.
        picked: the `Setting` of the final trainings.

    Returns:
        "suite", "model", "init_from"; "settings": the "values" of each, and if they were compared
        its "results" by task and their "mean"; "picked"; "final": by task, the "seed", "workdir"
        and "result" of each training; "missing": the reason, by task; "tasks" and "score": "mean"
        and "standard_deviation" (divisor n - 1) over the seeds by task, and of the means over
        tasks (see `vtab_score`), as fractions, None where a result is missing; "differences":
        settings that are not the paper's.
    """
    final = {
        task: [
            {
                "seed": unit.experiment.seed,
                "workdir": unit.folder,
                "result": results[unit.folder],
            }
            for unit in picked.final[task]
        ]
        for task in plan.tasks
    }
    by_seed = [
        {task: main_value(rows[seed]["result"]) for task, rows in final.items()}
        for seed in range(plan.seeds)
    ]
    score = [_score(plan.suite, accuracies) for accuracies in by_seed]
    return {
        "command": COMMAND,
        "suite": plan.suite.name,
        "model": plan.model,
        "init_from": plan.init_from,
        "settings": [_compared(plan, setting, results) for setting in plan.settings],
        "picked": picked.values,
        "final": final,
        "missing": dict(plan.missing),
        "tasks": {task: mean_and_deviation([x[task] for x in by_seed]) for task in plan.tasks},
        "score": {name: mean_and_deviation([x[name] for x in score]) for name in score[0]},
        "differences": [*picked.differences, *_other_data(plan)],
    }


def text(plan, record) -> str:
    """Returns the table of a suite, beside the paper's numbers, as text."""
    suite = plan.suite
    lines = _settings_table(record) if plan.compares else []
    seeds = ", ".join(str(row["seed"]) for row in next(iter(record["final"].values())))
    lines.append(
        "accuracy on the test images in percent, after training on all training images: "
        + "mean +- sample standard deviation over the seeds " * (plan.seeds > 1)
        + "seed " * (plan.seeds == 1)
        + seeds
    )
    columns = _paper_columns(plan)
    rows = [["", f"here: {plan.model}", *(f"{model}, {data}" for model, data in columns)]]
    for name, title, is_mean in _rows(suite):
        known = record["score" if is_mean else "tasks"].get(name)
        failed = not is_mean and known and known["mean"] is None
        own = NOT_FINITE if failed else _percent(known)
        rows.append([title, own, *_paper_cells(suite, name, is_mean, columns)])
    lines += aligned(rows)
    values = paper_values(suite.name, plan.model)
    if suite.is_vtab:
        values = values or paper_values(suite.name)
    lines += comparison(
        nearest_values(values, plan.init_from),
        model=plan.model,
        weights=plan.init_from,
        differences=record["differences"],
    )
    return "\n".join(lines)


def csv_of(plan, record) -> bytes:
    """Returns the table in the layout of the paper's table 9: a column for each task and mean.

    The rows are the seeds, their mean and standard deviation, and the paper's; all in percent.
    """
    suite, rows = plan.suite, _rows(plan.suite)
    lines = [["", *(title for _, title, _ in rows)]]
    seeds = next(iter(record["final"].values()))
    for index, row in enumerate(seeds):
        found = {x: main_value(each[index]["result"]) for x, each in record["final"].items()}
        means = _score(suite, found)
        cells = [(means if is_mean else found).get(name) for name, _, is_mean in rows]
        lines.append([f"seed {row['seed']}", *map(_number, cells)])
    for key in ("mean", "standard_deviation"):
        found = [record["score" if x else "tasks"].get(name, {}).get(key) for name, _, x in rows]
        lines.append([key.replace("_", " "), *map(_number, found)])
    for model, data in _paper_columns(plan):
        found = [_paper_cells(suite, name, x, [(model, data)])[0] for name, _, x in rows]
        lines.append([f"paper, table 9: {model}, {data}", *found])
    for value in () if suite.is_vtab else paper_values(suite.name, plan.model):
        lines.append([f"paper: {value}", value.percent])
    return csv_bytes(lines)


def _score(suite, accuracies):
    """The means over tasks of one seed, None where a task has no accuracy."""
    found = {task: value for task, value in accuracies.items() if value is not None}
    return vtab_score(found) if suite.is_vtab else {"mean": next(iter(accuracies.values()))}


def _compared(plan, setting, results):
    if not plan.compares:
        return {"values": setting.values}
    found = {task: results[setting.tuning[task].folder] for task in plan.tasks}
    mean = mean_and_deviation([main_value(result) for result in found.values()])["mean"]
    return {"values": setting.values, "results": found, "mean": mean}


def _other_data(plan):
    """Phrases about data that are missing, or in another version than the paper's."""
    tasks = plan.suite.tasks
    phrases = [
        f"data of {task}: {tasks[task].data_name} -> {plan.sources[task]}"
        for task in plan.tasks
        if plan.sources[task] != tasks[task].data_name
    ]
    if plan.missing:
        gone = ", ".join(plan.missing)
        phrases.append(f"tasks: {len(plan.tasks)} of {len(tasks)}, without {gone}")
    return phrases


def _settings_table(record):
    """Lines about the settings that were compared."""
    tasks = len(record["final"])
    of = f", mean over {tasks} tasks" if tasks > 1 else ""
    rows = [
        (row["values"], [NOT_FINITE if row["mean"] is None else f"{row['mean']:.2%}"])
        for row in record["settings"]
    ]
    header = [f"accuracy on held-out training images{of}"]
    return [*picked_table(rows, header, record["picked"], "accuracy"), ""]


def _rows(suite):
    """`(name, title, whether it is a mean)` of each row of the table."""
    if not suite.is_vtab:
        return [(task.name, task.title, False) for task in suite.tasks.values()]
    rows = []
    for group, names in GROUPS.items():
        rows += [(name, suite.tasks[name].title, False) for name in names]
        rows.append((group, f"mean of {group}", True))
    return [*rows, ("mean", f"mean of {len(suite.tasks)} tasks", True)]


def _paper_columns(plan):
    """`(model, pre-training)` of the columns of table 9: those of the model, else all."""
    if not plan.suite.is_vtab:
        return []
    values = [x for x in paper_values(plan.suite.name) if x.table == "9"]
    own = [x for x in values if x.model == plan.model]
    return [(x.model, x.pretraining) for x in own or values]


def _paper_cells(suite, name, is_mean, columns):
    """Texts of the paper's numbers in a row; means are computed from those of the tasks."""
    cells = []
    for model, data in columns:
        found = {
            task.name: paper_value("9", model, f"vtab/{task.name}", data).percent
            for task in suite.tasks.values()
        }
        cells.append(f"{vtab_score(found)[name]:.2f}" if is_mean else f"{found[name]:.1f}")
    return cells


def _percent(known):
    if known is None or known["mean"] is None:
        return _NO_RESULT
    spread = known["standard_deviation"]
    return f"{100 * known['mean']:.2f}" + (f" +- {100 * spread:.2f}" if spread is not None else "")


def _number(value):
    return "" if value is None else f"{100 * value:.4f}"
