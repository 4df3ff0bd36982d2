"""Reads the examples that are about to be used, ahead of their use and in their final order."""

import collections
from concurrent import futures
from typing import NamedTuple

import numpy as np

from pipelines.errors import DataError

# Rows handed over at a time: enough to hide the cost of a call, few enough to free memory smoothly.
ROWS_PER_CHUNK = 128
# Rows read at a time at least. Opening the files costs 47 ms (TFDS 4.9.10), a small JPEG 0.2 ms.
ROWS_PER_READ = 1024


class Window(NamedTuple):
    """Examples that are read together, and the order in which they leave."""

    ranges: list  # of (start, stop): the stored ranges to read
    indices: np.ndarray  # int64 [n]: stored index of each row, -1 for a padding row
    positions: np.ndarray  # int64 [n]: place of each row in the stream of global batches


class Rows(NamedTuple):
    """Some consecutive rows of a window, padding included."""

    images: np.ndarray  # object [n]: bytes; None for padding
    labels: np.ndarray  # int32 [n]; 0 for padding
    ids: np.ndarray  # int64 [n]; -1 for padding
    positions: np.ndarray  # int64 [n]


def read_ahead(source, windows):
    """Yields the `Rows` of an iterable of `Window`s, in order.

    While the rows of one window leave, a thread fetches as large a share of the next one. So about
    one window of encoded images is in memory, and nobody waits at the end of a window.

    Raises:
        DataError: what the source has raised. It is also kept as `source.failure`.
    """
    windows = iter(windows)
    thread = futures.ThreadPoolExecutor(max_workers=1, thread_name_prefix="read_ahead")
    try:
        current = _PendingWindow(source, next(windows), thread)
        while current is not None:
            upcoming = next(windows, None)
            upcoming = upcoming and _PendingWindow(source, upcoming, thread)
            columns = current.finish()
            count = len(columns.ids)
            for start in range(0, count, ROWS_PER_CHUNK):
                stop = start + ROWS_PER_CHUNK
                rows = Rows(*(column[start:stop].copy() for column in columns))
                columns.images[start:stop] = None  # free as they leave
                yield rows
                if upcoming:
                    upcoming.advance(min(stop / count, 1.0))
            current = upcoming
    except DataError as error:
        source.failure = error
        raise
    finally:  # also when the reader of this generator goes away
        thread.shutdown(cancel_futures=True)


class _PendingWindow:
    """A window that a thread reads into memory, one group of stored ranges after the other."""

    def __init__(self, source, window, thread):
        self._source = source
        self._window = window
        self._thread = thread
        self._unread = collections.deque(_group(window.ranges))
        self._total = sum(_length(ranges) for ranges in self._unread)
        self._requested = 0
        self._reads = []
        # Rows by stored index, to find where what is read belongs.
        self._rows = np.argsort(window.indices, kind="stable")
        self._sorted = window.indices[self._rows]

    def advance(self, share):
        """Requests ranges until they make up `share` of the window."""
        while self._unread and self._requested < share * self._total:
            ranges = self._unread.popleft()
            self._requested += _length(ranges)
            self._reads.append(self._thread.submit(self._read, ranges))

    def finish(self):
        """Waits for the rest and returns all `Rows` of the window."""
        self.advance(1.0)
        count = len(self._rows)
        images = np.full(count, None, object)
        labels, ids = np.zeros(count, np.int32), np.full(count, -1, np.int64)
        while self._reads:
            rows, examples = self._reads.pop().result()
            images[rows], labels[rows], ids[rows] = examples
        return Rows(images, labels, ids, self._window.positions)

    def _read(self, ranges):
        """Returns the rows that stored ranges fill, and their examples."""
        stored = np.concatenate([np.arange(*limits) for limits in ranges])
        first = np.searchsorted(self._sorted, stored, side="left")
        needed = np.searchsorted(self._sorted, stored, side="right") > first
        if not needed.any():
            return np.zeros(0, np.int64), ([], [], [])
        examples = self._source.read(ranges)
        return self._rows[first[needed]], tuple(column[needed] for column in examples)


def _group(ranges):
    """Returns the ranges in lists of at least `ROWS_PER_READ` rows, except the last."""
    groups = [[]]
    for limits in ranges:
        if _length(groups[-1]) >= ROWS_PER_READ:
            groups.append([])
        groups[-1].append(limits)
    return groups if ranges else []


def _length(ranges):
    """Returns the number of rows in stored ranges."""
    return sum(stop - start for start, stop in ranges)
