"""The requirements of the benchmark, and a description of the machine."""

import datetime
import importlib.util
import json
import shutil
import subprocess
import sys

from custom_ops.building import toolkit
from custom_ops.building.build_plan import BuildError

# `python -P`, with which the build asks an interpreter, came with this version.
OLDEST_PYTHON = (3, 11)
# PyTorch in a process of its own: the driver of the benchmark must not hold memory of the GPU.
_PROBE = """
import json, torch
found = {"torch": torch.__version__, "cuda": torch.version.cuda, "gpu": torch.cuda.is_available()}
try:
    from torch.nn.attention import SDPBackend
    found["cudnn"] = hasattr(SDPBackend, "CUDNN_ATTENTION")
except ImportError:
    found["cudnn"] = False
if found["gpu"]:
    torch.zeros(1, device="cuda").item()
    properties = torch.cuda.get_device_properties(0)
    found["card"] = torch.cuda.get_device_name(0)
    found["capability"] = f"{properties.major}.{properties.minor}"
    found["memory"] = properties.total_memory
print(json.dumps(found))
"""


class MissingError(Exception):
    """The benchmark cannot run here; the message says what is missing."""


def describe(run=subprocess.run):
    """Looks for all that is needed.

    Args:
        run: `subprocess.run`, or a stand-in for it.

    Returns:
        Dict of texts: `date`, `card`, `capability`, `memory_gib`, `driver`, `torch`, `cuda` (that
        PyTorch was built for), `nvcc` (its version), `programs` (the folder of its toolkit's).

    Raises:
        MissingError: if something is missing.
    """
    if sys.version_info < OLDEST_PYTHON:
        raise MissingError(
            f"{sys.executable} is Python {sys.version.split()[0]}, older than "
            f"{'.'.join(map(str, OLDEST_PYTHON))}"
        )
    nvcc = toolkit.nvcc_path()
    if nvcc is None:
        raise MissingError("there is no nvcc, neither in CUDA_HOME nor on PATH")
    for package in ("torch", "pybind11", "numpy"):
        if importlib.util.find_spec(package) is None:
            raise MissingError(f"{sys.executable} has no package {package}")
    probe = _output(run, [sys.executable, "-c", _PROBE])
    try:
        found = json.loads((probe.splitlines() or [""])[-1])
    except ValueError:
        raise MissingError(f"PyTorch cannot use the GPU: {_last(probe)}") from None
    if not found["gpu"]:
        raise MissingError(f"PyTorch {found['torch']} finds no GPU")
    if not found["cudnn"]:
        raise MissingError(
            f"PyTorch {found['torch']} has no SDPBackend.CUDNN_ATTENTION, as 2.5 and newer ones do"
        )
    try:
        programs = toolkit.programs(nvcc)
    except BuildError as error:
        raise MissingError(str(error).removesuffix(".")) from None
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        driver = _output(run, query).splitlines()[0]
    except (OSError, IndexError):
        driver = "unknown"
    version = [line for line in _output(run, [nvcc, "--version"]).splitlines() if "release" in line]
    return {
        "date": datetime.date.today().isoformat(),
        "card": found["card"],
        "capability": found["capability"],
        "memory_gib": f"{found['memory'] / 2**30:.0f}",
        "driver": driver,
        "torch": found["torch"],
        "cuda": str(found["cuda"]),
        "nvcc": f"nvcc {version[0].rpartition(' ')[2]}" if version else "nvcc of unknown version",
        "programs": str(programs),
    }


def program(name, folder):
    """Path of a program of a CUDA toolkit, in its folder or on the PATH; None without one."""
    return shutil.which(name, path=folder) or shutil.which(name)


def _output(run, command):
    done = run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.stdout.strip()


def _last(text):
    return (text.splitlines() or ["no message"])[-1][:300]
