"""Writes any source as TFRecord files, in the format of `records.py`."""

import itertools
import json
import os
import shutil
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from pipelines.data.bad_images import BadImages, find_bad_images
from pipelines.data.decoding import decoded_sizes
from pipelines.data.sources.records import IMAGE, INFO_FILE, LABEL, TEXT
from pipelines.data.sources.source import ROWS_PER_READ
from pipelines.errors import DataError
from vit_tf.files.atomic_file import write_atomically
from vit_tf.files.temporary import new_folder

# Lists the images that were left out, see `bad_images.BadImages`; next to the records.
BAD_FILE = "bad_images.jsonl"


class WriteSummary(NamedTuple):
    """Size and number of the records that `write_records` wrote."""

    num_bytes: int
    counts: dict  # split -> number of records
    left_out: int  # number of images in `BAD_FILE`


def write_records(sources, output, shards, bad_images):
    """Writes sources as the splits of one folder. After an error, no folder is left.

    The files are written to a temporary folder, which is renamed at the end. Every image is decoded
    once, so that bad images are found here and not in training.

    Args:
        sources: mapping from the name of each split to its `DataSource`.
        output: folder to create; it must not exist.
        shards: number of files of each split; a split with fewer examples has fewer files.
        bad_images: "stop", or "skip" to leave out images that cannot be decoded.

    Returns:
        `WriteSummary`.

    Raises:
        DataError: if the folder exists or cannot be written, the sources have different classes, an
            image cannot be decoded and `bad_images` is "stop", or no image of a split can be
            decoded.
    """
    output = os.path.abspath(output)
    labels = {source.labels for source in sources.values()}
    if len(labels) != 1:
        raise DataError(f"The splits {', '.join(sources)} have different classes.")
    if os.path.lexists(output):
        raise DataError(f"{output} is already there. Choose another --output, or remove it.")
    try:
        os.makedirs(os.path.dirname(output), exist_ok=True)
        temporary = new_folder(os.path.dirname(output), f".{os.path.basename(output)}.")
    except OSError as error:
        raise DataError(
            f"{output} cannot be written: {error.strerror} ({error.filename})."
        ) from None
    try:
        left_out = None
        if bad_images == "skip":
            final_path = os.path.join(output, BAD_FILE)
            left_out = BadImages(os.path.join(temporary, BAD_FILE), final_path)
        multi_label = any(source.multi_label for source in sources.values())
        info = {
            "labels": list(*labels),
            **({"multi_label": True} if multi_label else {}),
            "splits": {
                name: _write_split(source, name, temporary, shards, left_out)
                for name, source in sources.items()
            },
            "source": {name: source.manifest() for name, source in sources.items()},
        }
        content = json.dumps(info, indent=1).encode()
        write_atomically(os.path.join(temporary, INFO_FILE), lambda file: file.write(content))
        size = sum(os.path.getsize(entry.path) for entry in os.scandir(temporary))
        os.rename(temporary, output)
        counts = {name: sum(files.values()) for name, files in info["splits"].items()}
        return WriteSummary(size, counts, left_out.count if left_out else 0)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _write_split(source, split, folder, shards, left_out):
    """Writes the files of a split; returns a dict from file name to number of records."""
    shards = min(shards, source.num_examples)
    limits = np.linspace(0, source.num_examples, shards + 1).round().astype(int)
    files = {}
    for shard, (start, stop) in enumerate(itertools.pairwise(limits)):
        name = f"{split}-{shard:05}-of-{shards:05}.tfrecord"
        path = os.path.join(folder, name)
        files[name] = 0
        with tf.io.TFRecordWriter(path) as writer:
            for image, label in _decodable(source, start, stop, left_out):
                writer.write(_record(image, np.atleast_1d(label), source.labels))
                files[name] += 1
        with open(path, "rb") as file:
            os.fsync(file.fileno())
    if not any(files.values()):
        raise DataError(f"None of the images of {source} can be decoded. Is it the right data set?")
    return files


def _decodable(source, start, stop, left_out):
    """Yields image and label, or labels, of each example of a range that can be decoded."""
    for first in range(start, stop, ROWS_PER_READ):
        images, labels, _ = source.read(range(first, min(first + ROWS_PER_READ, stop)))
        _, valid = decoded_sizes(tf.constant(list(images)))
        valid = valid.numpy()
        bad = first + np.flatnonzero(~valid)
        if left_out is not None:
            left_out.record(source, bad)
        elif len(bad):
            raise next(find_bad_images(source, bad, are_known=True)).error()
        yield from ((images[row], labels[row]) for row in np.flatnonzero(valid))


def _record(image, labels, names):
    """Returns a serialized `tf.train.Example`; `names` has the name of every class."""
    texts = [names[label].encode() for label in labels]
    features = {
        IMAGE: tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
        LABEL: tf.train.Feature(int64_list=tf.train.Int64List(value=labels)),
        TEXT: tf.train.Feature(bytes_list=tf.train.BytesList(value=texts)),
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
