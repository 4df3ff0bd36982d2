"""Builds with Bazel in a clean checkout without a network, and compares with `build_ops`."""

import json
import os
import shlex
import shutil
import subprocess
import sys

import pytest

from custom_ops import library_file
from custom_ops.building import build_plan, toolkit
from tests.checkout import ROOT, copy_checkout
from tests.custom_ops import cuda_compiler
from tests.custom_ops.process import run_python

pytestmark = pytest.mark.process

# Flags that Bazel adds after the project's own; they do not change the code.
BEHIND = {
    "-fno-canonical-system-headers",
    "-Wno-builtin-macro-redefined",
    '-D__DATE__="redacted"',
    '-D__TIMESTAMP__="redacted"',
    '-D__TIME__="redacted"',
}


# All in one shell: in a separate network namespace no other process can reach Bazel's server.
START = """
set -e
bazel() { command bazel --output_user_root="$OUTPUT" "$@"; }
trap "bazel shutdown" EXIT
"""

ANALYZE = """
bazel query 'tests(//custom_ops/...)' > tests.txt
bazel build --nobuild //custom_ops/...
bazel aquery --output=jsonproto 'mnemonic("CppCompile|CppLink", deps(//custom_ops))' > actions.json
export VIT_CUDA=1
bazel aquery --output=jsonproto 'mnemonic("CppCompile|CppLink|Genrule", deps(//custom_ops))' \
  > cuda_actions.json
export CUDA_HOME="$PWD/damaged"
! bazel build --nobuild //custom_ops 2> demanded.txt
unset VIT_CUDA VIT_CUDA_ARCHS
VIRTUAL_ENV="$PWD/other" bazel build --nobuild //custom_ops 2> left_out.txt
export VIT_CUDA=0
! PYTHON_BIN_PATH="$PWD/other/bin/python" bazel build --nobuild //custom_ops 2> refusal.txt
"""

# The kernels for GPUs would be compiled again: only one of them is.
BUILD = """
targets="//custom_ops:isa_test //custom_ops:team_test"
bazel test $targets --curses=no > test.txt 2>&1 || { cat test.txt; exit 1; }
bazel build //custom_ops
export VIT_CUDA=1
bazel build //custom_ops:cuda-cuda_cuda_execution.cu.pic.o
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of this checkout, where Bazel finds `.venv` without any variables."""
    assert shutil.which("bazel"), "Bazel is missing: apt-get install bazel-bootstrap"
    folder = tmp_path_factory.mktemp("bazel")
    checkout, output = copy_checkout(folder, objects=False), folder / "output"
    (checkout / ".venv").symlink_to(sys.prefix)
    _write(
        checkout / "other" / "bin" / "python",
        'case "$*" in *probe.py) echo asked >> "$0.log";; esac; exit 3',
    )
    _write(checkout / "damaged" / "bin" / "nvcc", "echo damaged; exit 3")
    # A name that the shell would read as several words.
    cuda_compiler.imitate(checkout / "it's a toolkit")
    yield checkout
    # Bazel makes its outputs read-only.
    subprocess.run(["chmod", "-R", "u+w", output], check=True)
    shutil.rmtree(output)


def _write(path, script):
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def _run(checkout, script, toolkit):
    """Runs commands of Bazel in the copy."""
    hidden = ("PYTHON_BIN_PATH", "VIRTUAL_ENV", "PYTHONPATH")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment |= {"VIT_CUDA": "0", "VIT_CUDA_ARCHS": "90a", "CUDA_HOME": str(toolkit)}
    done = subprocess.run(
        [*without_network(), "sh", "-c", START + script],
        cwd=checkout,
        env=environment | {"OUTPUT": str(checkout.parent / "output")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return checkout


@pytest.fixture(scope="module")
def bazel(checkout):
    """The copy after `ANALYZE`."""
    return _run(checkout, ANALYZE, checkout / "it's a toolkit")


@pytest.fixture(scope="module")
def built(checkout):
    """The copy after `BUILD`."""
    return _run(checkout, BUILD, cuda_compiler.home())


@pytest.fixture(scope="module")
def target():
    return build_plan.probe()


def without_network():
    """The command prefix that runs a program without a network."""
    loopback = ["sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    for unshare in (["unshare", "-n"], ["unshare", "-rn"]):
        if subprocess.run([*unshare, *loopback, "true"], capture_output=True).returncode == 0:
            return [*unshare, *loopback]
    # Not allowed on this machine. The flag at least keeps Bazel from fetching anything.
    return []


def test_the_tests_of_the_kernels_are_targets(bazel):
    """One rule makes all of them; test_ops_kernels.py runs the same programs."""
    names = build_plan.sources()["TESTS"]
    listed = (bazel / "tests.txt").read_text().split()
    assert sorted(listed) == [f"//custom_ops:{name}" for name in sorted(names)]


@pytest.mark.heavy("builds", "compilers")
def test_a_test_of_the_kernels_passes(built):
    text = (built / "test.txt").read_text()
    [line] = [line for line in text.splitlines() if line.startswith("//custom_ops:isa_test ")]
    assert "PASSED" in line


@pytest.mark.heavy("builds", "compilers")
def test_what_bazel_builds_has_the_stamp_of_the_other_build(built, target):
    path = built / "bazel-bin" / "custom_ops" / library_file.NAME
    for library in (path, library_file.for_xla(path)):
        stamp = library_file.read_stamp(library)
        assert stamp["sources"] == build_plan.source_hash()
        assert stamp["tensorflow"] == target["tensorflow"]["version"]
        assert stamp["isas"].split() == build_plan.isas(build_plan.find_compiler())
    assert (path.parent / "_vit_kernels.so").is_file()
    compiled = [file.name for file in path.parent.glob("cuda-*.o")]
    assert compiled == ["cuda-cuda_cuda_execution.cu.pic.o"]


@pytest.mark.heavy("builds", "compilers")
def test_the_package_finds_what_bazel_built(built, monkeypatch):
    monkeypatch.delenv(library_file.VARIABLE, raising=False)
    said = run_python("library_of_bazel.py", folder=built)
    assert said.split() == [str(built / "bazel-bin" / "custom_ops" / library_file.NAME)]


def test_both_builds_compile_the_same_files_with_the_same_flags(bazel, target):
    actions = json.loads((bazel / "actions.json").read_text())["actions"]
    compare(actions, build_plan.plan(target, build_plan.find_compiler()))
    lists = build_plan.sources()
    options = [f"-Wl,--version-script=custom_ops/{lists['EXPORTS']}"]
    options += lists["LINKOPTS"] + lists["OP_LINKOPTS"]
    for name in (library_file.NAME, library_file.for_xla(library_file.NAME).name):
        arguments = link_of(actions, name)
        assert options in [arguments[i : i + len(options)] for i in range(len(arguments))]


def test_both_builds_compile_the_same_for_gpus(bazel, target, monkeypatch):
    """The name of the host's compiler is the only difference."""
    monkeypatch.setenv("VIT_CUDA_ARCHS", "90a")
    monkeypatch.setenv("CUDA_HOME", str(bazel / "it's a toolkit"))
    cuda = toolkit.find(build_plan.Compiler((os.environ.get("CC") or "gcc",), ""))
    assert isinstance(cuda, toolkit.Toolkit)
    units = build_plan.plan(target, build_plan.find_compiler(), cuda)
    actions = json.loads((bazel / "cuda_actions.json").read_text())["actions"]
    compiled = [unit for unit in units.pop("cuda") if unit.compiler]
    rules = [shlex.split(a["arguments"][-1]) for a in actions if a["mnemonic"] == "Genrule"]
    for unit in compiled:
        command = [*cuda.compiler.command, *unit.flags, "-I.", "-c", f"custom_ops/{unit.source}"]
        found = [words for words in rules if command[0] in words and command[-1] in words]
        assert len(found) == 1, unit
        start = found[0].index(command[0])
        assert found[0][start : start + len(command)] == command
    compare(actions, units | {"cuda_host": build_plan.cuda_host_units()})
    names = [library_file.NAME, library_file.for_xla(library_file.NAME).name]
    for name in names + (["_vit_cuda.so"] if units["cuda_module"] else []):
        assert set(cuda.link) <= set(link_of(actions, name)), name


def compare(actions, units):
    """Every unit is compiled once by Bazel, with its flags, and nothing else is."""
    compiled = [a["arguments"] for a in actions if a["mnemonic"] == "CppCompile"]
    for unit in [unit for part in units.values() for unit in part]:
        matches = [arguments for arguments in compiled if fits(arguments, unit)]
        assert len(matches) == 1, unit
        compiled.remove(matches[0])
    assert compiled == []


def fits(arguments, unit):
    """The project's flags are contiguous, and no flag after them changes the code."""
    source = arguments[arguments.index("-c") + 1]
    for i in range(len(arguments)):
        if tuple(arguments[i : i + len(unit.flags)]) == unit.flags:
            behind = arguments[i + len(unit.flags) : arguments.index("-c")]
            return source == f"custom_ops/{unit.source}" and set(behind) <= BEHIND
    return False


def link_of(actions, name):
    """The arguments of the linker for a library."""
    linked = [a["arguments"] for a in actions if a["mnemonic"] == "CppLink"]
    product = f"/custom_ops/{name}"
    [arguments] = [a for a in linked if any(argument.endswith(product) for argument in a)]
    return arguments


def test_a_toolkit_that_does_not_work_is_told(bazel):
    message = "damaged/bin/nvcc --version fails: damaged. Repair the CUDA toolkit"
    why = message if toolkit.has_gpu() else "no GPU was found at the build"
    text = (bazel / "left_out.txt").read_text()
    assert "No kernels for GPUs: " in text and why in text
    assert message in (bazel / "demanded.txt").read_text()


def test_without_tensorflow_bazel_says_what_it_tried(bazel):
    text = (bazel / "refusal.txt").read_text()
    assert "point PYTHON_BIN_PATH at an interpreter" in text
    assert f"{bazel}/other/bin/python: does not run" in text and "/.venv/" not in text
    # The first call was for the interpreter of $VIRTUAL_ENV, which failed, so .venv was used.
    assert (bazel / "other" / "bin" / "python.log").read_text() == "asked\nasked\n"


def test_nothing_of_bazel_is_left_to_be_downloaded():
    """Bazel 4 needs only the replaced repositories; a version file would reject Debian's Bazel."""
    assert not (ROOT / ".bazelversion").exists() and not (ROOT / "tools" / "bazel").exists()
    text = (ROOT / "WORKSPACE").read_text() + (ROOT / "third_party/local/python.bzl").read_text()
    assert "http" not in text
