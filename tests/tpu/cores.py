"""One core of several, for lowering a step with its sums over the cores."""

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops.gen_xla_ops import xla_all_reduce, xla_replica_id
from tensorflow.python.distribute.one_device_strategy import OneDeviceExtended


class OneCore(tf.distribute.Strategy):
    """Traces a step as a core of a TPU runs it; nothing can run under this strategy.

    The step finds itself on one of several replicas, and each sum over them becomes a collective
    operation of XLA. `TPUStrategy` does the same with an op that TensorFlow lowers for TPUs only.

    Args:
        cores: number of replicas.
    """

    def __init__(self, cores):
        super().__init__(_OneCoreExtended(self, cores))


class _OneCoreExtended(OneDeviceExtended):
    def __init__(self, strategy, cores):
        super().__init__(strategy, "CPU:0")
        self._cores = cores

    @property
    def _num_replicas_in_sync(self):
        return self._cores

    def _call_for_each_replica(self, fn, args, kwargs):
        strategy = self._container_strategy()
        context = tf.distribute.ReplicaContext(strategy, xla_replica_id())
        with tf.device(self._device), context:
            return fn(*args, **kwargs)

    def _experimental_distribute_values_from_function(self, value_fn):
        return value_fn(tf.distribute.experimental.ValueContext(0, self._cores))

    def _reduce_to(self, reduce_op, value, destinations, options):
        del destinations, options
        if reduce_op != tf.distribute.ReduceOp.SUM:
            raise NotImplementedError(f"Expected sums over the cores. Received: {reduce_op}.")
        return xla_all_reduce(
            input=value,
            group_assignment=[list(range(self._cores))],
            reduce_op="Add",
            mode="CrossReplica",
        )
