"""The files of `evaluate --report`: a page, and its numbers as JSON and tables."""

import csv
import io
import json
import os

import numpy as np

from pipelines.errors import UserError, counted
from pipelines.evaluation import report
from pipelines.reports import charts, html_page, pictures
from pipelines.reports.html_page import short
from pipelines.runs.json_file import write_json
from vit_tf.files import storage
from vit_tf.files.atomic_file import write_atomically
from vit_tf.images.decoding import decode_image

PAGE = "report.html"
# Pictures of each kind, and the longer side of one in pixels.
_PICTURES, _SIDE = 20, 160
_PAIRS = 20
# Rows of the page's table of classes; report.json has all.
_MOST_ROWS = 1000
# Largest side of the matrix in confusion.csv, and of the picture in cells.
_MOST_COLUMNS, _MOST_CELLS = 2000, 1000

# Columns of the page's table, and their names in `report.per_class`.
_COLUMNS = {"F1": "f1", "Precision": "precision", "Recall": "recall"}


def check_folder(folder):
    """Raises `UserError` if the folder of a report is a file."""
    if storage.exists(folder) and not storage.is_folder(folder):
        raise UserError(f"--report {folder} is a file. Name a directory.")


def write_report(
    folder, model_name, source, names, predicted, means, average_precisions=None, notes=()
):
    """Writes report.html, report.json, predictions.csv and, single-label, the confusion matrix.

    The matrix is confusion.png and confusion.csv: a row for each label, or above 2,000 classes a
    row for each pair that occurs.

    Args:
        folder: directory or URL to write into.
        model_name: name of the model.
        source: the `DataSource`.
        names: names of the classes, in label order of the data.
        predicted: `Predicted`.
        means: result of `Evaluator.run`.
        average_precisions: multi-label: float `[K]`, NaN of classes without an image.
        notes: sentences about the evaluation.

    Returns:
        The path of the page.
    """
    storage.make_folders(folder)
    record = {"model": model_name, "data": source.name, "split": source.split, **means}
    if notes:
        record["notes"] = [*notes]
    if average_precisions is None:
        numbers, page = _single_label(folder, names, predicted)
    else:
        numbers, page = _multi_label(names, predicted, average_precisions)
    write_json(os.path.join(folder, "report.json"), record | numbers)
    _write_text(os.path.join(folder, "predictions.csv"), _predictions(source, names, predicted))
    path = os.path.join(folder, PAGE)
    html_page.write_page(
        path,
        "evaluation.html",
        lead=f"{short(model_name, 200)} on {short(source.name, 200)}, split {source.split}: "
        f"{counted(len(predicted.ids), 'image')} of {len(names):,} classes."
        + "".join(f" {note}" for note in notes),
        headlines=_headlines(means, numbers),
        **page,
        **_pictures(source, names, predicted),
        footer="All numbers are in report.json, the predictions for each image in predictions.csv.",
    )
    return path


def _single_label(folder, names, predicted):
    """The numbers of report.json and the values of the page; writes the confusion matrix."""
    labels, found, classes = predicted.labels, predicted.classes[:, 0], len(names)
    columns = report.per_class(labels, found, classes)
    bins = report.calibration(predicted.probabilities[:, 0], predicted.is_right)
    block = -(-classes // _MOST_CELLS)
    counts = report.confusion(labels, found, classes, block)
    shown = [short(name, 18) for name in names] if classes <= len(counts) else []
    image = charts.confusion_matrix(counts, shown, block, png=True)
    write_atomically(os.path.join(folder, "confusion.png"), lambda file: file.write(image))
    _write_text(os.path.join(folder, "confusion.csv"), _confusion_rows(labels, found, names))
    edges = np.linspace(0, 1, report.BINS + 1)
    numbers = {
        "calibration_error": bins["error"],
        "calibration": [
            {"above": edges[i], "up_to": edges[i + 1]}
            | {name: bins[name][i].item() for name in ("images", "accuracy", "confidence")}
            for i in range(report.BINS)
        ],
        "classes": [
            {"name": name, **{key: column[i].item() for key, column in columns.items()}}
            for i, name in enumerate(names)
        ],
    }
    pairs = report.most_confused(labels, found, _PAIRS)
    note = f" A cell holds {block} x {block} neighboring classes." if block > 1 else ""
    page = {
        "confusion": {
            "chart": charts.confusion_matrix(counts, shown, block),
            "note": note,
            "pairs": [[short(names[i]), short(names[j]), f"{n:,}"] for i, j, n in pairs],
        },
        "calibration_error": bins["error"],
        "reliability": charts.reliability(bins),
        "classes": _class_table(
            "Precision is the share of the images that are predicted as a class and have this "
            "label, recall the share of the images of a label that are found, F1 their harmonic "
            "mean. The classes with the lowest F1 are first.",
            names,
            columns["support"],
            {name: columns[key] for name, key in _COLUMNS.items()},
        ),
    }
    return numbers, page


def _multi_label(names, predicted, average_precisions):
    """The same as `_single_label`."""
    support = np.bincount(np.concatenate(predicted.labels), minlength=len(names))
    values = [None if np.isnan(value) else float(value) for value in average_precisions]
    numbers = {
        "classes": [
            {"name": name, "support": int(count), "average_precision": value}
            for name, count, value in zip(names, support, values, strict=True)
        ]
    }
    text = (
        "The average precision of a class is the mean, over the images that have it, of the "
        "precision among all images with at least the same score. The lowest are first."
    )
    columns = {"Average precision": np.nan_to_num(average_precisions)}
    return numbers, {
        "confusion": None,
        "classes": _class_table(text, names, support, columns),
    }


def _class_table(text, names, support, columns):
    """The table of classes, sorted by its first column; classes without an image are last."""
    order = np.lexsort((next(iter(columns.values())), support == 0))
    if len(order) > _MOST_ROWS:
        text += f" The table has {_MOST_ROWS:,} of {len(order):,}; report.json has all."
    rows = []
    for i in order[:_MOST_ROWS]:
        values = [f"{column[i]:.3f}" if support[i] else "-" for column in columns.values()]
        rows.append([short(names[i]), f"{support[i]:,}", *values])
    return {"text": text, "header": ["Class", "Images", *columns], "rows": rows}


def _headlines(means, numbers):
    """The tiles of the page."""
    percent = {
        "accuracy": "accuracy",
        "top_5_accuracy": "top-5 accuracy",
        "mean_average_precision": "mean average precision",
        "precision_at_1": "precision at 1",
    }
    tiles = [(f"{means[key]:.2%}", text) for key, text in percent.items() if key in means]
    tiles.append((f"{means['loss']:.4g}", "loss"))
    if "calibration_error" in numbers:
        tiles.append((f"{numbers['calibration_error']:.4f}", "expected calibration error"))
    return [*tiles, (f"{means['examples']:,}", "images")]


def _pictures(source, names, predicted):
    """The sections with pictures: mistakes and uncertain images."""
    confidence, is_right = predicted.probabilities[:, 0], predicted.is_right
    wrong = np.flatnonzero(~is_right)
    chosen = {
        "mistakes": wrong[np.argsort(-confidence[wrong], kind="stable")][:_PICTURES],
        "uncertain": np.argsort(confidence, kind="stable")[:_PICTURES],
    }
    images = _thumbnails(source, predicted.ids[np.unique(np.concatenate([*chosen.values()]))])

    def example(row):
        best = zip(predicted.classes[row, :3], predicted.probabilities[row, :3], strict=True)
        example_id = int(predicted.ids[row])
        return (
            images[example_id],
            short(_label_text(predicted.labels[row], names)),
            [(short(names[x]), float(share)) for x, share in best],
            short(_where(source, example_id), 200),
            bool(is_right[row]),
        )

    several = not isinstance(predicted.labels, np.ndarray)
    what = "none of the labels of the image" if several else "not the label of the image"
    found = f"The most probable class is {what}: {counted(len(wrong), 'image')}."
    order = " Those with the largest probabilities; wrong labels are often among them."
    texts = {
        "mistakes": found + order * bool(len(wrong)),
        "uncertain": "The images whose largest probability is smallest.",
    }
    return {
        name: {"text": texts[name], "examples": [example(row) for row in rows]}
        for name, rows in chosen.items()
    }


def _thumbnails(source, ids):
    """Small pictures of some images by id: uint8 `[h, w, 3]`, before preprocessing."""
    indices = np.flatnonzero(np.isin(source.ids(np.arange(source.num_examples)), ids))
    stored = source.read(indices)
    return {
        int(example_id): pictures.shrunk(decode_image(image, exif="apply"), _SIDE)
        for example_id, image in zip(stored.ids, stored.images, strict=True)
    }


def _label_text(label, names):
    """The label of an image, or its labels, as text."""
    if isinstance(label, np.ndarray):
        return ", ".join(names[one] for one in label) or "without a label"
    return names[label]


def _where(source, example_id):
    return source.path(example_id) or source.describe(example_id)


def _predictions(source, names, predicted):
    """The rows of predictions.csv; several labels are a JSON list."""
    ranks = range(1, predicted.classes.shape[1] + 1)
    yield ["id", "path", "label", *(f"{x}_{i}" for i in ranks for x in ("class", "probability"))]
    rows = zip(
        predicted.ids, predicted.labels, predicted.classes, predicted.probabilities, strict=True
    )
    for example_id, label, classes, probabilities in rows:
        if isinstance(label, np.ndarray):
            label = json.dumps([names[one] for one in label], ensure_ascii=False)
        else:
            label = names[label]
        best = zip(classes, probabilities, strict=True)
        pairs = [value for one, share in best for value in (names[one], f"{share:.7g}")]
        yield [int(example_id), source.path(int(example_id)) or "", label, *pairs]


def _confusion_rows(labels, predicted, names):
    """The rows of confusion.csv."""
    if len(names) <= _MOST_COLUMNS:
        yield ["label \\ predicted", *names]
        counts = report.confusion(labels, predicted, len(names))
        yield from ([name, *row] for name, row in zip(names, counts.tolist(), strict=True))
        return
    yield ["label", "predicted", "images"]
    pairs, images = np.unique(np.stack([labels, predicted], axis=1), axis=0, return_counts=True)
    for (label, found), count in zip(pairs.tolist(), images.tolist(), strict=True):
        yield [names[label], names[found], count]


def _write_text(path, rows):
    """Writes a CSV file; "?" replaces bytes of file names that are not text."""

    def write(file):
        text = io.TextIOWrapper(file, "utf-8", errors="replace", newline="", write_through=True)
        csv.writer(text).writerows(rows)
        text.detach()

    write_atomically(path, write)
