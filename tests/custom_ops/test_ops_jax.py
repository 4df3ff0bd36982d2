"""The XLA handlers of the ops in a library for JAX, which runs them without TensorFlow."""

import ctypes
import importlib.util
import subprocess
import sys

import pytest

from custom_ops import build_ops
from custom_ops.building.build_plan import BuildError, probe
from tests.checkout import ROOT
from tests.gpu import cases, jax_check

# `make tpu-check` creates the second one.
INTERPRETERS = [sys.executable, str(ROOT / ".venv-tpu" / "bin" / "python")]


def include_of(python):
    """The folder of the headers of an interpreter's jaxlib, None without one."""
    code = "import importlib.util as u; print(*u.find_spec('jaxlib').submodule_search_locations)"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    except OSError:
        return None
    return f"{done.stdout.strip()}/include" if done.returncode == 0 else None


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    def build(include):
        folder = tmp_path_factory.mktemp("jax")
        return build_ops.build_jax_library("cpu", folder, lambda line: None, include)

    return build


@pytest.mark.process
@pytest.mark.heavy("native")
def test_a_library_without_tensorflow_has_the_handlers(build):
    """With the headers of XLA that TensorFlow brings: they are the same."""
    [include] = [x[2:] for x in probe()["tensorflow"]["compile"] if x.startswith("-I")]
    library = build(include)
    needed = subprocess.run(["ldd", library], capture_output=True, text=True, check=True).stdout
    assert "libstdc++" in needed and "tensorflow" not in needed
    find = ctypes.CDLL(str(library)).vit_ops_handler
    find.argtypes, find.restype = [ctypes.c_char_p], ctypes.c_void_p
    names = [*jax_check.OPS, "VitEncoder", "VitExtractPatchesGrad"]
    addresses = {find(name.encode()) for name in names}
    assert None not in addresses and len(addresses) == len(names)
    assert find(b"VitNone") is None


@pytest.mark.process
@pytest.mark.heavy("native")
def test_the_ops_run_under_jax(build):
    found = [(python, include_of(python)) for python in INTERPRETERS]
    python, include = next((pair for pair in found if pair[1]), (None, None))
    if python is None:
        pytest.skip("needs JAX, which `make tpu-check` installs")
    names = [case.name for case in cases.under_jax() if "197" not in case.name]
    answers = jax_check.answers(python, build(include), "cpu", names)
    assert answers == [{"name": name, "problems": []} for name in names]


def test_a_machine_without_jax_gets_one_message(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BuildError, match="JAX need jaxlib"):
        build_ops.build_jax_library("cpu", tmp_path)
