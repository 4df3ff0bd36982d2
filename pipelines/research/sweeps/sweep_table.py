"""The results of a sweep: the table, the CSV file."""

import functools

from pipelines.research.sweeps.choice import (
    NOT_FINITE,
    csv_bytes,
    main_value,
    picked_table,
    value_text,
)
from pipelines.tasks.metrics import as_text, main_metric


def final_values(record) -> list[float | None]:
    """The main metric of each final run; None for one that failed.

    Args:
        record: see `sweep.run`.
    """
    return [main_value(row["result"]) for row in record["final"]]


def text(record) -> str:
    """The table of a sweep and its conclusion, as text."""
    metric = record.get("metric", "accuracy").replace("_", " ")
    lines = picked_table(
        [(row["values"], _shown(row["result"])) for row in record["trials"]],
        [f"{metric} on {record['trials'][0]['split']}", "loss"],
        record.get("picked"),
        metric,
    )
    return "\n".join([*lines, *_conclusion(record, metric)])


def csv_of(record) -> bytes:
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
        for row, value in zip(record["final"], final_values(record), strict=True)
    )
    line = f"{metric} on {record['final'][0]['split']} after training on the whole split: "
    if record["standard_deviation"] is None:
        return [line + each]
    return [
        f"{line}{of_metric(record['mean'])} +- {of_metric(record['standard_deviation'])}, mean and "
        f"sample standard deviation of {each}"
    ]
