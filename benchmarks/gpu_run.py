"""Builds the kernels for the GPU of this machine, checks them, and times them: `make bench-gpu`.

It needs Python 3.11, a GPU, nvcc, ninja, pybind11, pytest and PyTorch for CUDA, 2.5 or newer, and
no TensorFlow. The steps are:

1.  check: the tests of tests/gpu, in four processes, since an error of CUDA ends one.
2.  sanitize: compute-sanitizer looks for wrong addresses, races, wrong barriers and values that
    nothing wrote, on small shapes. It runs beside the checks.
3.  times: attention beside each SDPA backend of PyTorch (`gpu_attention.py`).

A step that fails is reported, and the rest goes on. `results.json` is written after each part, with
commit and card; the other files of its folder have the output of the parts.
Exit code 0: all is right; 1: something failed, or a step did not run at all; 2: this machine lacks
something, or a flag is wrong.

usage: python -m benchmarks.gpu_run [--only STEP ...] [--quick] [--variant NAME=FLAGS]
"""

import argparse
import concurrent.futures
import contextlib
import importlib.util
import itertools
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time

from benchmarks import gpu_attention
from custom_ops import build_ops
from custom_ops.building import ninja_build, toolkit
from custom_ops.building.build_plan import BuildError
from tests.checkout import ROOT
from tests.gpu import cases, small_shapes

STEPS = ("check", "sanitize", "times")
# The part of the time after the build until which checks may run.
CHECKS_UNTIL = 0.55
PYTEST = (
    sys.executable,
    "-m",
    "pytest",
    "-c",
    "tests/gpu/alone.ini",
    "--rootdir",
    ".",
    "-q",
    "-ra",
)
# The parts of the checks: a name and pytest's expression.
PARTS = {
    "bfloat16": "bfloat16",
    "float16": "float16 and not bfloat16",
    "float32": "float32 and not float16",
    "others": "not float16 and not float32",
}
# The tool that takes longest first; the most and least seconds of a run; and the runs at a time, of
# which each has a context of CUDA and tables of the sanitizer in the memory of the GPU.
TOOLS = ("racecheck", "initcheck", "memcheck", "synccheck")
SANITIZER_SECONDS = 120
LEAST_SECONDS = 5
SANITIZERS = 6
# Exit code of the sanitizer if it found an error.
FOUND = 9
_PROBE = """
import json, torch
from torch.nn.attention import SDPBackend
SDPBackend.CUDNN_ATTENTION
torch.zeros(1, device="cuda").item()
print(json.dumps({"torch": torch.__version__, "card": torch.cuda.get_device_name(0)}))
"""


class MissingError(Exception):
    """The script cannot run here; the message says what is missing."""


def parse(values):
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_run", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--only", nargs="+", choices=STEPS, default=STEPS, metavar="STEP")
    parser.add_argument("--quick", action="store_true", help="times of a few cells")
    parser.add_argument("--minutes", type=float, default=9.5, help="most minutes of the whole run")
    parser.add_argument("--rounds", type=int, default=20, help="samples of each time")
    parser.add_argument(
        "--variant",
        action="append",
        default=[],
        type=variant,
        metavar="NAME=FLAGS",
        help="time the kernels compiled with more flags of nvcc too, such as -DNAME=VALUE; repeat",
    )
    parser.add_argument(
        "--output",
        type=pathlib.Path,
        default=ROOT / "build" / "gpu",
        help="folder for the module and results.json",
    )
    found = parser.parse_args(values)
    if not 0 < found.minutes < float("inf"):
        parser.error(f"--minutes must be above 0. Received: {found.minutes}.")
    if found.rounds < 2:
        parser.error(f"--rounds must be at least 2. Received: {found.rounds}.")
    names = [name for name, _ in found.variant]
    if len({*names}) < len(names):
        parser.error(f"--variant needs another NAME each time. Received: {', '.join(names)}.")
    return found


def variant(text):
    """The name of a variant, and its flags of nvcc."""
    name, _, flags = text.partition("=")
    try:
        words = shlex.split(flags)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None
    if not re.fullmatch(r"[A-Za-z0-9_]+", name) or not words:
        raise argparse.ArgumentTypeError(
            f"must be NAME=FLAGS, with a name of letters, digits and _. Received: {text!r}"
        )
    return name, words


def describe():
    """Dict of texts: `commit`, `card`, `torch`, `driver`, `nvcc`, `programs` (their folder).

    Raises:
        MissingError, BuildError: if something is missing.
    """
    ninja_build.find_ninja()
    nvcc = toolkit.nvcc_path()
    if nvcc is None:
        raise MissingError("there is no nvcc, neither in CUDA_HOME nor on PATH")
    for package in ("torch", "pybind11", "numpy", "pytest"):
        if importlib.util.find_spec(package) is None:
            raise MissingError(f"{sys.executable} has no package {package}")
    # In a process of its own: this one must not hold memory of the GPU beside the checks.
    probe = _said(sys.executable, "-c", _PROBE)
    try:
        found = json.loads((probe.splitlines() or [""])[-1])
    except ValueError:
        last = (probe.splitlines() or ["no message"])[-1][:300]
        raise MissingError(f"PyTorch cannot use the GPU: {last}") from None
    driver = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    release = re.search(r"release .*", _said(nvcc, "--version"))
    commit = _said("git", "describe", "--always", "--dirty", "--abbrev=12")
    return {
        "commit": commit,
        **found,
        "driver": _said(*driver),
        "nvcc": release[0] if release else "",
        "programs": str(toolkit.programs(nvcc)),
    }


def _said(*command):
    """What a program prints, with its errors; "" without the program."""
    try:
        done = subprocess.run(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    except OSError:
        return ""
    return done.stdout.strip()


def output_of(command, seconds, log, **variables):
    """Runs a program in the checkout; returns its exit code, None after too long, and its output.

    The processes that it started are ended with it: they would go on using the GPU.
    """
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | variables,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(max(0, seconds))
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            # A process that waits for a GPU that hangs cannot be ended.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
    return code, log.read_text(errors="replace")


def problems_in(code, text, sanitized):
    """The problems in the output of pytest, maybe under compute-sanitizer.

    Args:
        code: the exit code, None if the time ran out.
        text: the output.
        sanitized: whether it ran under compute-sanitizer.

    Returns:
        List of at most 12 lines; empty if tests ran and all passed.
    """
    if code is None:
        return ["did not end in time"]
    summary = re.search(r"SUMMARY: (.*)", text)
    passed = re.search(r"\b\d+ passed\b", text)
    # racecheck does not count warnings as errors.
    clean = not sanitized or (summary and re.match(r"\D*\b0\b", summary.group(1)))
    if code == 0 and passed and clean:
        return []
    kinds = "Error|Warning|Invalid|Uninitialized|Barrier error|Program hit"
    lines = re.findall(rf"^=+ ((?:{kinds}).*)", text, re.MULTILINE)
    lines += re.findall(r"^(?:FAILED|ERROR|SKIPPED|E  |!!!).*", text, re.MULTILINE)
    lines = [x[:300] for x in dict.fromkeys(lines)][:10] + ([summary.group(1)] if summary else [])
    return lines or [f"exit code {code}: {(text.strip().splitlines() or [''])[-1][:300]}"]


def refusal_in(text):
    """Why this machine does not allow a run of compute-sanitizer, from its output; else ""."""
    if re.search(r"^=+ .*(Invalid|Uninitialized|Barrier error|Race|hazard)", text, re.MULTILINE):
        return ""
    if re.search("device not supported", text, re.IGNORECASE):
        return "compute-sanitizer does not support this GPU"
    return "the GPU has too little memory left" if "has too little memory" in text else ""


def parts(only, programs):
    """The command of each part of the steps "check" and "sanitize", by its name.

    Args:
        only: the steps.
        programs: the folder of the programs of the CUDA toolkit.
    """
    found = {}
    for name, expression in PARTS.items() if "check" in only else ():
        test = "tests/gpu/test_kernels_on_gpu.py"
        found[f"check {name}"] = [*PYTEST, "-m", "gpu", "-k", expression, test]
    program = "compute-sanitizer"
    tool = shutil.which(program, path=programs) or shutil.which(program)
    for words in itertools.product(TOOLS, cases.OPS, small_shapes.DTYPES):
        if "sanitize" in only and tool:
            test = f"tests/gpu/test_small_shapes.py::test_every_call_returns[{'-'.join(words[1:])}]"
            found[" ".join(words)] = [
                *(tool, "--tool", words[0], "--error-exitcode", str(FOUND), *PYTEST, test)
            ]
    return found


def check(wanted, output, module, deadline, note):
    """Runs what `parts` returns at the same time; `note` gets a row of each."""

    def run(name, command):
        sanitized = not name.startswith("check")
        left = deadline - time.monotonic()
        if sanitized and left < LEAST_SECONDS:
            return note({"name": name, "skipped": "no time left"})
        log = output / f"{name.replace(' ', '-')}.log"
        seconds = min(left, SANITIZER_SECONDS) if sanitized else left
        code, text = output_of(command, seconds, log, VIT_CUDA_MODULE=str(module))
        row = {"name": name, "problems": problems_in(code, text, sanitized)}
        row["said"] = (re.findall(r"^\d+ (?:passed|failed).*", text, re.MULTILINE) or [""])[-1]
        if sanitized and row["problems"] and (reason := refusal_in(text)):
            row = {"name": name, "skipped": reason}
        note(row)

    with (
        concurrent.futures.ThreadPoolExecutor(len(PARTS)) as checks,
        concurrent.futures.ThreadPoolExecutor(SANITIZERS) as sanitizers,
    ):
        waiting = [
            (checks if name.startswith("check") else sanitizers).submit(run, name, command)
            for name, command in wanted.items()
        ]
    for future in waiting:
        future.result()


def main(values=None):
    begin = time.monotonic()
    arguments = parse(values)
    output = arguments.output.resolve()

    def say(line):
        print(f"[{time.monotonic() - begin:4.0f} s] {line}", flush=True)

    try:
        found = {"machine": describe(), "checks": [], "times": []}
    except (MissingError, BuildError) as error:
        print(f"error: {error}. See `python -m benchmarks.gpu_run --help`.", file=sys.stderr)
        return 2
    say(", ".join(f"{key} {value}" for key, value in found["machine"].items()))
    folders = {output / "variants" / name: flags for name, flags in arguments.variant}
    for folder in (output, *folders):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        module = pathlib.Path(build_ops.build_cuda_module(output, say, folders))
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    end, built = begin + 60 * arguments.minutes, time.monotonic()

    lock = threading.Lock()

    def note(kind, row):
        with lock:
            found[kind].append(row)
            (output / "results.json").write_text(json.dumps(found, indent=1) + "\n")
        say(gpu_attention.line(row) if "systems" in row else line(row))

    wanted = parts(arguments.only, found["machine"]["programs"])
    if "sanitize" in arguments.only and len(wanted) <= len(PARTS):
        note("checks", {"name": "sanitize", "skipped": "there is no compute-sanitizer"})
    deadline = built + CHECKS_UNTIL * (end - built)
    check(wanted, output, module, deadline, lambda row: note("checks", row))
    if "times" in arguments.only:
        modules = {"ours": module}
        modules |= {f"ours {folder.name}": folder / module.name for folder in folders}
        gpu_attention.time_cells(
            gpu_attention.cells(arguments.quick),
            modules,
            arguments.rounds,
            end - 15,
            lambda row: note("times", row),
        )
    return exit_code(found, arguments.only)


def line(row):
    """A row of a check, or of a time that failed, as text."""
    problems = "; ".join(row.get("problems", ()))
    if reason := row.get("skipped"):
        return f"{row['name']}: not run: {reason}"
    return f"{row['name']}: {f'FAILED: {problems}' if problems else 'right'} {row.get('said', '')}"


def exit_code(found, wanted):
    """1 if anything failed, or a wanted step did not run at all; else 0."""
    rows = [("times", row) for row in found["times"]]
    for row in found["checks"]:
        rows.append(("check" if row["name"].startswith("check") else "sanitize", row))
    ran = {step for step, row in rows if "skipped" not in row}
    return int(ran != {*wanted} or any(row.get("problems") for _, row in rows))


if __name__ == "__main__":
    sys.exit(main())
