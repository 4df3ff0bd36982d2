"""Reads examples before they are used, and yields them in their final order."""

import collections
from concurrent import futures
from typing import NamedTuple

import numpy as np

from pipelines.data.labels import no_labels
from pipelines.errors import DataError

# Rows yielded at a time: enough to make the cost of a call negligible, few enough to free memory in
# small steps.
ROWS_PER_CHUNK = 128
# Smallest number of rows per read. Opening the files takes 47 ms (TFDS 4.9.10), reading a small
# JPEG 0.2 ms.
ROWS_PER_READ = 1024


class Window(NamedTuple):
    """Examples that are read together, and the order in which they are yielded."""

    ranges: list  # of (start, stop): stored ranges to read
    indices: np.ndarray  # int64 [n]: stored index of each row, -1 for a padding row
    positions: np.ndarray  # int64 [n]: place of each row in the stream of global batches


class Rows(NamedTuple):
    """Consecutive rows of a window, padding included."""

    images: np.ndarray  # object [n]: bytes; None for padding
    labels: np.ndarray  # see `source.Examples`; 0 or an empty list for padding
    ids: np.ndarray  # int64 [n]; -1 for padding
    positions: np.ndarray  # int64 [n]


def read_ahead(source, windows):
    """Yields the `Rows` of an iterable of `Window`s, in order.

    While the rows of one window are yielded, a thread reads the same fraction of the next window.
    So memory holds about one window of encoded images, and training does not wait between windows.

    Raises:
        DataError: if the source raises it while reading. It is also stored in `source.failure`.
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
                columns.images[start:stop] = None  # frees memory as rows are yielded
                yield rows
                if upcoming:
                    upcoming.advance(min(stop / count, 1.0))
            current = upcoming
    except DataError as error:
        source.failure = error
        raise
    finally:  # also if the generator is closed early
        thread.shutdown(cancel_futures=True)


class _PendingWindow:
    """A window that a thread reads into memory, one group of stored ranges after another."""

    def __init__(self, source, window, thread):
        self._source = source
        self._window = window
        self._thread = thread
        self._unread = collections.deque(_group(window.ranges))
        self._total = sum(_length(ranges) for ranges in self._unread)
        self._requested = 0
        self._reads = []
        # Rows sorted by stored index, to find the rows of the examples that a read returns.
        self._rows = np.argsort(window.indices, kind="stable")
        self._sorted = window.indices[self._rows]

    def advance(self, share):
        """Requests ranges until the fraction `share` of the window is requested."""
        while self._unread and self._requested < share * self._total:
            ranges = self._unread.popleft()
            self._requested += _length(ranges)
            self._reads.append(self._thread.submit(self._read, ranges))

    def finish(self):
        """Requests the remaining ranges, waits, and returns all `Rows` of the window."""
        self.advance(1.0)
        count = len(self._rows)
        images = np.full(count, None, object)
        labels = no_labels(count, self._source.multi_label)
        ids = np.full(count, -1, np.int64)
        while self._reads:
            rows, examples = self._reads.pop().result()
            images[rows], labels[rows], ids[rows] = examples
        return Rows(images, labels, ids, self._window.positions)

    def _read(self, ranges):
        """Reads stored ranges; returns the rows that need them, and the examples of these rows."""
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
