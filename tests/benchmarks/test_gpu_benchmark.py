"""The host side of `benchmarks.gpu`: cases, tolerance rule, processes, tables, exit codes."""

import json
import math
import pathlib
import re
import subprocess
import sys
import time

import numpy as np
import pytest

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import (
    cases,
    machine,
    phases,
    processes,
    profile,
    report,
    resource_table,
    sanitized,
    sanitizer,
    tolerance,
)
from custom_ops.building.build_plan import BuildError

MACHINE = {"date": "2026-01-02", "card": "NVIDIA X", "driver": "580.1", "torch": "2.9"}
MACHINE |= {"nvcc": "nvcc V13.0.88", "programs": "/none"}


def test_every_case_has_a_name_and_every_op_and_dtype_has_cases():
    found, quick = cases.checks(), cases.checks(quick=True)
    by_name = {case.name: case for case in found}
    assert len(by_name) == len(found) > 500
    # The kernels compute with no float64, and copy it.
    assert {case.op for case in found if case.dtype == "float64"} == {"extract_patches"}
    groups = {(case.op, case.dtype) for case in found}
    floats = {(op, dtype) for op in cases.OPS[:-1] for dtype in cases.DTYPES}
    assert groups > floats and {op for op, _ in groups} == set(cases.OPS)
    assert {(case.op, case.dtype) for case in quick} == groups and len(quick) < len(found) / 5
    assert all(by_name[case.name] == case for case in quick)
    assert {case.op for case in cases.checks(("taps",))} == {"taps"}
    large = next(case for case in found if isinstance(case, cases.Large))
    assert 2**31 < large.batch * 197 * 3 * 12 * 64 < 2**31 * 1.001


def test_times_cover_the_sizes_and_count_operations():
    rows = cases.timings(("attention",))
    assert len({case.name for case in rows}) == len(rows) == 4 * 2 * 2 * 2 * 3 + 2
    assert {case.tokens for case in rows} == {50, 197, 257, 577}
    assert {case.size for case in rows} == {64, 80}
    forward = cases.Timing("attention", "bfloat16", "forward", 2, 10, 3, 64)
    assert forward.operations == 2 * (2 * 2 * 3 * 10 * 10 * 64)
    backward = cases.Timing("attention", "bfloat16", "backward", 2, 10, 3, 64)
    assert backward.operations == 2.5 * forward.operations
    patches = cases.Timing("patch_embed", "float16", "forward", 2, 196, 12, 64)
    assert patches.operations == 2 * 2 * 196 * 768 * 768
    assert patches.bytes == 2 * (2 * 224 * 224 * 3 + 2 * 196 * 768 + 768 * 768)
    assert forward.bytes == 2 * 4 * (2 * 10 * 3 * 64) + 4 * 2 * (2 * 10 * 3)
    assert backward.bytes - forward.bytes == 2 * 4 * (2 * 10 * 3 * 64)
    axial = cases.Timing("axial", "bfloat16", "forward", 2, 10, 3, 64, 5, "axis=1")
    assert (axial.operations, axial.bytes) == (5 * forward.operations, 5 * forward.bytes)
    biased = cases.Timing("attention", "bfloat16", "backward", 2, 10, 3, 64, form="bias")
    assert biased.bytes == backward.bytes + 2 * 4 * 3 * 10 * 10
    [taps] = cases.timings(("taps",))
    assert taps.operations == 2 * 8 * 12 * 197**2 * 64
    assert {case.form for case in cases.timings(("axial",))} == {"axis=1", "axis=2"}
    assert {case.name for case in cases.timings(quick=True)} < {x.name for x in cases.timings()}


@pytest.mark.parametrize(
    ("actual", "plain", "problem"),
    [
        ([1.0, 2.0 + 2**-6], [1.0, 2.0], None),  # one rounding of bfloat16, of the largest number
        ([1.0, 2.0 + 2**-5], [1.0, 2.0], "d_qkv: error 0.0312 exceeds 0.0156; .* is 0"),
        ([1.0, 2.0 + 2**-5], [1.0 + 2**-6, 2.0], None),  # twice the error of plain PyTorch
        ([1.0, 2.0 + 2**-5], [np.inf, 2.0], "exceeds 0.0156"),
        ([1.0, np.nan], [1.0, 2.0], "1 of 2 elements are not finite"),
        ([1.0], [1.0], r"shape \(1,\), expected \(2,\)"),
    ],
)
def test_errors_may_be_twice_those_of_plain_pytorch_plus_a_rounding(actual, plain, problem):
    arrays = [np.array(x) for x in (actual, plain)]
    found = tolerance.compare("d_qkv", *arrays, np.array([1.0, 2.0]), "bfloat16")
    assert len(found) == (problem is not None)
    if problem:
        assert re.search(problem, found[0])


WORKER = pathlib.Path(__file__).with_name("failing_worker.py")


class Named:
    def __init__(self, name, op="op"):
        self.name, self.op, self.dtype = name, op, "float32"


PROGRAM = (sys.executable, str(WORKER))


def run(names, monkeypatch, seconds=60.0, command=PROGRAM, workers=1, patience=2):
    monkeypatch.setattr(processes, "PATIENCE", patience)
    said = []
    answers, left = processes.run_cases(
        [Named(*name) if isinstance(name, tuple) else Named(name) for name in names],
        {"kind": "checks"},
        time.monotonic() + seconds,
        said.append,
        workers,
        command,
    )
    assert len(answers) + len(left) == len(names)
    return {answer["name"]: answer["problems"] for answer in answers}, left, said


@pytest.mark.process
@pytest.mark.parametrize("workers", [1, 3])
def test_the_rest_goes_on_after_a_process_died(monkeypatch, workers):
    names = [
        "a",
        "wrong",
        ("dies", "other"),
        "b",
        ("poison", "third"),
        "c",
        ("hangs", "fourth"),
        "d",
    ]
    found, left, said = run(names, monkeypatch)
    assert list(found) == ["a", "wrong", "dies", "b", "poison", "c", "hangs", "d"] and not left
    assert found["wrong"] == found["poison"] == ["wrong"]
    assert found["dies"] == ["the process died with exit code 7: Segmentation of something"]
    assert found["hangs"] == ["no answer for 2 s"]
    assert all(found[name] == [] for name in "abcd")
    assert "checks: 8 of 8, 4 failed" in said[-1]


@pytest.mark.process
def test_cases_are_given_up_after_three_deaths(monkeypatch):
    names = ["a", "b", "c", "d", "e", ("f", "other")]
    found, left, _ = run(names, monkeypatch, command=("false",))
    assert not left and all("died with exit code 1" in found[name][0] for name in "abc")
    assert found["d"] == found["f"] == ["not run: 3 processes died"]
    found, left, _ = run(["a", "hangs", "b"], monkeypatch, seconds=3, patience=60)
    assert found == {"a": []} and [case.name for case in left] == ["hangs", "b"]
    found, left, _ = run(["a", "b"], monkeypatch, seconds=-1)
    assert found == {} and [case.name for case in left] == ["a", "b"]


def timed_row():
    case = cases.Timing("attention", "bfloat16", "forward", 332, 197, 16, 64)
    times = {"ours": [2.0, 1.0, 4.0, 3.0], "flash": [3.0, 3.0], "cudnn": "too | old"}
    times["efficient"] = [2.0, 8.0]
    return {"name": case.name} | report.summary(case, times)


def test_a_row_has_times_rates_and_ratios():
    row = timed_row()
    ours = row["systems"]["ours"]
    assert (ours["best_ms"], ours["median_ms"], ours["spread"]) == (1.0, 2.5, 0.6)
    # 4 B H N^2 d operations in a millisecond.
    assert ours["tflops"] == pytest.approx(4 * 332 * 16 * 197**2 * 64 / 1e9)
    # The best of all times of the others, and the best of their medians.
    assert (row["peer"], row["best_ratio"], row["median_ratio"]) == ("efficient", 2.0, 3.0 / 2.5)
    # A variant is no peer.
    ours = {"ours": [2.0, 2.0], "ours fast": [1.0, 1.0]}
    found = report.summary(cases.timings()[0], ours | {"flash": [4.0, 4.0]})
    assert (found["peer"], found["best_ratio"]) == ("flash", 2.0)
    assert found["systems"]["ours fast"]["best_ms"] == 1.0
    alone = report.summary(cases.timings()[0], {"ours": [1.0, 1.0], "flash": "no"})
    assert alone["peer"] is alone["best_ratio"] is alone["median_ratio"] is None


KERNEL = {"arch": "90a", "registers": 128, "shared": 0, "spilled": 0}
NCU = """==PROF== Disconnected from process 13
[13] python3.12@127.0.0.1
  void k<__nv_bfloat16, 64>(vit::Parameters) (1536, 1, 1)x(128, 1, 1), Context 1, Stream 7, CC 9.0
    Duration                         ms         1.36
    Compute (SM) Throughput           %        37.25
    sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active            %        41.50
    Registers Per Thread             register/thread             245
    Achieved Occupancy                        %        11.94
  one_more(int, float *) (8, 1, 1)x(64, 1, 1), Context 1, Stream 7, Device 0, CC 9.0
    Duration                         us     1,024.50
"""


def test_launches_are_read_from_a_report_of_nsight_compute():
    first, second = profile.parse(NCU)
    assert first["name"] == "k<__nv_bfloat16, 64>" and first["microseconds"] == 1360
    assert (first["tensor_percent"], first["occupancy_percent"]) == (41.5, 11.94)
    assert (second["name"], second["microseconds"]) == ("one_more", 1024.5)
    assert (second["blocks"], second["threads"]) == (8, 64) and "registers" not in second
    assert profile.parse("==ERROR== ERR_NVGPUCTRPERM") == []


@pytest.mark.process
@pytest.mark.parametrize("known", [True, False])
def test_a_metric_that_ncu_does_not_know_is_left_out(tmp_path, known):
    program = tmp_path / "ncu"
    (tmp_path / "report").write_text(NCU)
    line = "true" if known else "case $* in *--metrics*) echo '==ERROR== no metric'; exit 1;; esac"
    program.write_text(f"#!/bin/sh\n{line}\ncat {tmp_path}/report\n")
    program.chmod(0o755)

    def run(text, seconds=20.0):
        (tmp_path / "report").write_text(text)
        deadline = time.monotonic() + seconds
        return profile.run(str(program), "module.so", tmp_path / "ncu.txt", deadline)

    rows = run(NCU)
    assert len(rows) == 2 and (tmp_path / "ncu.txt").read_text() == NCU
    [row] = run("==ERROR== ERR_NVGPUCTRPERM: no permission\n")
    assert row["skipped"] == "ERR_NVGPUCTRPERM: no permission" and not row["problems"]
    [row] = run("==ERROR== an internal error\n")
    assert row["problems"] == ["an internal error"] and "skipped" not in row
    # Both attempts have one deadline.
    program.write_text("#!/bin/sh\ncase $* in *--metrics*) sleep 0.4; exit 1;; esac\nsleep 9\n")
    begin = time.monotonic()
    [row] = run("", 1.0)
    assert row["problems"] == ["did not end within 1 s"] and time.monotonic() - begin < 4


def results(**others):
    return {"machine": MACHINE, **{name: [] for name in phases.NAMES}, "not_run": []} | others


def test_the_report_names_what_failed_and_what_was_refused(tmp_path):
    check = {"op": "taps", "dtype": "float32", "name": "taps x", "problems": []}
    found = results(
        checks=[check, check | {"name": "taps y", "problems": ["entropy: NaN"]}],
        sanitizer=[{"name": "memcheck taps", "problems": []}],
        times=[timed_row(), {"name": "z", "op": "attention", "problems": ["CUDA error 700"]}],
        not_run=["sanitizer racecheck taps: no time left"],
        jax=[check, check | {"name": "jax y", "problems": ["tokens: NaN"]}],
        ptx=[check],
        resources=[
            resource_table.row(KERNEL | {"name": "k<__half, 64>", "spilled": 4}, 128),
            resource_table.row(KERNEL | {"name": "copy"}, None),
        ],
        ncu=[*profile.parse(NCU), {"name": "ncu", "problems": ["no permission"]}],
    )
    command.write(tmp_path, found)
    assert json.loads((tmp_path / "results.json").read_text()) == found
    text = (tmp_path / "results.md").read_text()
    assert text.startswith(
        "2026-01-02, NVIDIA X, driver 580.1, PyTorch 2.9, nvcc V13.0.88; TF32 is off\n"
    )
    for line in (
        "- under JAX, without TensorFlow: 1 right, 1 wrong",
        "- FAILED under JAX, without TensorFlow, jax y: tokens: NaN",
        "- compiled from PTX: 1 right, 0 wrong",
        "- FAILED k<__half, 64>: 4 bytes of registers are spilled",
        "| k<__half, 64> | 90a | 128 | 128 | 0 | 4 | 0.25 |",
        "| copy | 90a | - | 128 | 0 | 0 | - |",
        "| k<__nv_bfloat16, 64> | 1536 | 128 | 1.36e+03 | 245 | 41.5 | 37.2 | - | 11.9 |",
        "- FAILED ncu: no permission",
        "| taps | float32 | 1 | 1 |",
        "- FAILED taps y: entropy: NaN",
        "- memcheck taps: no errors",
        "- cudnn refuses attention forward bfloat16 B=332 N=197 d=64: too | old",
        "- FAILED times of z: CUDA error 700",
        "- not run: sanitizer racecheck taps: no time left",
    ):
        assert line in text.splitlines()
    head, _, row = (line for line in text.splitlines() if line.count("|") == 13)
    assert "| flash TFLOP/s | cudnn TFLOP/s | efficient TFLOP/s | ratio: best | median |" in head
    assert re.search(r"\| refused \| [0-9.]+ \| 2.00 \| 1.20 \|$", row)
    assert command.exit_code(found) == 1
    assert command.exit_code(results()) == 1  # nothing ran
    assert command.exit_code(results(checks=[check])) == 0
    assert command.exit_code(results(ptx=[check])) == 1  # no check ran
    assert command.exit_code(results(ptx=[check]), ("ptx",)) == 0


CLEAN = "========= ERROR SUMMARY: 0 errors"
INVALID = "Invalid __global__ read of size 2"
RACES = "========= RACECHECK SUMMARY:"


@pytest.mark.parametrize(
    ("code", "text", "problems"),
    [
        (0, f"5 calls\n{CLEAN}\n", []),
        (0, f"5 calls\n{RACES} 0 hazards displayed (0 errors, 0 warnings)", []),
        (
            0,
            f"5 calls\n{RACES} 1 hazard displayed (0 errors, 1 warning)",
            ["1 hazard displayed (0 errors, 1 warning)"],
        ),
        (9, f"========= {INVALID}\n========= ERROR SUMMARY: 10 errors", [INVALID, "10 errors"]),
        (
            1,
            f"taps float16: RuntimeError: no\n0 calls\n{CLEAN}\n",
            ["taps float16: RuntimeError: no", "0 errors"],
        ),
        (0, f"0 calls\n{CLEAN}\n", ["0 errors"]),
        (255, "device not supported", ["exit code 255: device not supported"]),
    ],
)
def test_problems_in_the_output_of_the_sanitizer(code, text, problems):
    assert sanitizer.problems_in(code, text) == problems


MEMORY = "taps bfloat16: MemoryError: cuMemAlloc_v2 failed\n0 calls\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("========= Error: Device not supported. Please refer to", "does not support this GPU"),
        (f"========= Program hit CUDA_ERROR_OUT_OF_MEMORY (error 2)\n{MEMORY}", "little memory"),
        (MEMORY, "too little memory"),
        (f"========= {INVALID}\n{MEMORY}", ""),
        (f"========= {INVALID}", ""),
        ("no such module", ""),
    ],
)
def test_a_machine_that_refuses_the_sanitizer_is_no_failure_but_an_error_is(text, reason):
    found = sanitizer.refusal_in(text)
    assert reason in found and bool(reason) == bool(found)


def _padded(size):
    return next((padded for padded in (64, 80, 128) if size <= padded), None)


def test_the_sanitized_shapes_reach_every_kernel():
    """The kernels in 16 bits, by what chooses them in `custom_ops/cuda` on GPUs with warpgroups."""
    every, alone, short, long = set(), set(), set(), set()
    for _, tokens, _, size, biased in sanitized.ATTENTION:
        every.add((_padded(size), False))
        every |= {(_padded(size), True)} if biased else set()
        # Warpgroups take heads of up to 80 elements that have a multiple of 16 bytes.
        if not (size <= 80 and size % 8 == 0):
            alone.add((_padded(size), False))
        alone |= {(_padded(size), True)} if biased else set()
        if _padded(size) in (64, 80) and tokens <= 64:
            short.add((_padded(size), -(-tokens // 16)))
        elif biased:
            long.add(_padded(size))
    assert every == alone == {(x, y) for x in (64, 80, 128, None) for y in (False, True)}
    assert short == {(padded, warps) for padded in (64, 80) for warps in (1, 2, 3, 4)}
    assert long == {64, 80, 128, None}
    assert {size > 128 for *_, size in sanitized.TAPS} == {True, False}
    # `plan_copy`: the largest unit that divides the bytes of a line of an image and of a patch.
    for dtype, size in (("bfloat16", 2), ("float32", 4)):
        units = set()
        for (_, _, width, channels), patch_size in sanitized.COPIES:
            for bytes_ in (size, 1):
                line = math.gcd(width * channels * bytes_, patch_size * channels * bytes_)
                units.add(math.gcd(line, 16))
        assert units >= {1, size, 8, 16}, dtype
    # kPatchRun: more patches are summed in parts.
    assert any((h // p) * (w // p) * b > 256 for (b, h, w, _), p, _ in sanitized.PATCHES)


PTX = """.visible .entry short_lines(
	.param .align 8 .b8 short_lines_param_0[64]
)
.maxntid 128
.minnctapersm 4
{
}
.entry old(.param .u64 old_param_0)
.maxntid 256, 1, 1
{
}
.entry no_bounds(
)
{
}
"""


def test_the_resources_of_kernels_give_their_occupancy(tmp_path, monkeypatch):
    assert resource_table.threads_of(PTX) == {"short_lines": 128, "old": 256}
    # 65536 registers are 4 blocks of 128 threads with 128 each; 129 take 136 of each thread. Of
    # 245 and 167, Nsight Compute says 12.5 and 18.75 %.
    for registers, threads, arch, expected in (
        (128, 128, "90a", 16 / 64),
        (129, 128, "80", 12 / 64),
        (16, 1024, "90a", 1.0),
        (16, 1024, "86", 32 / 48),
        (168, 384, "90a", 12 / 64),
        (245, 128, "90a", 0.125),
        (167, 128, "90a", 0.1875),
        (129, 160, "90a", 10 / 64),
    ):
        assert resource_table.occupancy(registers, threads, arch) == expected
    tuned = "query_gradients<__nv_bfloat16, 80, 4>"
    kernels = [KERNEL | {"name": "copy<float, 64>", "spilled": 8}, KERNEL | {"name": tuned}]
    kernels.append(KERNEL | {"name": "forward<__half, 64>", "spilled": 12})
    (tmp_path / "cuda_kernels.json").write_text(json.dumps(kernels))
    monkeypatch.setattr(resource_table, "threads_of", lambda ptx: {tuned: 128})
    rows = resource_table.rows(tmp_path / "module.so", str(tmp_path))
    assert [row["name"] for row in rows] == ["forward<__half, 64>", tuned, "copy<float, 64>"]
    assert [row["occupancy"] for row in rows] == [None, 0.25, None]
    assert [row["problems"] for row in rows] == [["12 bytes of registers are spilled"], [], []]
    # What a variant spills is shown only.
    variants = resource_table.rows(tmp_path / "module.so", str(tmp_path), "fast")
    assert [row["name"] for row in variants] == [f"fast: {row['name']}" for row in rows]
    assert [row["spilled"] for row in variants] == [12, 0, 8]
    assert not any(row["problems"] for row in variants)
    # Names that stay mangled, without c++filt, hide spills.
    mangled = [kernel | {"name": f"_ZN3vit{i}"} for i, kernel in enumerate(kernels)]
    (tmp_path / "cuda_kernels.json").write_text(json.dumps(mangled))
    first, *others = resource_table.rows(tmp_path / "module.so", str(tmp_path))
    assert "is c++filt of binutils missing?" in first["problems"][0]
    assert len(others) == 3 and not any(row["problems"] for row in others)


@pytest.mark.process
def test_the_sanitizer_runs_every_tool_on_every_op_and_dtype(tmp_path, monkeypatch):
    program = tmp_path / "compute-sanitizer"
    program.write_text(
        f"#!/bin/sh\ncase $* in *racecheck*taps*) exit 9;; esac\necho '2 calls'; echo '{CLEAN}'\n"
    )
    program.chmod(0o755)
    ops, said = ("attention", "taps"), []
    rows = sanitizer.run(program, "m.so", ops, time.monotonic() + 60, said.append)
    names = {f"{t} {op} {d}" for t in sanitizer.TOOLS for op in ops for d in sanitizer.DTYPES}
    assert {row["name"] for row in rows} == names and len(said) == len(names) == 16
    assert not any("skipped" in row for row in rows)
    assert {row["name"] for row in rows if row["problems"]} == {
        f"racecheck taps {dtype}" for dtype in sanitizer.DTYPES
    }
    late = sanitizer.run(program, "m.so", ops, time.monotonic(), said.append)
    assert {row["name"] for row in late if row["skipped"] == "no time left"} == names
    program.write_text("#!/bin/sh\necho 'Error: Device not supported'; exit 255\n")
    rows = sanitizer.run(program, "m.so", ["taps"], time.monotonic() + 60, said.append)
    assert len(rows) == 8 and all("does not support" in row["skipped"] for row in rows)
    # What the program started ends with it.
    program.write_text(f"#!/bin/sh\nsleep 60 & echo $! >> {tmp_path}/started\nwait\n")
    monkeypatch.setattr(sanitizer, "LEAST_SECONDS", 0.1)
    rows = sanitizer.run(program, "m.so", ["taps"], time.monotonic() + 2, said.append)
    assert [row["skipped"] for row in rows] == ["no time left"] * 8
    started, end = (tmp_path / "started").read_text().split(), time.monotonic() + 20
    while any(_runs(process) for process in started) and time.monotonic() < end:
        time.sleep(0.05)
    assert started and not any(_runs(process) for process in started)


def _runs(process):
    """Whether a process runs; one that has ended may wait for its parent to notice."""
    try:
        return pathlib.Path(f"/proc/{process}/stat").read_text().split()[2] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "speed"], "invalid choice: 'speed'"),
        (["--ops", "encoder"], "invalid choice: 'encoder'"),
        (["--minutes", "0"], "--minutes must be above 0"),
        (["--rounds", "1"], "--rounds must be at least 2"),
        (["--variant", "fast"], "must be NAME=FLAGS"),
        (["--variant", "fast="], "must be NAME=FLAGS"),
        (["--variant", "../x=-DX=1"], "must be NAME=FLAGS"),
        (["--variant", "x=-D'X"], "No closing quotation"),
        (["--variant", "x=-DX=1", "--variant", "x=-DX=2"], "another NAME each time"),
        (["--variant", "x=-DX=1", "--module", "m.so"], "leave out --module"),
    ],
)
def test_wrong_flags_exit_with_2(arguments, message, capsys):
    with pytest.raises(SystemExit) as exit_:
        command.main(arguments)
    assert exit_.value.code == 2 and message in capsys.readouterr().err


def test_a_machine_that_lacks_something_gets_one_message(monkeypatch, capsys):
    monkeypatch.setattr(machine.toolkit, "nvcc_path", lambda: None)
    assert command.main([]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: there is no nvcc") and "PyTorch for CUDA" in line

    answer = {"torch": "2.9", "cuda": "13.0", "gpu": False}

    def run(command, **options):
        if "--version" in command:
            text = "Cuda compilation tools, release 13.0, V13.0.88"
        else:
            text = json.dumps(answer) if "-c" in command else "580.1\n"
        return subprocess.CompletedProcess(command, 0, text)

    monkeypatch.setattr(machine.toolkit, "nvcc_path", lambda: "/nvcc")
    monkeypatch.setattr(machine.toolkit, "programs", lambda path: pathlib.Path("/cuda/bin"))
    monkeypatch.setattr(machine.importlib.util, "find_spec", lambda name: name)
    with pytest.raises(machine.MissingError, match="PyTorch 2.9 finds no GPU"):
        machine.describe(run)
    answer |= {"gpu": True, "card": "NVIDIA X", "capability": "9.0", "memory": 80 * 2**30}
    answer["cudnn"] = False
    with pytest.raises(machine.MissingError, match=r"2\.9 has no SDPBackend.CUDNN_ATTENTION"):
        machine.describe(run)
    answer["cudnn"] = True
    found = machine.describe(run)
    assert found.items() >= {"card": "NVIDIA X", "driver": "580.1", "memory_gib": "80"}.items()
    assert (found["nvcc"], found["programs"]) == ("nvcc V13.0.88", "/cuda/bin")
    monkeypatch.setattr(machine.sys, "version_info", (3, 10, 14))
    with pytest.raises(machine.MissingError, match="is Python .*, older than 3.11"):
        machine.describe(run)


def test_programs_of_the_toolkit_come_before_those_on_the_path(tmp_path, monkeypatch):
    own, other = tmp_path / "own", tmp_path / "other"
    for folder in (own, other):
        folder.mkdir()
        (folder / "ncu").write_text("#!/bin/sh\n")
        (folder / "ncu").chmod(0o755)
    monkeypatch.setenv("PATH", str(other))
    assert machine.program("ncu", str(own)) == str(own / "ncu")
    (own / "ncu").unlink()
    assert machine.program("ncu", str(own)) == str(other / "ncu")
    assert machine.program("cuobjdump", str(own)) is None


def test_the_checks_through_ptx_reach_each_kind_of_kernel():
    found = cases.through_ptx()
    assert all(case.shape[0] and min(case.shape[1:]) > 1 for case in found)
    for dtype in ("bfloat16", "float32"):
        attention = [x for x in found if (x.op, x.dtype) == ("attention", dtype)]
        kinds = {(x.bias is None, x.size > 64, x.size > 80, x.shape[1] > 64) for x in attention}
        assert len(kinds) == len(attention) >= 10
        axes = {(x.axis, x.bias is None) for x in found if (x.op, x.dtype) == ("axial", dtype)}
        assert axes == {(axis, bias) for axis in (1, 2) for bias in (True, False)}
    assert {case.op for case in found} == set(cases.OPS) and len(found) < 60


def test_the_command_builds_checks_and_times(monkeypatch, tmp_path, capsys):
    """Its phases get the module; a build that fails, and a case that is wrong, end in 1."""

    def build(folder, say, variants):
        assert variants == {folder / "variants" / "fast": ["-DX=1", "-DY=a b"]}
        if fails:
            raise BuildError("nvcc fails")
        return "/module.so"

    def run_cases(wanted, request, deadline, say, workers=1, command=None):
        assert request["module"] == "/module.so"
        done = [
            {"name": case.name, "op": case.op, "dtype": case.dtype, "problems": []}
            for case in wanted
        ]
        if request["kind"] == "times":
            assert request["rounds"] == 3
            assert request["variants"] == {"fast": str(tmp_path / "variants/fast/module.so")}
            done = [x | {"row": timed_row()} for x in done]
        done[0] |= answer
        return done[:-1], wanted[-1:]

    monkeypatch.setattr(machine, "describe", lambda: dict(MACHINE))
    monkeypatch.setattr(machine, "program", lambda name, folder: None)
    monkeypatch.setattr(phases.importlib.util, "find_spec", lambda name: None)
    ptx = {"name": "ptx", "problems": []}
    monkeypatch.setitem(phases.TOGETHER, "ptx", lambda run: run.found["ptx"].append(ptx))
    monkeypatch.setattr(command.build_ops, "build_cuda_module", build, raising=False)
    flags = ["--output", str(tmp_path), "--rounds", "3", "--variant", "fast=-DX=1 '-DY=a b'"]
    fails = False
    monkeypatch.setattr(processes, "run_cases", lambda *arguments: 1 / 0)
    assert command.main([*flags, "--only", "checks", "times"]) == 1
    assert "- FAILED all: ZeroDivisionError: division by zero" in capsys.readouterr().out
    monkeypatch.setattr(processes, "run_cases", run_cases)
    for fails, answer, code in (
        (False, {}, 0),
        (False, {"skipped": "MemoryError: needs 32 GiB"}, 0),
        (False, {"problems": ["out: error 1"]}, 1),
        (True, {}, 1),
    ):
        assert command.main(flags) == code
        told = capsys.readouterr()
        assert fails == ("error: nvcc fails" in told.err)
        if not fails:
            text = (tmp_path / "results.md").read_text()
            assert "not run: sanitizer: there is no compute-sanitizer" in text and text in told.out
            assert "not run: jax: " in text and "not run: ncu: there is no ncu" in text
            assert "not run: resources: the module was not built by this" in text
            assert "- compiled from PTX: 1 right, 0 wrong" in text
            assert "not run: checks of 1 cases, " in text and "| efficient TFLOP/s |" in text
            assert ("needs 32 GiB" in text) == ("skipped" in answer)
