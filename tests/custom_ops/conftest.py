"""Fixtures for all tests of the ops."""

import os

import pytest

from custom_ops import build_ops, loader
from custom_ops.building import build_plan
from tests.custom_ops import tiny_package


def pytest_generate_tests(metafunc):
    """Gives tests marked `each_device` a case on the CPU and one on a GPU."""
    if metafunc.definition.get_closest_marker("each_device"):
        metafunc.fixturenames.append("device")
        devices = ["CPU", pytest.param("GPU", marks=pytest.mark.gpu)]
        metafunc.parametrize("device", devices, indirect=True)


@pytest.fixture
def device(request):
    """Runs a test on the first CPU or GPU; `compare` checks that the compiled ops ran there."""
    import tensorflow as tf

    import custom_ops

    if request.param == "GPU" and not custom_ops.describe()["cuda_archs"]:
        pytest.skip("needs compiled ops for GPUs; custom_ops.build_ops builds them with nvcc")
    with tf.device(f"{request.param}:0"):
        yield request.param


@pytest.fixture(autouse=True)
def best_isa():
    """Restores the instruction set after a test that chose another one."""
    yield
    if loader.is_compiled():
        loader.library().choose_isa(os.environ.get("VIT_ISA", ""))


@pytest.fixture
def auto(monkeypatch):
    """Unsets the choices of an implementation and of an instruction set, as for most users."""
    monkeypatch.delenv("VIT_OPS", raising=False)
    monkeypatch.delenv("VIT_ISA", raising=False)
    assert loader.is_compiled(), loader.library().reason


@pytest.fixture(params=["reference", "compiled"])
def each_implementation(request, monkeypatch, auto):
    """Runs a test once with plain TensorFlow and once with the compiled library."""
    monkeypatch.setenv("VIT_OPS", request.param)
    return request.param


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of a few tiny sources in a checkout, and the dict that `probe` returns for it."""
    folder = tmp_path / "custom_ops"
    target = tiny_package.write(folder)
    for module in (build_plan, build_ops):
        monkeypatch.setattr(module, "PACKAGE", folder)
        monkeypatch.setattr(module, "probe", lambda: target, raising=False)
    for name in ("CXX", "CUDA_HOME", "VIT_CUDA_ARCHS", "VIT_OPS_LIBRARY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VIT_CUDA", "0")
    return folder, target
