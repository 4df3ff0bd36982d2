"""The record, the text and the page of an experiment, and the page about all of them.

A page is made of the record alone, whose every number names the folder and the metric that it was
read from.
"""

import dataclasses
import os

from pipelines.errors import counted
from pipelines.replication import catalog
from pipelines.replication.findings import Cell, Findings, Reading, Table, points
from pipelines.reports import charts
from pipelines.reports.html_page import write_page
from pipelines.reports.text_table import aligned
from pipelines.runs.json_file import read_json, write_json
from vit_tf.files import storage

_INDEX = "index.html"
_VERDICTS = {True: "shows", False: "does not show", None: "reported"}


def make_record(study, findings: Findings, lab) -> dict:
    """Returns the content of `<name>.json`.

    Args:
        study: the `Study`.
        findings: its `Findings`.
        lab: the `Lab` that ran it.

    Returns:
        "name", "title", "paper", "question", "setup", "minutes" (measured), "estimate" (minutes),
        "tables", "claims" and "notes": the fields of `findings`, with the folders of the readings
        relative to the folder of the page.
    """
    fields = {x: getattr(study, x) for x in ("name", "title", "paper", "question", "setup")}
    tables = [dataclasses.asdict(table) for table in findings.tables]
    return fields | {
        "minutes": round(lab.seconds() / 60, 1),
        "estimate": study.minutes,
        "runs": os.path.basename(lab.root),
        "tables": tables,
        "claims": [dataclasses.asdict(claim) for claim in findings.claims],
        "notes": list(findings.notes),
    }


def write(path, study, record):
    """Writes the record and the page of an experiment into a folder."""
    write_json(os.path.join(path, f"{study.name}.json"), record)
    tables = [_table(x) for x in record["tables"]]
    write_page(
        os.path.join(path, f"{study.name}.html"),
        "experiment.html",
        title=f"{study.name}: {study.title}",
        lead=study.question,
        headlines=_headlines(record),
        setup=study.setup,
        claims=[
            (claim["text"], claim["numbers"], _VERDICTS[claim["shows"]], claim["must"])
            for claim in record["claims"]
        ],
        tables=[_shown(table, record["runs"]) for table in tables],
        parts=[(name, catalog.PARTS[name]) for name in study.paper],
        notes=record["notes"],
    )


def write_index(path):
    """Writes the page about the experiments whose records are in a folder."""
    records = [
        read_json(os.path.join(path, f"{name}.json"))
        for name in (*catalog.TOYS, *catalog.PARTS)
        if storage.exists(os.path.join(path, f"{name}.json"))
    ]
    judged = [c["shows"] for r in records for c in r["claims"] if c["shows"] is not None]
    minutes = sum(record["minutes"] for record in records)
    write_page(
        index_path(path),
        "experiments.html",
        headlines=[
            (str(len(records)), "experiments"),
            (f"{sum(judged)} of {len(judged)}", "expectations show"),
            (f"{minutes:.0f} min", "of computation"),
        ],
        records=[
            (
                record["name"],
                record["title"],
                ", ".join(record["paper"]),
                _minutes(record),
                [(c["text"], c["numbers"], _VERDICTS[c["shows"]]) for c in record["claims"]],
            )
            for record in records
        ],
    )


def index_path(path) -> str:
    """The page about all experiments of a folder."""
    return os.path.join(path, _INDEX)


def text(study, record) -> str:
    """Returns the result of an experiment for a terminal."""
    lines = [f"{study.name}, {study.title}: {_minutes(record)}"]
    for table in map(_table, record["tables"]):
        lines += [table.title, *aligned(_rows(table))]
    for claim in record["claims"]:
        lines.append(f"{_VERDICTS[claim['shows']]}: {claim['text']}: {claim['numbers']}")
    return "\n".join([*lines, *record["notes"]])


def _headlines(record):
    judged = [claim["shows"] for claim in record["claims"] if claim["shows"] is not None]
    return [
        (f"{sum(judged)} of {len(judged)}", "expectations show"),
        (_minutes(record), "of computation"),
        (str(len(_folders(record))), "runs with a number here"),
    ]


def _minutes(record):
    estimate = record["estimate"]
    expected = "" if estimate is None else f" ({estimate:g} estimated)"
    return f"{record['minutes']:g} minutes{expected}"


def _folders(record):
    """The folders of all readings, each once, in order."""
    cells = [c for table in record["tables"] for row in table["rows"].values() for c in row if c]
    return list(dict.fromkeys(r["folder"] for c in cells for r in c["readings"]))


def _table(values) -> Table:
    """The `Table` of a record."""
    rows = {
        name: [
            cell and Cell(tuple(Reading(**reading) for reading in cell["readings"])) for cell in row
        ]
        for name, row in values["rows"].items()
    }
    return Table(**{**values, "rows": rows})


def _shown(table: Table, runs):
    """What the page has of a table."""
    header, *rows = _rows(table)
    chart = None
    if table.curve is not None:
        points_of = {
            name: [(x, cell.mean) for x, cell in zip(table.columns, row, strict=True) if cell]
            for name, row in list(table.rows.items())[: charts.MOST_LINES]
        }
        curves = {name: tuple(zip(*each, strict=True)) for name, each in points_of.items() if each}
        if curves:
            chart = charts.line_chart(curves, table.curve, table.title, percent=True)
    links = {
        name: list(
            dict.fromkeys(f"{runs}/{r.folder}" for cell in row if cell for r in cell.readings)
        )
        for name, row in table.rows.items()
    }
    return {
        "title": table.title,
        "header": header,
        "rows": rows,
        "chart": chart,
        "links": links,
        "text": _explained(table),
    }


def _explained(table: Table):
    cells = [cell for row in table.rows.values() for cell in row if cell]
    count = max((len(cell.readings) for cell in cells), default=0)
    words = f"Mean over {counted(count, 'seed')}" + (
        ", ± half of its 95 % interval (Student)." if count > 1 else "."
    )
    if table.reference is not None:
        words += (
            f" In parentheses: the difference to {table.reference}, paired by seed, with its "
            "interval; * marks a difference whose interval leaves out 0."
        )
    if table.paper is not None:
        words += " In brackets: the paper's."
    return words


def _rows(table: Table):
    """Header and rows of a table as text."""
    rows = [["", *map(str, table.columns)]]
    for name, cells in table.rows.items():
        shown = []
        for column, cell in enumerate(cells):
            if cell is None:
                shown.append("-")
                continue
            value = _number(cell.mean, cell.half_interval)
            if table.reference not in (None, name):
                found = table.difference(name, column)
                value += f" ({points(found)}{' *' * found.shows})"
            printed = table.paper and table.paper[name][column]
            shown.append(value if printed is None else f"{value} [{printed:g}]")
        rows.append([name, *shown])
    return rows


def _number(mean, half):
    spread = "" if half is None else f" ± {100 * half:.1f}"
    return f"{100 * mean:.1f}{spread} %"
