"""The CUDA compiler of the tests: the installed one, or the one that `make test` installs."""

import pathlib

from custom_ops.building import toolkit
from tests.checkout import ROOT


def home():
    """The value for CUDA_HOME with which nvcc is found."""
    path = toolkit.nvcc_path()
    if path is None:
        found = sorted(ROOT.glob(".venv-cuda/lib/*/site-packages/nvidia/*/bin/nvcc"))
        assert found, "There is no nvcc. Run `make cuda-compiler`, which installs one."
        path = found[0]
    return str(pathlib.Path(path).parent.parent)
