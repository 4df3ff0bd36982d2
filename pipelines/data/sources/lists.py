"""Lists of images: `data.name=list:/data/labels.csv` or `list:/data/labels.jsonl`.

    path,label,split                   {"path": "cats/1.jpg", "label": "cat", "split": "train"}
    cats/1.jpg,cat,train               {"path": "dogs/7.jpg", "label": "dog", "split": "test"}
    "dogs/7, old.jpg",dog,test

With `labels` in place of `label`, an image has a list of labels (multi-label), which may be empty.
The field is `labels` in every row, also where an image has one label:

    path,labels                        {"path": "1.jpg", "labels": ["cat", "outdoor"]}
    1.jpg,cat|outdoor                  {"path": "2.jpg", "labels": []}
    2.jpg,

Files are UTF-8; a .csv begins with a header line. Other columns are ignored. Paths are relative to
the folder of the list, or absolute. If no row has a split, all rows are in the split "train".
Labels are names, numbered in the order of code points; if all labels are whole numbers, in the
order of the numbers (`data.class_order` changes it). Ids follow the rows of a split, so an image
that is listed twice has two ids.
"""

import csv
import json
import os
import re
from typing import NamedTuple

from pipelines.data.labels.class_order import in_order
from pipelines.data.labels.encoding import RaggedLabels, is_unicode
from pipelines.data.sources.files import USUAL, FileSource, absolute_path, make_files
from pipelines.errors import DataError, MissingDataError
from vit_tf.files import storage

# Longer than any path and label. Files that are not lists can have lines that fill the memory.
MAX_LINE_BYTES = 2**16

_SEPARATOR = "|"  # Between the labels in a field of a .csv.
_EXAMPLE = '{"path": "cats/1.jpg", "label": "cat"}'


class _Row(NamedTuple):
    """An image, and the number of its line in the list."""

    path: str
    labels: tuple  # of str; one if the list has `label`
    split: str
    line: int


def open_list(path, split, data_dir=None, rules=USUAL):
    """Opens a split of a list of images; see the head of this module.

    Args:
        path: the .csv or .jsonl file.
        split: the split, in TFDS notation.
        data_dir: folder that a relative path starts from.
        rules: `FileRules`.

    Raises:
        DataError: if the list or split does not exist, or a line is wrong; the message has the
            number of the line.
    """
    path, rows, multi_label = _read_rows(path, data_dir, rules.fault)
    names = {label for row in rows for label in row.labels}
    labels = in_order(names, rules.class_order, numbers=True)
    if not labels:
        raise DataError(f"{path} has no labels in any of its rows.")
    if len(labels) < 2 and not multi_label:
        raise DataError(f"{path} has one class, {labels[0]!r}. Expected at least two.")

    root = os.path.dirname(path)
    numbers = {label: number for number, label in enumerate(labels)}
    splits = {}
    for row in rows:
        splits.setdefault(row.split, []).append(row)
    files = {}
    for name, rows in splits.items():
        lists = RaggedLabels.from_lists([[numbers[label] for label in row.labels] for row in rows])
        files[name] = make_files(
            [row.path for row in rows],
            lists if multi_label else lists.values,
            [f" (line {row.line})" for row in rows],
        )

    def open_one(split):
        source = FileSource(f"list:{path}", root, files, split, labels, multi_label, rules)
        used = {range_["split"] for range_ in source.manifest()["parts"]}
        _check_files_exist(path, root, [row for name in used for row in splits[name]], rules.fault)
        source.beside = open_one
        return source

    return open_one(split)


def list_splits(path, data_dir=None, rules=USUAL):
    """Returns the split names of a list of images; arguments and errors as for `open_list`."""
    return tuple(dict.fromkeys(row.split for row in _read_rows(path, data_dir, rules.fault)[1]))


def _read_rows(path, data_dir, fault):
    """Returns the absolute path of a list, its rows, and whether they have lists of labels.

    Without splits, all rows are in "train". A row with a fault, see `FileRules`, is left out.
    """
    path = absolute_path(path, data_dir, "list")
    readers = {".csv": _read_csv, ".jsonl": _read_jsonl}
    read = readers.get(os.path.splitext(path)[1].lower())
    if read is None:
        raise DataError(f"{path} is not a list of images. Expected a name in .csv or .jsonl.")
    try:
        rows, multi_label = read(path, fault)
    except OSError as error:
        kind = MissingDataError if isinstance(error, FileNotFoundError) else DataError
        raise kind(f"The list {path} cannot be read: {error.strerror}.") from None
    if not rows:
        raise DataError(f"{path} lists no images. Expected one per line, with path and label.")
    without = [row for row in rows if not row.split]
    if without and len(without) < len(rows):
        problem, fix = "has no split, unlike others", "Give every row a split, or none"
        for row in without:
            fault(str(_line_error(path, row.line, problem, fix)))
        rows = [row for row in rows if row.split]
    elif without:
        rows = [row._replace(split="train") for row in rows]
    return path, rows, multi_label


def _read_csv(path, fault):
    """Returns the rows of a .csv file, and whether they have lists of labels."""
    # A quoted field may contain line breaks, so the number of a line comes from the reader.
    reader, rows = csv.reader((text for _, text in _lines(path)), strict=True), []
    try:
        header = [name.strip() for name in next(reader, [])]
        field = _labels_field(path, 1, header)
        if not field or "path" not in header or len(set(header)) < len(header):
            fix = "Begin it with the line path,label or path,label,split, separated by commas"
            raise _line_error(
                path, 1, f"is not the header of a list: {','.join(header)[:80]!r}", fix
            )
        for fields in reader:
            if not any(fields):
                continue
            try:
                rows.append(_csv_row(path, reader.line_num, header, fields, field))
            except DataError as error:
                fault(str(error))
    except csv.Error as error:
        raise _line_error(path, reader.line_num, f"is not CSV: {error}", "Repair it") from None
    return rows, field == "labels"


def _csv_row(path, line, header, fields, field):
    """Returns the `_Row` of the fields of a line; `field` is the one with the labels."""
    if len(fields) != len(header):
        problem = f"has {len(fields)} fields where the header has {len(header)}"
        raise _line_error(path, line, problem, 'Quote fields that contain a comma: "a, b.jpg"')
    values = dict(zip(header, fields, strict=True))
    labels = values[field]
    if field == "labels":
        labels = [x.strip() for x in labels.split(_SEPARATOR)] if labels.strip() else []
    return _checked_row(path, line, values, labels)


def _read_jsonl(path, fault):
    """Returns the rows of a .jsonl file, and whether they have lists of labels."""
    rows, first = [], None
    for line, text in _lines(path):
        if not text.strip():
            continue
        try:
            values = _json_object(path, line, text)
            field = _labels_field(path, line, values) or first or "label"
            first = first or field
            rows.append(_json_row(path, line, values, field, first))
        except DataError as error:
            fault(str(error))
    return rows, first == "labels"


def _json_object(path, line, text):
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise _line_error(path, line, "is not a JSON object", f"Expected for example {_EXAMPLE}")
    return values


def _json_row(path, line, values, field, first):
    """Returns the `_Row` of a line with a field of labels; `first` is the first line's row."""
    if field != first:
        fix = 'Write labels in every line, with a list such as ["cat"] also for one label'
        raise _line_error(path, line, f"has {field}, but lines above have {first}", fix)
    labels = values.get(field, "")
    if field == "labels" and not isinstance(labels, list):
        fix = 'Expected a list such as ["cat", "outdoor"], or [] without a label'
        raise _line_error(path, line, f"has the labels {str(labels)[:80]!r}", fix)
    if field == "label" and isinstance(labels, list):
        fix = 'Write the name "labels" in every line for lists of labels'
        raise _line_error(path, line, "has a list as its label", fix)
    return _checked_row(path, line, values, labels)


def _labels_field(path, line, names):
    """Returns which of "label" and "labels" is among the names of fields; None if neither is."""
    found = [name for name in ("label", "labels") if name in names]
    if len(found) > 1:
        fix = "Keep label, with one label per image, or labels, with lists"
        raise _line_error(path, line, "has both label and labels", fix)
    return found[0] if found else None


def _checked_row(path, line, values, labels):
    """Returns the `_Row` of a line, checked.

    Args:
        path, line: for messages.
        values: dict from field to value; only path and split are read.
        labels: the label of the line, or a list of labels.
    """
    several = isinstance(labels, list)
    labels = [str(x) if type(x) is int else x for x in (labels if several else [labels])]
    row = [("path", values.get("path", "")), ("split", values.get("split", ""))]
    for name, value in row + [("label", label) for label in labels]:
        if not isinstance(value, str) or "\0" in value or (not value and name != "split"):
            fix = "Expected text" + (" or a whole number" if name == "label" else "")
            raise _line_error(path, line, f"has the {name} {str(value)[:80]!r}", fix)
        if not is_unicode(value):
            raise _line_error(path, line, f"has an invalid character in its {name}", "Use UTF-8")
    (_, image), (_, split) = row
    if split and not re.fullmatch(r"\w+", split):
        fix = "Expected letters, digits and _"
        raise _line_error(path, line, f"has the split {split[:80]!r}", fix)
    if len(set(labels)) < len(labels):
        twice = next(label for label in labels if labels.count(label) > 1)
        raise _line_error(path, line, f"has the label {twice[:80]!r} twice", "List it once")
    return _Row(image, tuple(labels), split, line)


def _lines(path):
    """Yields the number and the text of each line of a UTF-8 file."""
    with storage.open_local(path) as file:
        line = 0
        while data := file.readline(MAX_LINE_BYTES + 1):
            line += 1
            if len(data) > MAX_LINE_BYTES:
                problem = f"is longer than {MAX_LINE_BYTES:,} bytes"
                raise _line_error(path, line, problem, "Expected one image per line")
            try:
                # Spreadsheets put a byte order mark at the beginning.
                text = data.decode("utf-8-sig" if line == 1 else "utf-8")
            except UnicodeDecodeError as error:
                problem = f"is not UTF-8: byte {data[error.start]:#04x} at {error.start + 1}"
                raise _line_error(path, line, problem, "Save the list as UTF-8") from None
            yield line, text


def _check_files_exist(path, root, rows, fault):
    """Checks that the listed files exist; lists each folder once, which is fast on any disk."""
    there = {}
    missing = []
    for row in rows:
        folder, name = os.path.split(storage.join(root, row.path))
        if folder not in there:
            try:
                there[folder] = set(storage.list_names(folder))
            except OSError:
                there[folder] = set()
        if name not in there[folder]:
            missing.append(row)
    more = f" ({len(missing):,} such lines)" if len(missing) > 1 else ""
    for row in sorted(missing, key=lambda row: row.line):
        problem = f"names a file that is not there: {row.path}{more}"
        fix = f"Paths are relative to {root}; correct or remove the line"
        fault(str(_line_error(path, row.line, problem, fix)))


def _line_error(path, line, problem, fix):
    """Returns the `DataError` for a line."""
    return DataError(f"{path} line {line} {problem}. {fix}.")
