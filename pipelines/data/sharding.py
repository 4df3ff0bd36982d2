"""Which examples fill the global batches (`data.sharding`), and which rows of them a host needs.

global: one order of all examples fills every batch, so batches are the same on any number of hosts.
    A host reads whole windows, but keeps only what belongs to its slice of each batch.
files: host h of H takes the shards (files of TFDS or TFRecord) h, h + H, ..., orders them by
    itself and fills its own slice of each batch. It reads nothing else, which suits pods that hold
    terabytes on slow disks; the order is reproducible for this number of hosts. Hosts whose files
    hold fewer examples begin their next epoch earlier, so write files of equal length.

Every host holds up to `data.shuffle_window` examples. With one host both are the same.
"""

import dataclasses
import math
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from pipelines.data.order import TrainOrder
from pipelines.data.prefetch import Window
from pipelines.errors import DataError

# Rows that are no farther apart are read in one range: a range costs as much as several rows.
_ROWS_READ_ALONG = 16


@dataclasses.dataclass(frozen=True)
class BatchSampler:
    """An order of examples, and the slice of every global batch that it fills.

    Attributes:
        order: a `TrainOrder`.
        batch_size: examples in a global batch.
        begin, length: it fills the places begin .. begin + length - 1.
    """

    order: TrainOrder
    batch_size: int
    begin: int
    length: int

    def indices(self, step):
        """Returns the stored indices that it adds to the batch of a step, int64 `[length]`."""
        return self.order.stream(step * self.length, (step + 1) * self.length)

    def windows(self, step, stop=None):
        """Yields the `Window`s from the batch of a step on.

        With `stop`, only those before the batch of that step, without stored ranges far from the
        rows that are left.
        """
        first = step * self.length
        last = math.inf if stop is None else stop * self.length
        for epoch, number in self.order.windows_from(first):
            start, end = self.order.positions(epoch, number)
            if start >= last:
                return
            own = np.arange(max(start, first), min(end, last))
            steps, places = np.divmod(own, self.length)
            indices = self.order.indices(epoch, number)[own - start]
            yield Window(
                self.order.ranges(epoch, number) if stop is None else _ranges_around(indices),
                indices,
                steps * self.batch_size + self.begin + places,
            )

    def epoch(self, step):
        """Returns the epoch of its first example in the batch of a step."""
        return self.order.locate(step * self.length).epoch


def _ranges_around(indices):
    """Returns stored ranges `[(start, stop), ...]` that hold some rows and few others."""
    stored = np.unique(indices)
    runs = np.split(stored, np.flatnonzero(np.diff(stored) > _ROWS_READ_ALONG) + 1)
    return [(int(run[0]), int(run[-1]) + 1) for run in runs]


def batch_samplers(source, sampling, hosts=1):
    """Returns what fills the global batches: one `BatchSampler`, or one for each host, in order.

    Args:
        source: a `DataSource`.
        sampling: `config.sampling.Sampling`.
        hosts: number of hosts; it matters with sharding="files" alone.

    Raises:
        DataError: if there are fewer shards than hosts.
        ValueError: if the hosts do not divide the batch, or a number is out of range.
    """
    lengths, batch_size = tuple(source.shard_lengths), sampling.batch_size
    if sampling.sharding == "global":
        order = TrainOrder(lengths, sampling.shuffle_window, sampling.seed)
        return [BatchSampler(order, batch_size, 0, batch_size)]
    if batch_size % hosts:
        raise ValueError(
            f"A batch of {batch_size} cannot be divided among {hosts} hosts. Expected a multiple "
            f"of {hosts}."
        )
    if len(lengths) < hosts:
        raise DataError(
            f"data.sharding=files needs a file for each of {hosts} hosts, and {source} has "
            f"{len(lengths)}. Write it anew as TFRecord with python -m pipelines.make_tfrecords "
            f"--shards {hosts} or more, or set data.sharding=global."
        )
    length = batch_size // hosts
    orders = [
        TrainOrder(lengths, sampling.shuffle_window, sampling.seed, host, hosts)
        for host in range(hosts)
    ]
    return [BatchSampler(order, batch_size, order.host * length, length) for order in orders]


class HostSlice(NamedTuple):
    """The rows of every global batch that a host needs: [begin, end), divided among `replicas`.

    With partners, also the row before them (modulo the batch size): see `mixing.py`. With
    `mixes_alone`, the first row has the last one of the slice for a partner instead.
    """

    batch_size: int
    begin: int
    end: int
    replicas: int
    with_partners: bool
    mixes_alone: bool

    @property
    def has_neighbour(self):
        """Whether the partner of the first example is an example of another host."""
        is_part = self.end - self.begin < self.batch_size
        return self.with_partners and not self.mixes_alone and is_part

    @property
    def num_rows(self):
        """Number of examples read per global batch."""
        return self.end - self.begin + self.has_neighbour

    def select(self, window):
        """Returns a `Window` of the rows that the host needs."""
        place = window.positions % self.batch_size
        held = (place >= self.begin) & (place < self.end)
        if self.has_neighbour:
            held |= place == (self.begin - 1) % self.batch_size
        return window._replace(indices=window.indices[held], positions=window.positions[held])

    def own(self, column):
        """Returns the slice itself of the rows of one global batch."""
        # In the order of the stream the neighbour comes first, except for the first host.
        skipped = int(self.has_neighbour and self.begin > 0)
        return column[skipped : skipped + self.end - self.begin]

    def partners(self, column):
        """Returns the row before each of `own`."""
        return self.own(tf.roll(column, 1, axis=0))


def slice_of_host(batch_size, input_context=None, with_partners=False, mixes_alone=False):
    """Returns the `HostSlice` of a host.

    Args:
        batch_size: examples in a global batch.
        input_context: `tf.distribute.InputContext`; None for a single replica.
        with_partners: whether batches are mixed.
        mixes_alone: whether a host mixes its slice by itself, as with sharding="files".

    Raises:
        ValueError: if the replicas do not divide the batch, or the hosts the replicas.
    """
    context = input_context or tf.distribute.InputContext()
    hosts, replicas = context.num_input_pipelines, context.num_replicas_in_sync
    if batch_size < 1 or batch_size % replicas:
        raise ValueError(
            f"batch_size={batch_size} cannot be divided among {replicas} replicas. Expected a "
            f"positive multiple of {replicas}."
        )
    if replicas % hosts:
        raise ValueError(f"{replicas} replicas cannot be divided among {hosts} hosts.")
    length = batch_size // hosts
    begin = context.input_pipeline_id * length
    return HostSlice(
        batch_size, begin, begin + length, replicas // hosts, with_partners, mixes_alone
    )
