"""Runs the selected tests on each fault, and keeps the results."""

import concurrent.futures
import dataclasses
import hashlib
import json
import pathlib
import queue
import signal
import subprocess
import threading
import time

from tests.mutants import copies, processes

KILLED, SURVIVED, ERROR = "killed", "survived", "error"
# Signals of a process that a fault in C++ crashes.
_CRASHES = {
    -number
    for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
}
_NO_TEST_RAN = 5  # An exit code of pytest.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings that decide on a result.

    Attributes:
        root: the checkout whose files get the faults.
        seconds: after the build, for the tests of a fault.
        arguments: further arguments of pytest.
    """

    root: pathlib.Path
    seconds: float
    arguments: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """The outcome of a fault.

    Attributes:
        outcome: "killed", "survived" or "error".
        test: that failed, or was running at the time-out; "" without one.
        message: the beginning of the failure, or the error.
        build, seconds: durations of the build and of the tests.
    """

    outcome: str
    test: str = ""
    message: str = ""
    build: float = 0.0
    seconds: float = 0.0


def key(tree_hash, settings, *parts):
    """The name of a result: it changes with what decides on it."""
    texts = [tree_hash, str(settings.seconds), *settings.arguments, *parts]
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]


class Results:
    """Results in a file with a JSON object per line, which is only appended to.

    Args:
        path: the file, which may be missing.
    """

    def __init__(self, path):
        self._path, self._lock = path, threading.Lock()
        lines = path.read_text().splitlines() if path.exists() else []
        self._found = {row["key"]: Result(**row["result"]) for row in map(json.loads, lines)}

    def get(self, name):
        """The result of a `key`; None if there is none."""
        return self._found.get(name)

    def add(self, name, result, **about):
        """Keeps a result, unless it is an error: another run tries again."""
        if result.outcome == ERROR:
            return
        with self._lock, self._path.open("a") as file:
            self._found[name] = result
            row = {"key": name, **about, "result": dataclasses.asdict(result)}
            file.write(json.dumps(row) + "\n")


def selected_tests(settings, paths):
    """Path of a file -> the test files that `tests/changed.py` selects, the fastest ones first."""
    program = pathlib.Path(__file__).parent / "selection.py"
    command = [copies.python_of(settings.root), "-P", program, settings.root, *paths]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=True)
    table = settings.root / "tests/durations.json"
    seconds = json.loads(table.read_text()) if table.exists() else {}

    def duration(test):  # Only long files have one.
        return seconds.get(test, 0)

    return {path: sorted(tests, key=duration) for path, tests in json.loads(done.stdout).items()}


def run_fault(copy, fault, tests, settings):
    """Returns the `Result` of a fault in a `copies.Copy`."""
    if not tests:
        return Result(outcome=SURVIVED, message="no test is selected")
    try:
        with copy.with_fault(fault) as build:
            result = _run_tests(copy, tests, settings.seconds, ["-x", *settings.arguments])
    except copies.BuildFailed as error:
        return Result(outcome=ERROR, message=f"it does not compile: {error}")
    return dataclasses.replace(result, build=round(build, 1))


def _run_tests(copy, tests, seconds, arguments):
    begin = time.monotonic()
    copy.notes.unlink(missing_ok=True)
    options = ["-q", "-p", "no:cacheprovider", *arguments]
    code = copy.run("first_failure.py", copy.notes, *tests, "--", *options, timeout=seconds)
    notes = json.loads(copy.notes.read_text()) if copy.notes.exists() else {}
    took = round(time.monotonic() - begin, 1)
    running, failed = notes.get("running", ""), notes.get("failed", "")
    if code in _CRASHES:
        name = signal.Signals(-code).name
        return Result(outcome=KILLED, test=running, message=f"crash: {name}", seconds=took)
    # 2: interrupted, here by errors during collection.
    if failed and code in (1, 2, None):
        return Result(outcome=KILLED, test=failed, message=notes["message"], seconds=took)
    if code is None:
        return Result(outcome=SURVIVED, test=running, message="time-out", seconds=took)
    if code in (0, _NO_TEST_RAN):
        message = "no test fails" if code == 0 else "no test runs"
        return Result(outcome=SURVIVED, message=message, seconds=took)
    text = copy.output.read_text()[-2000:]
    return Result(outcome=ERROR, message=f"exit code {code} of pytest: {text}", seconds=took)


def run_all(faults, settings, folder, jobs, say):
    """Runs all faults that have no result yet, then the tests that have found one without faults.

    Args:
        faults: list of `Fault`.
        settings: `Settings`.
        folder: of the results and of the copies.
        jobs: number of faults at a time.
        say: called with lines of progress.

    Returns:
        `Fault` -> `Result`. A fault whose test fails without it too is an error.
    """
    folder.mkdir(parents=True, exist_ok=True)
    results, state = Results(folder / "results.jsonl"), copies.tree_hash(settings.root)
    keys = {x: key(state, settings, x.path, x.old, x.new) for x in faults}
    missing = [fault for fault in faults if results.get(keys[fault]) is None]
    say(f"{len(faults) - len(missing)} of {len(faults)} faults have a result already")
    tests = selected_tests(settings, sorted({fault.path for fault in missing}))
    free = queue.SimpleQueue()
    for number in range(jobs):
        free.put(copies.Copy(settings.root, folder / f"copy-{number}"))
    done, begin = {}, time.monotonic()

    def one(fault):
        copy = free.get()
        try:
            result = run_fault(copy, fault, tests[fault.path], settings)
        finally:
            free.put(copy)
        results.add(keys[fault], result, path=fault.path, kind=fault.kind, new=fault.new)
        return result

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        running = {pool.submit(one, fault): fault for fault in missing}
        try:
            for future in concurrent.futures.as_completed(running):
                fault = running[future]
                done[fault] = future.result()
                say(_progress(fault, done[fault], len(done), len(missing), begin))
        except BaseException:
            processes.stop()
            pool.shutdown(cancel_futures=True)
            raise
    found = {fault: done.get(fault) or results.get(keys[fault]) for fault in faults}
    return _confirmed(found, results, lambda test: key(state, settings, test), free.get(), say)


def _progress(fault, result, done, count, begin):
    """A line about a fault, with the rate and the time that is left."""
    minutes = (time.monotonic() - begin) / 60
    rate = done / max(minutes, 1e-3)
    left = (count - done) / rate
    about = f"{result.test} {result.message}".strip()[:240]
    return (
        f"[{done}/{count}] {result.outcome} {fault} ({result.build:.0f} s build, "
        f"{result.seconds:.0f} s tests; {rate:.1f} per minute, {left:.0f} min left): {about}"
    )


def _confirmed(found, results, name_of, copy, say):
    """Runs the tests that have found a fault without one: tests that fail show nothing."""
    tests = {result.test for result in found.values() if result.outcome == KILLED}
    open_tests = sorted(test for test in tests if results.get(name_of(test)) is None)
    if open_tests:
        say(f"{len(open_tests)} tests that have found a fault run without one")
    waiting = open_tests
    while waiting:
        # After a failure, the others run alone: it may be the fault of an earlier one.
        result = _run_tests(copy, waiting, None, [])
        if result.outcome == SURVIVED:
            for test in waiting:
                results.add(name_of(test), result, test=test)
            break
        test = result.test if result.test in waiting else waiting[0]
        alone = _run_tests(copy, [test], None, [])
        if alone.outcome == SURVIVED:
            results.add(name_of(test), alone, test=test)
        else:
            say(f"{test} fails without a fault: {alone.message}")
        waiting = [other for other in waiting if other != test]
    return {
        fault: dataclasses.replace(result, outcome=ERROR, message="fails without the fault too")
        if result.outcome == KILLED and results.get(name_of(result.test)) is None
        else result
        for fault, result in found.items()
    }
