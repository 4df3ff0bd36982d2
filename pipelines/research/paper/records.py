"""The record of an experiment: JSON whose every number names the folder and metric it is from."""

import dataclasses
import os

from pipelines.errors import counted
from pipelines.reports import charts
from pipelines.reports.text_table import aligned
from pipelines.research.paper.catalog import PARTS
from pipelines.research.paper.findings import Cell, Chart, Findings, Point, Reading, Table, points
from pipelines.research.paper.registration import register

VERDICTS = {True: "shows", False: "does not show", None: "reported"}
_NO_VERDICT = (
    "no expectation has a verdict: a setting was chosen at an edge of what was tried, so its best "
    "value may lie outside"
)


def make_record(study, findings: Findings, lab) -> dict:
    """Returns the content of `<name>.json`.

    Args:
        study: the `Study`.
        findings: its `Findings`.
        lab: the `Lab` that ran it.

    Returns:
        "name", "title", "paper", "question", "setup", "minutes" (measured), "estimate" (minutes),
        "registration" (a sentence, and whether the study is confirmatory; see `registration`),
        "tables", "charts", "claims" and "notes": the fields of `findings`, with the folders of the
        readings relative to the folder of the page; and "choices": the losses by which settings
        were chosen.
    """
    fields = {x: getattr(study, x) for x in ("name", "title", "paper", "question", "setup")}
    tables = [dataclasses.asdict(table) for table in findings.tables]
    if study.name in PARTS:  # At full scale, with as few seeds as in the paper.
        registration = {"text": "the expectations are the paper's", "confirmatory": False}
    else:
        found = register(study, lab.first_run())
        registration = {"text": found.text, "confirmatory": found.is_confirmatory}
        if study.is_gate:
            sentence = f"a gate, which does not count: {found.text}"
            registration = {"text": sentence, "confirmatory": False}
    at_edge = any(choice.at_edge for choice in findings.choices)
    claims = [
        dataclasses.asdict(claim) | ({"shows": None} if at_edge else {})
        for claim in findings.claims
    ]
    notes = [choice.text for choice in findings.choices] + [_NO_VERDICT] * at_edge
    return fields | {
        "minutes": round(lab.seconds() / 60, 1),
        "estimate": study.minutes,
        "registration": registration,
        "runs": os.path.basename(lab.root),
        "tables": tables,
        "charts": [
            dataclasses.asdict(chart)
            for chart in (*findings.charts, *(x.chart for x in findings.choices))
        ],
        "choices": [dataclasses.asdict(choice) for choice in findings.choices],
        "claims": claims,
        "notes": [*notes, *findings.notes],
    }


def text(study, record) -> str:
    """Returns the result of an experiment for a terminal."""
    lines = [f"{study.name}, {study.title}: {minutes(record)}", record["registration"]["text"]]
    for table in tables(record):
        lines += [table.title, *aligned(rows(table))]
    for claim in record["claims"]:
        lines.append(f"{VERDICTS[claim['shows']]}: {claim['text']}: {claim['numbers']}")
    return "\n".join([*lines, *record["notes"]])


def score(found) -> str:
    """How many of the confirmatory claims of some records show."""
    judged = judged_claims(found)
    return f"{sum(x['shows'] for x in judged)} of {len(judged)}"


def judged_claims(found) -> list[dict]:
    """The claims of some records that have a verdict and were declared before the first run."""
    return [
        claim
        for record in found
        if record.get("registration", {}).get("confirmatory")
        for claim in record["claims"]
        if claim["shows"] is not None
    ]


def multiplicity(found) -> str:
    """A sentence about how many claims may show by chance."""
    count = len(judged_claims(found))
    return (
        f"Each confirmatory claim has an interval of 95 %: were none of the {count} true, at most "
        f"{0.05 * count:.2g} of them would show by chance"
    )


def minutes(record) -> str:
    """The time that an experiment took, and its estimate."""
    estimate = record["estimate"]
    expected = "" if estimate is None else f" ({estimate:g} estimated for two processes)"
    return f"{record['minutes']:g} minutes{expected}"


def folders(record) -> list[str]:
    """The folders of all readings, each once, in order."""
    cells = [c for table in record["tables"] for row in table["rows"].values() for c in row if c]
    return list(dict.fromkeys(r["folder"] for c in cells for r in c["readings"]))


def tables(record) -> list[Table]:
    """The tables of a record."""
    found = []
    for values in record["tables"]:
        rows = {
            name: [x and Cell(tuple(Reading(**y) for y in x["readings"])) for x in row]
            for name, row in values["rows"].items()
        }
        found.append(Table(**{**values, "rows": rows}))
    return found


def drawings(record) -> list[Chart]:
    """The charts of a record beside those of its tables."""
    found = []
    for values in record["charts"]:
        curves = {name: [Point(**x) for x in points] for name, points in values["curves"].items()}
        found.append(Chart(**{**values, "curves": curves}))
    return found


def drawn(chart: Chart, png=False):
    """The picture of a chart for a page, or a PNG file as bytes; None if it has no point."""
    curves = {name: each for name, each in chart.curves.items() if each}
    if not curves:
        return None
    return charts.interval_chart(
        {
            name: [(point.x, point.y, point.half or 0.0) for point in each]
            for name, each in list(curves.items())[: charts.MOST_LINES]
        },
        chart.x_label,
        chart.title,
        log=chart.log,
        joined=chart.joined,
        x_percent=chart.x_percent,
        percent=chart.percent,
        lines=chart.lines,
        categories=chart.categories,
        png=png,
    )


def explained(table: Table) -> str:
    """Sentences about the numbers of a table."""
    cells = [cell for row in table.rows.values() for cell in row if cell]
    count = max((len(cell.readings) for cell in cells), default=0)
    words = f"Mean over {counted(count, table.over)}" + (
        ", ± half of its 95 % interval (Student)." if count > 1 else "."
    )
    if count > 1 and any(len(cell.readings) == 1 for cell in cells):
        words += " Numbers without an interval are single ones."
    if table.reference is not None:
        words += (
            f" In parentheses: the difference to {table.reference}, paired by seed, with its "
            "interval; * marks a difference whose interval leaves out 0."
        )
    if table.paper is not None:
        words += " In brackets: the paper's."
    return words


def rows(table: Table) -> list[list[str]]:
    """Header and rows of a table as text."""
    rows = [["", *map(str, table.columns)]]
    for name, cells in table.rows.items():
        shown = []
        for column, cell in enumerate(cells):
            if cell is None:
                shown.append("-")
                continue
            value = _number(cell, table.unit)
            if table.reference not in (None, name):
                found = table.difference(name, column)
                value += f" ({points(found)}{' *' * found.shows})"
            printed = table.paper and table.paper[name][column]
            shown.append(value if printed is None else f"{value} [{printed:g}]")
        rows.append([name, *shown])
    return rows


def _number(cell: Cell, unit):
    mean, half = cell.mean, cell.half_interval
    if unit != "%":
        return f"{mean:,.0f}" + ("" if half is None else f" ± {half:,.0f}") + f" {unit}"
    return f"{100 * mean:.1f}" + ("" if half is None else f" ± {100 * half:.1f}") + " %"
