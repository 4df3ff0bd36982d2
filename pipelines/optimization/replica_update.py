"""Variables of a training step, and updates of them, on all replicas."""

import numpy as np
import tensorflow as tf


def replicated_variable(value, name):
    """Returns a variable that is not trained; create it inside `strategy.scope()`."""
    return tf.Variable(
        value,
        trainable=False,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        name=name,
    )


def update_on_all_replicas(update, condition, *values):
    """Calls `update(extended, *values)` once for all replicas if `condition`, without a collective.

    Call it in replica context, inside `strategy.run`. One branch holds the updates of all
    variables: a `tf.where` for each would read and write all weights and slots again, which takes
    2 % of a step (ViT-Ti/16, batch 8, 2 CPU cores, 2026-11-20).

    Args:
        update: function of the `tf.distribute.StrategyExtended`, whose `update` changes a variable
            on its devices, and of `values`; returns nothing.
        condition: scalar bool, equal on all replicas.
        values: nested lists and tuples of tensors, one per replica.
    """

    def in_cross_replica_context(strategy, condition, *values):
        condition = tf.convert_to_tensor(strategy.experimental_local_results(condition)[0])
        tf.cond(condition, lambda: update(strategy.extended, *values), lambda: None)

    context = tf.distribute.get_replica_context()
    context.merge_call(in_cross_replica_context, args=(condition, *values))


def assign_on_all_replicas(assignments, condition=None):
    """Assigns values to variables; call it like `update_on_all_replicas`.

    Args:
        assignments: list of `(tf.Variable, tensor)`; each tensor is equal on all replicas.
        condition: scalar bool, equal on all replicas; None assigns always.
    """
    variables, values = zip(*assignments, strict=True)

    def assign_all(extended, values):
        for variable, value in zip(variables, values, strict=True):
            extended.update(variable, _assign, args=(value,), group=False)

    if condition is not None:
        update_on_all_replicas(assign_all, condition, values)
        return
    tf.distribute.get_replica_context().merge_call(
        lambda strategy, values: assign_all(strategy.extended, values), args=(values,)
    )


def _assign(variable, value):
    variable.assign(value)


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
            batch: the slice, with weight, id and position.
            index: index of the global batch, scalar int64, equal on all replicas.
            condition: scalar bool; nothing is noted if it is false.
        """
        bad = (batch["weight"] == 0) & (batch["id"] >= 0) & condition
        number = self._count + tf.cumsum(tf.cast(bad, tf.int64), exclusive=True)
        place = tf.where(bad, number % self._CAPACITY, self._CAPACITY)
        position = tf.cast(batch["position"], tf.int64)
        rows = tf.stack([tf.fill(tf.shape(position), index), position], axis=1)
        self._rows.assign(tf.tensor_scatter_nd_update(self._rows, place[:, None], rows))
        self._count.assign_add(tf.reduce_sum(tf.cast(bad, tf.int64)))
        context = tf.distribute.get_replica_context()
        good = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.reduce_sum(batch["weight"]))
        is_first = (good == 0) & (self._empty < 0) & condition
        assign_on_all_replicas([(self._empty, tf.where(is_first, index, self._empty))])

    def empty_batch(self):
        """Index of the first batch without a single image; None if there is none."""
        index = int(self._empty.numpy())
        return None if index < 0 else index

    def take(self):
        """The bad rows of this host since the last call.

        Returns:
            `(rows, lost)`: sorted pairs of batch index and position in the global batch, and the
            number of older rows that were overwritten.
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
