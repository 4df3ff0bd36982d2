"""The results of a sweep: which trial is the best, mean and deviation, the table, the CSV file."""

import csv
import functools
import io
import json
import statistics

from pipelines.tasks.metrics import as_text, main_metric

# The table's text in place of a metric of a run that failed.
_FAILED = "not finite"


def value_text(value) -> str:
    """The value of a field as in `--grid`."""
    if isinstance(value, list):
        return f"({','.join(map(value_text, value))})"
    return value if isinstance(value, str) else "none" if value is None else json.dumps(value)


def pick(results) -> int | None:
    """The index of the best result; None if all failed.

    The best has the highest main metric (see `metrics.main_metric`). In a tie the lower loss
    decides, then the order.

    Args:
        results: a dict of metrics for each trial, or {"failed": the reason}.
    """
    candidates = [index for index, result in enumerate(results) if "failed" not in result]
    if not candidates:
        return None

    def rank(index):
        result = results[index]
        return result[main_metric(result)], -result["loss"]

    return max(candidates, key=rank)


def statistics_of(record) -> dict:
    """Mean and sample standard deviation (divisor n - 1) of the main metric over the final runs.

    Args:
        record: see `sweep.run`.

    Returns:
        {"mean": fraction, "standard_deviation": fraction}; None for the mean without final runs or
        if one failed, and for the deviation of fewer than two.
    """
    values = _final_values(record)
    known = bool(values) and None not in values
    return {
        "mean": statistics.fmean(values) if known else None,
        "standard_deviation": statistics.stdev(values) if known and len(values) > 1 else None,
    }


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


def aligned(rows) -> list[str]:
    """Returns a line for each row of cells, whose columns begin at the same place."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


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


def _final_values(record):
    """The main metric of each final run; None for one that failed."""
    return [row["result"].get(record["metric"]) for row in record["final"]]


def _conclusion(record, metric):
    """A line about the final runs, if there are any."""
    if not record["final"]:
        return []
    of_metric = functools.partial(as_text, record["metric"])
    each = ", ".join(
        f"{_FAILED if value is None else of_metric(value)} (seed {row['seed']})"
        for row, value in zip(record["final"], _final_values(record), strict=True)
    )
    line = f"{metric} on {record['final'][0]['split']} after training on the whole split: "
    if record["standard_deviation"] is None:
        return [line + each]
    return [
        f"{line}{of_metric(record['mean'])} +- {of_metric(record['standard_deviation'])}, mean and "
        f"sample standard deviation of {each}"
    ]
