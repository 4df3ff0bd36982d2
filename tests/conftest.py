"""Set-up of all tests: few log lines, fixed seeds, two CPU devices, no files outside tmp.

The environment is set before TensorFlow is imported, and the processes that tests start inherit it.
"""

import dataclasses
import os
import pathlib
import shutil
import tempfile

import numpy as np
import pytest

from tests.durations import Durations

# Hides TensorFlow's log lines, one of which is an error if there is no GPU. Exceptions are enough.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Several test processes share the machine, and results must not depend on its number of cores.
os.environ["TF_NUM_INTRAOP_THREADS"] = "1"
os.environ["TF_NUM_INTEROP_THREADS"] = "2"
# Each process builds prepared data sets in its own folder, and neither reads nor writes the home
# folder.
_DATA_DIR = tempfile.mkdtemp(prefix="vit_tf_tests_")
os.environ["TFDS_DATA_DIR"] = _DATA_DIR
os.environ["KERAS_HOME"] = os.path.join(_DATA_DIR, "keras")

NUM_CPU_DEVICES = 2
GOLDEN = pathlib.Path(__file__).parent / "golden"


def pytest_configure(config):
    """Records durations, in the pytest process that collects all reports."""
    if not hasattr(config, "workerinput"):
        path = pathlib.Path(__file__).parent.parent / "build" / "test-durations.json"
        config.pluginmanager.register(Durations(path))


def pytest_unconfigure():
    shutil.rmtree(_DATA_DIR, ignore_errors=True)


def pytest_sessionstart(session):
    """Splits the CPU in two, so that mirrored training runs in the test process.

    This comes before the test modules are imported, since they may make tensors in their lists of
    parameters, and devices cannot be changed after that.
    """
    if session.config.getoption("dist", "no") != "no":
        return  # The tests run in the worker processes of pytest-xdist, not in this one.
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    parts = [tf.config.LogicalDeviceConfiguration()] * NUM_CPU_DEVICES
    tf.config.set_logical_device_configuration(cpu, parts)
    tf.config.experimental.enable_tensor_float_32_execution(False)


def pytest_collection_modifyitems(items):
    """Moves the files that start processes to the front; skips tests marked `gpu` without a GPU.

    Most of the files take long. At the end, one would run alone while the other workers are idle.
    A skipped test runs no fixture, so it costs almost nothing.
    """
    files = {item.path for item in items if item.get_closest_marker("process")}
    items.sort(key=lambda item: item.path not in files)
    for_gpus = [item for item in items if item.get_closest_marker("gpu")]
    if not for_gpus:
        return
    import tensorflow as tf

    if not tf.config.list_physical_devices("GPU"):
        for item in for_gpus:
            item.add_marker(pytest.mark.skip(reason="needs a GPU, and TensorFlow finds none"))


@pytest.fixture(autouse=True)
def fresh_state():
    """Seeds Python, NumPy and TensorFlow before each test; restores global state after it."""
    import keras
    from tensorflow.python.framework import config

    keras.utils.set_random_seed(20201022)
    policy = keras.config.dtype_policy()
    yield
    keras.config.set_dtype_policy(policy)
    if config.is_op_determinism_enabled():  # set by train.deterministic; Keras then rejects XLA
        config.disable_op_determinism()


@pytest.fixture
def without_xla_library(monkeypatch):
    """The state of a process whose compiled ops XLA cannot compile."""
    from custom_ops import loader

    reason = (
        "the library for XLA has not been built. Build it with `python -m custom_ops.build_ops`"
    )
    xla = loader.XlaLibrary(reason=reason)
    monkeypatch.setattr(loader, "_library", dataclasses.replace(loader.library(), xla=xla))


@pytest.fixture
def golden():
    """`golden(name)`: the arrays of `tests/golden/<name>.npz` as a dictionary."""

    def load(name):
        with np.load(GOLDEN / f"{name}.npz", allow_pickle=False) as file:
            return dict(file)

    return load
