"""Runs cases in processes that may die: each case has an answer, and the rest goes on."""

import concurrent.futures
import contextlib
import functools
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time

from tests.checkout import ROOT

COMMAND = (sys.executable, "-m", "benchmarks.gpu.worker")
# Seconds without an answer after which a process is ended: compiling PyTorch's kernels takes some.
PATIENCE = 90
# Processes of an op and dtype that may die before the other cases of the two are given up; and
# processes that may die one after the other without an answer, before all cases are.
MOST_DEATHS = 3
# The exit code of a worker that cannot use the GPU any more after the case that it answered last.
UNUSABLE = 3


def output_of(command, seconds):
    """Runs a program in the checkout; returns its exit code and what it printed.

    Raises:
        subprocess.TimeoutExpired: if it did not end in time. Then the processes that it started
            are ended too: they would go on using the GPU.
    """
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        text, _ = process.communicate(timeout=seconds)
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        # A process that waits for a GPU that hangs cannot be ended.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        process.stdout.close()
        raise
    return process.returncode, text


class Progress:
    """Prints how far the cases of a phase are, every five seconds; for several threads."""

    def __init__(self, phase, total, say, clock=time.monotonic):
        self._phase, self._total, self._say, self._clock = phase, total, say, clock
        self._lock = threading.Lock()
        self._done = self._failed = 0
        self._start = self._last = clock()

    def add(self, failed):
        with self._lock:
            self._done, self._failed = self._done + 1, self._failed + bool(failed)
            now = self._clock()
            if now - self._last < 5 and self._done < self._total:
                return
            self._last, taken = now, now - self._start
            left = taken / self._done * (self._total - self._done)
            self._say(
                f"{self._phase}: {self._done} of {self._total}, {self._failed} failed, "
                f"{taken:.0f} s, about {left:.0f} s left"
            )


def run_cases(cases, request, deadline, say, workers=1, command=COMMAND):
    """Runs cases in processes; a new one takes the place of one that died.

    Args:
        cases: list of cases with `name`, `op` and `dtype`.
        request: dict for `worker.py`, without the names.
        deadline: value of `time.monotonic` at which the processes are ended.
        say: called with lines of progress.
        workers: number of processes at a time.
        command: the process.

    Returns:
        The list of answers, in the order of the cases: dicts of `name`, `op`, `dtype`, `problems`,
        and values of the worker; and the list of cases that were not run, for want of time.
    """
    progress = Progress(request["kind"], len(cases), say)
    answers = {}
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        parts = [cases[first::workers] for first in range(workers)]
        run = functools.partial(_run_part, request, deadline, progress, command)
        for found in pool.map(run, parts):
            answers |= {answer["name"]: answer for answer in found}
    done = [answers[case.name] for case in cases if case.name in answers]
    return done, [case for case in cases if case.name not in answers]


def _run_part(request, deadline, progress, command, cases):
    """Runs cases in one process at a time; returns the list of answers."""
    waiting = {case.name: case for case in cases}
    answers, deaths, silent = [], {}, 0

    def note(answer):
        case = waiting.pop(answer["name"])
        answers.append({"op": case.op, "dtype": case.dtype} | answer)
        progress.add(answer["problems"])

    while waiting and time.monotonic() < deadline:
        before = len(waiting)
        died, reason = _run_process(command, request | {"names": list(waiting)}, deadline, note)
        if not died or not waiting:
            continue
        silent = silent + 1 if len(waiting) == before else 0
        if reason:
            # It died in the first case that has no answer.
            note({"name": next(iter(waiting)), "problems": [reason]})
        group = answers[-1]["op"], answers[-1]["dtype"]
        deaths[group] = deaths.get(group, 0) + 1
        given_up = [
            case.name
            for case in waiting.values()
            if silent >= MOST_DEATHS
            or (deaths[group] >= MOST_DEATHS and (case.op, case.dtype) == group)
        ]
        for name in given_up:
            note({"name": name, "problems": [f"not run: {MOST_DEATHS} processes died"]})
    return answers


def _run_process(command, request, deadline, note):
    """Runs one process until it ends, hangs, or the deadline comes.

    Returns:
        Whether it died before its last case, and why, "" if its last answer says so.
    """
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    lines = queue.Queue()
    reader = threading.Thread(target=_read, args=(process.stdout, lines), daemon=True)
    reader.start()
    text = ""
    try:
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.close()
        left = len(request["names"])
        while left and time.monotonic() < deadline:
            line = lines.get(timeout=min(PATIENCE, max(0.1, deadline - time.monotonic())))
            if line is None:
                code = process.wait()
                said = code == UNUSABLE and left < len(request["names"])
                return True, "" if said else f"the process died with exit code {code}: {text}"
            if line.startswith('{"name"'):
                note(json.loads(line))
                left -= 1
            else:
                text = line.strip()[:300] or text
    except queue.Empty:
        if time.monotonic() >= deadline:
            return False, ""
        return True, f"no answer for {PATIENCE} s"
    except BrokenPipeError:
        return True, f"the process died with exit code {process.wait()}"
    finally:
        process.kill()
        # A process that waits for a GPU that hangs cannot be ended.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        reader.join(5)
    return False, ""


def _read(stream, lines):
    with stream:
        for line in stream:
            lines.put(line)
    lines.put(None)
