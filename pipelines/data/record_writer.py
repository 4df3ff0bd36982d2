"""Writes any source as TFRecord files, in the form that `records.py` describes and reads."""

import json
import os
import shutil
import tempfile

import numpy as np
import tensorflow as tf

from pipelines.data.catalog import DataError
from pipelines.data.reading import ROWS_PER_READ
from pipelines.data.records import IMAGE, INFO_FILE, LABEL, TEXT
from vit_tf.files import write_atomically


def write_records(sources, output, shards):
    """Writes sources as the splits of one folder: all of it, or nothing.

    The files are written to a folder beside it, which is renamed at the end.

    Args:
        sources: mapping from the name of each split to its `Source`.
        output: folder to make; it must not be there.
        shards: number of files of each split; fewer where a split has fewer examples.

    Returns:
        Size of all files, in bytes.

    Raises:
        DataError: if the folder is there, the sources have different classes, or an image has no
            bytes, because its file could not be read.
    """
    output = os.path.abspath(output)
    labels = {source.labels for source in sources.values()}
    if len(labels) != 1:
        raise DataError(f"The splits {', '.join(sources)} have different classes.")
    if os.path.lexists(output):
        raise DataError(f"{output} is already there. Choose another --output, or remove it.")
    try:
        os.makedirs(os.path.dirname(output), exist_ok=True)
        # Private at first; what is written gets the usual permissions.
        temporary = tempfile.mkdtemp(
            dir=os.path.dirname(output), prefix=f".{os.path.basename(output)}."
        )
        os.chmod(temporary, 0o755)
    except OSError as error:
        raise DataError(
            f"{output} cannot be written: {error.strerror} ({error.filename})."
        ) from None
    try:
        info = {
            "labels": list(*labels),
            "splits": {
                name: _write_split(source, name, temporary, shards)
                for name, source in sources.items()
            },
            "source": {name: source.manifest() for name, source in sources.items()},
        }
        content = json.dumps(info, indent=1).encode()
        write_atomically(os.path.join(temporary, INFO_FILE), lambda file: file.write(content))
        size = sum(os.path.getsize(entry.path) for entry in os.scandir(temporary))
        os.rename(temporary, output)
        return size
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _write_split(source, split, folder, shards):
    """Writes the files of a split; returns their names and numbers of records."""
    shards = min(shards, source.num_examples)
    limits = np.linspace(0, source.num_examples, shards + 1).round().astype(int)
    files = {}
    for shard, (start, stop) in enumerate(zip(limits, limits[1:], strict=False)):
        name = f"{split}-{shard:05}-of-{shards:05}.tfrecord"
        path = os.path.join(folder, name)
        with tf.io.TFRecordWriter(path) as writer:
            for first in range(start, stop, ROWS_PER_READ):
                last = min(first + ROWS_PER_READ, stop)
                for image, label, example_id in zip(*source.read([(first, last)]), strict=True):
                    if not image:
                        raise DataError(
                            f"The image {source.describe(int(example_id))} is empty or cannot be "
                            f"read. Remove or replace it."
                        )
                    writer.write(_record(image, label, source.labels[label]))
        with open(path, "rb") as file:
            os.fsync(file.fileno())
        files[name] = int(stop - start)
    return files


def _record(image, label, text):
    """Returns a serialized `tf.train.Example`."""
    features = {
        IMAGE: tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
        LABEL: tf.train.Feature(int64_list=tf.train.Int64List(value=[int(label)])),
        TEXT: tf.train.Feature(bytes_list=tf.train.BytesList(value=[text.encode()])),
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
