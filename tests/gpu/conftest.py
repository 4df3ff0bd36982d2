"""The kernels as functions of PyTorch tensors; a reason to skip where the machine lacks something.

`VIT_CUDA_MODULE` names a module other than the one that `custom_ops.build_ops` built.
"""

import ctypes
import os
import pathlib

import pytest

from tests.checkout import ROOT


def missing():
    """What the machine lacks for the tests of this folder, "" for nothing."""
    try:
        code = ctypes.CDLL("libcuda.so.1").cuInit(0)
    except OSError:
        return "needs an NVIDIA GPU, and there is no driver (libcuda.so.1)"
    if code:
        return f"needs an NVIDIA GPU, and the driver finds none that works: CUDA error {code}"
    if not module_path():
        return "needs _vit_cuda, which `python -m custom_ops.build_ops` builds with nvcc, pybind11"
    return ""


def module_path():
    """Path of `_vit_cuda`, "" without one."""
    found = sorted(map(str, (ROOT / "custom_ops").glob("_vit_cuda*.so")))
    return os.environ.get("VIT_CUDA_MODULE") or (found or [""])[0]


def pytest_collection_modifyitems(items):
    """Skips the tests for GPUs with one reason. Warnings of PyTorch and JAX are no errors."""
    own = [x for x in items if pathlib.Path(x.path).is_relative_to(pathlib.Path(__file__).parent)]
    for_gpus = [item for item in own if item.get_closest_marker("gpu")]
    reason = missing() if for_gpus else ""
    for item in for_gpus:
        item.add_marker(pytest.mark.filterwarnings("default"))
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def module():
    from tests.gpu.small_shapes import load_module

    return load_module(module_path())


@pytest.fixture(scope="session")
def session_kernels(module):
    torch = pytest.importorskip("torch", reason="needs PyTorch for CUDA")
    if not torch.cuda.is_available():
        pytest.skip(f"PyTorch {torch.__version__} finds no GPU")
    from tests.gpu.kernels import Kernels, exact_products

    exact_products()
    return Kernels(module)


@pytest.fixture
def kernels(session_kernels):
    """`Kernels`; ends the process after an error of CUDA, since all later tests would fail too."""
    import torch

    yield session_kernels
    try:
        torch.cuda.synchronize()
        torch.zeros(1, device="cuda").item()
    except RuntimeError as error:
        pytest.exit(f"the GPU cannot be used any more after this test: {error}", returncode=1)
    # Memory that PyTorch keeps for later tensors may be most of it.
    torch.cuda.empty_cache()
