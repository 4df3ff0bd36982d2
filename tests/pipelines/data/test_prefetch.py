"""Reading ahead: the order of rows, memory, errors, and the end of its thread."""

import itertools
import threading
import time

import numpy as np
import pytest

from pipelines.data.order import TrainOrder
from pipelines.data.prefetch import ROWS_PER_CHUNK, ROWS_PER_READ, Window, read_ahead
from pipelines.data.sources.source import Examples
from pipelines.errors import DataError


class Image:
    """Replaces the bytes of an image; counts the living objects."""

    alive = 0

    def __init__(self, index):
        self.index = index
        Image.alive += 1

    def __del__(self):
        Image.alive -= 1


class Store:
    """Examples whose image, label and id show their index."""

    def __init__(self, broken=None):
        self.rows_read, self.multi_label = 0, False
        self.broken = broken

    def read(self, ranges):
        index = np.concatenate([np.arange(*limits) for limits in ranges])
        if self.broken in index:
            raise DataError("broken")
        self.rows_read += len(index)
        images = np.array([Image(i) for i in index], object)
        return Examples(images, (index % 7).astype(np.int32), index + 1000)


def _windows(order, count):
    for place in itertools.islice(order.windows_from(0), count):
        positions = np.arange(*order.positions(*place))
        yield Window(order.ranges(*place), order.indices(*place), positions)


@pytest.fixture
def new_threads():
    """A function that lists the reading threads that the test has started."""

    def reading():
        return {thread for thread in threading.enumerate() if thread.name.startswith("read_ahead")}

    before = reading()
    return lambda: reading() - before


def test_rows_leave_in_order(new_threads):
    order = TrainOrder((3000, 2000), 900, seed=1)
    expected = order.stream(0, 5000 + 3 * 900)  # six windows of the first epoch, three of the next
    position = 0
    for rows in read_ahead(Store(), _windows(order, 9)):
        indices = expected[position : position + len(rows.ids)]
        np.testing.assert_array_equal(rows.ids, indices + 1000)
        np.testing.assert_array_equal(rows.labels, indices % 7)
        assert [image.index for image in rows.images] == indices.tolist()
        np.testing.assert_array_equal(rows.positions, position + np.arange(len(indices)))
        position += len(indices)
    assert position == len(expected)
    assert not new_threads()


def test_one_window_is_held():
    window = 5 * ROWS_PER_READ
    order = TrainOrder((20 * ROWS_PER_READ,), window, seed=1)
    store, most = Store(), 0
    before = Image.alive
    for rows in read_ahead(store, _windows(order, 4)):
        time.sleep(0.002)  # the thread reads ahead up to its limit
        most = max(most, Image.alive - before)
        assert len(rows.ids) <= ROWS_PER_CHUNK
    assert store.rows_read == 4 * window
    # One read may exceed the number of rows that were used by its own length.
    assert window < most <= window + 1.5 * ROWS_PER_READ


def test_padding_and_unwanted_rows():
    """A host keeps its own rows of a window, and pads rows without examples."""
    window = Window([(10, 20)], np.array([17, -1, 12, -1]), np.array([4, 5, 6, 7]))
    ((images, labels, ids, positions),) = read_ahead(Store(), [window])
    assert [image and image.index for image in images] == [17, None, 12, None]
    assert labels.tolist() == [3, 0, 5, 0]
    assert ids.tolist() == [1017, -1, 1012, -1]
    assert positions.tolist() == [4, 5, 6, 7]


def test_ranges_without_needed_rows_are_not_read():
    store = Store()
    nothing = np.zeros(0, np.int64)
    windows = [Window([(0, 50)], nothing, nothing), Window([], np.array([-1]), np.array([3]))]
    ((_, _, ids, _),) = read_ahead(store, windows)
    assert ids.tolist() == [-1]
    assert store.rows_read == 0


def test_an_error_reaches_the_reader(new_threads):
    store = Store(broken=1500)
    rows = read_ahead(store, _windows(TrainOrder((3000,), 3000, seed=1), 1))
    with pytest.raises(DataError, match="broken") as error:
        next(rows)
    assert store.failure is error.value
    assert not new_threads()


def test_closing_ends_the_thread(new_threads):
    rows = read_ahead(Store(), _windows(TrainOrder((9000,), 3000, seed=1), 3))
    next(rows)
    assert new_threads()
    rows.close()
    assert not new_threads()
