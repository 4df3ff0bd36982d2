"""The CUDA compiler of the tests: the installed one, or the one that `make test` installs."""

import pathlib
import subprocess

import pytest

from custom_ops.building import toolkit
from tests.checkout import ROOT


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
