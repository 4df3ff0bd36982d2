"""The results of a sweep: which trial is the best, mean and deviation, the table, the CSV file."""

import csv
import functools
import io
import json
import statistics

from pipelines.reports.text_table import aligned
from pipelines.tasks.metrics import as_text, main_metric

# The table's text in place of a metric of a run that failed.
_FAILED = "not finite"


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


def final_values(record) -> list[float | None]:
    """The main metric of each final run; None for one that failed.

    Args:
        record: see `sweep.run`.
    """
    return [main_value(row["result"]) for row in record["final"]]


def text(record) -> str:
    """The table of a sweep and its conclusion, as text."""
    paths = list(record["trials"][0]["values"])
    metric = record.get("metric", "accuracy").replace("_", " ")
    header = ["", *paths, f"{metric} on {record['trials'][0]['split']}", "loss"]
    picked = record.get("picked")
    rows = [
        [
            "*" if row["values"] == picked else "",
            *(value_text(row["values"][path]) for path in paths),
            *_shown(row["result"]),
        ]
        for row in record["trials"]
    ]
    lines = aligned([header, *rows])
    if picked:
        lines.append(f"* picked: highest {metric}, then lowest loss, then first")
    return "\n".join([*lines, *_conclusion(record, metric)])


def csv_bytes(record) -> bytes:
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
    names = dict.fromkeys(name for row in rows for name in row)
    file = io.StringIO()
    writer = csv.DictWriter(file, list(names), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue().encode()


def _shown(result):
    """The cells of the main metric and the loss."""
    if "failed" in result:
        return [_FAILED, ""]
    metric = main_metric(result)
    return [as_text(metric, result[metric]), f"{result['loss']:.4f}"]


def _conclusion(record, metric):
    """A line about the final runs, if there are any."""
    if not record["final"]:
        return []
    of_metric = functools.partial(as_text, record["metric"])
    each = ", ".join(
        f"{_FAILED if value is None else of_metric(value)} (seed {row['seed']})"
        for row, value in zip(record["final"], final_values(record), strict=True)
    )
    line = f"{metric} on {record['final'][0]['split']} after training on the whole split: "
    if record["standard_deviation"] is None:
        return [line + each]
    return [
        f"{line}{of_metric(record['mean'])} +- {of_metric(record['standard_deviation'])}, mean and "
        f"sample standard deviation of {each}"
    ]
