"""Training order as a pure function: nothing to checkpoint.

The stored examples are cut into blocks. An epoch is a permutation of the blocks, cut into windows;
the examples within each window are shuffled. Epochs follow one another without a gap and form an
endless stream. Training step k with global batch size B takes the stream positions [k B, (k + 1) B)
for any number of hosts and replicas. A resumed run opens the right window directly and reads
nothing before it. A host may also have its own order over its own shards, see `sharding.py`.
"""

import dataclasses
import functools
from typing import NamedTuple

import numpy as np

from pipelines.data import stateless_random

# A full window has at least this many blocks. More blocks mix better, but each read is shorter.
BLOCKS_PER_WINDOW = 16


class WindowPosition(NamedTuple):
    """A position in the stream: `offset` counts examples from the start of the window."""

    epoch: int
    window: int
    offset: int


def cut_blocks(lengths, longest):
    """Cuts shards into nearly equal blocks of at most `longest` examples.

    Returns:
        int64 array of block lengths in stored order; empty shards have no blocks.
    """
    blocks = []
    for length in lengths:
        count = -(-length // longest)
        blocks += [length // count + (i < length % count) for i in range(count)]
    return np.array(blocks, np.int64)


@dataclasses.dataclass(frozen=True)
class TrainOrder:
    """Order of an endless stream of epochs over all examples, or over those of one host.

    Attributes:
        shard_lengths: number of examples of each shard, a contiguous stored range.
        window: number of examples shuffled together; memory holds two windows of encoded images.
            A window of `num_examples` or more is a full shuffle.
        seed: seed of the run, 0 .. 2**64 - 1.
        host, hosts: use the shards host, host + hosts, ...; by default all shards. Every host has
            its own order.
    """

    shard_lengths: tuple[int, ...]
    window: int
    seed: int
    host: int = 0
    hosts: int = 1

    def __post_init__(self):
        if self.window < 1:
            raise ValueError(f"window={self.window} is not positive. Expected at least 1 example.")
        if not 0 <= self.host < self.hosts:
            raise ValueError(f"host={self.host} is not in 0 .. {self.hosts - 1}.")
        if self.num_examples < 1:
            raise ValueError("There are no examples to order. Expected at least 1.")
        if not 0 <= self.seed < 2**64:
            raise ValueError(f"seed={self.seed} is out of range. Expected 0 .. 2**64 - 1.")

    @functools.cached_property
    def num_examples(self):
        """Number of examples in one epoch."""
        return sum(self.shard_lengths[self.host :: self.hosts])

    @property
    def windows_per_epoch(self):
        """Number of windows in one epoch; the last one may be shorter."""
        return -(-self.num_examples // self.window)

    @functools.cached_property
    def _blocks(self):
        """Stored start and length of every block, int64 arrays."""
        longest = max(1, min(self.window, self.num_examples) // BLOCKS_PER_WINDOW)
        shard_ends = np.cumsum(self.shard_lengths)
        starts, lengths = [], []
        for shard in range(self.host, len(self.shard_lengths), self.hosts):
            cut = cut_blocks(self.shard_lengths[shard : shard + 1], longest)
            starts.append(shard_ends[shard] - np.cumsum(cut[::-1])[::-1])
            lengths.append(cut)
        return np.concatenate(starts), np.concatenate(lengths)

    def locate(self, position):
        """Returns the `WindowPosition` of a stream position."""
        epoch, place = divmod(position, self.num_examples)
        return WindowPosition(epoch, *divmod(place, self.window))

    def positions(self, epoch, window):
        """Returns the stream positions `(start, stop)` that a window covers."""
        start = window * self.window
        stop = min(start + self.window, self.num_examples)
        return epoch * self.num_examples + start, epoch * self.num_examples + stop

    @functools.cached_property
    def _epochs(self):
        """The order of the blocks in the epochs that were used last, see `_ordered_blocks`."""
        return {}

    def _ordered_blocks(self, epoch):
        """Start and end in the epoch of its blocks, and their stored start, int64 arrays.

        A permutation of the 600,000 blocks of 300 million examples takes 60 ms, so those of two
        epochs are kept.
        """
        if epoch not in self._epochs:
            starts, lengths = self._blocks
            permutation = self._permutation(len(lengths), stateless_random.BLOCK_ORDER, epoch)
            ends = np.cumsum(lengths[permutation])
            for old in list(self._epochs)[:-1]:
                del self._epochs[old]
            self._epochs[epoch] = ends - lengths[permutation], ends, starts[permutation]
        return self._epochs[epoch]

    def indices(self, epoch, window):
        """Returns the stored indices of a window in training order, int64 `[length]`."""
        begins, ends, stored = self._ordered_blocks(epoch)
        begin = window * self.window
        end = min(begin + self.window, self.num_examples)
        blocks = slice(np.searchsorted(ends, begin, side="right"), np.searchsorted(begins, end))
        rows = [
            np.arange(max(begin, first), min(end, last)) + (start - first)
            for first, last, start in zip(begins[blocks], ends[blocks], stored[blocks], strict=True)
        ]
        stored = np.concatenate(rows)
        return stored[self._permutation(len(stored), stateless_random.WINDOW_ORDER, epoch, window)]

    def _permutation(self, length, domain, epoch, window=0):
        return stateless_random.permutation(length, self.seed, domain, epoch, window, self.host)

    def windows_from(self, position):
        """Yields `(epoch, window)` endlessly, from the window that contains a stream position."""
        epoch, window, _ = self.locate(position)
        while True:
            yield epoch, window
            window += 1
            if window == self.windows_per_epoch:
                epoch, window = epoch + 1, 0

    def stream(self, start, stop):
        """Returns the stored indices at stream positions [start, stop), int64."""
        indices = []
        for epoch, window in self.windows_from(start):
            first, _ = self.positions(epoch, window)
            if first >= stop:
                break
            indices.append(self.indices(epoch, window)[max(start - first, 0) : stop - first])
        return np.concatenate(indices) if indices else np.zeros(0, np.int64)
