"""The C++ tests of the kernels: plain, under sanitizers, and fuzzed.

They are programs of tests/cc, without TensorFlow; their expected values come from loops over
doubles.
"""

import pathlib
import re

import pytest

from custom_ops.building import build_plan
from tests.custom_ops import instruction_sets, kernel_programs
from tests.custom_ops.kernel_programs import MEMORY, PLAIN, THREADS

pytestmark = [pytest.mark.process, pytest.mark.heavy("native")]

# Each takes 3 s of a processor; `make fuzz` takes minutes. The emulation of a GPU is slow.
FUZZ_RUNS = {
    "attention_fuzz": 250,
    "encoder_fuzz": 250,
    "patch_embed_fuzz": 500,
    "xla_handlers_fuzz": 4000,
}
# They run for every instruction set.
LOOPING = {
    *("attention_execution_test", "attention_test", "attention_values_test"),
    *("encoder_execution_test", "encoder_test", "patch_embed_test", "row_test", "simd_test"),
}


def test_every_program_passes_with_every_instruction_set():
    check(PLAIN, build_plan.sources()["TESTS"], instruction_sets.here())


def test_the_lowest_set_has_no_memory_error_and_no_undefined_behavior():
    check(MEMORY, build_plan.sources()["TESTS"], ["baseline"])


def test_the_best_sets_have_no_memory_error_and_no_undefined_behavior():
    check(MEMORY, sorted(LOOPING), instruction_sets.best())


def test_the_kernels_for_gpus_pass_and_have_no_memory_error():
    # Without sanitizers the emulation of a GPU would check nothing more.
    check(MEMORY, build_plan.sources()["CUDA_TESTS"])


def test_no_data_race():
    # All other tests of these programs run on one thread.
    names = ["attention_execution_test", "encoder_execution_test", "patch_embed_test", "row_test"]
    names += ["guided_schedule_test", "phases_test", "team_test", "call_queue_test"]
    check(THREADS, names, instruction_sets.ends(), ["threads"])


def test_lanes_of_older_compilers():
    check(THREADS, ["simd_test"], instruction_sets.ends(), ["lanes"])


def test_no_input_that_fuzzing_finds_fails(tmp_path):
    """Failing inputs are kept in build/fuzz; the program repeats one when given its file."""
    limits = {name: {"runs": runs, "seed": 1} for name, runs in FUZZ_RUNS.items()}
    results = kernel_programs.fuzz(tmp_path, limits)
    assert_passed(results)
    found = [re.findall(r"stat::number_of_executed_units: (\d+)", x) for _, x in results.values()]
    assert found == [[str(runs)] for runs in FUZZ_RUNS.values()]


def test_without_clang_the_command_that_installs_it_is_said(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(build_plan.BuildError, match="clang libclang-rt-dev"):
        kernel_programs.build(MEMORY, [])


def check(mode, names, isas=(), arguments=()):
    """Programs pass, and programs for every instruction set run for exactly these."""
    paths = kernel_programs.build(mode, names, isas)
    commands = [[str(path), *arguments] for path in paths.values()]
    results = kernel_programs.run(mode, commands, isas)
    assert_passed(results)
    for name in LOOPING & set(names):
        [ran] = re.findall("^instruction sets: (.*)$", results[str(paths[name])][1], re.MULTILINE)
        assert ran.split() == list(isas), name


def assert_passed(results):
    for path, (code, output) in results.items():
        name = pathlib.Path(path).name
        assert code == 0, f"{name}: exit code {code}\n{kernel_programs.tail(output)}"
