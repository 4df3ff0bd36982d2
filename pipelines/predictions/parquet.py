"""Embeddings as a Parquet file: a table with a row for each image, readable by column.

The parts of an unfinished file are those of a .npy file and its table. They become row groups of a
fixed size at the end, so the bytes do not depend on where a call was interrupted.
"""

import csv
import importlib.util
import io
from typing import NamedTuple

import numpy as np

from pipelines.errors import UserError
from pipelines.predictions.formats import Embeddings
from vit_tf.files import storage

PARQUET = ".parquet"
# Images in a row group: those of 1,024 features take 32 MB of memory.
_GROUP = 8192
# Columns of text beside `embedding`, in the order of the table of a .npy file.
_TEXTS = ("path", "label", "error")


def check_installed(path, flag):
    """Raises `UserError` if the package that writes Parquet files is missing."""
    if importlib.util.find_spec("pyarrow") is None:
        raise UserError(
            f"{flag} {path} needs pyarrow, which is not installed: pip install '.[train]'. "
            "Or name a file that ends in .npy."
        )


class EmbeddingTable(NamedTuple):
    """A table with the columns id, path, label, embedding (a list of float32) and error.

    What an image does not have is null: the embedding of a file that cannot be decoded, the error
    of any other, the id and the label of an image that is named alone.

    Attributes:
        size: number of features of an embedding.
    """

    size: int

    def contents(self, results) -> list[bytes]:
        """See `Predictions.contents`; two parts: the features, and the other columns."""
        return Embeddings(self.size).contents(results)

    def writers(self, columns, count):
        """See `Predictions.writers`; one file of both kinds of parts."""
        del count
        return [lambda file: self._write(file, *columns)]

    def _write(self, file, arrays, tables):
        """Writes a file.

        Args:
            file: open binary file.
            arrays: paths of the parts with features.
            tables: paths of the parts with the other columns.
        """
        import pyarrow
        from pyarrow import parquet

        text, features = pyarrow.string(), pyarrow.list_(pyarrow.float32())
        kinds = {"id": pyarrow.int64(), "path": text, "label": text, "embedding": features}
        schema = pyarrow.schema(kinds | {"error": text})
        # A dictionary of features would be as long as they are.
        options = {"use_dictionary": list(_TEXTS), "compression": "zstd"}
        with parquet.ParquetWriter(file, schema, **options) as writer:
            for rows, texts in self._groups(arrays, tables):
                ids, *others = zip(*texts, strict=True)
                columns = {"id": [int(x) if x else None for x in ids]}
                columns |= {
                    name: [x or None for x in column]
                    for name, column in zip(_TEXTS, others, strict=True)
                }
                found = np.array([x is None for x in columns["error"]])
                ends = np.append(0, np.cumsum(found * self.size)).astype(np.int32)
                columns["embedding"] = pyarrow.ListArray.from_arrays(
                    ends, rows[found].ravel(), mask=pyarrow.array(~found)
                )
                table = pyarrow.table([columns[x] for x in schema.names], schema=schema)
                writer.write_table(table, row_group_size=_GROUP)

    def _groups(self, arrays, tables):
        """Yields the features and the texts of `_GROUP` images; the last ones may be fewer."""
        waiting, texts = [], []
        for array, table in zip(arrays, tables, strict=True):
            content = b"".join(storage.chunks(array))
            waiting.append(np.frombuffer(content, "<f4").reshape(-1, self.size))
            content = b"".join(storage.chunks(table)).decode()
            texts += csv.reader(io.StringIO(content, newline=""), strict=True)
            while len(texts) >= _GROUP:
                rows = np.concatenate(waiting)
                yield rows[:_GROUP], texts[:_GROUP]
                waiting, texts = [rows[_GROUP:]], texts[_GROUP:]
        if texts:
            yield np.concatenate(waiting), texts
