"""TensorFlow's strategy for several workers, each a process with its own devices.

Three things have no public interface: several CPUs of one worker, an end of the sums over replicas
when a worker is lost, and the time after which TensorFlow itself misses one.
"""

import contextlib
import logging
import signal
import threading

import tensorflow as tf
from tensorflow.compiler.xla.tsl.protobuf.coordination_config_pb2 import CoordinatedJob
from tensorflow.python.distribute import (  # noqa: TID251
    collective_all_reduce_strategy as implementation,
)
from tensorflow.python.eager import context  # noqa: TID251

from pipelines.distribution import onednn
from pipelines.distribution.group import set_current_group
from pipelines.distribution.joining import join
from pipelines.distribution.log_lines import name_process, only_warnings
from pipelines.distribution.sameness import program
from pipelines.errors import counted

_log = logging.getLogger(__name__)

# TensorFlow's own watch for lost workers is off. It would break the running sum over replicas
# without a sentence, and before `Group` knows the worker (TensorFlow 2.20: after 10 s without a
# heartbeat). It cannot replace that of `Group`: outside a sum nothing tells the main thread.
_NEVER = 7 * 24 * 3600 * 1000  # Milliseconds.


def connect(place, logical_cpus, wait):
    """Meets the other workers and returns the strategy for all of them.

    Call it before TensorFlow uses any device.

    Args:
        place: `Place` of this worker, of several.
        logical_cpus: number of logical CPUs of each worker, without GPUs.
        wait: seconds to wait for the others.

    Returns:
        A `tf.distribute.MultiWorkerMirroredStrategy`; `group.current_group` is then their group.

    Raises:
        UserError, WorkerError: as `join`.
    """
    gpus = len(tf.config.list_physical_devices("GPU"))
    devices = f"{gpus} GPU" if gpus else f"{logical_cpus} CPU"
    name_process(f"worker {place.index}: ")
    _log.info(f"waiting for {counted(place.count, 'worker')}: {', '.join(place.addresses)}")
    group = join(place, program(devices) | {"oneDNN": onednn.is_on()}, wait)
    set_current_group(group)
    if not group.is_chief:
        _log.info("all have come; worker 0 tells what all do, this one only warnings and errors")
        only_warnings()
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": list(place.addresses)}),
        task_type="worker",
        task_id=place.index,
        num_accelerators={"GPU": gpus},
        rpc_layer="grpc",
    )
    with group.explained(), _kept_sigterm():
        _configure_coordination(place)
        strategy = _Strategy(resolver, logical_cpus)
    # Every worker has as many batches as the others: padding is the input's.
    strategy.extended.experimental_enable_get_next_as_optional = False

    def abort(reason):
        context.context().abort_collective_ops(tf.errors.UNAVAILABLE, reason)

    group.abort = abort
    group.gather(None)
    return strategy


@contextlib.contextmanager
def _kept_sigterm():
    """Keeps what SIGTERM does.

    TensorFlow's coordination service handles it from its start on, and drops it, also while it
    waits in the block. Python does not notice: `signal.getsignal` answers as before (TensorFlow
    2.20).
    """
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        # None: a handler that is not Python's, which Python cannot set again.
        if threading.current_thread() is threading.main_thread() and before is not None:
            signal.signal(signal.SIGTERM, before)


def _configure_coordination(place):
    """Switches off TensorFlow's watch for lost workers."""
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader="/job:worker/replica:0/task:0",
        heartbeat_timeout_in_ms=_NEVER,
        coordinated_jobs=[CoordinatedJob(name="worker", num_tasks=place.count)],
    )


class _Extended(implementation.CollectiveAllReduceExtended):
    """TensorFlow's implementation, which would take one logical CPU of each worker only."""

    def __init__(self, strategy, resolver, logical_cpus):
        self._logical_cpus = logical_cpus
        super().__init__(
            strategy,
            cluster_resolver=resolver,
            communication_options=tf.distribute.experimental.CommunicationOptions(),
        )

    def _initialize_local_devices(self, cluster_resolver, worker_device):
        devices, kind = super()._initialize_local_devices(cluster_resolver, worker_device)
        if kind == "CPU":
            numbers = range(self._logical_cpus)
            devices = tuple(f"{worker_device}/device:CPU:{number}" for number in numbers)
        return devices, kind


class _Strategy(tf.distribute.MultiWorkerMirroredStrategy):
    """The strategy with `_Extended`."""

    def __init__(self, resolver, logical_cpus):
        tf.distribute.Strategy.__init__(self, _Extended(self, resolver, logical_cpus))
