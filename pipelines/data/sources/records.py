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
records is read without the records before it: the bytes at which a file's records start are found
once.
"""

import hashlib
import json
import os
from concurrent import futures

import numpy as np

from pipelines.data.labels.rules import feature_rule
from pipelines.data.sources.files import absolute_path
from pipelines.data.sources.record_files import RecordFiles
from pipelines.data.sources.record_starts import check_count, size_and_time
from pipelines.data.sources.source import (
    READERS,
    resolve_split,
    shard_lengths_within,
    split_info,
)
from pipelines.errors import DataError, MissingDataError
from vit_tf.files import storage

INFO_FILE = "dataset.json"
IMAGE, LABEL, TEXT = "image/encoded", "image/class/label", "image/class/text"

_MAX_INFO_BYTES = 32 * 2**20


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


class RecordSource(RecordFiles):
    """A split of a folder of TFRecord files.

    Args:
        root: the folder.
        labels: class names in label order.
        splits: mapping from each split to its files, a mapping from name to number of records.
        split: the split to open, in TFDS notation.
        multi_label: whether a record has a list of labels.
    """

    _listing = INFO_FILE
    _lists = f'; for lists of labels, write "multi_label": true into {INFO_FILE}'

    def __init__(self, root, labels, splits, split, multi_label=False):
        name = f"tfrecord:{root}"
        infos = {key: split_info(key, files.values()) for key, files in splits.items()}
        split_ranges = resolve_split(infos, split, name)
        used = {split_range.split: splits[split_range.split] for split_range in split_ranges}
        content = json.dumps([labels, used])
        files = {
            key: [(os.path.join(root, file), count) for file, count in named.items()]
            for key, named in used.items()
        }
        super().__init__(
            files,
            IMAGE,
            feature_rule(LABEL),
            name=name,
            version=hashlib.blake2b(content.encode(), digest_size=6).hexdigest(),
            split=split,
            split_ranges=split_ranges,
            labels=labels,
            shard_lengths=shard_lengths_within(infos, split_ranges),
            multi_label=multi_label,
        )
        with futures.ThreadPoolExecutor(READERS) as readers:
            paths = [path for path, _ in self._files]
            sizes = [size for size, _ in readers.map(size_and_time, paths)]
        for (path, count), size in zip(self._files, sizes, strict=True):
            check_count(path, count, size)

    def __str__(self):
        return f"{self.name} split {self.split!r}"

    def describe(self, example_id):
        """See `DataSource.describe`; the name has the file and the index of the record in it."""
        for split, start, stop, first_id in self._split_ranges:
            stored = example_id - first_id
            if start <= stored < stop:
                number = int(np.searchsorted(self._ends[split], stored, side="right"))
                path, count = self._splits[split][number]
                return f"record {stored - (self._ends[split][number] - count)} of {path}"
        return f"example {example_id} of {self}"


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
