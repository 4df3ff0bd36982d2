"""The environment of the peers, made by `make peers`, in which PyTorch runs."""

import functools
import pathlib
import subprocess

import pytest

from tests.checkout import ROOT

PYTHON = ROOT / ".venv-peers" / "bin" / "python"


NEEDED = ("torch", "transformers", "timm", "safetensors")


@functools.cache
def missing(packages=NEEDED):
    """The reason why the peers cannot run, or an empty string."""
    if not PYTHON.exists():
        return "there is no .venv-peers; `make peers` creates it"
    imports = f"import {', '.join(packages)}"
    if subprocess.run([PYTHON, "-c", imports], capture_output=True).returncode:
        return f".venv-peers lacks one of {', '.join(packages)}; run `make peers`"
    return ""


def run(*arguments, program="peer_program.py", packages=NEEDED):
    """Runs a program of the peers; skips the test if their environment is missing."""
    if reason := missing(packages):
        pytest.skip(reason)
    path = pathlib.Path(__file__).with_name(program)
    done = subprocess.run([PYTHON, path, *arguments], capture_output=True, text=True)
    assert not done.returncode, done.stderr[-3000:]
