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

from benchmarks.gpu import cases, machine, processes, profile, resource_table, sanitizer
from custom_ops import build_ops
from custom_ops.building import toolkit


@dataclasses.dataclass
class Run:
    """What the phases share.

    Attributes:
        arguments: the flags.
        module: path of `_vit_cuda`.
        variants: dict from the names of other builds of the module to their paths.
        say: called with lines of progress.
        found: the results: dict from the name of a phase to its rows, `not_run`, `machine`.
        deadline: value of `time.monotonic` after which the current phases start no more work.
    """

    arguments: object
    module: str
    variants: dict
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
    programs = run.found["machine"]["programs"]
    found = resource_table.rows(run.module, programs)
    for name, module in run.variants.items():
        found += resource_table.rows(module, programs, name)
    run.found["resources"] = found


def sanitize(run):
    program = machine.program("compute-sanitizer", run.found["machine"]["programs"])
    if program is None:
        return run.skip("sanitizer: there is no compute-sanitizer")
    rows = sanitizer.run(program, run.module, run.arguments.ops, run.deadline, run.say)
    run.note("sanitizer", rows, [])


def check_under_jax(run):
    """Builds the handlers for JAX, and runs them in processes without TensorFlow."""
    if importlib.util.find_spec("jax") is None:
        return run.skip(f"jax: {sys.executable} has no package jax")
    build = f"build_jax_library('CUDA', {str(run.arguments.output.resolve())!r})"
    library = _built(run, "jax", build)
    if library is None:
        return
    request = {"module": library, "platform": "CUDA", "kind": "jax"}
    wanted = [case for case in cases.under_jax() if case.op in run.arguments.ops]
    command = (sys.executable, "-m", "benchmarks.gpu.jax_check")
    answers = processes.run_cases(wanted, request, run.deadline, run.say, 2, command)
    run.note("jax", *answers)


def check_ptx(run):
    """Checks a module that has PTX alone, which the driver compiles when it loads."""
    folder = run.arguments.output / "ptx"
    folder.mkdir(parents=True, exist_ok=True)
    build = f"build_cuda_module({str(folder.resolve())!r})"
    module = _built(run, "ptx", build, f"{toolkit.ARCHS}={toolkit.PTX}")
    if module is None:
        return
    request = {"module": module, "kind": "checks"}
    # Compiling takes most of the time; each kind of kernel is compiled in one process.
    wanted = cases.through_ptx(run.arguments.ops)
    answers, left = processes.run_cases(wanted, request, run.deadline, run.say)
    run.note("ptx", answers, left)


def _built(run, phase, build, *settings):
    """Calls a function of `build_ops`, in a process that the deadline ends.

    Args:
        run: `Run`.
        phase: the phase that needs what is built.
        build: the call, as text.
        settings: environment variables, NAME=VALUE.

    Returns:
        The path that the function returns; None, and a line in the report, if time ran out.

    Raises:
        RuntimeError: if the build fails.
    """
    code = f"from custom_ops import build_ops; print(build_ops.{build})"
    command = ["env", *settings, sys.executable, "-c", code]
    run.say(f"{phase}: compiling")
    try:
        failed, text = processes.output_of(command, max(0, run.deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return run.skip(f"{phase}: no time left to compile")
    last = (text.strip().splitlines() or ["no message"])[-1]
    if failed:
        raise RuntimeError(f"the build failed: {last[:300]}")
    return last


def time_all(run):
    wanted = cases.timings(run.arguments.ops, run.arguments.quick)
    request = {"module": run.module, "kind": "times", "rounds": run.arguments.rounds}
    request["variants"] = run.variants
    answers, left = processes.run_cases(wanted, request, run.deadline, run.say)
    rows = [{"name": answer["name"]} | answer.get("row", answer) for answer in answers]
    run.note("times", rows, left)


def profile_attention(run):
    program = machine.program("ncu", run.found["machine"]["programs"])
    now = time.monotonic()
    if program is None or run.deadline - now < 40:
        return run.skip("ncu: " + ("no time left" if program else "there is no ncu"))
    output = run.arguments.output / "ncu.txt"
    rows = profile.run(program, run.module, output, min(now + 60, run.deadline))
    run.note("ncu", rows, [])
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
