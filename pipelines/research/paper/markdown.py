"""The report of the experiments as one Markdown file with pictures, for repositories and mails."""

import os

from pipelines.research.paper import records
from pipelines.research.paper.records import VERDICTS
from vit_tf.files import storage
from vit_tf.files.atomic_file import write_atomically

_NAME, _PICTURES = "report.md", "pictures"


def write(path, found):
    """Writes `report.md` and its pictures into a folder.

    Args:
        path: the folder.
        found: the records, in order.
    """
    lines = [
        "# The paper's experiments",
        "",
        f"Written by `python -m pipelines.paper`. {records.score(found)} expectations show, "
        f"{sum(record['minutes'] for record in found):.0f} minutes of computation.",
    ]
    for record in found:
        lines += _section(path, record)
    _write(path, _NAME, "\n".join(lines).encode() + b"\n")


def _section(path, record):
    of = f" ({', '.join(record['paper'])})" if record["paper"] else ""
    lines = ["", f"## {record['name']}: {record['title']}{of}", ""]
    lines += [record["question"], "", record["setup"], "", f"Took {records.minutes(record)}.", ""]
    claims = [["expected", "measured", ""]]
    for claim in record["claims"]:
        text = claim["text"] + " (must hold)" * claim["must"]
        claims.append([text, claim["numbers"], VERDICTS[claim["shows"]]])
    lines += _table(claims, "---")
    for note in record["notes"]:
        lines += ["", f"{note[0].upper()}{note[1:]}."]
    number = 0
    for table in records.tables(record):
        lines += ["", f"**{table.title[0].upper()}{table.title[1:]}.** {records.explained(table)}"]
        lines += ["", *_table(records.rows(table))]
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


def _table(rows, align="---:"):
    header, *rest = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    between = ["---"] + [align] * (len(header) - 1)
    return [f"| {' | '.join(row)} |" for row in (header, between, *rest)]
