"""The phases of the benchmark: each writes rows, with their `problems`, under its name.

Those of `TOGETHER` do not measure time and run at the same time; the others follow, one by one.
"""

import concurrent.futures
import dataclasses
import importlib.util
import os
import pathlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from benchmarks.gpu import cases, processes, profile, resource_table, sanitizer
from custom_ops import build_ops
from custom_ops.building import toolkit
from tests.checkout import ROOT

# Compiles the module as PTX alone.
_BUILD = "import sys; from custom_ops import build_ops; build_ops.build_cuda_module(sys.argv[1])"


@dataclasses.dataclass
class Run:
    """What the phases share.

    Attributes:
        arguments: the flags.
        module: path of `_vit_cuda`.
        say: called with lines of progress.
        found: the results: dict from the name of a phase to its rows, `not_run`, `machine`.
        deadline: value of `time.monotonic` after which the current phases start no more work.
    """

    arguments: object
    module: str
    say: Callable
    found: dict
    deadline: float = 0.0

    def skip(self, text):
        self.found["not_run"].append(text)
        self.say(f"not run: {text}")

    def note(self, phase, answers, left):
        """Keeps the answers of `processes.run_cases`."""
        self.found[phase] = [answer for answer in answers if "skipped" not in answer]
        reasons = {}
        for answer in answers:
            if "skipped" in answer:
                reasons.setdefault(answer["skipped"], []).append(answer["name"])
        for reason, (name, *others) in reasons.items():
            more = f" and {len(others)} more" if others else ""
            self.skip(f"{phase} {name}{more}: {reason}")
        if left:
            self.skip(f"{phase} of {len(left)} cases, {left[0].name} first: no time left")


def check(run):
    wanted = cases.checks(run.arguments.ops, run.arguments.quick)
    request = {"module": run.module, "kind": "checks"}
    # The oracles of several processes share the processor; the GPU has little to do.
    workers = max(1, min(4, len(os.sched_getaffinity(0)) // 2))
    run.note("checks", *processes.run_cases(wanted, request, run.deadline, run.say, workers))


def list_resources(run):
    if not pathlib.Path(run.module).with_name(build_ops.KERNELS).exists():
        return run.skip("resources: the module was not built by this command")
    run.found["resources"] = resource_table.rows(run.module, run.found["machine"]["nvcc_path"])


def sanitize(run):
    program = sanitizer.find(run.found["machine"]["nvcc_path"])
    if program is None:
        return run.skip("sanitizer: there is no compute-sanitizer")
    rows, left = sanitizer.run(program, run.module, run.arguments.ops, run.deadline, run.say)
    run.found["sanitizer"] = rows
    run.found["not_run"] += [f"sanitizer {name}: no time left" for name in left]


def check_under_jax(run):
    """Builds the handlers for JAX, and runs them in processes without TensorFlow."""
    if importlib.util.find_spec("jax") is None:
        return run.skip(f"jax: {sys.executable} has no package jax")
    library = build_ops.build_jax_library("CUDA", run.arguments.output, run.say)
    request = {"module": str(library.resolve()), "platform": "CUDA", "kind": "jax"}
    wanted = [case for case in cases.under_jax() if case.op in run.arguments.ops]
    command = (sys.executable, "-m", "benchmarks.gpu.jax_check")
    answers = processes.run_cases(wanted, request, run.deadline, run.say, 2, command)
    run.note("jax", *answers)


def check_ptx(run):
    """Checks a module that has PTX alone, which the driver compiles when it loads."""
    folder = run.arguments.output / "ptx"
    folder.mkdir(parents=True, exist_ok=True)
    run.say("ptx: compiling the module as PTX alone")
    done = subprocess.run(
        [sys.executable, "-c", _BUILD, str(folder.resolve())],
        cwd=ROOT,
        env=os.environ | {toolkit.ARCHS: toolkit.PTX},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        problem = (done.stdout.strip().splitlines() or ["no message"])[-1][:300]
        raise RuntimeError(f"the build failed: {problem}")
    [module] = folder.glob("_vit_cuda*.so")
    request = {"module": str(module.resolve()), "kind": "checks"}
    # Compiling takes most of the time; each kind of kernel is compiled in one process.
    wanted = cases.through_ptx(run.arguments.ops)
    answers, left = processes.run_cases(wanted, request, run.deadline, run.say)
    run.note("ptx", answers, left)


def time_all(run):
    wanted = cases.timings(run.arguments.ops, run.arguments.quick)
    request = {"module": run.module, "kind": "times", "rounds": run.arguments.rounds}
    answers, left = processes.run_cases(wanted, request, run.deadline, run.say)
    rows = [{"name": answer["name"]} | answer.get("row", answer) for answer in answers]
    run.note("times", rows, left)


def profile_attention(run):
    program = profile.find(run.found["machine"]["nvcc_path"])
    seconds = min(60, run.deadline - time.monotonic())
    if program is None or seconds < 40:
        return run.skip("ncu: " + ("no time left" if program else "there is no ncu"))
    output = run.arguments.output / "ncu.txt"
    run.found["ncu"] = profile.run(program, run.module, output, seconds)
    run.say(f"ncu: {len(run.found['ncu'])} launches; the report is {output}")


# By their names.
TOGETHER = {
    "checks": check,
    "resources": list_resources,
    "sanitizer": sanitize,
    "jax": check_under_jax,
    "ptx": check_ptx,
}
ALONE = {"times": time_all, "ncu": profile_attention}
NAMES = (*TOGETHER, *ALONE)
# The part of the time after the build until which they may start work.
_UNTIL = {"together": 0.55, "times": 0.93, "ncu": 1.0}


def run_all(run, seconds, write):
    """Runs the phases that the flags name; a failure is a row of its phase, and the rest goes on.

    Args:
        run: `Run`.
        seconds: for all phases.
        write: called after each phase.
    """
    begin, lock = time.monotonic(), threading.Lock()

    def guarded(name, phase):
        try:
            phase(run)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            run.found[name].append({"name": "all", "op": name, "dtype": "", "problems": [problem]})
        finally:
            with lock:
                write()

    wanted = run.arguments.only
    run.deadline = begin + seconds * _UNTIL["together"]
    with concurrent.futures.ThreadPoolExecutor(len(TOGETHER)) as pool:
        for name, phase in TOGETHER.items():
            if name in wanted:
                pool.submit(guarded, name, phase)
    for name, phase in ALONE.items():
        if name in wanted:
            run.deadline = begin + seconds * _UNTIL[name]
            guarded(name, phase)
