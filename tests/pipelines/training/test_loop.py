"""The training loop: restarts change nothing, and a run writes the documented files."""

import json
import os
import shutil
import signal

import numpy as np
import pytest
import tensorflow as tf

from pipelines.data import pipeline
from pipelines.errors import Interrupted, RunError, UserError
from pipelines.runs import checkpoints, model_source, progress
from pipelines.runs.signals import Signals
from pipelines.runs.workdir import Workdir
from pipelines.training import loop
from pipelines.training.dry_run import dry_run
from tests.pipelines.tiny import arrays, one_device, tiny_experiment, two_replicas


def losses(workdir):
    return [line["loss"] for line in Workdir(workdir).read_metrics() if "loss" in line]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run on one device, with its experiment."""
    workdir = tmp_path_factory.mktemp("finished") / "run"
    experiment = tiny_experiment("train.eval_every=6", "train.checkpoint_every=6")
    last = loop.train(experiment, workdir, one_device())
    return workdir, experiment, last


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_interrupted_and_resumed_is_bitwise_the_same(tmp_path, monkeypatch, capsys, optimizer):
    experiment = tiny_experiment(
        f"optimizer.name={optimizer}",
        "train.steps=4",
        "train.deterministic=true",
        "train.log_every=3",
    )
    loop.train(experiment, tmp_path / "whole", one_device())

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
            loop.train(experiment, tmp_path / "parts", one_device())
    assert not os.path.exists(tmp_path / "parts" / "final.npz")
    capsys.readouterr()
    loop.train(experiment, tmp_path / "parts", one_device())
    assert "resuming from step 2" in capsys.readouterr().out

    whole, parts = arrays(tmp_path / "whole"), arrays(tmp_path / "parts")
    assert whole.keys() == parts.keys()
    for key, value in whole.items():
        np.testing.assert_array_equal(parts[key], value)
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")


def test_a_run_leaves_what_is_documented(finished):
    workdir, experiment, last = finished
    names = set(os.listdir(workdir))
    assert names == {
        "config.json",
        "manifest.json",
        "metrics.jsonl",
        "tensorboard",
        "checkpoints",
        "final.npz",
        "final.npz.json",
    }
    assert Workdir(workdir).read_experiment() == experiment
    lines = Workdir(workdir).read_metrics()
    steps = [line["step"] for line in lines if "loss" in line]
    assert steps == list(range(1, 13))
    assert all({"learning_rate", "images_per_second"} <= line.keys() for line in lines[:5])
    evaluations = [line for line in lines if "eval_loss" in line]
    assert [line["step"] for line in evaluations] == [6, 12]
    assert all(line["eval_examples"] == 300 for line in evaluations)
    assert last == evaluations[-1]
    manifest = json.loads((workdir / "manifest.json").read_text())
    assert manifest["seed"] == 0
    assert manifest["data"]["num_examples"] == 1297
    start = manifest["starts"][0]
    assert start["versions"]["tensorflow"] == tf.__version__
    assert {"command", "strategy", "git", "ops", "time"} <= start.keys()


def test_tensorboard_holds_scalars_and_images(finished):
    tags = set()
    folder = finished[0] / "tensorboard"
    for name in os.listdir(folder):
        for event in tf.compat.v1.train.summary_iterator(str(folder / name)):
            tags |= {value.tag for value in event.summary.value}
    assert {"loss", "learning_rate", "eval_accuracy"} <= tags
    assert any(tag.startswith("training images") for tag in tags)


def test_a_finished_run_is_left_as_it_is(finished, capsys):
    workdir, experiment, last = finished
    before = arrays(workdir)
    assert loop.train(experiment, workdir, one_device()) == last
    assert "resuming from step 12" in capsys.readouterr().out
    after = arrays(workdir)
    assert all(np.array_equal(before[key], after[key]) for key in before)


def test_another_configuration_in_the_workdir_is_refused(finished):
    workdir, _, _ = finished
    other = tiny_experiment("seed=5", "optimizer.learning_rate=0.5")
    with pytest.raises(UserError, match=r"optimizer.learning_rate: 0.002 -> 0.5; seed: 0 -> 5"):
        loop.train(other, workdir, one_device())


def test_a_run_is_made_longer_by_extend_only(tmp_path, capsys):
    common = ("data.eval_split=none", "optimizer.learning_rate=0.1", "schedule.warmup_steps=0")
    run = tmp_path / "run"
    loop.train(tiny_experiment(*common, "train.steps=4"), run, one_device())
    before = arrays(run)
    longer = tiny_experiment(*common, "train.steps=8", "train.log_every=2")
    with pytest.raises(
        UserError, match=r"train.steps: 4 -> 8\). Add --extend .* to train to step 8"
    ):
        loop.train(longer, run, one_device())
    other = tiny_experiment(*common, "train.steps=8", "seed=5")
    with pytest.raises(UserError, match=r"seed: 0 -> 5; train.steps: 4 -> 8\). Choose another"):
        loop.train(other, run, one_device())
    with pytest.raises(UserError, match="seed: 0 -> 5.*Choose another"):
        loop.train(other, run, one_device(), extend=True)
    shorter = tiny_experiment(*common, "train.steps=2")
    with pytest.raises(UserError, match=r"train.steps: 4 -> 2\). Choose another"):
        loop.train(shorter, run, one_device())
    with pytest.raises(UserError, match="a checkpoint of step 4, more than train.steps=2"):
        loop.train(shorter, run, one_device(), extend=True)
    assert all(np.array_equal(before[key], value) for key, value in arrays(run).items())
    assert Workdir(run).read_experiment().train.steps == 4

    capsys.readouterr()
    assert loop.train(longer, run, one_device(), extend=True)["step"] == 8
    # The cosine was at its end, and is now in the middle.
    assert "rate at step 4: 0.00e+00 -> 5.00e-02\n" in capsys.readouterr().out
    rates = {line["step"]: line["learning_rate"] for line in Workdir(run).read_metrics()}
    assert rates[8] == pytest.approx(0.05 * (1 + np.cos(np.pi * 7 / 8)), rel=1e-5)
    # The same command again changes nothing and prints nothing.
    loop.train(longer, run, one_device(), extend=True)
    assert "rate at" not in capsys.readouterr().out


def test_a_run_that_stopped_early_may_be_shortened(tmp_path, monkeypatch, capsys):
    common = ("data.eval_split=none", "train.checkpoint_every=3")
    stop_after(monkeypatch, 6)
    with pytest.raises(Interrupted, match="saved step 6"):
        loop.train(tiny_experiment(*common), tmp_path / "run", one_device())
    monkeypatch.undo()
    shorter = tiny_experiment(*common, "train.steps=8")
    assert loop.train(shorter, tmp_path / "run", one_device(), extend=True)["step"] == 8


def test_there_must_be_a_run_to_extend(tmp_path):
    with pytest.raises(UserError, match="--extend continues a run, but .*/run holds no run"):
        loop.train(tiny_experiment(), tmp_path / "run", one_device(), extend=True)
    assert os.listdir(tmp_path) == []


def test_linear_decay_never_raises_the_rate(tmp_path, capsys):
    assignments = ("schedule.decay=linear", "train.steps=4", "data.eval_split=none")
    low = tiny_experiment(*assignments, "optimizer.learning_rate=1e-6")
    loop.train(low, tmp_path / "low", one_device())
    note = "optimizer.learning_rate=1e-06 is below 1e-05, where linear decay ends"
    assert capsys.readouterr().out.count(note) == 1
    last = Workdir(tmp_path / "low").read_metrics()[-1]
    assert last["learning_rate"] == pytest.approx(1e-6)
    loop.train(tiny_experiment(*assignments), tmp_path / "high", one_device())
    assert "is below" not in capsys.readouterr().out


def stop_after(monkeypatch, step):
    """Simulates a signal after `step` steps."""
    check = Signals.check
    seen = []

    def interrupted(self):
        seen.append(self)
        if len(seen) == step:
            raise Interrupted("SIGTERM")
        check(self)

    monkeypatch.setattr(Signals, "check", interrupted)


def test_fine_tuning_resets_the_head_and_resizes_positions(finished, tmp_path, capsys):
    workdir, _, _ = finished
    experiment = tiny_experiment(
        f"init_from={workdir}", "model.image_size=20", "train.steps=1", "schedule.warmup_steps=0"
    )
    loop.train(experiment, tmp_path / "run", one_device())
    assert "resized positions from 3 x 3 to 5 x 5" in capsys.readouterr().out
    first = losses(tmp_path / "run")[0]
    assert first == pytest.approx(np.log(10), rel=1e-6)
    trained = arrays(tmp_path / "run")["Transformer/encoderblock_1/MlpBlock_3/Dense_0/kernel"]
    start = arrays(workdir)["Transformer/encoderblock_1/MlpBlock_3/Dense_0/kernel"]
    assert 0 < np.abs(trained - start).max() < 0.01


def test_a_longer_run_drops_the_results_of_the_shorter_one(tmp_path, monkeypatch):
    common = ("schedule.decay=constant", "data.eval_split=none", "train.ema_decay=0.5")
    run = tmp_path / "run"
    loop.train(tiny_experiment(*common, "train.steps=4"), run, one_device())
    assert model_source.find(run).kind == "npz"

    def interrupted(self):
        raise Interrupted("SIGTERM")

    with monkeypatch.context() as patch:
        patch.setattr(Signals, "check", interrupted)
        with pytest.raises(Interrupted, match="saved step 5"):
            loop.train(tiny_experiment(*common, "train.steps=6"), run, one_device(), extend=True)
    assert not (run / "final.npz").exists() and not (run / "ema.npz.json").exists()
    assert model_source.find(run).kind == "checkpoint"


def test_batch_size_must_fit_the_replicas(tmp_path):
    with pytest.raises(UserError, match="train.batch_size=15 is not a multiple of 2: 2 replicas"):
        loop.train(tiny_experiment("train.batch_size=15"), tmp_path / "run", two_replicas())
    assert not (tmp_path / "run").exists()


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path):
    experiment = tiny_experiment(
        "optimizer.name=sgd",
        "optimizer.learning_rate=1e30",
        "optimizer.clip_norm=none",
        "schedule.warmup_steps=0",
    )
    with pytest.raises(RunError, match="The loss is not finite at step"):
        loop.train(experiment, tmp_path / "run", one_device())
    assert not (tmp_path / "run" / "final.npz").exists()


def test_mixed_precision_trains_and_keeps_float32_weights(tmp_path):
    experiment = tiny_experiment("model.dtype=mixed_bfloat16", "train.steps=4")
    loop.train(experiment, tmp_path / "run", one_device())
    assert all(np.isfinite(losses(tmp_path / "run")))
    model, _ = model_source.open_model(model_source.find(tmp_path / "run"))
    assert {variable.dtype for variable in model.trainable_variables} == {"float32"}


def test_an_unreadable_image_is_named(tmp_path):
    folder = image_folder(tmp_path / "images")
    (folder / "b" / "5.png").write_bytes(b"not a picture")
    experiment = tiny_experiment(
        f"data.name=folder:{folder}", "data.eval_split=none", "train.steps=4"
    )
    with pytest.raises(UserError, match=r"b/5\.png"):
        loop.train(experiment, tmp_path / "run", one_device())
    assert not (tmp_path / "run" / "final.npz").exists()


def test_changed_data_are_noticed(tmp_path):
    folder = image_folder(tmp_path / "images")
    experiment = tiny_experiment(
        f"data.name=folder:{folder}", "data.eval_split=none", "train.steps=4"
    )
    loop.train(experiment, tmp_path / "run", one_device())
    (folder / "a" / "0.png").unlink()
    with pytest.raises(UserError, match="training data of .* have changed"):
        loop.train(experiment, tmp_path / "run", one_device())


def test_metrics_without_a_checkpoint_start_anew(tmp_path):
    experiment = tiny_experiment("data.eval_split=none", "train.steps=4")
    run = Workdir(tmp_path / "run")
    os.mkdir(run.path)
    run.append_metrics({"step": 1, "loss": 9.0})
    run.append_metrics({"step": 3, "loss": 9.0})
    loop.train(experiment, run.path, one_device())
    assert [line["step"] for line in run.read_metrics()] == [1, 2, 3, 4]
    assert max(losses(run.path)) < 9


def image_folder(path, classes="ab", count=20):
    """A folder of small random images, one subfolder per class."""
    rng = np.random.default_rng(0)
    for name in classes:
        (path / name).mkdir(parents=True)
        for index in range(count):
            image = rng.integers(0, 256, [8, 9, 3], np.uint8)
            (path / name / f"{index}.png").write_bytes(tf.io.encode_png(image).numpy())
    return path


def test_a_folder_without_a_test_split(tmp_path, capsys):
    """A tenth of it is the evaluation split, which config.json names; `dry_run` says so too."""
    folder = image_folder(tmp_path / "images")
    splits = ("data.train_split=auto", "data.eval_split=auto")
    common = (f"data.name=folder:{folder}", *splits, "schedule.decay=constant")
    described = dry_run(tiny_experiment(*common), tmp_path / "run", one_device())
    assert '"train_split": "train[:90%]"' in described and "36 examples" in described
    last = loop.train(tiny_experiment(*common, "train.steps=4"), tmp_path / "run", one_device())
    takes = "training takes train[:90%], evaluation takes train[90%:]"
    assert capsys.readouterr().out.count(f"has the split train: {takes}\n") == 1
    assert last["eval_examples"] == 4
    data = Workdir(tmp_path / "run").read_experiment().data
    assert (data.train_split, data.eval_split) == ("train[:90%]", "train[90%:]")
    longer = tiny_experiment(*common, "train.steps=5")
    described = dry_run(longer, tmp_path / "run", one_device(), extend=True)
    assert "resumes from: step 4" in described
    with pytest.raises(UserError, match="Add --extend"):
        dry_run(longer, tmp_path / "run", one_device())
    assert loop.train(longer, tmp_path / "run", one_device(), extend=True)["step"] == 5


def test_what_may_not_be_meant_is_said(tmp_path, capsys, monkeypatch):
    """Pixels outside of all patches, and an augmentation that gives images in 0 .. 255."""
    augment = pipeline.augment
    monkeypatch.setattr(pipeline, "augment", lambda *args: 127.5 * augment(*args) + 127.5)
    experiment = tiny_experiment(
        "model.image_size=13,12", "data.eval_split=none", "train.steps=1", "schedule.warmup_steps=0"
    )
    loop.train(experiment, tmp_path / "run", one_device())
    out = capsys.readouterr().out
    assert (
        "The patches leave out 1 row of pixels at the bottom (13 x 12 pixels in patches of 4)."
        in out
    )
    assert "Float images are read as values in [-1, 1]. The largest one here is 255:" in out


@pytest.mark.parametrize("checkpoint_every", [0, 1])
def test_weights_that_diverge_in_the_last_step_are_not_saved(tmp_path, checkpoint_every):
    """The loss is computed before the update, so it is still finite."""
    experiment = tiny_experiment(
        "optimizer.name=sgd",
        "optimizer.learning_rate=3e38",
        "train.loss=sigmoid",
        "optimizer.clip_norm=none",
        "schedule.warmup_steps=0",
        "train.steps=1",
        f"train.checkpoint_every={checkpoint_every}",
    )
    with pytest.raises(RunError, match="is not finite after step 0"):
        loop.train(experiment, tmp_path / "run", one_device())
    assert not (tmp_path / "run" / "final.npz").exists()
    assert checkpoints.steps(tmp_path / "run" / "checkpoints") == []


def test_a_run_that_goes_on_does_not_need_where_it_came_from(finished, tmp_path):
    shutil.copytree(finished[0], tmp_path / "source")
    common = (f"init_from={tmp_path / 'source'}", "schedule.decay=constant")
    loop.train(tiny_experiment(*common, "train.steps=4"), tmp_path / "run", one_device())
    shutil.rmtree(tmp_path / "source")
    longer = tiny_experiment(*common, "train.steps=6")
    last = loop.train(longer, tmp_path / "run", one_device(), extend=True)
    assert last["step"] == 6


def test_unpooled_models_are_refused(tmp_path):
    with pytest.raises(UserError, match="model.classifier=unpooled"):
        loop.train(tiny_experiment("model.classifier=unpooled"), tmp_path / "run", one_device())
    assert not (tmp_path / "run").exists()


def test_sigmoid_training_leaves_a_model_with_sigmoid_probabilities(tmp_path):
    experiment = tiny_experiment("train.loss=sigmoid", "data.eval_split=none", "train.steps=4")
    loop.train(experiment, tmp_path / "run", one_device())
    _, preprocessing = model_source.open_model(model_source.find(tmp_path / "run"))
    np.testing.assert_allclose(preprocessing.to_probabilities(tf.zeros([1, 3])), [[0.5] * 3])


@pytest.mark.parametrize(
    "line",
    [b"5", b"[1]", b'{"loss": 1.0}', b'{"step": "a"}', b"{", b"", b"\xff\xfe{}", b"[" * 100_000],
    ids=lambda line: line[:12].decode(errors="replace"),
)
def test_lines_of_metrics_that_are_not_ours_are_left_out(tmp_path, line):
    run = Workdir(tmp_path)
    run.append_metrics({"step": 1, "loss": 2.0})
    with open(run.metrics, "ab") as file:
        file.write(line + b"\n")
    run.append_metrics({"step": 2, "loss": 1.0})
    expected = [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}]
    assert run.read_metrics() == expected
    run.drop_metrics_after(5)
    assert run.read_metrics() == expected


def test_results_without_a_checkpoint_are_not_replaced(finished, tmp_path):
    workdir, experiment, _ = finished
    shutil.copytree(workdir, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    before = arrays(tmp_path / "run")
    with pytest.raises(UserError, match="holds final.npz and no checkpoint"):
        loop.train(experiment, tmp_path / "run", one_device())
    after = arrays(tmp_path / "run")
    assert all(np.array_equal(before[key], after[key]) for key in before)
