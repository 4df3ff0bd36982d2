"""The training loop: restarts change nothing, and longer runs go on from shorter ones."""

import json
import os
import shutil
import signal

import numpy as np
import pytest

from pipelines.config import Assignments, Request, override
from pipelines.errors import DataError, Interrupted, RunError, UserError
from pipelines.runs import checkpoints, progress
from pipelines.runs.workdir import Workdir
from pipelines.stored_models import model_source
from pipelines.stored_models.model_source import Checkpoint, NpzFile
from pipelines.tasks.task import task_of
from pipelines.training import loop
from pipelines.training.dry_run import dry_run
from pipelines.training.train import build_trainer, train
from tests.pipelines import encoded
from tests.pipelines.tiny import (
    arrays,
    assert_same_weights,
    cut_short,
    losses,
    one_device,
    tiny_experiment,
    two_replicas,
)
from tests.pipelines.training_runs import FINISHED

EXPERIMENT = tiny_experiment(*FINISHED)
KEPT = "--extend keeps the schedule.warmup_steps=3 of the run"


@pytest.fixture
def copy(finished_run, tmp_path):
    """A copy of the finished run, which a test may change."""
    return shutil.copytree(finished_run, tmp_path / "run")


def test_interrupted_and_resumed_is_bitwise_the_same(finished_run, tmp_path, monkeypatch, logged):
    """With an average of the weights, in the middle of a log interval.

    Before that, the run was killed before its first checkpoint: it starts anew.
    """
    run = Workdir(tmp_path / "run")
    os.mkdir(run.path)
    run.append_metrics({"step": 1, "loss": 9.0})
    run.append_metrics({"step": 3, "loss": 9.0})

    timed = progress.Progress.timed
    taken = []

    def signal_in_second_step(self, steps):
        taken.append(steps)
        if sum(taken) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return timed(self, steps)

    with monkeypatch.context() as patch:
        patch.setattr(progress.Progress, "timed", signal_in_second_step)
        patch.setattr(progress.Progress, "steps_within", lambda self, seconds: 1)
        with pytest.raises(Interrupted, match="SIGTERM: saved step 2"):
            train(EXPERIMENT, run.path, one_device())
    assert not os.path.exists(run.final)
    assert run.read_metrics() == []
    logged.clear()
    train(EXPERIMENT, run.path, one_device())
    assert "resuming from step 2" in logged.take()

    assert_same_weights(run.path, finished_run)
    assert losses(run.path) == losses(finished_run)
    kept = ("step", "eval_loss", "eval_accuracy")
    lines = [
        [[x.get(key) for key in kept] for x in Workdir(w).read_metrics()]
        for w in (finished_run, run.path)
    ]
    assert lines[0] == lines[1]


def test_a_finished_run_is_left_as_it_is(copy, logged):
    before, last = arrays(copy), Workdir(copy).read_metrics()[-1]
    assert train(EXPERIMENT, copy, one_device()) == last
    assert logged[-1] == (
        "already finished: step 12 is the last one. --extend with a larger train.steps continues"
    )
    after = arrays(copy)
    assert all(np.array_equal(before[key], after[key]) for key in before)


def test_another_configuration_in_the_workdir_is_refused(copy):
    other = tiny_experiment(*FINISHED, "seed=5", "optimizer.learning_rate=0.5")
    with pytest.raises(UserError, match="0.05 -> 0.5; seed: 0 -> 5"):
        train(other, copy, one_device())


def test_changed_data_are_noticed(copy):
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["data"]["num_examples"] -= 1
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="num_examples: 1296 -> "):
        train(EXPERIMENT, copy, one_device())


def test_without_a_checkpoint_repaired_data_start_the_run_over(tmp_path, logged, uncompiled):
    """A run that stopped at a bad image tells to remove it, which changes the data."""
    jpeg = encoded.encode(encoded.pixels(9, 9), "JPEG")
    tables = jpeg.index(b"\xff\xc4") + 4
    bad = jpeg[:tables] + b"\xff" * 40 + jpeg[tables + 40 :]
    for name in "ab":
        (tmp_path / "data" / name).mkdir(parents=True)
        for i in range(10):
            (tmp_path / "data" / name / f"{i}.jpg").write_bytes(jpeg)
    (tmp_path / "data" / "a" / "bad.jpg").write_bytes(bad)
    experiment = tiny_experiment(f"data.name=folder:{tmp_path}/data", "data.eval_split=none")
    with pytest.raises(DataError, match=r"a/bad.jpg .*cannot be decoded: .*Remove or replace"):
        train(experiment, tmp_path / "run", one_device())
    assert Workdir(tmp_path / "run").read_experiment() == experiment
    (tmp_path / "data" / "a" / "bad.jpg").unlink()
    (tmp_path / "data" / "b" / "notes.txt").touch()
    logged.clear()
    assert train(experiment, tmp_path / "run", one_device())["step"] == 12
    assert Workdir(tmp_path / "run").read_metrics()[0]["step"] == 1
    source = f"folder:{tmp_path}/data split 'train'"
    assert logged[:5] == [
        f"trains on 20 images of 2 classes from {source}: a (10), b (10)",
        "no evaluations: data.eval_split is none",
        "files that are not read: 1 .txt. Only .jpg, .jpeg, .png, .webp, .bmp, .gif are images",
        f"{tmp_path / 'run'} has no checkpoint: the run starts over",
        "scanned 20 files: all begin and end as whole images",
    ]


def test_without_a_checkpoint_other_settings_start_the_run_over(finished_run, tmp_path, uncompiled):
    """Also after a kill while the first checkpoint was written. Another config.json is refused."""
    run = tmp_path / "run"
    Workdir(run).create(tiny_experiment(*FINISHED, "seed=5", "train.steps=9"))
    shutil.copy(finished_run / "manifest.json", run)
    (run / "checkpoints" / "unfinished-3").mkdir()
    with pytest.raises(UserError, match="seed: 5 -> 6"):  # It would go on, and does not begin.
        train(tiny_experiment(*FINISHED, "seed=6"), run, one_device(), Request(extend=True))
    experiment = tiny_experiment("train.steps=2", "schedule.warmup_steps=1")
    assert train(experiment, run, one_device())["step"] == 2
    assert Workdir(run).read_experiment() == experiment
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text('{"architectures": ["ViTForImageClassification"]}')
    with pytest.raises(UserError, match="architectures"):
        train(experiment, other, one_device())
    assert os.listdir(other) == ["config.json"]


def test_a_run_is_made_longer_by_extend_only(copy, monkeypatch, logged, uncompiled):
    before = arrays(copy)
    longer = tiny_experiment(*FINISHED, "train.steps=24")
    with pytest.raises(
        UserError, match=r"train.steps: 12 -> 24\). Add --extend .* to train to step 24"
    ):
        train(longer, copy, one_device())
    other = tiny_experiment(*FINISHED, "train.steps=24", "seed=5")
    with pytest.raises(UserError, match=r"seed: 0 -> 5; .*12 -> 24\)"):
        train(other, copy, one_device())
    with pytest.raises(UserError, match="seed: 0 -> 5.*another"):
        train(other, copy, one_device(), Request(extend=True))
    shorter = tiny_experiment(*FINISHED, "train.steps=6")
    with pytest.raises(UserError, match=r"12 -> 6\).*another"):
        train(shorter, copy, one_device())
    with pytest.raises(UserError, match="step 12, .*steps=6"):
        train(shorter, copy, one_device(), Request(extend=True))
    assert all(np.array_equal(before[key], value) for key, value in arrays(copy).items())
    assert Workdir(copy).read_experiment().train.steps == 12
    assert isinstance(model_source.find(copy), NpzFile)

    def killed(self):
        raise KeyboardInterrupt  # in place of SIGKILL

    # The results of the shorter run are dropped first.
    with monkeypatch.context() as patch:
        patch.setattr(loop.TrainingLoop, "run", killed)
        with pytest.raises(KeyboardInterrupt):
            train(longer, copy, one_device(), Request(extend=True))
    assert not (copy / "final.npz").exists() and not (copy / "ema.npz.json").exists()
    assert isinstance(model_source.find(copy), Checkpoint)
    # The cosine was at its end, and is now in the middle.
    now = 0.025 * (1 + np.cos(np.pi * (12 - 3) / (24 - 3)))
    assert f"rate at step 12: 0.00e+00 -> {now:.2e}\n" in logged.take()

    assert train(longer, copy, one_device(), Request(extend=True))["step"] == 24
    rates = {line["step"]: line.get("learning_rate") for line in Workdir(copy).read_metrics()}
    assert rates[15] == pytest.approx(0.025 * (1 + np.cos(np.pi * (14 - 3) / (24 - 3))), rel=1e-5)
    # The same command again changes nothing and prints nothing. The warm-up of the run holds.
    logged.clear()
    scaled = tiny_experiment(*FINISHED, "train.steps=24", "schedule.warmup_steps=6")
    train(scaled, copy, one_device(), extending("train.steps=24"))
    said = logged.take()
    assert said.startswith("already finished: step 24") and KEPT not in said
    assert Workdir(copy).read_experiment() == longer


def test_a_run_that_stopped_early_may_be_shortened(finished_run, tmp_path):
    """To the steps that it has."""
    run = cut_short(finished_run, tmp_path / "run", 8)
    shorter = tiny_experiment(*FINISHED, "train.steps=8", "train.profile=none")
    train(shorter, run, one_device(), Request(extend=True))
    assert (run / "final.npz").exists() and checkpoints.steps(run / "checkpoints") == [4, 8]


def test_a_scaled_warm_up_stays_while_a_run_becomes_longer(copy, capsys):
    """The run has 3 steps of warm-up: what 25 of 100 steps are in 12."""
    recipe = tiny_experiment(*FINISHED, "train.steps=100", "schedule.warmup_steps=25")
    same, longer = (override(recipe, [f"train.steps={steps}"]) for steps in (12, 24))
    assert (same.schedule.warmup_steps, longer.schedule.warmup_steps) == (3, 6)
    dry_run(longer, copy, one_device(), extending("train.steps=24"))
    in_epochs = override(recipe, [f"train.epochs={16 * 24 / 1297}"])
    dry_run(in_epochs, copy, one_device(), extending("train.epochs=0.3"))
    assert capsys.readouterr().out.count(KEPT) == 2
    with pytest.raises(UserError, match="warmup_steps: 3 -> 6"):
        given = ("train.steps=24", "schedule.warmup_steps=6")
        dry_run(longer, copy, one_device(), extending(*given))


def test_there_must_be_a_run_to_extend(tmp_path):
    with pytest.raises(UserError, match="--extend continues a run, but .*/run holds no run"):
        train(tiny_experiment(), tmp_path / "run", one_device(), Request(extend=True))
    assert os.listdir(tmp_path) == []


def extending(*assignments):
    return Request(extend=True, assignments=Assignments.parse(assignments))


def build(*assignments):
    """A trainer on one device; no dataset is open."""
    experiment = tiny_experiment(*assignments)
    return build_trainer(experiment, task_of(experiment, experiment.model.config(10)), one_device())


def test_linear_decay_never_raises_the_rate(logged):
    note = "optimizer.learning_rate=1e-06 is below 1e-05, where linear decay ends"
    low = build("schedule.decay=linear", "optimizer.learning_rate=1e-6")
    assert logged.take().count(note) == 1
    assert float(low.optimizer.learning_rate(11)) == pytest.approx(1e-6)
    build("schedule.decay=linear")
    assert "is below" not in logged.take()


def test_pixels_outside_of_all_patches_are_said(logged):
    build("model.image_size=13,12")
    note = "The patches leave out 1 row of pixels at the bottom (13 x 12 pixels in patches of 4)."
    assert note in logged.take()


def test_fine_tuning_resets_the_head_and_resizes_positions(
    finished_run, tmp_path, logged, uncompiled
):
    settings = ("model.layers=1", "train.steps=1", "schedule.warmup_steps=0")
    experiment = tiny_experiment(f"init_from={finished_run}", "model.image_size=20", *settings)
    train(experiment, tmp_path / "run", one_device())
    assert "resized positions from 3 x 3 to 5 x 5" in logged.take()
    first = losses(tmp_path / "run")[0]
    assert first == pytest.approx(np.log(10), rel=1e-6)
    key = "Transformer/encoderblock_0/MlpBlock_3/Dense_0/kernel"
    trained, start = arrays(tmp_path / "run")[key], arrays(finished_run)[key]
    assert 0 < np.abs(trained - start).max() < 0.01


@pytest.mark.parametrize(
    ("assignment", "text"),
    [
        ("train.batch_size=15", "batch_size=15 .*2 replicas"),
        ("model.classifier=unpooled", "classifier=unpooled"),
    ],
)
def test_a_refused_experiment_leaves_nothing(assignment, text, tmp_path):
    with pytest.raises(UserError, match=text):
        train(tiny_experiment(assignment), tmp_path / "run", two_replicas())
    assert not (tmp_path / "run").exists()


def test_weights_that_diverge_in_the_last_step_are_not_saved(tmp_path, uncompiled):
    """The loss is computed before the update, so it is still finite."""
    experiment = tiny_experiment(
        "optimizer.name=sgd",
        "optimizer.learning_rate=3e38",
        "model.layers=1",
        "train.loss=sigmoid",
        "optimizer.clip_norm=none",
        "schedule.warmup_steps=0",
        "train.steps=1",
    )
    with pytest.raises(RunError, match="not finite.*step 0"):
        train(experiment, tmp_path / "run", one_device())
    assert not (tmp_path / "run" / "final.npz").exists()
    assert checkpoints.steps(tmp_path / "run" / "checkpoints") == []


def test_results_without_a_checkpoint_are_not_replaced(copy):
    shutil.rmtree(copy / "checkpoints")
    before = arrays(copy)
    with pytest.raises(UserError, match="final.npz .*no checkpoint"):
        train(EXPERIMENT, copy, one_device())
    after = arrays(copy)
    assert all(np.array_equal(before[key], after[key]) for key in before)
