"""The kernels for GPUs are compiled without a warning, and the libraries load without a GPU."""

import ctypes
import json
import shutil
import subprocess

import pytest

from custom_ops import build_ops, library_file
from custom_ops.building import build_plan, ninja_build, resources, toolkit
from tests.checkout import ROOT
from tests.custom_ops import cuda_compiler
from tests.custom_ops.process import run_python
from tests.gpu import jax_check


@pytest.fixture
def cuda(monkeypatch):
    """Returns a function that chooses a CUDA compiler and gives the toolkit for some GPUs."""
    monkeypatch.delenv("VIT_CUDA", raising=False)

    def choose(archs, home=cuda_compiler.home):
        monkeypatch.setenv("CUDA_HOME", home())
        monkeypatch.setenv("VIT_CUDA_ARCHS", archs)
        found = toolkit.find()
        assert isinstance(found, toolkit.Toolkit), found
        return found

    return choose


def compile_kernels(cuda, folder):
    """Compiles what the cache lacks; checks what nvcc said, and returns the object files.

    No kernel of a tuned size spills a register.
    """
    compiler = build_plan.find_compiler()
    units = build_plan.plan({}, compiler, cuda)["cuda"]
    files = ninja_build.compile_units(compiler, units, folder)
    tuned = []
    for unit in units:
        if unit.compiler:
            log = ninja_build.log_of(files[unit]).read_text()
            kernels, others = resources.parse(log)
            assert others == [], unit.source
            assert {kernel.arch for kernel in kernels} <= set(cuda.archs)
            tuned += [kernel for kernel in kernels if resources.TUNED.search(kernel.name)]
    assert {kernel.arch for kernel in tuned} == set(cuda.archs)
    assert [kernel for kernel in tuned if kernel.spilled] == []
    return {unit.source: path for unit, path in files.items()}


@pytest.mark.process
@pytest.mark.heavy("compilers")
def test_the_libraries_have_kernels_for_gpus_and_load_without_one(cuda, tmp_path):
    """For sm_90a and PTX. Where nvcc is installed, `make setup` has compiled the same."""
    kernels = cuda("90a")
    compile_kernels(kernels, ninja_build.folder())
    path = tmp_path / library_file.NAME
    written = build_ops.build(path, tmp_path)
    assert library_file.for_xla(path) in written
    for library in written:
        if "_vit_kernels" not in library.name:
            done = subprocess.run(["readelf", "-d", library], capture_output=True, text=True)
            needed = [line for line in done.stdout.splitlines() if "NEEDED" in line]
            assert needed and not [line for line in needed if "cuda" in line or "nvidia" in line]
    said = run_python("registered_devices.py", VIT_OPS_LIBRARY=str(path))
    archs, devices, of_float64 = json.loads(said.splitlines()[-1])
    assert archs == ["90a", "PTX"]
    for op in ("VitEncoder", "VitRotaryEncoder"):
        assert devices.pop(op) == ["CPU", "XLA_CPU_JIT"]
        del of_float64[op]
    everywhere = ["CPU", "GPU", "XLA_CPU_JIT", "XLA_GPU_JIT"]
    assert all(found == everywhere for found in devices.values())
    # Kernels that only copy take every type.
    for op, found in of_float64.items():
        assert found == (everywhere if "Extract" in op else ["CPU", "XLA_CPU_JIT"]), op


@pytest.mark.process
@pytest.mark.heavy("compilers")
def test_a_library_for_jax_has_the_handlers_of_gpus(cuda, tmp_path):
    """With the headers of XLA that TensorFlow brings: they are the same."""
    compile_kernels(cuda("90a"), ninja_build.folder())
    [include] = [x[2:] for x in build_plan.probe()["tensorflow"]["compile"] if x.startswith("-I")]
    path = build_ops.build_jax_library("CUDA", tmp_path, [].append, include)
    find = ctypes.CDLL(str(path)).vit_ops_handler
    find.argtypes, find.restype = [ctypes.c_char_p], ctypes.c_void_p
    addresses = {find(name.encode()) for name in jax_check.OPS}
    assert None not in addresses and len(addresses) == len(jax_check.OPS)


@pytest.mark.process
@pytest.mark.heavy("compilers")
def test_two_builds_of_the_module_load_into_a_process(cuda, tmp_path):
    compile_kernels(cuda("90a"), ninja_build.folder())
    path = build_ops.build_cuda_module(tmp_path, [].append)
    (tmp_path / "fast").mkdir()
    other = shutil.copy(path, tmp_path / "fast")
    assert run_python("two_cuda_modules.py", path, other) == "True\n"


@pytest.mark.process
@pytest.mark.heavy("compilers")
def test_a_driver_that_does_not_fit_is_explained(cuda, tmp_path):
    kernels = cuda("90a")
    source = ROOT / "tests" / "cc" / "driver_errors.cc"
    command = ["g++", f"-I{ROOT}", source, "-o", "program"]
    own = compile_kernels(kernels, ninja_build.folder())["cuda/cuda_execution.cu"]
    subprocess.run([*command, own, *kernels.link], cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "program"], capture_output=True, text=True, check=True)
    result, shared, driver, ptx, old_gpu, no_code, large, no_kernel, other = (
        done.stdout.splitlines()
    )
    assert driver == ptx and "illegal memory access" in other
    assert old_gpu == no_code and 'or use implementation="reference"' in old_gpu
    assert "no float64; cast it to float32" in no_kernel
    assert "use a smaller batch or smaller images" in large
    release = kernels.compiler.version.split()[1].rpartition(".")[0]
    if "there is no NVIDIA driver" in driver:
        assert result == shared == "35"
        assert f"install one for CUDA {release} or a newer one" in driver
    else:
        assert "the NVIDIA driver is for CUDA" in driver
        assert f"the ops were built with CUDA {release}; install a newer driver" in driver


@pytest.mark.process
@pytest.mark.release
def test_the_kernels_compile_for_every_gpu(cuda):
    archs = build_plan.sources()["CUDA_ARCHS"]
    kernels = cuda("all", lambda: cuda_compiler.home_for(archs))
    assert list(kernels.archs) == archs
    assert compile_kernels(kernels, ninja_build.folder())


LOG = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_ZN3vit36_GLOBAL__N__5e4f58f6_4_k_cu_6fd02f508kernel_aIf\
Li3EEEvPT_' for 'sm_90a'
ptxas info    : Function properties for _ZN3vit36_GLOBAL__N__5e4f58f6_4_k_cu_6fd02f508kernel_a
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 1 barriers, 256 bytes smem
ptxas info    : Compile time = 31.048 ms
ptxas info    : Compiling entry function 'k' for 'sm_80'
ptxas info    : Function properties for k
    80 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 255 registers, 360 bytes cmem[0]
"""


def test_resources_that_nvcc_reports_are_read():
    kernels, others = resources.parse(LOG)
    assert kernels == [
        resources.Kernel("kernel_a<float, 3>", "90a", 12, 256, 0),
        resources.Kernel("k", "80", 255, 0, 12),
    ]
    assert others == []
    assert [line.split()[-3:] for line in resources.table(kernels).splitlines()[1:]] == [
        ["255", "0", "12"],
        ["12", "256", "0"],
    ]
    for line in ("ptxas warning : Stack size", "k.cu(3): warning #177-D: unused", "error: bad"):
        assert resources.parse(f"{LOG}\n{line}\n") == (kernels, [line])
