"""The drivers of `benchmarks.peers`, with workers that answer at once, fail or end."""

import itertools
import json
import sys
import types
from typing import ClassVar

import numpy as np
import pytest

from benchmarks.peers import __main__ as driver
from benchmarks.peers import load, processes, progress, worker
from benchmarks.peers.processes import WorkerError
from benchmarks.peers.systems import SYSTEMS

LOGITS = np.arange(12, dtype=np.float32).reshape(4, 3)
MACS = {"macs": 100, "fused_macs": 90}
OURS, PEER = "ours-fused", "openvino"


class FakeWorker:
    """Takes 1 s for each call; `failures` maps a kind of system to its timed calls that fail.

    `seconds` maps a kind of system to the time of its calls, if that is another one.
    """

    versions: ClassVar = {"fake": "1"}
    failures: ClassVar = {}
    seconds: ClassVar = {}
    flat, wrong_order = True, False

    def __init__(self, system, folder, threads, isa):
        self._failures = iter(self.failures.get(system.kind, []))
        self._seconds = self.seconds.get(system.kind, 1.0)

    def ask(self, **request):
        if "seconds" in request and (error := next(self._failures, None)):
            raise error
        if "logits" in request:
            images = np.arange(request.get("clients") or request["batch"]) % len(LOGITS)
            np.save(request["logits"], LOGITS[images[::-1] if self.wrong_order else images])
        if "clients" in request:
            growth = 0 if self.flat else 1
            return {"latencies": [1.0], "elapsed": 1.0, "memory": [1, 1, 1, 1 + growth]}
        return {"seconds": [self._seconds]}

    def close(self):
        pass


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs a driver; returns its exit code and its JSON."""
    np.save(tmp_path / "logits.npy", LOGITS)
    (tmp_path / "fields.json").write_text(json.dumps(MACS))
    for module in (driver, load):
        monkeypatch.setattr(module, "prepare", lambda *_: tmp_path)
        monkeypatch.setattr(module, "Worker", FakeWorker)
    monkeypatch.setattr(driver, "peak_rates", lambda *_: {"avx2": 1e3})

    def call(module, *arguments, **behavior):
        for name, value in behavior.items():
            monkeypatch.setattr(FakeWorker, name, value)
        output = tmp_path / "found.json"
        systems = ["--systems", OURS, PEER, "--json", str(output)]
        monkeypatch.setattr(sys, "argv", ["driver", *systems, "--threads", "1", *arguments])
        try:
            code = module.main()
        except SystemExit as error:
            code = error.code
        return code, json.loads(output.read_text())

    return call


def run_batches(run, *arguments, **behavior):
    options = ["--batches", "1", "2", "--rounds", "3", "--models", "ViT-B/16"]
    return run(driver, *options, *arguments, **behavior)


def test_rates_are_of_the_operations_that_a_system_executes(run):
    code, found = run_batches(run)
    assert (code, found["skipped"]) == (0, [])
    rates = {row["system"]: row["flops"] for row in found["rows"] if row["batch"] == 1}
    assert rates == {OURS: 180, PEER: 200}
    assert {name for name, system in SYSTEMS.items() if system.fused} == {
        "ours-fused",
        "ours-fused-mixed_bfloat16",
    }


def test_a_system_that_fails_while_it_is_timed_is_skipped(run):
    code, found = run_batches(run, failures={"OpenVino": [None, WorkerError("it ended")]})
    # The failure is in the second round of the first batch.
    assert [(x["batch"], x["system"], len(x["seconds"])) for x in found["rows"]] == [
        (1, OURS, 3),
        (2, OURS, 3),
        (2, PEER, 3),
    ]
    expected = "not run: ViT-B/16, 1 threads, openvino, batch 1: it ended"
    assert (code, found["skipped"]) == (1, [expected])


def test_an_interruption_keeps_what_was_measured(run):
    calls = [None] * 4 + [KeyboardInterrupt()]
    code, found = run_batches(run, failures={"SavedModel": calls})
    # It comes in the second round of the second batch, which the other system begins.
    assert [(x["batch"], x["system"], len(x["seconds"])) for x in found["rows"]] == [
        (1, OURS, 3),
        (1, PEER, 3),
        (2, OURS, 1),
        (2, PEER, 2),
    ]
    assert (code, found["skipped"]) == (1, ["not run: the rest: interrupted"])


def test_a_slow_system_is_timed_once(run):
    _, found = run_batches(run, seconds={"OpenVino": 5.1})
    assert [len(x["seconds"]) for x in found["rows"]] == [3, 1] * 2
    _, found = run_batches(run, seconds={"OpenVino": 4.9})
    assert [len(x["seconds"]) for x in found["rows"]] == [3, 3] * 2


def test_progress_counts_what_will_run(run, monkeypatch, capsys):
    """By a clock in which everything that is counted takes 1 s."""
    clock = itertools.count().__next__
    monkeypatch.setattr(progress, "time", types.SimpleNamespace(perf_counter=clock))
    monkeypatch.setattr(progress, "EVERY", 1)
    run_batches(run, "--models", "ViT-B/16", "ViT-L/16", "--batches", "1", "32")
    lines = [x for x in capsys.readouterr().err.splitlines() if "ETA" in x]
    done = [int(line.split("%")[0]) for line in lines]
    # A check of the logits and three rounds of each of three measurements.
    assert done == [round(100 * i / 12) for i in range(1, 13)]
    left = [line.partition("ETA ")[2][:7] for line in lines]
    assert left == [f"0:00:{seconds:02}" for seconds in reversed(range(12))]
    assert lines[8].endswith("; ViT-L/16, batch 1, 1 thread: logits compared")
    assert lines[-1].endswith("; ViT-L/16, batch 1, 1 thread: round 3 of 3")


def test_batches_that_take_long_are_no_failure(run):
    code, found = run_batches(run, "--models", "ViT-L/16", "--batches", "1", "32")
    assert code == 0 and len(found["rows"]) == 2
    assert "batch 32: takes long" in found["skipped"][0]


@pytest.mark.parametrize(
    "behavior, code, turns, skipped",
    [
        ({}, 0, [OURS, PEER] * 2, []),
        ({"failures": {"OpenVino": [WorkerError("it ended")]}}, 1, [OURS] * 2, [PEER]),
        ({"failures": {"SavedModel": [None, KeyboardInterrupt()]}}, 1, [OURS, PEER], ["the rest"]),
        ({"flat": False}, 1, [OURS, PEER] * 2, []),
    ],
)
def test_load_reports_turns_and_what_was_skipped(run, behavior, code, turns, skipped):
    received, found = run(load, "--clients", "6", **behavior)
    assert received == code
    assert [row["system"] for row in found["turns"]] == turns
    assert len(found["skipped"]) == len(skipped)
    assert all(map(str.startswith, found["skipped"], skipped))


def test_load_compares_the_logits_of_each_client(run):
    code, found = run(load, "--clients", "6", wrong_order=True)
    assert "ours-fused: the logits of" in code and found["turns"] == []


def test_only_the_memory_of_our_exports_must_be_flat():
    rows = [{"ours": True, "flat": True}, {"ours": False, "flat": False}]
    assert load.exit_code(rows, []) == 0
    assert load.exit_code([row | {"ours": True} for row in rows], []) == 1
    assert load.exit_code([], []) == 1


def test_each_client_of_a_worker_sends_its_own_image(tmp_path):
    class Runner:
        def prepare(self, images):
            assert len(images) == 1
            return lambda: 2 * images

    paths = [str(tmp_path / name) for name in ("images.npy", "logits.npy")]
    np.save(paths[0], LOGITS)
    request = {"images": paths[0], "clients": 6, "seconds": 0.01, "logits": paths[1]}
    worker._perform(request, {"runner": Runner()})
    np.testing.assert_array_equal(np.load(paths[1]), 2 * LOGITS[[0, 1, 2, 3, 0, 1]])


@pytest.fixture
def start(monkeypatch, tmp_path):
    """Starts a process that runs lines of a shell after its first answer."""

    def call(*lines):
        script = tmp_path / "python"
        script.write_text("\n".join(["#!/bin/sh", "echo '{\"versions\": {}}'", *lines]) + "\n")
        script.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(script))
        return processes.Worker(SYSTEMS[OURS], tmp_path, 1)

    return call


def test_a_process_that_has_ended_is_an_error_and_closes(start):
    process = start("read line")
    # The second request may meet a pipe that is still open, since the process ends meanwhile.
    for _ in range(2):
        with pytest.raises(WorkerError, match="without an answer"):
            process.ask(seconds=1)
    process.close()


def test_the_time_of_a_measurement_comes_on_top_of_the_limit(start, monkeypatch):
    answer = ["read line", "sleep 0.3", "echo '{}'"]
    process = start(*answer, *answer)
    monkeypatch.setattr(processes, "MOST_SECONDS", 0.05)
    assert process.ask(seconds=10) == {}
    with pytest.raises(WorkerError, match="ended without an answer"):
        process.ask(seconds=0)
    process.close()
