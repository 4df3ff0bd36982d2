"""The C++ tests of the kernels: plain, under sanitizers, and fuzzed.

They are programs of tests/cc, without TensorFlow; their expected values come from loops over
doubles.
"""

import pathlib
import re

import pytest

from custom_ops import build_plan
from tests.custom_ops import kernel_programs
from tests.custom_ops.kernel_programs import MEMORY, PLAIN, THREADS

pytestmark = pytest.mark.process

# The emulation of a GPU is slow; with half the time a busy machine ran 66 inputs.
FUZZ_SECONDS = 20


def test_every_program_passes():
    check(PLAIN, build_plan.sources()["TESTS"])


def test_no_memory_error_and_no_undefined_behaviour():
    # Without sanitizers the emulation of a GPU would check nothing more.
    lists = build_plan.sources()
    check(MEMORY, lists["TESTS"] + lists["CUDA_TESTS"])


def test_no_data_race():
    # All other tests of these programs run on one thread.
    names = ["attention_execution_test", "encoder_test", "patch_embed_test"]
    names += ["guided_schedule_test", "phases_test", "shared_work_test"]
    check(THREADS, names, ["threads"])


def test_what_older_compilers_get():
    check(THREADS, ["simd_test"], ["lanes"])


def test_no_input_that_fuzzing_finds_fails(tmp_path):
    """Failing inputs are kept in build/fuzz; the program repeats one when given its file."""
    results = kernel_programs.fuzz(FUZZ_SECONDS, tmp_path, seed=1)
    assert_passed(results)
    for output in (output for _, output in results.values()):
        [runs] = re.findall(r"stat::number_of_executed_units: (\d+)", output)
        assert int(runs) > 100


def test_without_clang_the_command_that_installs_it_is_said(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(build_plan.BuildError, match="apt-get install -y clang libclang-rt-dev"):
        kernel_programs.build(MEMORY, [])


def check(mode, names, arguments=()):
    paths = kernel_programs.build(mode, names)
    results = kernel_programs.run(mode, [[str(path), *arguments] for path in paths.values()])
    assert_passed(results)


def assert_passed(results):
    for path, (code, output) in results.items():
        name = pathlib.Path(path).name
        assert code == 0, f"{name}: exit code {code}\n{kernel_programs.tail(output)}"
