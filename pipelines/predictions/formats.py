"""The text of results in files: .csv (RFC 4180) and .jsonl, both UTF-8 with all digits."""

import csv
import io
import json
import os

from pipelines.errors import UserError

SUFFIXES = (".csv", ".jsonl")


def suffix(path) -> str:
    """The suffix of a file of results, which says its format.

    Raises:
        UserError: if it is another one.
    """
    found = os.path.splitext(path)[1].lower()
    if found not in SUFFIXES:
        raise UserError(
            f"--output {path} has no known format. Name a file that ends in .csv or .jsonl."
        )
    return found


def header(kind, top) -> bytes:
    """The beginning of a file.

    Args:
        kind: ".csv" or ".jsonl".
        top: number of classes in a result.
    """
    if kind == ".jsonl":
        return b""
    pairs = [f"{x}_{rank}" for rank in range(1, top + 1) for x in ("class", "probability")]
    return _csv_lines([["id", "path", "label", *pairs, "error"]])


def lines(kind, results, top) -> bytes:
    """The lines of some results of `results.in_batches`; arguments as for `header`."""
    if kind == ".jsonl":
        return b"".join(map(_json_line, results))
    return _csv_lines(_csv_row(result, top) for result in results)


def _json_line(result):
    line = json.dumps(result, ensure_ascii=False) + "\n"
    try:
        return line.encode()
    except UnicodeEncodeError:  # A file name may have bytes that are not text.
        return (json.dumps(result) + "\n").encode()


def _csv_row(result, top):
    label = result.get("label", "")
    if isinstance(label, list):
        label = json.dumps(label, ensure_ascii=False)
    best = [x for one in result.get("top", ()) for x in (one["label"], one["probability"])]
    empty = [""] * (2 * top - len(best))
    about = [result.get("id", ""), result.get("path", ""), label]
    return [*about, *best, *empty, result.get("error", "")]


def _csv_lines(rows):
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)  # Floats with all digits, lines that end in CR LF.
    # Bytes of file names that are not text are written as in JSON: \udcff.
    return text.getvalue().encode("utf-8", "backslashreplace")
