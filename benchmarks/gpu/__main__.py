"""Builds the module of the kernels for the GPU of this machine, checks it, and times it.

One command for a machine with a GPU, nvcc, PyTorch and pybind11; TensorFlow is not needed:

1.  `custom_ops.build_ops` compiles the kernels for this GPU with this machine's nvcc.
2.  Every op and dtype is checked against float64 and beside PyTorch (`checks.py`).
3.  compute-sanitizer looks for wrong addresses and races (memcheck, racecheck) on small shapes.
4.  Attention is timed beside each SDPA backend of PyTorch, patch embedding beside its convolution.

A check that fails, and a process that an error of CUDA ends, are reported, and the rest goes on.
Exit code 0: all is right; 1: something failed; 2: this machine lacks something, or a flag is wrong.

usage: python -m benchmarks.gpu [--only checks sanitizer times] [--ops OP ...] [--quick]
"""

import argparse
import json
import os
import pathlib
import sys
import time

from benchmarks.gpu import cases, machine, processes, report, sanitizer
from custom_ops import build_ops
from custom_ops.building.build_plan import BuildError
from tests.checkout import ROOT

PHASES = ("checks", "sanitizer", "times")
# The part of the time after the build until which a phase may run.
_UNTIL = {"checks": 0.45, "sanitizer": 0.7, "times": 0.97}


def parse(values):
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--only", nargs="+", choices=PHASES, default=PHASES, metavar="PHASE")
    parser.add_argument("--ops", nargs="+", choices=cases.OPS, default=cases.OPS, metavar="OP")
    parser.add_argument("--quick", action="store_true", help="a few cases of each kind")
    parser.add_argument("--minutes", type=float, default=7.5, help="most minutes of the whole run")
    parser.add_argument("--rounds", type=int, default=20, help="samples of each time")
    parser.add_argument("--module", type=pathlib.Path, help="_vit_cuda to use instead of a new one")
    parser.add_argument(
        "--output",
        type=pathlib.Path,
        default=ROOT / "build" / "gpu",
        help="folder for the module, results.json and results.md",
    )
    found = parser.parse_args(values)
    if not 0 < found.minutes < float("inf"):
        parser.error(f"--minutes must be above 0. Received: {found.minutes}.")
    if found.rounds < 2:
        parser.error(f"--rounds must be at least 2. Received: {found.rounds}.")
    return found


def main(values=None):
    begin = time.monotonic()
    arguments = parse(values)

    def say(line):
        print(f"[{time.monotonic() - begin:4.0f} s] {line}", flush=True)

    try:
        here = machine.describe()
    except machine.MissingError as error:
        print(
            f"error: {error}. This needs a GPU, nvcc, PyTorch for CUDA, and pybind11.",
            file=sys.stderr,
        )
        return 2
    say(", ".join(f"{key} {value}" for key, value in here.items()))
    found = {"machine": here, "checks": [], "sanitizer": [], "times": [], "not_run": []}
    arguments.output.mkdir(parents=True, exist_ok=True)
    try:
        module = arguments.module or build_ops.build_cuda_module(arguments.output, say)
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    built = time.monotonic()
    found["machine"]["build_seconds"] = f"{built - begin:.0f}"
    left = 60 * arguments.minutes - (built - begin)
    for phase in PHASES:
        if phase not in arguments.only:
            continue
        deadline = built + left * _UNTIL[phase]
        try:
            _PHASES[phase](arguments, str(pathlib.Path(module).resolve()), deadline, say, found)
        except Exception as error:  # The other phases still run.
            problem = f"{type(error).__name__}: {error}"
            found[phase].append({"name": "all", "op": phase, "dtype": "", "problems": [problem]})
        finally:
            write(arguments.output, found)
    print("\n" + report.markdown(found))
    say(f"wrote {arguments.output / 'results.json'} and results.md")
    return exit_code(found)


def _check(arguments, module, deadline, say, found):
    wanted = cases.checks(arguments.ops, arguments.quick)
    request = {"module": module, "kind": "checks"}
    # The oracles of several processes share the processor; the GPU has little to do.
    workers = max(1, min(4, len(os.sched_getaffinity(0)) // 2))
    answers, left = processes.run_cases(wanted, request, deadline, say, workers)
    _note(found, "checks", answers, left)


def _sanitize(arguments, module, deadline, say, found):
    program = sanitizer.find(found["machine"]["nvcc_path"])
    if program is None:
        found["not_run"].append("sanitizer: there is no compute-sanitizer")
        return say(found["not_run"][-1])
    rows, left = sanitizer.run(program, module, arguments.ops, deadline, say)
    found["sanitizer"] = rows
    found["not_run"] += [f"sanitizer {name}: no time left" for name in left]


def _time(arguments, module, deadline, say, found):
    wanted = cases.timings(arguments.ops, arguments.quick)
    request = {"module": module, "kind": "times", "rounds": arguments.rounds}
    answers, left = processes.run_cases(wanted, request, deadline, say)
    rows = [{"name": answer["name"]} | answer.get("row", answer) for answer in answers]
    _note(found, "times", rows, left)


_PHASES = {"checks": _check, "sanitizer": _sanitize, "times": _time}


def _note(found, phase, answers, left):
    found[phase] = [answer for answer in answers if "skipped" not in answer]
    skipped = [answer for answer in answers if "skipped" in answer]
    found["not_run"] += [f"{phase} {x['name']}: {x['skipped']}" for x in skipped]
    if left:
        found["not_run"].append(f"{phase} of {len(left)} cases, {left[0].name} first: no time left")


def exit_code(found):
    """1 if anything failed, or nothing ran, else 0."""
    rows = [*found["checks"], *found["sanitizer"], *found["times"]]
    return 1 if not rows or any(row.get("problems") for row in rows) else 0


def write(folder, found):
    """Writes the results, also those of a run that was interrupted."""
    (folder / "results.json").write_text(json.dumps(found, indent=1) + "\n")
    (folder / "results.md").write_text(report.markdown(found))


if __name__ == "__main__":
    sys.exit(main())
