"""Workers under the launcher that are killed: the job ends as if nothing had happened."""

import json

import numpy as np
import pytest

from pipelines.training.train import train
from tests.pipelines.equal_runs import RATE, TOLERANCE, assert_equal_weights
from tests.pipelines.process import run_module
from tests.pipelines.tiny import (
    assert_same_weights,
    losses,
    one_device,
    tiny_experiment,
    untimed_metrics,
)

pytestmark = pytest.mark.process


_SETTINGS = (
    "model.layers=1",
    "train.checkpoint_every=7",
    "train.log_every=10",
    "train.deterministic=true",
    "train.ema_decay=0.99",
)


def test_a_job_that_was_killed_equals_one_device(tmp_path):
    """SIGKILL to worker 0 while it saves: no step is lost or repeated."""
    own = ("data.eval_split=none", "optimizer.name=sgd", f"optimizer.learning_rate={RATE['sgd']}")
    assignments = [*_SETTINGS, "train.steps=22", *own]
    _killed(tmp_path, "save", assignments)
    train(tiny_experiment(*assignments), tmp_path / "whole", one_device())
    received, expected = losses(tmp_path / "killed"), losses(tmp_path / "whole")
    np.testing.assert_allclose(received, expected, rtol=TOLERANCE["sgd"])
    assert_equal_weights(tmp_path / "killed", tmp_path / "whole", TOLERANCE["sgd"])


@pytest.mark.release
def test_kills_of_workers_change_nothing(tmp_path):
    """SIGKILL to worker 0 and worker 1 in turn: weights and log equal a whole job's."""
    own = ("train.steps=400", "data.eval_split=test[:100]", "train.eval_every=20")
    assignments = [*_SETTINGS, *own]
    whole = _run(tmp_path / "whole", "", assignments)
    assert (whole["exit"], whole["attempts"], whole["killed"]) == (0, 1, [])
    _killed(tmp_path, "train,train,save", assignments)
    assert_same_weights(tmp_path / "killed", tmp_path / "whole")
    assert untimed_metrics(tmp_path / "killed") == untimed_metrics(tmp_path / "whole")


def _killed(tmp_path, moments, assignments):
    """Trains in the folder `killed`, with kills at these moments."""
    killed = _run(tmp_path / "killed", moments, assignments)
    log = (tmp_path / "killed.log").read_text()
    assert killed["exit"] == 0, log
    kills = killed["killed"]
    assert [kill["moment"] for kill in kills] == moments.split(","), log
    assert killed["attempts"] == len(kills) + 1
    assert all(kill["newest"] is not None for kill in kills)
    saves = [kill["saving"] for kill in kills if kill["moment"] == "save"]
    assert saves and all(saves), log  # All hit worker 0, which writes the checkpoints.


def _run(workdir, moments, assignments):
    program = "tests.pipelines.training.killed_workers"
    result = run_module(program, workdir, moments, 1, *assignments, cwd=workdir.parent)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])
