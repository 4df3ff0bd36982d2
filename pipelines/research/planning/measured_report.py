"""The result of `plan --measure` as text, as JSON and as charts (figure 12 of the paper)."""

import dataclasses
import json
import os

from pipelines.errors import UserError, counted
from pipelines.reports import charts
from pipelines.reports.text_table import aligned
from pipelines.runs.json_file import read_json, write_json
from vit_tf.files import storage
from vit_tf.files.atomic_file import write_atomically

JSON_NAME = "measured.json"
# Value of a row -> its chart and the name of the vertical axis.
_CHARTS = {
    "images_per_second_per_core": ("images_per_second.png", "images per second per core"),
    "largest_batch": ("largest_batch.png", "largest batch"),
}


def measured_text(record) -> str:
    """The record of `plan --measure` for people."""
    header = ["model", "size", "images/s per core", "with", "spread"]
    header += ["largest batch", "planned", "measured, GB", "planned, GB", "error"]
    header += ["measured, MB an image", "planned"]
    limit = record["memory_gb"]
    given = "all memory" if limit is None else f"{limit:g} GB"
    return "\n".join(
        [
            f"{record['passes']} on {record['device']}, {counted(record['cores'], 'core')}, in "
            f"{record['dtype']}, with {given} for model and computation; best of "
            f"{record['timings']} timings; memory beside the built model with the largest batch:",
            *aligned([header, *map(_cells, record["rows"])], left=(0,)),
        ]
    )


def _cells(row):
    cells = [row["model"], str(row["image_size"])]
    planned = row["planned_largest_batch"]
    largest = [f"{row['largest_batch']:,}", "-" if planned is None else f"{planned:,}"]
    if not row["largest_batch"]:
        return [*cells, "-", "-", "-", *largest, "-", "-", "-", "-", "-"]
    each = (row.get(f"{name}_bytes_per_image") for name in ("measured", "planned"))
    return [
        *cells,
        f"{row['images_per_second_per_core']:,.1f}",
        f"{row['fastest_batch']:,}",
        f"{100 * row['spread']:.1f} %",
        *largest,
        f"{row['measured_bytes'] / 1e9:,.3f}",
        f"{row['planned_bytes'] / 1e9:,.3f}",
        f"{100 * row['error']:+.0f} %",
        *("-" if size is None else f"{size / 1e6:,.3f}" for size in each),
    ]


def known_rows(folder, settings) -> list[dict]:
    """The rows in the folder of a search that was interrupted; [] without one.

    Args:
        folder: path or URL.
        settings: the `measuring.Search`.

    Raises:
        UserError: if the folder holds a search with other settings.
    """
    path = os.path.join(folder, JSON_NAME)
    if not storage.exists(path):
        return []
    record = read_json(path)
    rows = record.pop("rows", None)
    if record != json.loads(json.dumps(dataclasses.asdict(settings))) or not isinstance(rows, list):
        raise UserError(
            f"{path} holds a search with other settings, or on another machine. Name another "
            "--output, or delete it."
        )
    return rows


def write_measured(record, folder):
    """Writes the record and its charts; a chart without points is left out."""
    storage.make_folders(folder)
    write_json(os.path.join(folder, JSON_NAME), record)
    for value, (name, label) in _CHARTS.items():
        curves = {}
        for row in record["rows"]:
            if row[value]:
                x, y = curves.setdefault(row["model"], ([], []))
                x.append(row["image_size"])
                y.append(row[value])
        if curves:
            data = charts.line_chart(curves, "image size in pixels", label, log=True, png=True)
            write_atomically(os.path.join(folder, name), lambda file, data=data: file.write(data))
