"""Builds `tf.distribute` strategies from their names."""

import dataclasses
import logging
import queue
import socket
import threading
import typing
import urllib.parse

import tensorflow as tf

from pipelines.config.names import Strategy
from pipelines.distribution import multi_worker
from pipelines.distribution.group import current_group
from pipelines.distribution.places import find
from pipelines.errors import UserError, counted

_log = logging.getLogger(__name__)

_TPU_TIMEOUT = 12  # Seconds.


@dataclasses.dataclass(frozen=True)
class Workers:
    """The flags of "multi_worker".

    Attributes:
        addresses: "host:port" of all workers, with commas between them; None: the environment
            names the workers.
        index: the number of this worker; None: the environment has it.
        wait: seconds to wait for the other workers.
    """

    addresses: str | None = None
    index: int | None = None
    wait: float = 300.0


def make_strategy(name="auto", logical_cpus=1, tpu="", zone=None, project=None, workers=Workers()):
    """Builds a strategy. Call it before TensorFlow uses any device.

    Args:
        name: "auto" (mirrored if there are several devices, else one_device), "one_device",
            "mirrored" (all GPUs; without GPUs, all logical CPUs), "multi_worker" (the same devices
            of every worker) or "tpu".
        logical_cpus: number of logical devices to split the CPU into.
        tpu: name, address or "local" for `TPUClusterResolver`.
        zone: Cloud zone of the TPU.
        project: Cloud project of the TPU.
        workers: `Workers`, for "multi_worker".

    Returns:
        A `tf.distribute.Strategy`.

    Raises:
        UserError: if the name is unknown, no TPU can be reached, or the workers are not as named.
        WorkerError: if a worker does not come.
    """
    if name not in (known := typing.get_args(Strategy)):
        raise UserError(f"--strategy must be one of {', '.join(known)}. Received: {name}.")
    if logical_cpus < 1:
        raise UserError(f"--logical_cpus must be at least 1. Received: {logical_cpus}.")
    place = None
    if name == "multi_worker":
        place = find(workers.addresses, workers.index)
    elif workers.addresses is not None or workers.index is not None:
        raise UserError(
            f"--workers and --worker_index need --strategy=multi_worker. Received: {name}."
        )
    for gpu in tf.config.list_physical_devices("GPU"):
        _grow_memory(gpu)
    if name == "tpu":
        return _tpu_strategy(tpu, zone, project)
    if logical_cpus > 1:
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * logical_cpus
        )
    if place is not None and place.count > 1:
        return multi_worker.connect(place, logical_cpus, workers.wait)
    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    names = [device.name for device in devices]
    # A single worker takes its devices as "auto" does.
    if name == "mirrored" or (name in ("auto", "multi_worker") and len(names) > 1):
        return _mirrored(names)
    return tf.distribute.OneDeviceStrategy(names[0])


def _grow_memory(gpu):
    """Lets TensorFlow take memory of a GPU as it needs it; by default it takes nearly all."""
    try:
        tf.config.experimental.set_memory_growth(gpu, True)
    except RuntimeError:  # The GPU is in use already: only in a process that has run TensorFlow.
        _log.info(f"{gpu.name} is in use: TensorFlow has taken its memory already")


def _mirrored(names):
    """Returns a strategy for several devices of one process; GPUs use NCCL.

    CPUs get `ReductionToOneDevice`. By default TensorFlow would use collective ops, which fail for
    a second model with other shapes in the same process, and after the first failed step.
    """
    if "GPU" in names[0]:
        return tf.distribute.MirroredStrategy(names)
    return tf.distribute.MirroredStrategy(names, tf.distribute.ReductionToOneDevice())


def _tpu_strategy(tpu, zone, project):
    """Connects to a TPU in the way that TensorFlow documents.

    Finding the TPU has a timeout, because without a TPU the resolver polls a metadata service for
    minutes. Initialization has no timeout. After a failed initialization TPUStrategy is not called,
    because it would raise an IndexError.
    """
    try:
        if tpu not in ("", "local"):
            _log.info(
                "the hosts of the TPU read the data: data.data_dir must be a folder that they can "
                "read, such as gs://bucket/data"
            )
        resolver = _within(_TPU_TIMEOUT, lambda: _resolve_tpu(tpu, zone, project))
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
    except Exception as error:  # TPU clients raise many unrelated types.
        # TensorFlow says first where the node of a graph was made, and then what failed.
        text = str(error).partition("<stack traces unavailable>\n")[2] or str(error)
        reason = (text or type(error).__name__).splitlines()[0].rstrip(". ")
        raise UserError(
            f"--strategy=tpu found no TPU (--tpu={tpu or 'not given'}): {reason}. Pass --tpu=NAME "
            "with --zone and --project, or --tpu=local on a TPU VM; without a TPU use "
            "--strategy=auto."
        ) from None


def _resolve_tpu(tpu, zone, project):
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
        tpu=tpu, zone=zone, project=project
    )
    address = urllib.parse.urlparse(resolver.master())
    if address.scheme == "grpc":
        socket.create_connection((address.hostname, address.port), _TPU_TIMEOUT).close()
    return resolver


def _within(seconds, function):
    """Returns `function()` or raises TimeoutError; a daemon thread runs the function."""
    outcome = queue.Queue()

    def attempt():
        try:
            outcome.put((function(), None))
        except BaseException as error:
            outcome.put((None, error))

    threading.Thread(target=attempt, daemon=True).start()
    try:
        result, error = outcome.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no answer within {seconds} seconds") from None
    if error is not None:
        raise error
    return result


def is_tpu(strategy) -> bool:
    """Whether the replicas of a strategy are cores of TPUs."""
    try:
        device = strategy.extended.worker_devices[0]
    except RuntimeError:  # TensorFlow's default strategy names no devices.
        return False
    return device.split(":")[-2] == "TPU"


def file_device(strategy) -> str | None:
    """The device of this process if it drives TPUs, whose variables are on hosts; else None.

    A host may have other folders than this process, and other rights.
    """
    return "/job:localhost" if is_tpu(strategy) else None


def num_hosts(strategy) -> int:
    """Returns the number of hosts that read data, each host its slice of every global batch."""
    contexts = []

    def note(context):
        contexts.append(context)
        return tf.data.Dataset.range(context.num_replicas_in_sync)

    strategy.distribute_datasets_from_function(note)
    return contexts[0].num_input_pipelines


def describe(strategy) -> str:
    """Returns a phrase for the log: the number of replicas, the kind of device, the workers."""
    replicas, workers = strategy.num_replicas_in_sync, current_group().count
    kind = strategy.extended.worker_devices[0].split(":")[-2]
    machines = f" of {counted(workers, 'worker')}" if workers > 1 else ""
    return f"{counted(replicas, 'replica')} on {kind}{machines}"
