"""Variables of a training step on its replicas: whole on each of them, or in slices.

With `train.shard_optimizer`, each replica keeps and updates one slice of an array. The array is
flattened, padded with zeros to a multiple of the number of replicas, and cut into as many rows of
one length; row r belongs to replica r. Checkpoints hold the whole array, under the name and with
the dtype that a variable has there, so a run goes on with another number of replicas, and with or
without slices. TensorFlow has no public interface for an object that is several variables in memory
and one array in a checkpoint.
"""

import contextlib
import functools
import math

import tensorflow as tf
from tensorflow.python.trackable.base import Trackable  # noqa: TID251
from tensorflow.python.training.saving.saveable_object import SaveSpec  # noqa: TID251

from pipelines.distribution.group import current_group

_KEY = "VARIABLE_VALUE"  # The name of the value of a variable in a checkpoint.
# Bytes of the arrays that a device sums at a time when they are made whole.
_AT_A_TIME = 1 << 28


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


class Slices:
    """How the replicas of a strategy share arrays. Create it inside `strategy.scope()`.

    Args:
        strategy: the `tf.distribute.Strategy`.

    Attributes:
        count: number of replicas.
        local: indices of the replicas of this process.
    """

    def __init__(self, strategy):
        self._strategy, self.count = strategy, strategy.num_replicas_in_sync
        indices = strategy.experimental_distribute_values_from_function(
            lambda context: context.replica_id_in_sync_group
        )
        self.local = [int(index) for index in strategy.experimental_local_results(indices)]
        self._variables, self._functions = [], {}

    def length(self, shape) -> int:
        """Number of elements of each slice of an array of this shape."""
        return -(-math.prod(shape) // self.count)

    def variable(self, shape, dtype, name) -> "SlicedVariable":
        """Returns a variable of zeros; call it in the scope of the strategy."""
        self._variables.append(SlicedVariable(self, self._strategy, shape, dtype, name))
        return self._variables[-1]

    def rows(self, value):
        """An array as the slices of all replicas, `[count, length]`."""
        size, length = math.prod(value.shape), self.length(value.shape)
        flat = tf.reshape(value, [size])
        if missing := self.count * length - size:
            flat = tf.pad(flat, [[0, missing]])
        return tf.reshape(flat, [self.count, length])

    def sums(self, value, gradients):
        """Sums over replicas: of a scalar whole, of arrays the slice of this replica.

        Call it in replica context. Every replica sums all of the arrays and takes its slice, since
        TensorFlow's strategies have no reduce-scatter.

        Args:
            value: a scalar of each replica.
            gradients: list of arrays.

        Returns:
            `(sum, list of slices)`.
        """
        context = tf.distribute.get_replica_context()
        rows = [self.rows(gradient) for gradient in gradients]
        value, rows = context.all_reduce(tf.distribute.ReduceOp.SUM, (value, rows))
        return value, [self._own_row(row) for row in rows]

    def own(self, value):
        """The slice of this replica, `[length]`, of an array that all replicas have."""
        return self._own_row(self.rows(value))

    def global_norm(self, slices):
        """The joint norm of arrays in slices, one slice on each replica; equal on all replicas."""
        own = tf.add_n([tf.nn.l2_loss(part) for part in slices])
        context = tf.distribute.get_replica_context()
        return tf.sqrt(2 * context.all_reduce(tf.distribute.ReduceOp.SUM, own))

    def whole(self, slices, shapes):
        """Whole arrays on every replica, from the slices of all.

        A sum of rows that are zero but for the own one. TensorFlow packs the sums of several arrays
        into one; its all-gather sends each array alone, after its shape, and on TPUs is such a sum.

        Args:
            slices: list of slices of this replica, float32.
            shapes: list of the shapes of the arrays.

        Returns:
            List of tensors.
        """
        index = tf.distribute.get_replica_context().replica_id_in_sync_group
        is_own = tf.range(self.count)[:, None] == index
        rows = [tf.where(is_own, part[None], tf.zeros_like(part[None])) for part in slices]
        context = tf.distribute.get_replica_context()
        rows = context.all_reduce(tf.distribute.ReduceOp.SUM, rows)
        return [array_of(row, shape) for row, shape in zip(rows, shapes, strict=True)]

    @contextlib.contextmanager
    def gathered(self):
        """A context for writing a checkpoint: the chief has all of the arrays in its memory.

        Every worker enters it at the same time.
        """
        is_chief = current_group().is_chief
        try:
            for variable, value in zip(self._variables, self.wholes(self._variables), strict=True):
                variable.gathered = value if is_chief else None
            yield
        finally:
            for variable in self._variables:
                variable.gathered = None

    def wholes(self, variables):
        """Yields the whole array of each `SlicedVariable`, a tensor on the host.

        Every worker takes all of them at the same time.
        """
        if len(self.local) == self.count:
            yield from (variable.joined() for variable in variables)
            return
        for group in _groups(variables):
            key = tuple(variable.name for variable in group)
            if key not in self._functions:
                # One function for many arrays: each function takes long to trace.
                sums = functools.partial(self._sums_of, group)
                self._functions[key] = tf.function(sums, autograph=False)
            for value in self._functions[key]():
                with tf.device("CPU:0"):
                    whole = tf.identity(self._strategy.experimental_local_results(value)[0])
                yield whole

    def _sums_of(self, variables):
        def of_replica():
            # In float32, in which rings sum on every device; bfloat16 loses nothing.
            parts = [tf.cast(variable.own, tf.float32) for variable in variables]
            arrays = self.whole(parts, [variable.shape for variable in variables])
            return [tf.cast(x, y.dtype) for x, y in zip(arrays, variables, strict=True)]

        return self._strategy.run(of_replica)

    def _own_row(self, rows):
        index = tf.distribute.get_replica_context().replica_id_in_sync_group
        return tf.slice(rows, [index, 0], [1, rows.shape[1]])[0]


class SlicedVariable(Trackable):
    """One array in slices, one slice on each replica.

    Args:
        slices: the `Slices`.
        strategy: its strategy.
        shape, dtype: of the array.
        name: of the array.

    Attributes:
        own: variable with the slice of a replica; read and assign it in replica context.
        gathered: the whole array while a checkpoint is written, else None.
    """

    def __init__(self, slices, strategy, shape, dtype, name):
        self.shape, self.dtype, self.name = tuple(shape), tf.as_dtype(dtype), name
        self._slices, self._strategy = slices, strategy
        self.own = tf.Variable(
            tf.zeros([slices.length(self.shape)], self.dtype),
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.NONE,
            name=name,
        )
        self.gathered = None

    def assign(self, value):
        """Gives each replica of this process its slice of an array; not in replica context."""
        rows = self._slices.rows(tf.convert_to_tensor(value))
        for index, variable in zip(self._slices.local, self._local(), strict=True):
            variable.assign(rows[index])

    def joined(self):
        """The whole array, a tensor on the host, of slices that are all in this process."""
        with tf.device("CPU:0"):
            parts = [variable.read_value() for variable in self._local()]
            return array_of(tf.concat(parts, axis=0), self.shape)

    def _local(self):
        return self._strategy.experimental_local_results(self.own)

    def _serialize_to_tensors(self):
        """What a checkpoint holds of this object, by name; TensorFlow calls it."""

        def value():
            return self.joined() if self.gathered is None else self.gathered

        device = self._local()[0].device
        return {_KEY: SaveSpec(value, "", self.name, dtype=self.dtype, device=device)}

    def _restore_from_tensors(self, restored_tensors):
        """Takes what `_serialize_to_tensors` gave, from a checkpoint; TensorFlow calls it."""
        value = restored_tensors[_KEY]
        if tuple(value.shape) != self.shape:
            raise ValueError(
                f"the checkpoint has the shape {tuple(value.shape)} for {self.name}, not "
                f"{self.shape}"
            )
        self.assign(value)


def array_of(rows, shape):
    """The array of a shape from its slices, one after the other in `rows` of any shape."""
    return tf.reshape(tf.reshape(rows, [-1])[: math.prod(shape)], shape)


def _groups(variables):
    """Yields the variables in lists, each of at most `_AT_A_TIME` bytes or of one variable."""
    group, size = [], 0
    for variable in variables:
        own = math.prod(variable.shape) * tf.float32.size
        if group and size + own > _AT_A_TIME:
            yield group
            group, size = [], 0
        group.append(variable)
        size += own
    if group:
        yield group
