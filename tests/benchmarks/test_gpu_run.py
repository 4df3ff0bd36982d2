"""The scripts for GPUs without one: flags, cells, arithmetic, outputs that are read, exit codes."""

import json
import pathlib
import sys
import time
import unittest.mock

import pytest

from benchmarks import gpu_attention, gpu_run
from custom_ops.building.build_plan import BuildError
from tests.gpu import cases, small_shapes

CLEAN = "1 passed in 3.21s\n========= ERROR SUMMARY: 0 errors"
INVALID = "Invalid __global__ read of size 2"
RACES = "1 passed in 3.21s\n========= RACECHECK SUMMARY:"


def test_cells_have_names_and_count_operations():
    found, quick = gpu_attention.cells(), gpu_attention.cells(quick=True)
    assert len({cell.name for cell in found}) == len(found) == 4 * 2 * 2 * 2 * 3 + 2 + 8
    assert {cell.tokens for cell in found if not cell.axis} == {50, 197, 257, 577}
    assert {cell.form for cell in found} == {"", "bias", "axis=1", "axis=2"}
    assert {x.name for x in quick} < {x.name for x in found} and len(quick) == 6 + 2 + 4
    forward = gpu_attention.Cell("bfloat16", "forward", 2, 10, 3, 64)
    assert forward.operations == 2 * (2 * 2 * 3 * 10 * 10 * 64)
    backward = gpu_attention.Cell("bfloat16", "backward", 2, 10, 3, 64)
    assert backward.operations == 2.5 * forward.operations
    axial = gpu_attention.Cell("bfloat16", "forward", 2, 10, 3, 64, 5, "axis=1")
    assert (axial.operations, axial.axis) == (5 * forward.operations, 1)
    assert axial.name == "axial forward bfloat16 B=2 N=10 d=64 lines=5 axis=1"


def test_a_row_has_times_rates_and_ratios():
    cell = gpu_attention.Cell("bfloat16", "forward", 332, 197, 16, 64)
    times = {"ours": [2.0, 1.0, 4.0, 3.0], "flash": [3.0, 3.0], "cudnn": "too old"}
    row = gpu_attention.summary(cell, times | {"efficient": [2.0, 8.0]})
    ours = row["systems"]["ours"]
    assert (ours["best_ms"], ours["median_ms"], ours["spread"]) == (1.0, 2.5, 0.6)
    # 4 B H N^2 d operations in a millisecond.
    assert ours["tflops"] == pytest.approx(4 * 332 * 16 * 197**2 * 64 / 1e9)
    # The best of all times of the others, and the best of their medians.
    assert (row["peer"], row["best_ratio"], row["median_ratio"]) == ("efficient", 2.0, 3.0 / 2.5)
    text = gpu_attention.line(row)
    assert "ours 1.0000 (2.5000, 60.0%), " in text and "cudnn refuses: too old" in text
    assert text.endswith("; 2.00 of efficient")
    # A variant is no peer.
    times = {"ours": [2.0, 2.0], "ours fast": [1.0, 1.0], "flash": [4.0, 4.0]}
    row = gpu_attention.summary(cell, times)
    assert (row["peer"], row["best_ratio"]) == ("flash", 2.0)
    row = gpu_attention.summary(cell, {"ours": [1.0, 1.0], "flash": "no"})
    assert row["peer"] is row["best_ratio"] is row["median_ratio"] is None


@pytest.mark.parametrize(
    ("code", "text", "problems"),
    [
        (0, CLEAN, []),
        (0, f"{RACES} 0 hazards displayed (0 errors, 0 warnings)", []),
        (0, f"{RACES} 1 hazard displayed (0 errors, 1 warning)", ["1 hazard displayed "]),
        (9, f"========= {INVALID}\n========= ERROR SUMMARY: 10 errors", [INVALID, "10 errors"]),
        (1, f"FAILED a.py::b - no\n1 failed\n{CLEAN}", ["FAILED a.py::b - no", "0 errors"]),
        (0, "SKIPPED [1] a.py: needs a GPU\n1 skipped", ["SKIPPED [1] a.py: needs a GPU"]),
        (255, "device not supported", ["exit code 255: device not supported"]),
        (None, CLEAN, ["did not end in time"]),
    ],
)
def test_problems_in_the_output_of_the_sanitizer(code, text, problems):
    found = gpu_run.problems_in(code, text, sanitized=True)
    assert len(found) == len(problems)
    assert all(one.startswith(other) for one, other in zip(found, problems, strict=True))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("========= Error: Device not supported. Please refer to", "does not support this GPU"),
        ("SKIPPED [1] a.py: the GPU has too little memory: cuMemAlloc_v2", "too little memory"),
        (f"========= {INVALID}\nthe GPU has too little memory", ""),
        ("no such module", ""),
    ],
)
def test_a_machine_that_refuses_the_sanitizer_is_no_failure_but_an_error_is(text, reason):
    found = gpu_run.refusal_in(text)
    assert reason in found and bool(reason) == bool(found)


def test_a_step_that_did_not_run_is_no_success():
    right = {"name": "check float32", "problems": []}
    skipped = {"name": "memcheck attention float32", "skipped": "no time left"}
    found = {"checks": [right, skipped], "times": [{"name": "a cell", "systems": {}}]}
    assert gpu_run.exit_code(found, ("check", "times")) == 0
    assert gpu_run.exit_code(found, gpu_run.STEPS) == 1
    found["checks"].append({"name": skipped["name"], "problems": []})
    assert gpu_run.exit_code(found, gpu_run.STEPS) == 0
    found["times"].append({"name": "another", "problems": ["AssertionError"]})
    assert gpu_run.exit_code(found, gpu_run.STEPS) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "speed"], "invalid choice: 'speed'"),
        (["--minutes", "0"], "--minutes must be above 0"),
        (["--rounds", "1"], "--rounds must be at least 2"),
        (["--variant", "fast"], "must be NAME=FLAGS"),
        (["--variant", "../x=-DX=1"], "must be NAME=FLAGS"),
        (["--variant", "x=-D'X"], "No closing quotation"),
        (["--variant", "x=-DX=1", "--variant", "x=-DX=2"], "another NAME each time"),
    ],
)
def test_wrong_flags_exit_with_2(arguments, message, capsys):
    with pytest.raises(SystemExit) as exit_:
        gpu_run.main(arguments)
    assert exit_.value.code == 2 and message in capsys.readouterr().err


def test_a_machine_without_nvcc_gets_one_message(monkeypatch, capsys):
    monkeypatch.setattr(gpu_run.toolkit, "nvcc_path", lambda: None)
    assert gpu_run.main([]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: there is no nvcc")


@pytest.mark.process
def test_the_run_goes_on_after_a_check_failed(monkeypatch, tmp_path, capsys):
    """Every part gets the module; what fails ends in 1 after the times, and all is in the file."""
    program = tmp_path / "compute-sanitizer"
    program.write_text(f"#!/bin/sh\ncase $* in *racecheck*taps*) exit 9;; esac\necho '{CLEAN}'\n")
    program.chmod(0o755)
    built = {}

    def build(folder, say, variants):
        built.update(variants)
        if fails:
            raise BuildError("nvcc fails")
        return folder / "module.so"

    def time_cells(wanted, modules, rounds, deadline, note):
        assert rounds == 3 and list(modules) == ["ours", "ours fast"]
        assert modules["ours fast"] == tmp_path / "variants" / "fast" / "module.so"
        note(gpu_attention.summary(wanted[0], {"ours": [1.0, 1.0], "flash": [2.0, 2.0]}))

    machine = {"commit": "abc", "card": "NVIDIA X", "programs": str(tmp_path)}
    monkeypatch.setattr(gpu_run, "describe", lambda: machine)
    monkeypatch.setattr(gpu_run.build_ops, "build_cuda_module", build)
    monkeypatch.setattr(gpu_attention, "time_cells", time_cells)
    code = "import os; print('3 passed in 1 s', os.environ['VIT_CUDA_MODULE'])"
    monkeypatch.setattr(gpu_run, "PYTEST", (sys.executable, "-c", code))
    fails, flags = False, ["--output", str(tmp_path), "--rounds", "3", "--variant", "fast=-DX=1"]
    assert gpu_run.main(flags) == 1
    assert built == {tmp_path / "variants" / "fast": ["-DX=1"]}
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["machine"] == machine and len(found["times"]) == 1
    names = {row["name"] for row in found["checks"]}
    assert len(names) == len(found["checks"]) == 4 + 4 * len(cases.OPS) * 2
    assert {row["name"] for row in found["checks"] if row["problems"]} == {
        f"racecheck taps {dtype}" for dtype in small_shapes.DTYPES
    }
    assert str(tmp_path / "module.so") in (tmp_path / "check-float32.log").read_text()
    assert "check float32: right 3 passed in 1 s" in capsys.readouterr().out
    assert gpu_run.main([*flags, "--only", "check", "times"]) == 0
    assert gpu_run.main([*flags, "--only", "check", "--minutes", "1e-9"]) == 1
    fails = True
    assert gpu_run.main(flags) == 1 and "error: nvcc fails" in capsys.readouterr().err


def _runs(process, until):
    """Whether a process runs until then; one that has ended may wait for its parent to notice."""
    try:
        while pathlib.Path(f"/proc/{process}/stat").read_text().split()[2] not in "ZX":
            if time.monotonic() > until:
                return True
            time.sleep(0.05)
    except (FileNotFoundError, ProcessLookupError):
        pass
    return False


@pytest.mark.process
def test_what_a_program_started_ends_with_it(tmp_path):
    command = ["sh", "-c", f"sleep 60 & echo $! > {tmp_path}/started; wait"]
    code, _ = gpu_run.output_of(command, 0.5, tmp_path / "log")
    started = int((tmp_path / "started").read_text())
    assert code is None and not _runs(started, time.monotonic() + 20)


@pytest.mark.parametrize("dtype", small_shapes.DTYPES)
@pytest.mark.parametrize("op", cases.OPS)
def test_the_small_shapes_are_given_to_the_module(op, dtype, monkeypatch):
    monkeypatch.setattr(small_shapes, "Driver", unittest.mock.MagicMock())
    module = unittest.mock.MagicMock()
    calls = small_shapes.Calls(module)
    getattr(calls, op)(dtype)
    assert calls.count > 5 and {x.args[2] for x in module.Array.call_args_list} >= {dtype}
