"""Names of strategies in this process; `test_commands.py` tests the TPU."""

import re
import socket
import types

import pytest
import tensorflow as tf

from pipelines.distribution import strategies
from pipelines.errors import UserError


def test_auto_is_mirrored_when_there_are_two_devices():
    assert strategies.make_strategy("auto").num_replicas_in_sync == 2
    assert strategies.make_strategy("mirrored").num_replicas_in_sync == 2


def test_one_device_is_one():
    strategy = strategies.make_strategy("one_device")
    assert strategy.num_replicas_in_sync == 1
    assert strategies.describe(strategy) == "1 replica on CPU"
    assert strategies.describe(strategies.make_strategy("mirrored")) == "2 replicas on CPU"


def test_gpus_get_memory_as_it_is_needed(monkeypatch, logged):
    gpus = [tf.config.PhysicalDevice(f"/physical_device:GPU:{i}", "GPU") for i in range(2)]
    calls = []

    def set_memory_growth(gpu, enable):
        calls.append((gpu, enable))
        if gpu is gpus[1]:
            raise RuntimeError("Physical devices cannot be modified after being initialized")

    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: gpus)
    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", set_memory_growth)
    strategies.make_strategy("one_device")
    assert calls == [(gpus[0], True), (gpus[1], True)]
    assert "GPU:1 is in use" in logged.take()


def test_every_strategy_here_reads_on_one_host():
    for name in ("one_device", "mirrored"):
        assert strategies.num_hosts(strategies.make_strategy(name)) == 1


def test_unknown_name():
    with pytest.raises(UserError, match="--strategy must be one of auto.*Received: mirror"):
        strategies.make_strategy("mirror")


def test_a_silent_address_is_given_up(monkeypatch):
    """The host accepts no connection: the search ends after a timeout."""
    monkeypatch.setattr(strategies, "_TPU_TIMEOUT", 1)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        address = f"grpc://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(UserError, match="found no TPU"):
            strategies.make_strategy("tpu", tpu=address)


def test_an_address_that_refuses_is_no_tpu():
    with pytest.raises(UserError, match="found no TPU .--tpu=grpc://127.0.0.1:1.*--strategy=auto"):
        strategies.make_strategy("tpu", tpu="grpc://127.0.0.1:1")


def test_a_hanging_search_is_given_up():
    import threading

    with pytest.raises(TimeoutError, match="no answer within 0.2 seconds"):
        strategies._within(0.2, threading.Event().wait)
    assert strategies._within(5, lambda: 3) == 3
    with pytest.raises(KeyError):
        strategies._within(5, lambda: {}["a"])


# Errors of initialization without a TPU, in `tensorflow` and in `tensorflow-tpu`.
NO_KERNEL = "TPUs not found in the cluster. Failed in initialization: No OpKernel was registered."
NO_PLATFORM = """Graph execution error:

Detected at node disconnect_tpu_host/_1 defined at (most recent call last):
<stack traces unavailable>
RET_CHECK failure (tpu_node_interfaces.cc:432) *platform\x20
\t [[{{node disconnect_tpu_host/_1}}]] [Op:__inference__tpu_init_fn_4]"""


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (tf.errors.NotFoundError(None, None, NO_KERNEL), NO_KERNEL.rstrip(".")),
        (tf.errors.InternalError(None, None, NO_PLATFORM), NO_PLATFORM.splitlines()[-2].rstrip()),
    ],
)
def test_after_a_failed_initialization_no_strategy_is_made(monkeypatch, error, reason):
    def fail(resolver):
        raise error

    monkeypatch.setattr(tf.config, "experimental_connect_to_cluster", lambda resolver: None)
    monkeypatch.setattr(tf.tpu.experimental, "initialize_tpu_system", fail)
    monkeypatch.setattr(tf.distribute, "TPUStrategy", None)
    message = f"found no TPU (--tpu=local): {reason}. Pass --tpu=NAME"
    with pytest.raises(UserError, match=re.escape(message)):
        strategies.make_strategy("tpu", tpu="local")


def test_which_strategies_are_of_tpus(monkeypatch):
    assert not strategies.is_tpu(strategies.make_strategy("one_device"))
    devices = [f"/job:worker/replica:0/task:0/device:TPU:{core}" for core in range(2)]
    extended = types.SimpleNamespace(worker_devices=devices)
    assert strategies.is_tpu(types.SimpleNamespace(extended=extended))
