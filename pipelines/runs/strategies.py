"""Names of distribution strategies -> `tf.distribute` strategies."""

import queue
import socket
import threading
import urllib.parse

import tensorflow as tf

from pipelines.config.names import STRATEGIES
from pipelines.errors import UserError
from pipelines.runs.progress import say

_TPU_TIMEOUT = 12  # Seconds.


def make_strategy(name="auto", logical_cpus=1, tpu="", zone=None, project=None):
    """Builds a strategy. Call it before anything touches a device.

    Args:
        name: "auto" (mirrored if there are several devices, else one), "one_device", "mirrored"
            (all GPUs, or all logical CPUs without GPUs) or "tpu".
        logical_cpus: number of devices to split the CPU into.
        tpu: name, address or "local" for `TPUClusterResolver`.
        zone: Cloud zone of the TPU.
        project: Cloud project of the TPU.

    Returns:
        A `tf.distribute.Strategy`.

    Raises:
        UserError: if the name is unknown or no TPU answers.
    """
    if name not in STRATEGIES:
        raise UserError(f"--strategy must be one of {', '.join(STRATEGIES)}. Received: {name}.")
    if logical_cpus < 1:
        raise UserError(f"--logical_cpus must be at least 1. Received: {logical_cpus}.")
    if name == "tpu":
        return _tpu_strategy(tpu, zone, project)
    if logical_cpus > 1:
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * logical_cpus
        )
    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    names = [device.name for device in devices]
    if name == "mirrored" or (name == "auto" and len(names) > 1):
        return _mirrored(names)
    return tf.distribute.OneDeviceStrategy(names[0])


def _mirrored(names):
    """One process, many devices; NCCL where they are GPUs.

    Elsewhere TensorFlow takes collective ops, which remember the shapes of the first model of a
    process, and are out of order after the first step that fails.
    """
    if "GPU" in names[0]:
        return tf.distribute.MirroredStrategy(names)
    return tf.distribute.MirroredStrategy(names, tf.distribute.ReductionToOneDevice())


def _tpu_strategy(tpu, zone, project):
    """Connects as TensorFlow documents it.

    Finding the TPU is bounded in time, because the resolver polls a metadata service for minutes
    where there is none. Initialising one that was found may take as long as it takes, but a failed
    initialisation never reaches TPUStrategy, which would die with an IndexError.
    """
    try:
        if tpu not in ("", "local"):
            # Remote workers cannot run the Python part of the input pipeline.
            say("images are read by this process: run it on the TPU's own host if it stands still")
        resolver = _within(_TPU_TIMEOUT, lambda: _resolve_tpu(tpu, zone, project))
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
    except Exception as error:  # The clients below raise many unrelated types.
        reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
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
    """`function()`, or TimeoutError; the thread left behind does not keep the process alive."""
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


def num_hosts(strategy) -> int:
    """How many hosts read data, each its slice of every global batch."""
    contexts = []

    def note(context):
        contexts.append(context)
        return tf.data.Dataset.range(context.num_replicas_in_sync)

    strategy.distribute_datasets_from_function(note)
    return contexts[0].num_input_pipelines


def describe(strategy) -> str:
    """One phrase for the user: how many replicas on which kind of device."""
    replicas = strategy.num_replicas_in_sync
    kind = strategy.extended.worker_devices[0].split(":")[-2]
    return f"{replicas} {'replica' if replicas == 1 else 'replicas'} on {kind}"
