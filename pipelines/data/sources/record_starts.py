"""The bytes at which the records of a TFRecord file start, found once and kept in a cache.

A file of the cache is named after the path of the TFRecord file. It is little-endian int64: the
size of the TFRecord file in bytes, its time of change in ns, the starts, then a checksum. It is
used only if size and time are still the same and the starts can be right; else they are found
again. The cache is the folder `record_offsets` beside the weights' cache, below KERAS_HOME, which
by default is `~/.keras`.
"""

import contextlib
import hashlib
import os
import struct

import numpy as np
import tensorflow as tf

from pipelines.errors import DataError, first_line
from vit_tf.files import storage
from vit_tf.files.atomic_file import write_atomically

# Before the data of a record: its length, uint64, and a checksum of the length. After: a checksum
# of the data.
_HEADER_BYTES, _FOOTER_BYTES = 12, 4
# Starts of fewer records are found as fast as they are read from the cache.
_MIN_CACHED = 256
# Records of a cached file whose lengths are compared with the file.
_CHECKED = 4
# Bytes read at a time from a remote file, where a request takes as long as reading them.
_REMOTE_BYTES = 8 * 2**20


def record_starts(path, count):
    """Returns the byte at which each record starts, and the size of the file: int64 `[count + 1]`.

    Args:
        path: the TFRecord file, local or a URL.
        count: number of records that it should have.

    Raises:
        DataError: if the file cannot be read, is damaged, or has another number of records.
    """
    status = size_and_time(path)
    check_count(path, count, status[0])
    cache = _cache_path(path)
    if count >= _MIN_CACHED:
        starts = _read_cache(cache, status, path, count)
        if starts is not None:
            return starts
    starts = _find_starts(path, count, status[0])
    if count >= _MIN_CACHED:
        with contextlib.suppress(OSError):  # Without a cache, they are found again next time.
            contents = np.concatenate([status, starts]).astype("<i8").tobytes()
            contents += _checksum(contents)
            os.makedirs(os.path.dirname(cache), exist_ok=True)
            write_atomically(cache, lambda file: file.write(contents))
    return starts


def size_and_time(path):
    """Returns the size of a file in bytes and its time of change in ns.

    Raises:
        DataError: if it cannot be read.
    """
    try:
        return storage.size_and_time(path)
    except OSError as error:
        raise _unreadable(path, error.strerror) from None


def check_count(path, count, size):
    """Raises `DataError` if a file is too small for `count` records, before memory is allocated."""
    if count * (_HEADER_BYTES + _FOOTER_BYTES) > size:
        raise DataError(
            f"{path} is damaged, cut off or compressed: its {size:,} bytes cannot hold the "
            f"{count:,} records that are listed. Write or copy it again."
        )


def _unreadable(path, reason):
    return DataError(f"The TFRecord file {path} cannot be read: {reason}.")


def _cache_path(path):
    home = os.environ.get("KERAS_HOME") or os.path.join(os.path.expanduser("~"), ".keras")
    name = hashlib.blake2b(os.fsencode(path), digest_size=16).hexdigest()
    return os.path.join(home, "vit_tf", "record_offsets", name)


def _read_cache(cache, status, path, count):
    """Returns the starts in a file of the cache; None if there are none, or they are not right."""
    size = status[0]
    try:
        with open(cache, "rb") as file:
            contents = file.read(8 * (count + 4) + 1)
    except OSError:
        return None
    if len(contents) != 8 * (count + 4) or contents[-8:] != _checksum(contents[:-8]):
        return None
    header, starts = np.split(np.frombuffer(contents[:-8], "<i8"), [2])
    if tuple(header) != status:
        return None
    inside = ((starts >= 0) & (starts <= size)).all() and not starts[0] and starts[-1] == size
    if not inside or (np.diff(starts) < _HEADER_BYTES + _FOOTER_BYTES).any():
        return None
    checked = np.unique(np.linspace(0, count - 1, _CHECKED).astype(int))
    with _File(path, buffer=8) as file:
        right = all(file.record_end(starts[i]) == starts[i + 1] for i in checked)
    return starts if right else None


def _checksum(contents):
    return hashlib.blake2b(contents, digest_size=8).digest()


def _find_starts(path, count, size):
    starts = np.zeros(count + 1, np.int64)
    with _File(path) as file:
        start = 0
        for record in range(count):
            end = file.record_end(start)
            if end is None or end > size:
                raise DataError(
                    f"{path} is damaged, cut off or compressed: record {record} of {count:,} ends "
                    f"beyond its {size:,} bytes. Write or copy it again."
                )
            starts[record + 1] = start = end
    if start != size:
        raise DataError(
            f"{path} has more than the {count:,} records that are listed, or is damaged. Correct "
            f"the number, or write the file again."
        )
    return starts


class _File:
    """Reads the lengths of records; errors of the file system become `DataError`.

    Args:
        path: the file.
        buffer: bytes read at a time if it is remote.
    """

    def __init__(self, path, buffer=_REMOTE_BYTES):
        self._path, self._buffer = path, buffer
        self._remote = tf.io.gfile.GFile(path, "rb") if storage.is_url(path) else None
        self._begin, self._bytes = 0, b""

    def __enter__(self):
        if self._remote is None:
            try:
                self._descriptor = os.open(self._path, os.O_RDONLY)
            except OSError as error:
                raise _unreadable(self._path, error.strerror) from None
        return self

    def __exit__(self, *error):
        if self._remote is None:
            os.close(self._descriptor)
        else:
            self._remote.close()

    def record_end(self, start):
        """Returns where the record that starts at a byte ends; None if the file ends before."""
        header = self._read(int(start))
        if len(header) < 8:
            return None
        return int(start) + _HEADER_BYTES + struct.unpack("<Q", header)[0] + _FOOTER_BYTES

    def _read(self, start):
        """Returns 8 bytes from `start` on."""
        try:
            if self._remote is None:
                return os.pread(self._descriptor, 8, start)
            first = start - self._begin
            if not 0 <= first <= len(self._bytes) - 8:
                self._remote.seek(start)
                self._begin, self._bytes = start, self._remote.read(self._buffer)
                first = 0
            return self._bytes[first : first + 8]
        except OSError as error:
            raise _unreadable(self._path, error.strerror) from None
        except tf.errors.OpError as error:
            raise _unreadable(self._path, first_line(error)) from None
