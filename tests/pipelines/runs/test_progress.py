"""Log lines: means over the steps that were not skipped, rates, and hints about slow data."""

import datetime
import itertools
import os
import re
import threading
import time
import types

import pytest
import tensorflow as tf

from pipelines.runs import progress
from pipelines.runs.workdir import Workdir


def new_progress(run):
    return progress.Progress(run, step=0, total_steps=12, batch_size=16)


def test_the_log_tells_of_skips_and_means_over_what_counts(tmp_path, logged):
    run = Workdir(tmp_path)
    with new_progress(run) as log:
        log.log_training(4, 6.0, 0.1, 1.0, skipped=1)
        log.log_training(6, 0.0, 0.1, 1.0, skipped=2)
        log.log_training(8, 6.0, 0.1, 1.0)
    lines = run.read_metrics()
    assert [line.get("loss") for line in lines] == [2.0, None, 3.0]
    assert [line.get("skipped") for line in lines] == [1, 2, None]
    output = logged.take().splitlines()
    assert "loss 2.0000  skipped 1 step  lr" in output[0]
    assert "step 6/12  skipped 2 steps  lr" in output[1] and "skipped" not in output[2]


def test_waits_for_data_are_named_and_long_ones_get_a_hint(tmp_path, monkeypatch, logged):
    """Log intervals of 10 s; the first loop, which compiles, is not counted."""
    clock = types.SimpleNamespace(now=0.0)
    run, shares = Workdir(tmp_path), [0.04, 0.05, 0.37, 0.9, 0.0]
    with new_progress(run) as log, monkeypatch.context() as patch:
        patch.setattr(progress.time, "perf_counter", lambda: clock.now)
        for step, share in enumerate([1.0, *shares]):
            with log.timed(1) as timing:
                clock.now += 10.0
                timing.waited = 10.0 * share
            if step:
                log.log_training(step, 1.0, 0.1, 1.0)
    lines = run.read_metrics()
    assert [line["data_wait"] for line in lines] == pytest.approx(shares)
    output = logged.take().splitlines()[2:]
    hints = [index for index, line in enumerate(output) if line.startswith("hint: ")]
    assert hints == [3], output  # once, after the first line above 20 %
    output = [line for line in output if not line.startswith("hint: ")]
    texts = [line.partition("waited")[2] for line in output]
    assert texts == ["", *(f" for data {share} % of the time" for share in (5, 37, 90)), ""]


@pytest.mark.parametrize(
    ("seconds", "shares", "hinted_at"),
    [
        # The first interval after a start gives no hint: queues fill, files are opened.
        (10.0, [1.0, 0.0, 0.0], []),
        (10.0, [1.0, 1.0, 0.0], [2]),
        # Short intervals are added until they make up 5 s.
        (1.0, [1.0] * 5, []),
        (1.0, [0.0, 1.0, 1.0, 0.0, 0.0, 0.0], [6]),
        (1.0, [0.0, 0.9, 0.0, 0.0, 0.0, 0.0, 0.0], []),
        # Intervals that were judged once are not counted again.
        (5.0, [0.0] + [0.1] * 8 + [0.2, 0.9], [10]),
    ],
)
def test_the_hint_waits_until_it_means_something(
    tmp_path, monkeypatch, logged, seconds, shares, hinted_at
):
    clock = types.SimpleNamespace(now=0.0)
    with new_progress(Workdir(tmp_path)) as log, monkeypatch.context() as patch:
        patch.setattr(progress.time, "perf_counter", lambda: clock.now)
        hints = []
        for step, share in enumerate([1.0, *shares]):
            with log.timed(1) as timing:
                clock.now += seconds
                timing.waited = seconds * share
            if step:
                log.log_training(step, 1.0, 0.1, 1.0)
                if "hint: " in logged.take():
                    hints.append(step)
    assert hints == hinted_at


def test_a_rewind_starts_the_hint_anew(tmp_path, monkeypatch, logged):
    clock = types.SimpleNamespace(now=0.0)
    with new_progress(Workdir(tmp_path)) as log, monkeypatch.context() as patch:
        patch.setattr(progress.time, "perf_counter", lambda: clock.now)
        for step in range(3):
            log.restart(step)
            with log.timed(1) as timing:
                clock.now += 10.0
                timing.waited = 10.0
            log.log_training(step, 1.0, 0.1, 1.0)
    assert "hint: " not in logged.take()


def test_a_step_that_was_left_out_is_not_timed(tmp_path, monkeypatch):
    """If it were timed, one slow last step would make the next loop far too long."""
    clock = types.SimpleNamespace(now=0.0)
    with new_progress(Workdir(tmp_path)) as log, monkeypatch.context() as patch:
        patch.setattr(progress.time, "perf_counter", lambda: clock.now)
        for _ in range(2):
            with log.timed(100) as timing:
                clock.now += 2.0
                timing.steps = 1
        assert log.steps_within(10.0) == 5


def test_compiling_shows_signs_of_life(monkeypatch, each_line):
    """Prints the seconds since it began; prints nothing if it was fast, or after it has ended."""
    clock, lines = itertools.count(100.0, 10.0), []
    twice, done = threading.Event(), threading.Event()

    def log(line):
        lines.append(line)
        if len(lines) == 2:
            twice.set()

    each_line(log)
    monkeypatch.setattr(progress.time, "perf_counter", clock.__next__)
    with progress.compiling("the training step", done):
        pass
    assert lines == [] and done.is_set()
    monkeypatch.setattr(progress, "_SIGN_EVERY", 0.001)
    with progress.compiling("the training step", threading.Event()):
        assert twice.wait(300)
    assert lines[:2] == ["compiling the training step: 10 s", "compiling the training step: 20 s"]
    count = len(lines)
    with progress.compiling("the training step", done):
        time.sleep(0.02)
    assert len(lines) == count


def test_a_line_without_a_rate_has_no_share(tmp_path, logged):
    run = Workdir(tmp_path)
    with new_progress(run) as log:
        with log.timed(1) as timing:
            timing.waited = 1.0
        log.log_training(1, 1.0, 0.1, 1.0)
    (line,) = run.read_metrics()
    assert line["data_wait"] is None and line["images_per_second"] is None
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])
    written = datetime.datetime.fromisoformat(line["time"]).timestamp()
    assert abs(written - os.stat(run.metrics).st_mtime) < 60
    assert "waited" not in logged.take()


def test_a_wait_that_is_not_measured_is_null(tmp_path, logged):
    """Where the clock is not read: with `train.deterministic`, and on TPUs."""
    run = Workdir(tmp_path)
    settings = {"step": 0, "total_steps": 12, "batch_size": 16}
    with progress.Progress(run, **settings, measures_wait=False) as log:
        for step in (1, 2):
            with log.timed(1):
                pass
            log.log_training(step, 1.0, 0.1, 1.0)
    lines = run.read_metrics()
    assert [line["data_wait"] for line in lines] == [None, None]
    assert lines[1]["images_per_second"] > 0


@pytest.mark.parametrize("kind", [OSError, tf.errors.UnknownError])
def test_the_running_exception_is_not_replaced(tmp_path, monkeypatch, kind):
    error = kind("disk") if kind is OSError else kind(None, None, "store")
    log = new_progress(Workdir(tmp_path))
    monkeypatch.setattr(log.board, "close", lambda: (_ for _ in ()).throw(error))
    with pytest.raises(ValueError, match="first"), log:
        raise ValueError("first")
    with pytest.raises(kind), log:
        pass
