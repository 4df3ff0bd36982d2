"""The pages of the experiments, made of their records alone."""

import os

from pipelines.reports.html_page import write_page
from pipelines.research.paper import catalog, markdown, records
from pipelines.research.paper.findings import Table
from pipelines.research.paper.records import VERDICTS
from pipelines.runs.json_file import read_json, write_json
from vit_tf.files import storage

_INDEX = "index.html"


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
        notes=record["notes"],
    )


def write_index(path):
    """Writes the page and the Markdown file about the experiments whose records are in a folder."""
    found = [
        read_json(os.path.join(path, f"{name}.json"))
        for name in (*catalog.TOYS, *catalog.PARTS)
        if storage.exists(os.path.join(path, f"{name}.json"))
    ]
    markdown.write(path, found)
    minutes = sum(record["minutes"] for record in found)
    write_page(
        index_path(path),
        "experiments.html",
        headlines=[
            (str(len(found)), "experiments"),
            (records.score(found), "expectations show"),
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
        (records.score([record]), "expectations show"),
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
