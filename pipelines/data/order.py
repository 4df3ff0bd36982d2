"""Which example is in which slot of which batch, as pure functions: nothing to checkpoint.

The stored examples are cut into blocks. An epoch is a permutation of the blocks, cut into windows;
the examples within each window are shuffled. Epochs follow one another without a gap and form an
endless stream. A resumed run opens the right window directly and reads nothing before it.

`data.sharding` decides how streams fill the global batches of training:

global: one stream over all examples fills every batch: batch k of size B takes the offsets
    [k B, (k + 1) B) on any number of hosts. A host reads only its slice of each batch.
files: host h of H uses the shards (files of TFDS or TFRecord) h, h + H, ... only. It has its own
    stream over these shards, which fills its own slice of each batch. This suits many hosts with
    terabytes of data on slow disks. The order is reproducible for the same number of hosts. A host
    with fewer examples begins its next epoch earlier, so write files of equal length.

Every host holds up to two windows in memory: `data.shuffle_window` examples with `files`, its share
of as many with `global`. With one host, both are the same.
"""

import dataclasses
import functools
import math
from typing import NamedTuple

import numpy as np

from pipelines.data import stateless_random
from pipelines.errors import DataError

# A full window has at least this many blocks. More blocks mix better, but each read is shorter.
BLOCKS_PER_WINDOW = 16
# Rows of a window of an evaluation.
_EVAL_WINDOW = 1024


def spread(count, most):
    """At most `most` of `count` indices, evenly from the first to the last: int64 `[n]`."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


class Window(NamedTuple):
    """Examples that are read together, in the order in which they are yielded."""

    indices: np.ndarray  # int64 [n]: index of each row in its source, -1 for a padding row
    offsets: np.ndarray  # int64 [n]: place of each row in the stream of global batches


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
    """Order of an endless stream of epochs over all examples, or over one host's examples.

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

    def window_at(self, offset):
        """Returns `(epoch, window)` of an offset in the stream."""
        epoch, within = divmod(offset, self.num_examples)
        return epoch, within // self.window

    def offsets(self, epoch, window):
        """Returns the offsets `(start, stop)` in the stream that a window covers."""
        start = window * self.window
        stop = min(start + self.window, self.num_examples)
        return epoch * self.num_examples + start, epoch * self.num_examples + stop

    @functools.cached_property
    def _epochs(self):
        """The order of the blocks in the epochs that were used last, see `_ordered_blocks`."""
        return {}

    def _ordered_blocks(self, epoch):
        """Start and end in the epoch of its blocks, and their stored start, int64 arrays.

        A permutation of the 600,000 blocks of 300 million examples takes 60 ms, so the permutations
        of two epochs are kept.
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
        """Returns the indices of a window in training order, int64 `[length]`."""
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

    def windows_from(self, offset):
        """Yields `(epoch, window)` endlessly, from the window that contains an offset."""
        epoch, window = self.window_at(offset)
        while True:
            yield epoch, window
            window += 1
            if window == self.windows_per_epoch:
                epoch, window = epoch + 1, 0

    def stream(self, start, stop):
        """Returns the indices at the offsets [start, stop) of the stream, int64."""
        indices = []
        for epoch, window in self.windows_from(start):
            first, _ = self.offsets(epoch, window)
            if first >= stop:
                break
            indices.append(self.indices(epoch, window)[max(start - first, 0) : stop - first])
        return np.concatenate(indices) if indices else np.zeros(0, np.int64)


class TrainBatches:
    """The example in each slot of the global batches of training.

    Args:
        source: a `DataSource`.
        sampling: `config.data.Sampling`.
        hosts: number of hosts that read data; only used with sharding="files".

    Attributes:
        source, batch_size: as given.
        orders: the `TrainOrder`s that fill the batches: one, or one per host. Each fills a slice of
            `length` slots.

    Raises:
        DataError: if there are fewer shards than hosts.
        ValueError: if `hosts` does not divide the batch size, or a number is out of range.
    """

    def __init__(self, source, sampling, hosts=1):
        self.source, self.batch_size = source, sampling.batch_size
        hosts = hosts if sampling.sharding == "files" else 1
        if self.batch_size % hosts:
            raise ValueError(
                f"A batch of {self.batch_size} cannot be divided among {hosts} hosts. Expected a "
                f"multiple of {hosts}."
            )
        lengths = tuple(source.shard_lengths)
        if len(lengths) < hosts:
            fix = (
                "Choose a larger part with data.fraction or data.per_class"
                if source.setting
                else "Write it again as TFRecord with python -m pipelines.make_tfrecords "
                f"--shards {hosts} or more"
            )
            raise DataError(
                f"data.sharding=files needs a file for each of {hosts} hosts, but {source} has "
                f"{len(lengths)}. {fix}, or set data.sharding=global."
            )
        window, seed = sampling.shuffle_window, sampling.seed
        self.orders = [TrainOrder(lengths, window, seed, host, hosts) for host in range(hosts)]
        self.length = self.batch_size // hosts

    def indices(self, batch):
        """Returns the index in `source` of each slot of a batch, int64 `[batch_size]`."""
        begin, end = batch * self.length, (batch + 1) * self.length
        return np.concatenate([order.stream(begin, end) for order in self.orders])

    def windows(self, start=0, stop=None, host=0):
        """Yields the `Window`s from batch `start` on, up to batch `stop`, if any.

        With sharding="files", they belong to one host.
        """
        order = self.orders[host if len(self.orders) > 1 else 0]
        first = start * self.length
        last = math.inf if stop is None else stop * self.length
        for epoch, number in order.windows_from(first):
            begin, end = order.offsets(epoch, number)
            if begin >= last:
                return
            own = np.arange(max(begin, first), min(end, last))
            batches, slots = np.divmod(own, self.length)
            indices = order.indices(epoch, number)[own - begin]
            yield Window(indices, batches * self.batch_size + order.host * self.length + slots)

    def read_along(self, batches):
        """Yields arrays of the indices of all examples in the windows of some batches."""
        for order in self.orders:
            windows = {}
            for batch in batches:
                last = order.window_at((batch + 1) * self.length - 1)
                for window in order.windows_from(batch * self.length):
                    windows[window] = None
                    if window == last:
                        break
            yield from (order.indices(*window) for window in windows)

    def epoch(self, batch):
        """Returns the epoch of the first example of a batch; with "files", the epoch of host 0."""
        return self.orders[0].window_at(batch * self.length)[0]


class EvalBatches:
    """The example in each slot of the global batches of an evaluation.

    Batches have every example once, in stored order; the last one is padded. With `max_batches`,
    that many of them are left, spread evenly over the data; 0 keeps all.

    Args:
        source: a `DataSource`.
        batch_size: examples in a global batch.
        max_batches: see above.
    """

    def __init__(self, source, batch_size, max_batches=0):
        self.source, self.batch_size = source, batch_size
        every = -(-source.num_examples // batch_size)
        count = min(every, max_batches) if max_batches else every
        self._firsts = np.arange(count) * every // count * batch_size
        self.num_examples = min(source.num_examples, count * batch_size)

    def __len__(self):
        return len(self._firsts)

    def _at(self, batches, slots):
        indices = self._firsts[batches] + slots
        return np.where(indices < self.source.num_examples, indices, -1)

    def indices(self, batch):
        """Returns the index in `source` of each slot of a batch, -1 for padding; int64 `[B]`."""
        return self._at(batch, np.arange(self.batch_size))

    def windows(self):
        """Yields the `Window`s of all batches."""
        end = len(self) * self.batch_size
        for start in range(0, end, _EVAL_WINDOW):
            offsets = np.arange(start, min(start + _EVAL_WINDOW, end))
            yield Window(self._at(*np.divmod(offsets, self.batch_size)), offsets)

    def read_along(self, batches):
        """Returns nothing: a window has examples of the batches only."""
        del batches
        return ()


class HostSlice(NamedTuple):
    """The slots of every global batch that a host needs: [begin, end), divided among `replicas`.

    With `with_partners`, the host also needs the slot before `begin` (modulo the batch size), see
    `mixing.py`. With `mixes_alone`, the partner of the first row is instead the last row of the
    slice.
    """

    batch_size: int
    begin: int
    end: int
    replicas: int
    with_partners: bool
    mixes_alone: bool

    @property
    def has_neighbor(self):
        """Whether the partner of the first row belongs to another host."""
        is_part = self.end - self.begin < self.batch_size
        return self.with_partners and not self.mixes_alone and is_part

    @property
    def num_rows(self):
        """Number of examples read per global batch."""
        return self.end - self.begin + self.has_neighbor

    def select(self, window):
        """Returns a `Window` of the rows that the host needs."""
        slots = window.offsets % self.batch_size
        held = (slots >= self.begin) & (slots < self.end)
        if self.has_neighbor:
            held |= slots == (self.begin - 1) % self.batch_size
        return Window(window.indices[held], window.offsets[held])

    def own(self, column):
        """Returns the rows of the slice, without the neighbor, from the rows of a global batch."""
        # The neighbor is the first row, except on the first host, where it is the last row.
        skipped = int(self.has_neighbor and self.begin > 0)
        return column[skipped : skipped + self.end - self.begin]


def slice_of_host(batch_size, input_context=None, with_partners=False, mixes_alone=False):
    """Returns the `HostSlice` of a host.

    Args:
        batch_size: examples in a global batch.
        input_context: `tf.distribute.InputContext`; None for a single replica.
        with_partners: whether batches are mixed.
        mixes_alone: whether a host mixes only rows of its own slice, as with sharding="files".

    Raises:
        ValueError: if the number of replicas does not divide the batch size, or the number of hosts
            does not divide the number of replicas.
    """
    hosts, host, replicas = 1, 0, 1
    if input_context:
        hosts, host = input_context.num_input_pipelines, input_context.input_pipeline_id
        replicas = input_context.num_replicas_in_sync
    if batch_size < 1 or batch_size % replicas:
        raise ValueError(
            f"batch_size={batch_size} cannot be divided among {replicas} replicas. Expected a "
            f"positive multiple of {replicas}."
        )
    if replicas % hosts:
        raise ValueError(f"{replicas} replicas cannot be divided among {hosts} hosts.")
    length = batch_size // hosts
    begin = host * length
    return HostSlice(
        batch_size, begin, begin + length, replicas // hosts, with_partners, mixes_alone
    )
