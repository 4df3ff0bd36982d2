"""Runs that are killed or interrupted: no step is lost or repeated, and exit codes say what is."""

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from pipelines.runs import checkpoints
from pipelines.runs.workdir import Workdir
from pipelines.training.train import train
from tests import fork_server
from tests.pipelines.process import ROOT, run_module
from tests.pipelines.tiny import (
    as_flags,
    assert_same_weights,
    one_device,
    tiny_experiment,
    untimed_metrics,
)
from tests.pipelines.training.killed_run import MOMENTS

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    ("kills", "steps", "resumed", "patience"),
    [
        (1, 40, 0, 0),
        pytest.param(3, 80, 1, 0, marks=pytest.mark.heavy("training")),
        pytest.param(7, 600, 2, 0, marks=pytest.mark.release),
        pytest.param(3, 600, 1, 1, marks=pytest.mark.release),
    ],
)
def test_kills_change_nothing(tmp_path, kills, steps, resumed, patience):
    """SIGKILL at the first `killed_run.MOMENTS`; weights and log equal a whole run's.

    Killed attempts resumed from at least `resumed` different steps, and the last one from the
    newest checkpoint. With a `patience` the run ends early.
    """
    assignments = [
        "model.layers=1",
        f"train.steps={steps}",
        "data.eval_split=test[:100]",
        "train.eval_every=20",
        "train.checkpoint_every=7",
        "train.log_every=10",
        "train.ema_decay=0.99",
        "train.accumulate_steps=2",
        "train.keep_best=true",
        "train.deterministic=true",
        f"train.early_stop_after={patience}",
    ]
    result = train(tiny_experiment(*assignments), tmp_path / "whole", one_device())
    assert (result["step"] < steps) == (patience > 0)
    program = "tests.pipelines.training.killed_run"
    result = run_module(program, tmp_path / "killed", kills, 1, *assignments, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    outcome = json.loads(result.stdout)
    log = (tmp_path / "killed.log").read_text()
    assert outcome["exit"] == 0, log + result.stderr
    attempts = outcome["killed"]
    assert f"resuming from step {attempts[-1]['newest']}\n" in log
    assert len(attempts) == kills
    for attempt, following in itertools.pairwise(attempts):
        assert following["resumed"] in (None, attempt["newest"])
    assert [attempt["moment"] for attempt in attempts] == [*MOMENTS, *MOMENTS][:kills]
    assert attempts[0]["saving"], attempts
    assert len({attempt["resumed"] for attempt in attempts if attempt["resumed"]}) >= resumed
    assert_same_weights(tmp_path / "killed", tmp_path / "whole")
    assert untimed_metrics(tmp_path / "killed") == untimed_metrics(tmp_path / "whole")
    folders = [sorted(os.listdir(tmp_path / name / "checkpoints")) for name in ("whole", "killed")]
    assert folders[0] == folders[1]


# Seconds from the writing of the checkpoint to the end of the process; Kubernetes gives 30 in all.
END_WITHIN = 10
DEVICES = {"one device": ["--strategy=one_device"], "mirrored": ["--logical_cpus=2"]}


@pytest.mark.heavy("training")
@pytest.mark.parametrize(
    ("devices", "stops", "steps"),
    [pytest.param("one device", 2, 1500, marks=pytest.mark.release), ("mirrored", 1, 500)],
)
def test_a_stop_on_a_busy_machine_ends_soon_and_changes_nothing(tmp_path, devices, stops, steps):
    stopped = stop_and_resume(tmp_path, DEVICES[devices], stops, seed=0, steps=steps)
    assert [code for code, _ in stopped] == [75] * stops
    assert max(seconds for _, seconds in stopped) < END_WITHIN
    assert_same_weights(tmp_path / "run", tmp_path / "whole")


def stop_and_resume(folder, devices, stops, seed, steps):
    """Trains once as a whole, and once with SIGTERM at random moments beside busy processes.

    It is long enough not to end before the last of some stops.

    Returns:
        `(exit code, seconds from the writing of the checkpoint to the end)` of each stop.
    """
    # With the images of several windows in queues, as in a long run.
    flags = as_flags(f"train.steps={steps}", "train.ema_decay=0.9", "data.shuffle_window=512")
    command = ["-m", "pipelines.pretrain", *flags, *devices]
    assert run_module(*command[1:], "--workdir=whole", cwd=folder).returncode == 0
    moments, results = random.Random(seed), []
    load = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in os.sched_getaffinity(0)
    ]
    try:
        for _ in range(stops):
            results += stopped(command, folder, moments.uniform(0, 1))
    finally:
        for process in load:
            process.kill()
            process.wait()
    assert run_module(*command[1:], "--workdir=run", cwd=folder).returncode == 0
    return results


def stopped(command, folder, seconds):
    """Stops a run some seconds after its first step; [] if it ended before."""
    log = folder / "stopped.log"
    with open(log, "w", encoding="utf-8") as file:
        process = fork_server.Process(
            "pipelines",
            [*command, "--workdir=run"],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": ROOT},
            stdout=file.fileno(),
            stderr=file.fileno(),
        )
    while process.poll() is None and "first step took" not in log.read_text():
        time.sleep(0.05)
    time.sleep(seconds)
    process.send_signal(signal.SIGTERM)
    while process.poll() is None:
        time.sleep(0.01)
    ended, run = time.time(), Workdir(folder / "run")
    if process.returncode == 0:
        return []
    saved = os.stat(
        checkpoints.prefix(run.checkpoints, checkpoints.newest(run.checkpoints)) + ".index"
    )
    return [(process.returncode, ended - saved.st_mtime)]


@pytest.mark.parametrize(
    ("number", "code"),
    [("SIGINT", 130), ("SIGTERM", -15)],
)
@pytest.mark.parametrize(
    ("function", "command"),
    [
        ("pipelines.training.train.build_trainer", ["pretrain", "--workdir=run", *as_flags()]),
        (
            "pipelines.stored_models.stored_model.StoredModel.open_model",
            ["evaluate", "--model=shipped"],
        ),
    ],
    ids=["training", "evaluation"],
)
def test_a_signal_before_there_is_anything_to_save(tmp_path, number, code, function, command):
    program = "tests.pipelines.programs.interrupted"
    result = run_module(program, number, function, *command, cwd=tmp_path)
    assert result.returncode == code
    if number == "SIGINT":
        assert result.stderr == "Interrupted before there was anything new to save.\n"
    assert not (tmp_path / "run" / "config.json").exists()
