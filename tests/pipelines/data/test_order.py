"""The training order: permutations, windows, resume, and its reads."""

import itertools

import numpy as np
import pytest

from pipelines.data.order import BLOCKS_PER_WINDOW, TrainOrder, cut_blocks

# Shard lengths and window: one shard, several, empty ones, window 1, window larger than the split.
CASES = [
    ((40,), 40),
    ((40,), 1000),
    ((30, 50, 20), 17),
    ((30, 0, 1, 69), 32),
    ((100,) * 10, 128),
    ((3, 4), 1),
    ((1,), 5),
]


def _epoch(order, epoch):
    return np.concatenate([order.indices(epoch, w) for w in range(order.windows_per_epoch)])


def test_order_is_pinned():
    """A changed order would silently change every interrupted run."""
    stream = TrainOrder((6, 4), 5, seed=1).stream(0, 12)
    assert stream.tolist() == [4, 5, 0, 6, 3, 2, 7, 9, 8, 1, 2, 5]


@pytest.mark.parametrize(("shards", "window"), CASES)
def test_every_epoch_is_a_permutation(shards, window):
    order = TrainOrder(shards, window, seed=3)
    for epoch in range(3):
        np.testing.assert_array_equal(np.sort(_epoch(order, epoch)), np.arange(sum(shards)))


def test_epochs_and_seeds_differ():
    orders = [
        _epoch(TrainOrder((100,) * 10, 128, seed), epoch)
        for seed, epoch in itertools.product((0, 1, 2**64 - 1), (0, 1, 1000))
    ]
    for a, b in itertools.combinations(orders, 2):
        assert (a == b).mean() < 0.02


@pytest.mark.parametrize(("shards", "window"), CASES)
def test_windows_cover_their_offsets(shards, window):
    order = TrainOrder(shards, window, seed=3)
    for epoch in range(2):
        windows = [order.indices(epoch, number) for number in range(order.windows_per_epoch)]
        np.testing.assert_array_equal(np.sort(np.concatenate(windows)), np.arange(sum(shards)))
        for number, indices in enumerate(windows):
            start, stop = order.offsets(epoch, number)
            assert len(indices) == stop - start <= window
            assert order.window_at(start) == order.window_at(stop - 1) == (epoch, number)
    ends = np.cumsum(shards)
    for first, length in zip(*order._blocks, strict=True):  # no block spans two shards
        last = first + length - 1
        assert np.searchsorted(ends, first, "right") == np.searchsorted(ends, last, "right")


def test_windows_mix_distant_blocks():
    order = TrainOrder((1000,) * 10, 800, seed=3)
    indices = order.indices(0, 0)
    blocks = np.unique(indices // (800 // BLOCKS_PER_WINDOW))
    assert len(blocks) >= BLOCKS_PER_WINDOW
    assert np.ptp(indices) > 5000
    # Examples are shuffled within the window: few neighbors in training are neighbors in the
    # file.
    assert (np.abs(np.diff(indices)) == 1).mean() < 0.05


@pytest.mark.parametrize(("shards", "window"), CASES)
def test_stream_from_any_offset(shards, window):
    order = TrainOrder(shards, window, seed=3)
    whole = np.concatenate([_epoch(order, epoch) for epoch in range(4)])
    random = np.random.default_rng(0)
    for start in random.integers(0, 3 * sum(shards), 20):
        stop = start + random.integers(0, sum(shards))
        np.testing.assert_array_equal(order.stream(start, stop), whole[start:stop])
        window = order.window_at(start)
        assert next(order.windows_from(start)) == window
        assert order.indices(*window)[start - order.offsets(*window)[0]] == whole[start]


def test_resume_opens_one_window(monkeypatch):
    order = TrainOrder((500,) * 20, 1000, seed=3)
    opened = []
    indices = TrainOrder.indices

    def count(self, *window):
        opened.append(window)
        return indices(self, *window)

    monkeypatch.setattr(TrainOrder, "indices", count)
    order.stream(123_456, 123_472)
    assert opened == [(12, 3)]


def test_cut_blocks():
    np.testing.assert_array_equal(cut_blocks((10, 0, 3, 4), 4), [4, 3, 3, 3, 4])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (((10,), 0, 0), "window=0"),
        (((), 5, 0), "no examples"),
        (((10,), 5, -1), "seed=-1"),
        (((10,), 5, 2**64), "seed=18446744073709551616"),
    ],
)
def test_rejects(arguments, text):
    with pytest.raises(ValueError, match=text):
        TrainOrder(*arguments)
