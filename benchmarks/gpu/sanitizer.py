"""Runs the tools of compute-sanitizer over the kernels, several processes at a time."""

import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

from benchmarks.gpu import processes

# The one that takes longest first.
TOOLS = ("racecheck", "initcheck", "memcheck", "synccheck")
# float16 runs the code of bfloat16.
DTYPES = ("bfloat16", "float32")
# Exit code of the sanitizer if it found an error; `sanitized` itself exits with 1.
FOUND = 9
# Most seconds of one run, and fewest to start one.
MOST_SECONDS = 120
LEAST_SECONDS = 5


def find(nvcc):
    """Path of compute-sanitizer, on PATH or beside nvcc; None if there is none."""
    beside = pathlib.Path(nvcc).resolve().parent / "compute-sanitizer"
    return shutil.which("compute-sanitizer") or shutil.which(beside)


def run(program, module, ops, deadline, say):
    """Runs each tool over each op and dtype, each in a process.

    Args:
        program: compute-sanitizer.
        module: path of `_vit_cuda`.
        ops: some of `cases.OPS`.
        deadline: value of `time.monotonic` at which the runs are ended.
        say: called with lines of progress.

    Returns:
        List of dicts of `name` and `problems`, and the list of the names of runs that time did not
        allow.
    """
    found, not_run = [], []

    def run_one(job):
        name, left = " ".join(job), deadline - time.monotonic()
        if left < LEAST_SECONDS:
            return not_run.append(name)
        tool, *words = job
        command = [program, "--tool", tool, "--error-exitcode", str(FOUND), sys.executable]
        command += ["-m", "benchmarks.gpu.sanitized", str(module), *words]
        try:
            problems = problems_in(*processes.output_of(command, min(left, MOST_SECONDS)))
        except subprocess.TimeoutExpired:
            if left < MOST_SECONDS:
                return not_run.append(name)
            problems = [f"did not end within {MOST_SECONDS} s"]
        found.append({"name": name, "problems": problems})
        say(f"sanitizer: {name}: {'; '.join(problems) or 'no errors'}")

    jobs = [(tool, op, dtype) for tool in TOOLS for op in ops for dtype in DTYPES]
    with concurrent.futures.ThreadPoolExecutor(min(12, len(os.sched_getaffinity(0)))) as pool:
        list(pool.map(run_one, jobs))
    return sorted(found, key=lambda row: row["name"]), sorted(not_run)


def problems_in(code, text):
    """The problems in the output of the sanitizer and of `sanitized`.

    Args:
        code: the exit code.
        text: the output.

    Returns:
        List of lines, at most 5; empty if every call was made and nothing was found.
    """
    calls = re.search(r"^(\d+) calls$", text, re.MULTILINE)
    summary = re.search(r"SUMMARY: (.*)", text)
    # racecheck does not count warnings as errors.
    clean = summary and re.match(r"\D*\b0\b", summary.group(1))
    if code == 0 and calls and int(calls.group(1)) > 0 and clean:
        return []
    lines = re.findall(r"^=+ ((?:Error|Warning|Invalid|Program hit).*)", text, re.MULTILINE)
    lines += re.findall(r"^\S+ \S+: \w+Error: .*", text, re.MULTILINE)
    lines = [*dict.fromkeys(lines)][:4]
    if summary:
        lines.append(summary.group(1))
    return lines or [f"exit code {code}: {(text.strip().splitlines() or [''])[-1][:300]}"]
