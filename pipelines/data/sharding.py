"""Decides which examples fill the global batches (`data.sharding`), and which rows a host needs.

global: one order over all examples fills every batch, so batches are the same on any number of
    hosts. A host reads only the examples of its slice of each batch.
files: host h of H uses the shards (files of TFDS or TFRecord) h, h + H, ... only. It has its own
    order over these shards and fills its own slice of each batch. This suits many hosts with
    terabytes of data on slow disks. The order is reproducible for the same number of hosts. A host
    with fewer examples begins its next epoch earlier, so write files of equal length.

Every host holds up to two windows in memory: `data.shuffle_window` examples with `files`, its share
of as many with `global`. With one host, both are the same.
"""

import dataclasses
import math
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from pipelines.data.order import TrainOrder
from pipelines.data.reading import Window
from pipelines.errors import DataError


@dataclasses.dataclass(frozen=True)
class BatchSampler:
    """An order of examples, and the slice of every global batch that it fills.

    Attributes:
        order: a `TrainOrder`.
        batch_size: examples in a global batch.
        begin, length: the order fills the places begin .. begin + length - 1 of each batch.
    """

    order: TrainOrder
    batch_size: int
    begin: int
    length: int

    def indices(self, step):
        """Returns the stored indices of its examples in the batch of a step, int64 `[length]`."""
        return self.order.stream(step * self.length, (step + 1) * self.length)

    def windows(self, step, stop=None):
        """Yields the `Window`s from the batch of a step on, up to that of step `stop`, if any."""
        first = step * self.length
        last = math.inf if stop is None else stop * self.length
        for epoch, number in self.order.windows_from(first):
            start, end = self.order.positions(epoch, number)
            if start >= last:
                return
            own = np.arange(max(start, first), min(end, last))
            steps, places = np.divmod(own, self.length)
            indices = self.order.indices(epoch, number)[own - start]
            yield Window(indices, steps * self.batch_size + self.begin + places)

    def epoch(self, step):
        """Returns the epoch of the sampler's first example in the batch of a step."""
        return self.order.locate(step * self.length).epoch


def batch_samplers(source, sampling, hosts=1):
    """Returns the `BatchSampler`s that fill the global batches: one, or one per host, in order.

    Args:
        source: a `DataSource`.
        sampling: `config.data.Sampling`.
        hosts: number of hosts; only used with sharding="files".

    Raises:
        DataError: if there are fewer shards than hosts.
        ValueError: if `hosts` does not divide the batch size, or a number is out of range.
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
    length = batch_size // hosts
    orders = [
        TrainOrder(lengths, sampling.shuffle_window, sampling.seed, host, hosts)
        for host in range(hosts)
    ]
    return [BatchSampler(order, batch_size, order.host * length, length) for order in orders]


class HostSlice(NamedTuple):
    """The rows of every global batch that a host needs: [begin, end), divided among `replicas`.

    With `with_partners`, the host also needs the row before `begin` (modulo the batch size), see
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
        place = window.positions % self.batch_size
        held = (place >= self.begin) & (place < self.end)
        if self.has_neighbor:
            held |= place == (self.begin - 1) % self.batch_size
        return Window(window.indices[held], window.positions[held])

    def own(self, column):
        """Returns the rows of the slice, without the neighbor, from those of one global batch."""
        # The neighbor is the first row, except on the first host, where it is the last row.
        skipped = int(self.has_neighbor and self.begin > 0)
        return column[skipped : skipped + self.end - self.begin]

    def partners(self, column):
        """Returns the partner of each row of `own`: the row before it."""
        return self.own(tf.roll(column, 1, axis=0))


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
