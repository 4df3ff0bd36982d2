"""Runs the tools of compute-sanitizer over the kernels, several processes at a time."""

import concurrent.futures
import os
import re
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
# Processes at a time: each has a context of CUDA and tables of the sanitizer in the memory of the
# GPU, beside the other phases.
MOST_PROCESSES = 6
# Lines of the output, and the reason that they are for a run to count as not made.
_REFUSALS = {
    r"device not supported": "compute-sanitizer does not support this GPU",
    r"^\S+ \S+: MemoryError: ": "the GPU has too little memory left",
}
# What the sanitizer says of these.
_OF_REFUSALS = r"not supported|out.of.memory|process didn't|application returned"


def run(program, module, ops, deadline, say):
    """Runs each tool over each op and dtype, each in a process.

    Args:
        program: compute-sanitizer.
        module: path of `_vit_cuda`.
        ops: some of `cases.OPS`.
        deadline: value of `time.monotonic` at which the runs are ended.
        say: called with lines of progress.

    Returns:
        List of dicts of `name`, `problems` and, where a run could not be made, the reason,
        `skipped`.
    """
    found, too_late = [], {"problems": [], "skipped": "no time left"}

    def run_one(job):
        name, left = " ".join(job), deadline - time.monotonic()
        if left < LEAST_SECONDS:
            return found.append({"name": name} | too_late)
        tool, *words = job
        command = [program, "--tool", tool, "--error-exitcode", str(FOUND), sys.executable]
        command += ["-m", "benchmarks.gpu.sanitized", str(module), *words]
        try:
            code, text = processes.output_of(command, min(left, MOST_SECONDS))
            row = {"problems": problems_in(code, text)}
            row |= {"skipped": reason} if row["problems"] and (reason := refusal_in(text)) else {}
        except subprocess.TimeoutExpired:
            row = {"problems": [f"did not end within {MOST_SECONDS} s"]}
            row = too_late if left < MOST_SECONDS else row
        found.append({"name": name} | row)
        if "skipped" not in row:
            say(f"sanitizer: {name}: {'; '.join(row['problems']) or 'no errors'}")

    jobs = [(tool, op, dtype) for tool in TOOLS for op in ops for dtype in DTYPES]
    workers = min(MOST_PROCESSES, len(os.sched_getaffinity(0)))
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        list(pool.map(run_one, jobs))
    return sorted(found, key=lambda row: row["name"])


def refusal_in(text):
    """Why this machine does not allow a run, from the output of one that failed; else ""."""
    if not all(re.search(_OF_REFUSALS, line, re.I) for line in _findings(text)):
        return ""
    found = (reason for x, reason in _REFUSALS.items() if re.search(x, text, re.I | re.M))
    return next(found, "")


def _findings(text):
    kinds = "Error|Warning|Invalid|Uninitialized|Barrier error|Program hit"
    return re.findall(rf"^=+ ((?:{kinds}).*)", text, re.MULTILINE)


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
    lines = _findings(text) + re.findall(r"^\S+ \S+: \w+Error: .*", text, re.MULTILINE)
    lines = [*dict.fromkeys(lines)][:4]
    if summary:
        lines.append(summary.group(1))
    return lines or [f"exit code {code}: {(text.strip().splitlines() or [''])[-1][:300]}"]
