"""Set-up of all tests: few log lines, fixed seeds, two CPU devices, data sets in a folder of tmp.

The environment is set before TensorFlow is imported, and the processes that tests start inherit it.
"""

import dataclasses
import gc
import os
import pathlib
import random
import shutil
import signal
import tempfile

import numpy as np
import pytest

from tests import fork_server, heavy, order
from tests.custom_ops import instruction_sets

# Hides TensorFlow's log lines; one of them is an error if there is no GPU. Exceptions are enough.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# As in commands (pipelines/distribution/onednn.py). 0 tests the products of TensorFlow itself.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
# Several test processes share the machine, and results must not depend on its number of cores.
os.environ["TF_NUM_INTRAOP_THREADS"] = "1"
os.environ["TF_NUM_INTEROP_THREADS"] = "2"
# Each process builds prepared data sets in its own folder, and reads none from the home folder.
_DATA_DIR = tempfile.mkdtemp(prefix="vit_tf_tests_")
os.environ["TFDS_DATA_DIR"] = _DATA_DIR
os.environ["KERAS_HOME"] = os.path.join(_DATA_DIR, "keras")
# A shell starts background jobs with SIGINT ignored. The programs that tests interrupt would
# inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
fork_server.environment = dict(os.environ)

NUM_CPU_DEVICES = 2
SEED = 20201022
GOLDEN = pathlib.Path(__file__).parent / "golden"


def pytest_addoption(parser):
    """Adds the choice of the heavy tests, and a random order of the files."""
    parser.addoption(
        "--heavy",
        type=heavy.choice,
        default="all",
        help="the heavy tests that run: all, changed (the groups that "
        "changed), none, only (and no other test), or the names of groups with commas between them",
    )
    parser.addoption(
        "--shuffle",
        metavar="SEED",
        help="start the test files in a random order, to find tests that depend on each other",
    )


def pytest_configure(config):
    """The first pytest process chooses the heavy groups."""
    if from_first := getattr(config, "workerinput", None):
        config.heavy_groups = from_first["heavy_groups"]
    else:
        config.heavy_groups = heavy.switched_on(config.getoption("heavy"))


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_configure_node(node):
    """Gives the groups to a worker of pytest-xdist: all of them must collect the same tests."""
    node.workerinput["heavy_groups"] = node.config.heavy_groups


def pytest_report_header(config):
    left_out = [group for group in heavy.GROUPS if group not in config.heavy_groups]
    return f"heavy groups left out: {', '.join(left_out) or 'none'}"


def pytest_terminal_summary(terminalreporter):
    """Names the instruction sets that no test runs here, since tests skip them without a word."""
    if names := instruction_sets.not_run():
        text = "kernels that no test runs on this processor, for want of its instruction set: "
        terminalreporter.write_line(text + ", ".join(names))


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
    tf.random.set_seed(SEED)
    _turn_autotuner_off(tf.data)


def _turn_autotuner_off(data):
    """Leaves out the autotuner of datasets for which the code has not chosen: of `fit`, of tests.

    Deleting an iterator can wait until its autotuner looks again: about as long as it has lived, at
    most a minute (TensorFlow 2.20). One in a cycle of garbage is deleted in some later test, which
    then waits.
    """
    iterate, off = data.Dataset.__iter__, data.Options()
    off.autotune.enabled = False

    def untuned(dataset):
        is_open = dataset.options().autotune.enabled is None
        return iterate(dataset.with_options(off) if is_open else dataset)

    data.Dataset.__iter__ = untuned


def pytest_ignore_collect(collection_path, config):
    """Spares each worker the imports of rooms whose groups are left out, a third of all files."""
    if collection_path.is_relative_to(heavy.ROOT):
        path = collection_path.relative_to(heavy.ROOT).as_posix()
        path += "/" * collection_path.is_dir()
        if heavy.is_left_out(path, config.heavy_groups):
            return True
    return None  # Other hooks decide.


def pytest_collection_finish():
    """Searches for garbage skip what the test modules have made: it stays until the end."""
    gc.freeze()


def pytest_collection_modifyitems(config, items):
    """Leaves out heavy groups, orders the files, skips tests of GPUs where there is none.

    A skipped test runs no fixture, so it costs almost nothing.
    """
    only = config.getoption("heavy") == "only"
    items[:], left_out = heavy.split(items, config.heavy_groups, only)
    config.hook.pytest_deselected(items=left_out)
    files = {item.nodeid.partition("::")[0]: None for item in items}
    starts = order.in_order(list(files), config.getoption("shuffle"))
    items.sort(key=lambda item: starts.index(item.nodeid.partition("::")[0]))
    # Those of tests/gpu need no TensorFlow; their conftest.py looks for a GPU.
    for_gpus = [
        item
        for item in items
        if item.get_closest_marker("gpu") and not item.nodeid.startswith("tests/gpu/")
    ]
    if not for_gpus:
        return
    import tensorflow as tf

    if not tf.config.list_physical_devices("GPU"):
        for item in for_gpus:
            item.add_marker(pytest.mark.skip(reason="needs a GPU, and TensorFlow finds none"))


def pytest_runtest_setup(item):
    """Leaves out a heavy test for which CI has no time."""
    if heavy.is_too_late(item):
        pytest.skip("heavy, and the time until VIT_HEAVY_UNTIL is over")


@pytest.fixture(autouse=True)
def fresh_state():
    """Seeds Python and NumPy before each test; restores global state after it.

    Keras draws the seeds of initial values and of random layers from Python. TensorFlow's seed is
    not set here, since setting it discards all kernels and optimized graphs: each test would make
    those of its ops, and of the functions that several tests call, again. So tests draw with NumPy,
    or without a state.
    """
    import keras
    from tensorflow.python.framework import config

    random.seed(SEED)
    np.random.seed(SEED)
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
