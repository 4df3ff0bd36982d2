"""A source whose images are files of their own; `folders.py` and `lists.py` find them.

A split is stored in the order of a hash of the files' relative paths. Neither folders nor lists are
mixed by nature, and this way every range of positions is: "train[:90%]" holds all classes, and so
does a training window much smaller than the set. The hash of a path does not depend on the other
files, so a split changes little when some are added. Ids follow the listing and not this order.
"""

import collections.abc
import errno
import hashlib
import os
import stat
from concurrent import futures
from typing import NamedTuple

import numpy as np

from pipelines.data.sources.source import DataSource, Examples, resolve_split, split_info
from pipelines.errors import DataError

# A larger file is no image that anyone trains on; it counts as one that cannot be read.
MAX_FILE_BYTES = 256 * 2**20

# Network file systems answer slowly, but many at a time.
_READERS = 8
# What is wrong with a single file; every other failure concerns all of them.
_ERRORS_OF_ONE_FILE = {
    errno.ENOENT,
    errno.EACCES,
    errno.EPERM,
    errno.ELOOP,
    errno.ENOTDIR,
    errno.ENAMETOOLONG,
    errno.ENXIO,
}


class Files(NamedTuple):
    """The images of one whole split, in the order of their ids."""

    paths: list  # of str, relative to the root of the data set
    labels: np.ndarray  # int32 [n]
    order: np.ndarray  # int64 [n]: place in this listing of each stored example
    notes: list  # of str: where a list names the file, " (line 7)"; empty for folders


def make_files(paths, labels, notes=()):
    """Returns the `Files` of a listing; decides their stored order."""
    digests = [
        hashlib.blake2b(os.fsencode(path), digest_size=8, person=b"stored order").digest()
        for path in paths
    ]
    order = np.argsort(np.frombuffer(b"".join(digests), ">u8"), kind="stable")
    return Files(paths, np.array(labels, np.int32), order, list(notes))


class FileSource(DataSource):
    """Images in files. One that cannot be read counts as an image of no bytes.

    So a single bad file is found and named like one that cannot be decoded, while a folder that is
    gone or a disk that fails raises `DataError`.

    Args:
        name: such as "folder:/data/pets".
        root: directory that the paths of the files start from.
        splits: mapping from the name of each split to its `Files`; may be a `LazyMapping`.
        split: what to open, in TFDS notation.
        labels: class names in label order.
    """

    id_rule = "first_id of its range plus the place of the file in the listing of the whole split"

    def __init__(self, name, root, splits, split, labels):
        infos = LazyMapping(splits, lambda key: split_info(key, [len(splits[key].paths)]))
        split_ranges = resolve_split(infos, split, name)
        self._root = root
        self._files = {used.split: splits[used.split] for used in split_ranges}
        super().__init__(
            name=name,
            version=_fingerprint(self._files, labels),
            split=split,
            split_ranges=split_ranges,
            labels=labels,
            shard_lengths=tuple(used.stop - used.start for used in split_ranges),
        )

    def __str__(self):
        return f"{self.name} split {self.split!r}"

    def read(self, ranges):
        """As `DataSource.read`."""
        paths, labels, ids = [], [np.zeros(0, np.int32)], [np.zeros(0, np.int64)]
        for split, start, stop, first_id in self._locate(ranges):
            files = self._files[split]
            places = files.order[start:stop]
            paths += [files.paths[place] for place in places]
            labels.append(files.labels[places])
            ids.append(places + first_id)
        images = np.empty(len(paths), object)
        images[:] = self._read_files(paths)
        return Examples(images, np.concatenate(labels), np.concatenate(ids))

    def describe(self, example_id):
        """As `DataSource.describe`; names the file."""
        for split, _, _, first_id in self._split_ranges:
            files = self._files[split]
            place = example_id - first_id
            if 0 <= place < len(files.paths):
                path = os.fsencode(files.paths[place]).decode("utf-8", "replace")
                note = files.notes[place] if files.notes else ""
                return f"{path} of {self.name}{note}"
        return f"example {example_id} of {self}"

    def _read_files(self, paths):
        """Returns the contents of files, in order."""
        paths = [os.path.join(self._root, path) for path in paths]
        try:
            with futures.ThreadPoolExecutor(_READERS) as readers:
                chunks = np.array_split(np.arange(len(paths)), min(_READERS, len(paths) or 1))
                contents = list(readers.map(lambda chunk: [_read(paths[i]) for i in chunk], chunks))
        except OSError as error:
            raise DataError(
                f"{self} cannot be read: {error.filename or self._root}: {error.strerror}."
            ) from None
        images = [image for chunk in contents for image in chunk]
        if b"" in images and not os.path.isdir(self._root):
            raise DataError(f"{self} cannot be read: the folder {self._root} is no longer there.")
        return images


class LazyMapping(collections.abc.Mapping):
    """A mapping whose values are made when they are asked for: listing a split takes time.

    Args:
        keys: iterable of all keys.
        make: function from a key to its value; called once for each.
    """

    def __init__(self, keys, make):
        self._keys, self._make, self._values = tuple(keys), make, {}

    def __getitem__(self, key):
        if key not in self._keys:
            raise KeyError(key)
        if key not in self._values:
            self._values[key] = self._make(key)
        return self._values[key]

    def __contains__(self, key):  # `Mapping` would make the value
        return key in self._keys

    def __iter__(self):
        return iter(self._keys)

    def __len__(self):
        return len(self._keys)


def _read(path):
    """Returns the contents of a file, nothing if it is no regular file that can be read."""
    try:
        # Without O_NONBLOCK a named pipe would wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in _ERRORS_OF_ONE_FILE:
            return b""
        raise
    with open(descriptor, "rb", buffering=0) as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_FILE_BYTES:
            return b""
        return file.readall()


def _fingerprint(files, labels):
    """Returns 12 hexadecimal digits that stand for the listing of splits, and for the classes."""
    digest = hashlib.blake2b(digest_size=6)
    for column in [labels, *(files[split].paths for split in sorted(files))]:
        digest.update(b"\0".join(map(os.fsencode, column)) + b"\0\0")
    for split in sorted(files):
        digest.update(files[split].labels.astype("<i4").tobytes())
    return digest.hexdigest()


def absolute_path(path, data_dir, kind):
    """Returns the path of `data.name=<kind>:<path>`, absolute.

    Args:
        path: may begin with ~.
        data_dir: where a relative path begins; None for the current directory.
        kind: for the message about a path that is empty.
    """
    if not path or "\0" in path:
        raise DataError(f"{kind}: lacks a path. Write data.name={kind}:/path/to/the/data.")
    return os.path.abspath(
        os.path.join(os.path.expanduser(data_dir or ""), os.path.expanduser(path))
    )


def is_unicode(text):
    """Whether a text has a form in UTF-8; file names and JSON can hold half characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
