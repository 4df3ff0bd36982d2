"""TFRecord files: `data.name=tfrecord:/data/pets`, a folder written by `make_tfrecords`.

Each record is a `tf.train.Example` with these features; other features are not read:

| feature | | |
| --- | --- | --- |
| image/encoded | bytes | a JPEG, PNG, WebP, GIF or BMP file |
| image/class/label | int64 | 0 .. number of classes - 1; multi-label: any number of values |
| image/class/text | bytes | name of each class, for other readers |

The files are not compressed. The folder also has a `dataset.json`; write it by hand for files from
other tools. File names are relative to the folder:

    {"labels": ["cat", "dog"],
     "splits": {"train": {"train-00000-of-00002.tfrecord": 500,
                          "train-00001-of-00002.tfrecord": 499},
                "test": {"test-00000-of-00001.tfrecord": 100}}}

With `"multi_label": true` in it, each record has a list of labels, which may be empty or left out.
Ids follow the records of a split, file after file in the order of `dataset.json`. A range of
records is read without the records before it: the byte offsets of a file's records are found once.
"""

import hashlib
import json
import os
import struct

import numpy as np
import tensorflow as tf

from pipelines.data.labels import RaggedLabels
from pipelines.data.sources.files import absolute_path, stamp_of_files
from pipelines.data.sources.source import (
    DataSource,
    Examples,
    resolve_split,
    shard_lengths_within,
    split_info,
)
from pipelines.errors import DataError, MissingDataError, first_line
from vit_tf import storage

INFO_FILE = "dataset.json"
IMAGE, LABEL, TEXT = "image/encoded", "image/class/label", "image/class/text"

_MAX_INFO_BYTES = 32 * 2**20
_ROWS_PER_BATCH = 256
_BUFFER_BYTES = 2**20
# Before the data of a record: its length, uint64, and a checksum of the length. After: a checksum
# of the data.
_HEADER_BYTES, _FOOTER_BYTES = 12, 4


def open_records(path, split, data_dir=None):
    """Opens a split of a folder of TFRecord files; see the head of this module.

    Args:
        path: the folder.
        split: the split, in TFDS notation.
        data_dir: folder that a relative path starts from.

    Raises:
        DataError: if the folder or split does not exist, or its dataset.json is wrong.
    """
    root = absolute_path(path, data_dir, "tfrecord")
    labels, splits, multi_label = _read_info(root)
    return RecordSource(root, labels, splits, split, multi_label)


def record_splits(path, data_dir=None):
    """Returns the split names of TFRecord files; arguments and errors as for `open_records`."""
    return tuple(_read_info(absolute_path(path, data_dir, "tfrecord"))[1])


class RecordSource(DataSource):
    """A split of a folder of TFRecord files.

    Args:
        root: the folder.
        labels: class names in label order.
        splits: mapping from each split to its files, a mapping from name to number of records.
        split: the split to open, in TFDS notation.
        multi_label: whether a record has a list of labels.
    """

    def __init__(self, root, labels, splits, split, multi_label=False):
        name = f"tfrecord:{root}"
        infos = {key: split_info(key, files.values()) for key, files in splits.items()}
        split_ranges = resolve_split(infos, split, name)
        used = {split_range.split: splits[split_range.split] for split_range in split_ranges}
        content = json.dumps([labels, used])
        super().__init__(
            name=name,
            version=hashlib.blake2b(content.encode(), digest_size=6).hexdigest(),
            split=split,
            split_ranges=split_ranges,
            labels=labels,
            shard_lengths=shard_lengths_within(infos, split_ranges),
            multi_label=multi_label,
        )
        for files in used.values():
            for file, count in files.items():
                _check_count(os.path.join(root, file), count)
        self._root, self._splits = root, splits
        # Of each split: the files, and where each of them ends in the stored order.
        self._files = {key: list(files.items()) for key, files in used.items()}
        self._ends = {key: np.cumsum(list(files.values())) for key, files in used.items()}
        self._offsets = {}

    def __str__(self):
        return f"{self.name} split {self.split!r}"

    def read(self, ranges):
        """See `DataSource.read`; also raises `DataError` for wrong labels of a record."""
        ids, file_ranges = self.ids(ranges), []
        for split, start, stop, _ in self._locate(ranges):
            file_ranges += self._find_in_files(split, start, stop)

        images, labels = self._parse(file_ranges)
        if len(labels) != len(ids):
            raise DataError(
                f"{self} has {len(labels)} records where {len(ids)} were expected. Its files have "
                f"changed; open it again."
            )
        if wrong := labels.find_wrong(self.num_classes):
            raise DataError(
                f"{self.describe(int(ids[wrong[0]]))} {wrong[1]}, as {INFO_FILE} has "
                f"{self.num_classes} labels. Write the record again."
            )
        if self.multi_label:
            return Examples(images, labels[:], ids)
        counts = np.diff(labels.offsets)
        if (counts != 1).any():
            first = np.argmax(counts != 1)
            raise DataError(
                f"{self.describe(int(ids[first]))} has {counts[first]} values of {LABEL}. Expected "
                f'one; for lists of labels, write "multi_label": true into {INFO_FILE}.'
            )
        return Examples(images, labels.values, ids)

    def describe(self, example_id):
        """See `DataSource.describe`; the name has the file and the index of the record in it."""
        for split, start, stop, first_id in self._split_ranges:
            place = example_id - first_id
            if start <= place < stop:
                for file, count in self._splits[split].items():
                    if place < count:
                        return f"record {place} of {os.path.join(self._root, file)}"
                    place -= count
        return f"example {example_id} of {self}"

    def content_stamp(self):
        """See `DataSource.content_stamp`; a hash of the sizes and times of change of all files."""
        files = [file for split in sorted(self._files) for file, _ in self._files[split]]
        return stamp_of_files([os.path.join(self._root, file) for file in files])

    def _find_in_files(self, split, start, stop):
        """Returns [(file, byte offset, number of records), ...] of stored examples of a split."""
        files, ends, file_ranges = self._files[split], self._ends[split], []
        begin, end = np.searchsorted(ends, [start, stop - 1], side="right")
        for number in range(begin, end + 1):
            file, count = files[number]
            first = int(ends[number]) - count
            low, high = max(start - first, 0), min(stop - first, count)
            if low < high:  # It is not for a file without records.
                path = os.path.join(self._root, file)
                if path not in self._offsets:
                    self._offsets[path] = _record_offsets(path, count)
                file_ranges.append((path, self._offsets[path][low], high - low))
        return file_ranges

    def _parse(self, file_ranges):
        """Reads the ranges of `_find_in_files`: images, object `[n]`, and their `RaggedLabels`."""
        features = {
            IMAGE: tf.io.FixedLenFeature([], tf.string),
            LABEL: tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64),
        }

        def records(path, offset, count):
            # Only the op behind tf.data.TFRecordDataset takes an offset.
            variant = tf.raw_ops.TFRecordDatasetV2(
                filenames=[path],
                compression_type="",
                buffer_size=_BUFFER_BYTES,
                byte_offsets=[offset],
            )
            spec = tf.TensorSpec([], tf.string)
            return tf.data.experimental.from_variant(variant, spec).take(count)

        columns = [list(column) for column in zip(*file_ranges, strict=True)] or [[], [], []]
        dataset = tf.data.Dataset.from_tensor_slices(
            (
                tf.constant(columns[0], tf.string),
                tf.constant(columns[1], tf.int64),
                tf.constant(columns[2], tf.int64),
            )
        )
        # TensorFlow's type stubs only accept functions of one argument.
        dataset = dataset.flat_map(records)  # pyright: ignore[reportArgumentType]
        dataset = dataset.batch(_ROWS_PER_BATCH)

        def parse(batch):
            found = tf.io.parse_example(batch, features)
            return found[IMAGE], found[LABEL].values, found[LABEL].row_lengths()

        dataset = dataset.map(parse)
        options = tf.data.Options()
        # Other pipelines wait for this read and may occupy all shared threads: use private ones.
        options.threading.private_threadpool_size = 2
        images, values, counts = [np.zeros(0, object)], [np.zeros(0, np.int64)], [[0]]
        try:
            for batch in dataset.with_options(options).as_numpy_iterator():
                for column, part in zip((images, values, counts), batch, strict=True):
                    column.append(part)
        except tf.errors.OpError as error:
            files = list(dict.fromkeys(columns[0]))
            for file in files if len(files) > 1 else ():  # The error does not name the file.
                self._parse([found for found in file_ranges if found[0] == file])
            raise DataError(
                f"{self} cannot be read: {first_line(error)}. {' or '.join(files[:3])} is damaged, "
                f"or its records lack {IMAGE}. Write or copy it again."
            ) from None
        offsets = np.cumsum(np.concatenate(counts))
        return np.concatenate(images), RaggedLabels(np.concatenate(values), offsets)


def _check_count(path, count):
    """Raises `DataError` if a file is too small for `count` records, before memory is allocated."""
    try:
        size = os.stat(path).st_size
    except OSError as error:
        raise DataError(f"The TFRecord file {path} cannot be read: {error.strerror}.") from None
    if count * (_HEADER_BYTES + _FOOTER_BYTES) > size:
        raise DataError(
            f"{path} is damaged, cut off or compressed: its {size:,} bytes cannot hold the "
            f"{count:,} records that {INFO_FILE} lists. Write or copy it again."
        )


def _record_offsets(path, count):
    """Returns the byte offset of each record of a TFRecord file, int64 `[count]`."""
    offsets, offset = np.zeros(count, np.int64), 0
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            for record in range(count):
                header = os.pread(file.fileno(), 8, offset)
                length = struct.unpack("<Q", header)[0] if len(header) == 8 else size
                offsets[record] = offset
                offset += _HEADER_BYTES + length + _FOOTER_BYTES
                if offset > size:
                    raise DataError(
                        f"{path} is damaged, cut off or compressed: record {record} of {count:,} "
                        f"ends beyond its {size:,} bytes. Write or copy it again."
                    )
    except OSError as error:
        raise DataError(f"The TFRecord file {path} cannot be read: {error.strerror}.") from None
    if offset != size:
        raise DataError(
            f"{path} has more than the {count:,} records that {INFO_FILE} lists, or is damaged. "
            f"Correct the number there, or write the file again."
        )
    return offsets


def _read_info(root):
    """Returns labels and splits of `dataset.json`, and whether it is multi-label; all checked."""
    path = os.path.join(root, INFO_FILE)
    try:
        info = json.loads(storage.read(path, _MAX_INFO_BYTES))
    except FileNotFoundError:
        raise MissingDataError(
            f"There is no {path}, which lists the labels and the files of each split. Write the "
            f"folder with python -m pipelines.make_tfrecords, or see "
            "pipelines/data/sources/records.py."
        ) from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError):
        raise DataError(f"{path} is not JSON in UTF-8. Write or copy it again.") from None

    info = info if isinstance(info, dict) else {}
    labels, splits = info.get("labels"), info.get("splits")
    if not (isinstance(labels, list) and labels and all(isinstance(x, str) for x in labels)):
        raise DataError(f'{path} needs "labels", a list of class names in label order.')
    if not (isinstance(splits, dict) and splits and all(map(_is_files, splits.values()))):
        raise DataError(
            f'{path} needs "splits": for each split an object of file names, in this folder, and '
            f'their numbers of records, such as {{"train": {{"a.tfrecord": 500}}}}.'
        )
    if type(info.get("multi_label", False)) is not bool:
        raise DataError(f'{path} needs true or false as "multi_label", or no such field.')
    return labels, splits, info.get("multi_label", False)


def _is_files(files):
    """Whether `files` is a mapping from file names to numbers of records."""
    return (
        isinstance(files, dict)
        and len(files) > 0
        and all(type(count) is int and 0 <= count < 2**40 for count in files.values())
        and all(name and os.path.basename(name) == name and "\0" not in name for name in files)
    )
