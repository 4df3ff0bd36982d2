"""The contents of files of results: .npy; .csv (RFC 4180) and .jsonl in UTF-8 with all digits."""

import csv
import io
import json
import os
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from pipelines.errors import UserError
from vit_tf.files import storage

SUFFIXES = (".csv", ".jsonl")
ARRAY = ".npy"


def suffix(path, known=SUFFIXES, flag="--output") -> str:
    """The suffix of a file of results, which says its format.

    Raises:
        UserError: if it is not in `known`.
    """
    found = os.path.splitext(path)[1].lower()
    if found not in known:
        raise UserError(
            f"{flag} {path} has no known format. Name a file that ends in {' or '.join(known)}."
        )
    return found


class Predictions(NamedTuple):
    """A table of the most probable classes.

    Attributes:
        suffix: ".csv" or ".jsonl".
        top: number of classes in a result.
    """

    suffix: str
    top: int

    def writers(self, columns, count) -> list[Callable]:
        """For each file of a shard, the function that writes it into an open binary file.

        Args:
            columns: for each kind of part, the paths of the parts in order.
            count: number of images of the shard.
        """
        del count
        return [_joining(self.header(), *columns)]

    def header(self) -> bytes:
        """The beginning of the file."""
        if self.suffix == ".jsonl":
            return b""
        pairs = [f"{x}_{rank}" for rank in range(1, self.top + 1) for x in ("class", "probability")]
        return _csv_lines([["id", "path", "label", *pairs, "error"]])

    def contents(self, results) -> list[bytes]:
        """The part of each kind with some results of `results.in_batches`."""
        if self.suffix == ".jsonl":
            return [b"".join(map(_json_line, results))]
        return [_csv_lines(_csv_row(result, self.top) for result in results)]


class Embeddings(NamedTuple):
    """An array float32 `[n, size]`, NaN for an image without embedding, and a table of its rows."""

    size: int

    def writers(self, columns, count) -> list[Callable]:
        """See `Predictions.writers`."""
        header = io.BytesIO()
        described = {"descr": "<f4", "fortran_order": False, "shape": (count, self.size)}
        np.lib.format.write_array_header_1_0(header, described)
        headers = header.getvalue(), Predictions(".csv", 0).header()
        return [*map(_joining, headers, columns)]

    def contents(self, results) -> list[bytes]:
        """See `Predictions.contents`."""
        rows = np.full([len(results), self.size], np.nan, "<f4")
        for row, result in zip(rows, results, strict=True):
            if "embedding" in result:
                row[:] = result["embedding"]
        return [rows.tobytes(), *Predictions(".csv", 0).contents(results)]


def _joining(header, parts):
    """The function that writes a header and the content of parts into an open file."""

    def copy(file):
        file.write(header)
        for part in parts:
            file.writelines(storage.chunks(part))

    return copy


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
