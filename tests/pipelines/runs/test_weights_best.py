"""The best checkpoint is always scored, and every command opens it (`--weights=best`)."""

import json
import os
import shutil

import pytest

from pipelines.runs import checkpoints, model_source, progress
from pipelines.runs.checkpoints import CheckpointStore
from pipelines.runs.json_file import read_json, write_json
from pipelines.runs.workdir import Workdir
from pipelines.training import loop
from tests.pipelines.process import assert_user_error, run_here
from tests.pipelines.runs.weights_choice import assert_finetunes_from, evaluations, finetune
from tests.pipelines.tiny import cut_short, one_device, tiny_experiment

BEST = 4
EVERY = (
    "train.keep_best=true",
    "train.eval_every=4",
    "train.checkpoint_every=4",
    "optimizer.learning_rate=0.05",
)


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
def runs(tmp_path_factory):
    """`plain` and `averaged`: step `BEST` of 12 has the highest score; `unscored`: no scores."""
    folder = tmp_path_factory.mktemp("runs")
    for name, more in (("plain", ()), ("averaged", ("train.ema_decay=0.9",))):
        loop.train(tiny_experiment(*EVERY, *more), folder / name, one_device())
        assert scores(folder / name).keys() == {4, 8, 12}
        set_score(folder / name, BEST, 1.0)
    shutil.copytree(folder / "plain", folder / "unscored")
    for step in (4, 8, 12):
        set_score(folder / "unscored", step, None)
    return folder


@pytest.fixture
def command(runs, monkeypatch, capsys):
    """`command(module, *arguments)`: the completed process; its working directory has the runs."""

    def run(module, *arguments):
        return run_here(module, *arguments, monkeypatch=monkeypatch, capsys=capsys, cwd=runs)

    return run


@pytest.mark.parametrize("run", ["plain", "averaged"])
def test_evaluate_gives_the_numbers_that_were_scored(runs, command, run):
    """With an average of the weights, the scores are those of the average."""
    logged = evaluations(runs / run)
    losses = {}
    for choice in ("final", "best"):
        result = command("evaluate", f"--model={run}", f"--weights={choice}", "--json")
        assert result.returncode == 0, result.stderr
        losses[choice] = json.loads(result.stdout)["loss"]
    assert losses["best"] == pytest.approx(logged[BEST]["eval_loss"], rel=1e-6)
    assert abs(losses["best"] - losses["final"]) > 1e-3
    source = model_source.find(runs / run, "best")
    assert source.ema == (run == "averaged")


def test_the_next_best_takes_the_place_of_a_damaged_one(runs, command, tmp_path):
    shutil.copytree(runs / "plain", tmp_path / "run")
    data = next((tmp_path / f"run/checkpoints/step-{BEST}").glob("*.data-*"))
    data.write_bytes(data.read_bytes()[:-1])
    left = {step: score for step, score in scores(runs / "plain").items() if step != BEST}
    step = max(left, key=lambda step: (left[step], -step))
    result = command("evaluate", f"--model={tmp_path / 'run'}", "--weights=best", "--json")
    logged = evaluations(runs / "plain")[step]
    assert json.loads(result.stdout)["loss"] == pytest.approx(logged["eval_loss"], rel=1e-6)


def test_finetune_starts_from_the_best_and_says_so(runs, command, tmp_path):
    source = shutil.copytree(runs / "plain", tmp_path / "source")
    said = f"(best, step {BEST})"
    assert_finetunes_from(command, tmp_path / "run", source, "best", said)
    # The same command resumes, even after its source was deleted.
    shutil.rmtree(source)
    printed = finetune(command, tmp_path / "run", source, "best", 2, "--extend")
    assert "resuming from step 1" in printed


@pytest.mark.parametrize("module", ["evaluate", "predict", "export", "finetune"])
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
def test_a_kill_after_an_evaluation_loses_no_score(runs, tmp_path, monkeypatch, place):
    """The scored checkpoint is written first; missing results are evaluated again."""
    run, experiment = cut_short(runs / "plain", tmp_path / "run", 8), tiny_experiment(*EVERY)
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
            loop.train(experiment, run, one_device())
    loop.train(experiment, run, one_device())
    logged = evaluations(run)
    assert scores(run) == {step: x["eval_accuracy"] for step, x in logged.items()}
    steps = [x["step"] for x in Workdir(run).read_metrics() if "eval_loss" in x]
    assert steps == [4, 8, 12]
