"""The CUDA compiler of the tests: the installed one, `make test-all`'s, or an imitation."""

import pathlib
import subprocess

import pytest

from custom_ops.building import toolkit
from tests.checkout import ROOT
from tests.custom_ops.process import PROGRAMS

# Its nvcc passes its work to g++.
IMITATION = (PROGRAMS / "nvcc").read_text()


def imitate(folder):
    """Writes a toolkit with the imitation of nvcc; returns its folder."""
    files = {"bin/nvcc": IMITATION, "include/cuda_runtime_api.h": ""}
    files |= {"lib/libcudart_static.a": "!<arch>\n"}
    for file, text in files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text)
    (folder / "bin/nvcc").chmod(0o755)
    return folder


def home():
    """The value for CUDA_HOME with which nvcc is found."""
    path = toolkit.nvcc_path() or _of_the_wheels()
    assert path, "There is no nvcc. Run `make cuda-compiler`, which installs one."
    return _home_of(path)


def home_for(archs):
    """As `home`, of the first nvcc that compiles for all of some GPUs; skips the test without one.

    Args:
        archs: compute capabilities, as in CUDA_ARCHS of `sources.bzl`.
    """
    complaints = []
    for path in filter(None, (toolkit.nvcc_path(), _of_the_wheels())):
        listed = subprocess.run([path, "--list-gpu-code"], capture_output=True, text=True).stdout
        # The list has no "sm_90a".
        missing = [arch for arch in archs if f"sm_{arch.rstrip('a')}" not in listed.split()]
        if not missing:
            return _home_of(path)
        complaints.append(f"{path} cannot compile for {', '.join(missing)}")
    complaints = complaints or ["there is no nvcc"]
    pytest.skip(f"{'; '.join(complaints)}: `make .venv-cuda/installed` installs an nvcc that can")


def _of_the_wheels():
    return next(ROOT.glob(".venv-cuda/lib/*/site-packages/nvidia/*/bin/nvcc"), None)


def _home_of(path):
    return str(pathlib.Path(path).parent.parent)
