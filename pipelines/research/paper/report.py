"""The pages of the experiments, and their Markdown file, made of their records alone."""

import os

from pipelines.reports.html_page import write_page
from pipelines.research.paper import catalog, records
from pipelines.research.paper.findings import Table
from pipelines.research.paper.records import VERDICTS
from pipelines.runs.json_file import read_json, write_json
from vit_tf.files import storage
from vit_tf.files.atomic_file import write_atomically

_INDEX, _MARKDOWN, _PICTURES = "index.html", "report.md", "pictures"


def write(path, study, record):
    """Writes the record and the page of an experiment into a folder."""
    write_json(os.path.join(path, f"{study.name}.json"), record)
    write_page(
        os.path.join(path, f"{study.name}.html"),
        "experiment.html",
        title=f"{study.name}: {study.title}",
        lead=study.question,
        headlines=_headlines(record),
        setup=study.setup,
        claims=_claims(record),
        tables=[_shown(table, record["runs"]) for table in records.tables(record)],
        charts=[(chart.title, records.drawn(chart)) for chart in records.drawings(record)],
        parts=[(name, catalog.PARTS[name]) for name in study.paper],
        notes=[record["registration"]["text"], *record["notes"]],
    )


def write_index(path):
    """Writes the page and the Markdown file about the experiments whose records are in a folder."""
    found = [
        read_json(os.path.join(path, f"{name}.json"))
        for name in (*catalog.TOYS, *catalog.PARTS)
        if storage.exists(os.path.join(path, f"{name}.json"))
    ]
    _write_markdown(path, found)
    minutes = sum(record["minutes"] for record in found)
    write_page(
        index_path(path),
        "experiments.html",
        headlines=[
            (str(len(found)), "experiments"),
            (records.score(found), "confirmatory claims show"),
            (f"{minutes:.0f} min", "of computation"),
        ],
        records=[
            (
                record["name"],
                record["title"],
                ", ".join(record["paper"]),
                records.minutes(record),
                _claims(record),
            )
            for record in found
        ],
    )


def index_path(path) -> str:
    """The page about all experiments of a folder."""
    return os.path.join(path, _INDEX)


def _claims(record):
    return [(x["text"], x["numbers"], VERDICTS[x["shows"]], x["must"]) for x in record["claims"]]


def _headlines(record):
    return [
        (records.score([record]), "confirmatory claims show"),
        (records.minutes(record), "of computation"),
        (str(len(records.folders(record))), "runs with a number here"),
    ]


def _shown(table: Table, runs):
    """What the page has of a table."""
    header, *rows = records.rows(table)
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
        "chart": table.chart and records.drawn(table.chart),
        "links": links,
        "text": records.explained(table),
    }


def _write_markdown(path, found):
    """Writes `report.md` and its pictures into a folder, for repositories and mails."""
    lines = [
        "# The paper's experiments",
        "",
        f"Written by `python -m pipelines.paper`. {records.score(found)} confirmatory claims "
        f"show, {sum(record['minutes'] for record in found):.0f} minutes of computation. "
        f"{records.multiplicity(found)}.",
    ]
    for record in found:
        lines += _section(path, record)
    _write(path, _MARKDOWN, "\n".join(lines).encode() + b"\n")


def _section(path, record):
    of = f" ({', '.join(record['paper'])})" if record["paper"] else ""
    lines = ["", f"## {record['name']}: {record['title']}{of}", ""]
    lines += [record["question"], "", record["setup"], "", f"Took {records.minutes(record)}.", ""]
    claims = [["expected", "measured", ""]]
    for text, numbers, verdict, must in _claims(record):
        claims.append([text + " (must hold)" * must, numbers, verdict])
    lines += _lines(claims, "---")
    for note in (record["registration"]["text"], *record["notes"]):
        lines += ["", f"{note[0].upper()}{note[1:]}."]
    number = 0
    for table in records.tables(record):
        lines += ["", f"**{table.title[0].upper()}{table.title[1:]}.** {records.explained(table)}"]
        lines += ["", *_lines(records.rows(table))]
        number += table.chart is not None
        lines += _picture(path, f"{record['name']}-{number}", table.chart)
    for chart in records.drawings(record):
        number += 1
        lines += _picture(path, f"{record['name']}-{number}", chart)
    return lines


def _write(path, name, data):
    write_atomically(os.path.join(path, name), lambda file: file.write(data))


def _picture(path, name, chart):
    """Writes a chart; returns the lines that show it."""
    data = chart and records.drawn(chart, png=True)
    if not data:
        return []
    storage.make_folders(os.path.join(path, _PICTURES))
    _write(path, os.path.join(_PICTURES, f"{name}.png"), data)
    return ["", f"![{chart.title} over {chart.x_label}]({_PICTURES}/{name}.png)"]


def _lines(rows, align="---:"):
    header, *rest = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    between = ["---"] + [align] * (len(header) - 1)
    return [f"| {' | '.join(row)} |" for row in (header, between, *rest)]
