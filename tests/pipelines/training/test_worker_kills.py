"""Workers under the launcher that are killed: the job ends as if nothing had happened."""

import json

import pytest

from tests.pipelines.process import run_module
from tests.pipelines.tiny import assert_same_weights, untimed_metrics

pytestmark = pytest.mark.process


_MORE = ("data.eval_split=test[:100]", "train.eval_every=20", "train.ema_decay=0.99")


@pytest.mark.parametrize(
    ("moments", "steps", "more"),
    [
        ("save", 60, ("data.eval_split=none",)),
        pytest.param("train,train,save", 400, _MORE, marks=pytest.mark.release),
    ],
)
def test_kills_of_workers_change_nothing(tmp_path, moments, steps, more):
    """SIGKILL to worker 0 and worker 1 in turn: weights and log are those of a whole job."""
    assignments = [
        "model.layers=1",
        f"train.steps={steps}",
        "train.checkpoint_every=7",
        "train.log_every=10",
        "train.deterministic=true",
        *more,
    ]
    whole = _run(tmp_path / "whole", "", assignments)
    assert (whole["exit"], whole["attempts"], whole["killed"]) == (0, 1, [])
    killed = _run(tmp_path / "killed", moments, assignments)
    log = (tmp_path / "killed.log").read_text()
    assert killed["exit"] == 0, log
    kills = killed["killed"]
    assert [kill["moment"] for kill in kills] == moments.split(","), log
    assert killed["attempts"] == len(kills) + 1
    assert all(kill["newest"] is not None for kill in kills)
    saves = [kill["saving"] for kill in kills if kill["moment"] == "save"]
    assert saves and all(saves), log  # All hit worker 0, which writes the checkpoints.
    names = ("final.npz", "ema.npz") if more is _MORE else ("final.npz",)
    assert_same_weights(tmp_path / "killed", tmp_path / "whole", names)
    assert untimed_metrics(tmp_path / "killed") == untimed_metrics(tmp_path / "whole")


def _run(workdir, moments, assignments):
    program = "tests.pipelines.training.killed_workers"
    result = run_module(program, workdir, moments, 1, *assignments, cwd=workdir.parent, cold=True)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])
