"""The state of a training step beside model and optimizer, on all replicas.

Create its parts inside `strategy.scope()`.
"""

import numpy as np
import tensorflow as tf

from pipelines.training.optimization.replica_variables import (
    assign_on_all_replicas,
    replicated_variable,
)


class LogState:
    """The values of the next log line.

    A checkpoint holds the sums, so that a resumed run logs the same means.

    Attributes:
        loss_sum: sum of the losses since the last log line.
        skipped: number of steps since then that were skipped, because they were not finite or
            because the scaled gradient overflowed.
        gradient_norm: of the newest step that was applied.
    """

    def __init__(self):
        self.loss_sum = replicated_variable(0.0, "loss_sum")
        self.skipped = replicated_variable(tf.constant(0, tf.int64), "skipped")
        self.gradient_norm = replicated_variable(0.0, "gradient_norm")

    def updates(self, loss, norm, applied, overflowed):
        """Returns `(variable, value)` pairs after a step.

        Args:
            loss, norm: loss and norm of the gradient.
            applied: whether the weights have changed.
            overflowed: whether the scaled gradient overflowed; None without a loss scale.
        """
        skipped = tf.convert_to_tensor(self.skipped)
        if overflowed is not None:
            skipped += tf.cast(overflowed, tf.int64)
        return [
            (self.loss_sum, self.loss_sum + tf.where(applied, loss, 0.0)),
            (self.gradient_norm, tf.where(applied, norm, self.gradient_norm)),
            (self.skipped, skipped),
        ]

    def reset(self):
        """Sets the sums to 0, after a log line."""
        self.loss_sum.assign(0.0)
        self.skipped.assign(0)


class HaltState:
    """Whether a loop on the device has ended at a step that was not finite, for skip and rewind.

    Attributes:
        halted: scalar bool.
        loss_and_norm: of the newest step, finite or not; later steps of a halted loop do not change
            it.
    """

    def __init__(self):
        self.halted = replicated_variable(False, "halted")
        self.loss_and_norm = replicated_variable([0.0, 0.0], "last_loss_and_norm")

    def updates(self, loss, norm, done):
        """Returns `(variable, value)` pairs after a step; `done`: whether the loop goes on."""
        latest = tf.where(self.halted, self.loss_and_norm, tf.stack([loss, norm]))
        return [(self.loss_and_norm, latest), (self.halted, ~done)]


class BadRows:
    """The rows that `data.bad_images=skip` left out, kept on the devices until the host asks.

    A row is bad if it has an id but no weight. Each replica keeps its newest `_CAPACITY` bad rows.
    Create it inside `strategy.scope()`.
    """

    _CAPACITY = 1024

    def __init__(self, strategy):
        self._strategy = strategy
        own = {
            "trainable": False,
            "synchronization": tf.VariableSynchronization.ON_READ,
            "aggregation": tf.VariableAggregation.NONE,
        }
        zeros = tf.zeros([self._CAPACITY + 1, 2], tf.int64)  # The last row is not used.
        self._rows = tf.Variable(zeros, name="bad_rows", **own)
        self._count = tf.Variable(0, dtype=tf.int64, name="bad_rows_count", **own)
        self._seen = [0] * len(strategy.experimental_local_results(self._count))
        # Index of the first batch in which all rows of all replicas were bad; -1 for none.
        self._empty = replicated_variable(tf.constant(-1, tf.int64), "empty_batch")

    def add(self, batch, index, condition):
        """Notes the bad rows of a replica's slice of a global batch.

        Args:
            batch: the slice, with weight, id and slot.
            index: index of the global batch, scalar int64, equal on all replicas.
            condition: scalar bool; nothing is noted if it is false.
        """
        bad = (batch["weight"] == 0) & (batch["id"] >= 0) & condition
        number = self._count + tf.cumsum(tf.cast(bad, tf.int64), exclusive=True)
        own = tf.where(bad, number % self._CAPACITY, self._CAPACITY)
        slots = tf.cast(batch["slot"], tf.int64)
        rows = tf.stack([tf.fill(tf.shape(slots), index), slots], axis=1)
        self._rows.assign(tf.tensor_scatter_nd_update(self._rows, own[:, None], rows))
        self._count.assign_add(tf.reduce_sum(tf.cast(bad, tf.int64)))
        context = tf.distribute.get_replica_context()
        good = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.reduce_sum(batch["weight"]))
        is_first = (good == 0) & (self._empty < 0) & condition
        assign_on_all_replicas([(self._empty, tf.where(is_first, index, self._empty))])

    def empty_batch(self):
        """Index of the first batch without a single image; None if there is none."""
        index = int(self._empty.numpy())
        return None if index < 0 else index

    def restart(self):
        """Forgets which rows `take` has returned; its variables begin anew too."""
        self._seen = [0] * len(self._seen)

    def take(self):
        """The bad rows of this host since the last call.

        Returns:
            `(rows, lost)`: sorted pairs of a batch index and a slot, and the number of
            older rows that were overwritten.
        """
        rows, lost = [], 0
        local = self._strategy.experimental_local_results
        for replica, (stored, count) in enumerate(
            zip(local(self._rows), local(self._count), strict=True)
        ):
            first, last = self._seen[replica], int(count.numpy())
            kept = max(first, last - self._CAPACITY)
            lost += kept - first
            if kept < last:
                rows += stored.numpy()[np.arange(kept, last) % self._CAPACITY].tolist()
            self._seen[replica] = last
        return sorted(map(tuple, rows)), lost
