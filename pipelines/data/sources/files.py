"""A source with one file per image; `folders.py` and `lists.py` list the files.

Whole splits such as "train" are stored in the order of a hash of the files' relative paths, which
mixes the classes in every window of training. If a split has ranges, such as "train[:90%]", they
are ranges of each class (`stored_order.py`). Ids follow the listing, not these orders.
"""

import collections.abc
import errno
import hashlib
import os
import stat
from collections.abc import Callable
from concurrent import futures
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from pipelines.config.names import ClassOrder, SplitBy
from pipelines.data.labels.encoding import RaggedLabels, no_labels, padded
from pipelines.data.sources.listing import stored_order
from pipelines.data.sources.listing.stored_order import path_hashes
from pipelines.data.sources.source import (
    READERS,
    DataSource,
    load_in_groups,
    resolve_split,
    split_info,
)
from pipelines.errors import DataError, first_line
from vit_tf.files import storage

# A larger file is not a usable image; it counts as a file that cannot be read.
MAX_FILE_BYTES = 256 * 2**20

# Errors that concern a single file. Any other error means that the whole folder or disk fails.
_ERRORS_OF_ONE_FILE = {
    errno.ENOENT,
    errno.EACCES,
    errno.EPERM,
    errno.ELOOP,
    errno.ENOTDIR,
    errno.ENAMETOOLONG,
    errno.ENXIO,
}


def _refuse(problem):
    raise DataError(problem)


class FileRules(NamedTuple):
    """How a folder or list is read.

    Attributes:
        split_by: whether a range is one of each "class", or one of all files by their hash: "file".
        class_order: how classes are numbered, see `labels/class_order.py`.
        fault: called with a sentence about each fault of the data that does not prevent reading the
            rest, such as a class without images; by default the first one ends it: `DataError`.
    """

    split_by: SplitBy = "class"
    class_order: ClassOrder = "auto"
    fault: Callable[[str], None] = _refuse


USUAL = FileRules()


class Files(NamedTuple):
    """The images of one whole split, in the order of their ids."""

    paths: list  # of str, relative to the root of the data set
    labels: np.ndarray | RaggedLabels  # int32 [n], or lists
    hashes: np.ndarray  # uint64 [n], of the paths
    notes: list  # of str: where a list names each file, " (line 7)"; empty for folders
    skipped: dict  # number of files that are no images, by suffix in lower case; of folders


def make_files(paths, labels, notes=(), skipped=None):
    """Returns the `Files` of a listing.

    Args:
        paths: paths of the files, relative to the root of the data set.
        labels: int32 `[n]`, or `RaggedLabels`.
        notes, skipped: see `Files`.
    """
    return Files(paths, labels, path_hashes(paths), list(notes), dict(skipped or {}))


class FileSource(DataSource):
    """Images in files.

    A local file that is missing, not regular, too large or may not be read becomes an image of zero
    bytes. So it is reported like an image that cannot be decoded. A missing folder, a failing disk
    and every file that cannot be read behind a URL raise `DataError`.

    Args:
        name: name of the data set, such as "folder:/data/pets".
        root: directory that relative paths of files start from.
        splits: mapping from the name of each split to its `Files`; may be a `LazyMapping`.
        split: the split to open, in TFDS notation.
        labels: class names in label order.
        multi_label: whether a file has a list of labels.
        rules: `FileRules`.
    """

    id_rule = "first_id of its part plus the place of the file in the listing of the whole split"
    labels_in_memory = one_file_each = True

    def __init__(self, name, root, splits, split, labels, multi_label=False, rules=USUAL):
        self.location_signature = {
            "path": tf.TensorSpec([None], tf.string),
            "label": tf.TensorSpec([None, None] if multi_label else [None], tf.int32),
        }
        infos = LazyMapping(splits, lambda key: split_info(key, [len(splits[key].paths)]))
        self._by_class = rules.split_by == "class" and "[" in split
        orders = LazyMapping(splits, lambda key: self._order(splits[key]))
        split_ranges = resolve_split(infos, split, name, lambda key, *at: orders[key].border(*at))
        self._root = root
        self._files = {used.split: splits[used.split] for used in split_ranges}
        self._orders = {key: orders[key].rows for key in self._files}
        super().__init__(
            name=name,
            version=_fingerprint(self._files, labels),
            split=split,
            split_ranges=split_ranges,
            labels=labels,
            shard_lengths=tuple(used.stop - used.start for used in split_ranges),
            multi_label=multi_label,
        )

    def __str__(self):
        return f"{self.name} split {self.split!r}"

    def _order(self, files):
        if self._by_class:
            return stored_order.by_class(files.hashes, files.labels)
        return stored_order.by_hash(files.hashes)

    def manifest(self) -> dict[str, Any]:
        """See `DataSource.manifest`; says if the ranges are ranges of each class."""
        return super().manifest() | ({"split_by": "class"} if self._by_class else {})

    def is_all(self, split, ranges):
        """See `DataSource.is_all`."""
        return any(first == 0 and last == len(self._files[split].paths) for first, last in ranges)

    def skipped(self):
        """See `DataSource.skipped`."""
        return {split: files.skipped for split, files in self._files.items()}

    def locate(self, indices):
        """See `DataSource.locate`; a row is a file, with an empty path if it cannot be an image."""
        paths = self._paths(indices)
        # Checked here, since TensorFlow would wait for the writer of a named pipe.
        try:
            usable = np.array(_for_each(_is_usable, paths), bool)
        except OSError as error:
            raise DataError(
                f"{self} cannot be read: {error.filename or self._root}: {error.strerror}."
            ) from None
        names = np.array([*map(os.fsencode, paths), None], object)[:-1]
        names[~usable] = b""
        return {"path": names, "label": padded(self.read_labels(indices))}

    def load(self, location):
        """See `DataSource.load`; an empty path becomes an image of zero bytes."""
        return load_in_groups(location["path"], self._read_files, location["label"])

    def _read_files(self, paths):
        """Returns the dataset whose only element has the contents of files, string `[n]`."""
        files = tf.data.Dataset.from_tensor_slices(paths).map(read_if_named)
        return files.batch(tf.size(paths, tf.int64))

    def _read_stored(self, indices):
        """See `DataSource._read_stored`."""
        try:
            images, labels = super()._read_stored(indices)
        except tf.errors.OpError as error:
            raise DataError(f"{self} cannot be read: {first_line(error)}.") from None
        if b"" in images and not storage.is_folder(self._root):
            raise DataError(f"{self} cannot be read: the folder {self._root} is no longer there.")
        return images, labels

    def ids(self, indices):
        """See `DataSource.ids`."""
        ids = np.empty(len(indices), np.int64)
        for rows, _, listed, first_id in self._listed(indices):
            ids[rows] = listed + first_id
        return ids

    def read_labels(self, indices):
        """See `DataSource.read_labels`; reads no files."""
        labels = no_labels(len(indices), self.multi_label)
        for rows, files, listed, _ in self._listed(indices):
            labels[rows] = files.labels[listed]
        return labels

    def describe(self, example_id):
        """See `DataSource.describe`; the name contains the path of the file."""
        if (found := self._file(example_id)) is None:
            return f"example {example_id} of {self}"
        files, row = found
        path = os.fsencode(files.paths[row]).decode("utf-8", "replace")
        return f"{path} of {self.name}{files.notes[row] if files.notes else ''}"

    def path(self, example_id):
        """See `DataSource.path`."""
        if (found := self._file(example_id)) is None:
            return None
        files, row = found
        return storage.join(self._root, files.paths[row])

    def _file(self, example_id):
        """The `Files` of an id and its row in them, or None."""
        for split, _, _, first_id in self._split_ranges:
            files = self._files[split]
            if 0 <= example_id - first_id < len(files.paths):
                return files, example_id - first_id
        return None

    def content_stamp(self):
        """See `DataSource.content_stamp`; a hash of the sizes and times of change of all files."""
        return stamp_of_files(self._paths(range(self.num_examples)))

    def _paths(self, indices):
        """Returns the absolute paths of the files at some indices."""
        paths = np.empty(len(indices), object)
        for rows, files, listed, _ in self._listed(indices):
            paths[rows] = [storage.join(self._root, files.paths[each]) for each in listed]
        return paths

    def _listed(self, indices):
        """Yields, for each part: rows of `indices`, `Files`, rows in its listing, first id."""
        parts, stored = self._in_splits(indices)
        for number in np.unique(parts):
            part, rows = self._split_ranges[number], np.flatnonzero(parts == number)
            files = self._files[part.split]
            yield rows, files, self._orders[part.split][stored[rows]], part.first_id


class LazyMapping(collections.abc.Mapping):
    """A mapping that makes each value on first access, because listing a split takes time.

    Args:
        keys: iterable of all keys.
        make: function from a key to its value; called at most once per key.
    """

    def __init__(self, keys, make):
        self._keys, self._make, self._values = tuple(keys), make, {}

    def __getitem__(self, key):
        if key not in self._keys:
            raise KeyError(key)
        if key not in self._values:
            self._values[key] = self._make(key)
        return self._values[key]

    def __contains__(self, key):  # The method of `Mapping` would make the value.
        return key in self._keys

    def __iter__(self):
        return iter(self._keys)

    def __len__(self):
        return len(self._keys)


def stamp_of_files(paths):
    """Returns a hash of the sizes and times of change of files, 16 hexadecimal digits.

    Args:
        paths: the files; their order matters.
    """
    stamps = np.array(_for_each(_size_and_time, paths), np.int64)
    return hashlib.blake2b(stamps.tobytes(), digest_size=8).hexdigest()


def _size_and_time(path):
    """Returns the size of a file and its time of change in ns; zeros if it cannot be read."""
    try:
        return storage.size_and_time(path)
    except OSError:
        return 0, 0


def _for_each(function, paths):
    """Returns the values of a function of each path, in order; calls it in several threads."""
    chunks = np.array_split(np.arange(len(paths)), min(READERS, len(paths) or 1))
    with futures.ThreadPoolExecutor(READERS) as readers:
        values = list(readers.map(lambda chunk: [function(paths[i]) for i in chunk], chunks))
    return [value for chunk in values for value in chunk]


def read_if_named(path):
    """The content of a file as a scalar string tensor; empty if its path is empty."""
    return tf.cond(path == "", lambda: "", lambda: tf.io.read_file(path))


def _is_usable(path):
    """Whether a path is a regular file that can be read and is not too large for an image."""
    if storage.is_url(path):
        return True  # Found when it is read: asking takes as long as reading.
    try:
        status = os.stat(path)
    except OSError as error:
        if error.errno in _ERRORS_OF_ONE_FILE:
            return False
        raise
    is_image = stat.S_ISREG(status.st_mode) and status.st_size <= MAX_FILE_BYTES
    return is_image and os.access(path, os.R_OK)


def _fingerprint(files, labels):
    """Returns a hash of the listing of splits and of the classes, 12 hexadecimal digits."""
    digest = hashlib.blake2b(digest_size=6)
    for column in [labels, *(files[split].paths for split in sorted(files))]:
        digest.update(b"\0".join(map(os.fsencode, column)) + b"\0\0")
    for split in sorted(files):
        digest.update(files[split].labels.tobytes())
    return digest.hexdigest()


def absolute_path(path, data_dir, kind):
    """Returns the path of `data.name=<kind>:<path>`, absolute, or its URL.

    Args:
        path: absolute or relative path, which may begin with ~, or a URL.
        data_dir: folder that a relative path starts from; None for the current directory.
        kind: "folder", "list" or "tfrecord", for the message about an empty path.
    """
    if not path or "\0" in path:
        raise DataError(f"data.name={kind}: has no path. Write data.name={kind}:/path/to/the/data.")
    folder = os.path.expanduser(data_dir or "")
    return storage.absolute(storage.join(folder, os.path.expanduser(path)))
