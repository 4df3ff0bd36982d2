"""The best checkpoint is always scored, and every command opens it (`--weights=best`)."""

import functools
import json
import os
import shutil

import pytest

from pipelines.runs import checkpoints, progress
from pipelines.runs.checkpoints import CheckpointStore
from pipelines.runs.json_file import read_json, write_json
from pipelines.runs.workdir import Workdir
from pipelines.stored_models import model_source
from pipelines.training.train import train
from tests.pipelines.process import assert_user_error
from tests.pipelines.stored_models.weights_choice import (
    assert_finetunes_from,
    evaluations,
    finetune,
    without_average,
)
from tests.pipelines.tiny import cut_short, one_device, tiny_experiment
from tests.pipelines.training_runs import FINISHED

BEST = 4


def checksums(run, step):
    """The file with the score of a checkpoint."""
    return os.path.join(Workdir(run).checkpoints, f"step-{step}", "checksums.json")


def scores(run):
    steps = checkpoints.steps(Workdir(run).checkpoints)
    return {step: read_json(checksums(run, step))["score"] for step in steps}


def set_score(run, step, score):
    path = checksums(run, step)
    write_json(path, read_json(path) | {"score": score})


@pytest.fixture(scope="module")
def runs(finished_run, tmp_path_factory):
    """`averaged`: step `BEST` of 12 has the highest score; `plain`: without averages.

    And `unscored`: no checkpoint has a score.
    """
    folder = tmp_path_factory.mktemp("runs")
    for name in ("averaged", "plain", "unscored"):
        shutil.copytree(finished_run, folder / name)
        assert scores(folder / name).keys() == {4, 8, 12}
        set_score(folder / name, BEST, 1.0)
    without_average(folder / "plain")
    for step in (4, 8, 12):
        set_score(folder / "unscored", step, None)
    return folder


@pytest.fixture
def command(command, runs):
    """The working directory of commands has the runs."""
    return functools.partial(command, cwd=runs)


def loss(command, run, choice):
    result = command("evaluate", f"--model={run}", f"--weights={choice}", "--json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)["loss"]


def test_evaluate_gives_the_numbers_that_were_scored(runs, command):
    """With an average of the weights, the scores belong to the average."""
    logged = evaluations(runs / "averaged")
    best = loss(command, "averaged", "best")
    assert best == pytest.approx(logged[BEST]["eval_loss"], rel=1e-6)
    assert abs(best - loss(command, "averaged", "final")) > 1e-3
    assert model_source.find(runs / "averaged", "best").ema


def test_without_an_average_the_best_are_the_weights_themselves(runs, command, tmp_path):
    at_best = cut_short(runs / "plain", tmp_path / "run", BEST)
    best = loss(command, "plain", "best")
    assert best == loss(command, at_best, "final")
    assert abs(best - loss(command, "averaged", "best")) > 1e-3
    assert not model_source.find(runs / "plain", "best").ema


def test_the_next_best_takes_the_place_of_a_damaged_one(runs, command, tmp_path):
    shutil.copytree(runs / "averaged", tmp_path / "run")
    data = next((tmp_path / f"run/checkpoints/step-{BEST}").glob("*.data-*"))
    data.write_bytes(data.read_bytes()[:-1])
    left = {step: score for step, score in scores(runs / "averaged").items() if step != BEST}
    step = max(left, key=lambda step: (left[step], -step))
    logged = evaluations(runs / "averaged")[step]
    assert loss(command, tmp_path / "run", "best") == pytest.approx(logged["eval_loss"], rel=1e-6)


def test_finetune_starts_from_the_best_and_says_so(runs, command, tmp_path, uncompiled):
    source = shutil.copytree(runs / "plain", tmp_path / "source")
    said = f"(best, step {BEST})"
    assert_finetunes_from(command, tmp_path / "run", source, "best", said)
    # The same command resumes, even after its source was deleted.
    shutil.rmtree(source)
    printed = finetune(command, tmp_path / "run", source, "best", 2, "--extend")
    assert "resuming from step 1" in printed


@pytest.mark.parametrize(
    "module",
    [
        *("evaluate", "finetune"),
        *(pytest.param(name, marks=pytest.mark.heavy("serving")) for name in ("predict", "export")),
    ],
)
@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("unscored", "unscored has no best checkpoint: none in unscored/checkpoints is"),
        ("plain/final.npz", "--weights=best needs a workdir, but plain/final.npz is not a workdir"),
        ("shipped", "shipped is not a workdir"),
        ("nowhere", "no model at nowhere"),
    ],
)
def test_where_there_is_no_best(runs, command, module, source, text):
    flag = "--init_from" if module == "finetune" else "--model"
    assert_user_error(command(module, f"{flag}={source}", "--weights=best"), text)
    assert sorted(os.listdir(runs)) == ["averaged", "plain", "unscored"]


@pytest.mark.parametrize("place", ["before the score", "before the metrics"])
def test_a_kill_after_an_evaluation_loses_no_score(runs, tmp_path, monkeypatch, place, uncompiled):
    """The scored checkpoint is written first; missing results are evaluated again."""
    run, experiment = cut_short(runs / "averaged", tmp_path / "run", 8), tiny_experiment(*FINISHED)
    set_score(run, BEST, evaluations(run)[BEST]["eval_accuracy"])
    # As before the evaluation at step 8, which comes next.
    set_score(run, 8, None)
    Workdir(run).drop_metrics_after(7)
    owner, name, killed_at = {
        "before the score": (CheckpointStore, "save", lambda step, score=None: score and step),
        "before the metrics": (
            progress.Progress,
            "log_evaluation",
            lambda step, means, seconds, metric: step,
        ),
    }[place]
    original = getattr(owner, name)

    def killed(self, *arguments, **keywords):
        if killed_at(*arguments, **keywords) == 8:
            raise KeyboardInterrupt  # in place of SIGKILL
        return original(self, *arguments, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, killed)
        with pytest.raises(KeyboardInterrupt):
            train(experiment, run, one_device())
    train(experiment, run, one_device())
    logged = evaluations(run)
    assert scores(run) == {step: x["eval_accuracy"] for step, x in logged.items()}
    steps = [x["step"] for x in Workdir(run).read_metrics() if "eval_loss" in x]
    assert steps == [4, 8, 12]
