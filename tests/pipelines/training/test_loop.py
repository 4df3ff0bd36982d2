"""The training loop: restarts change nothing, and a run writes the documented files."""

import json
import os
import shutil
import signal
import time

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing import plugin_event_accumulator as event_accumulator
from tensorboard.plugins.hparams import metadata as hparams_metadata

from pipelines.config import override
from pipelines.errors import Interrupted, RunError, UserError
from pipelines.runs import checkpoints, model_source, progress
from pipelines.runs.workdir import Workdir
from pipelines.training import loop, training_loop
from pipelines.training.dry_run import dry_run
from tests.pipelines.tiny import (
    arrays,
    assert_same_weights,
    cut_short,
    losses,
    one_device,
    tiny_experiment,
    two_replicas,
)

FINISHED = (
    "train.profile=4:6",
    "train.histograms_every=6",
    "train.eval_every=6",
    "train.checkpoint_every=6",
    "train.log_every=3",
    "train.ema_decay=0.9",
    "train.deterministic=true",
)
KEPT = "--extend keeps the schedule.warmup_steps=3 of the run"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run on one device, with its experiment and its last line of metrics."""
    workdir = tmp_path_factory.mktemp("finished") / "run"
    experiment = tiny_experiment(*FINISHED)
    last = loop.train(experiment, workdir, one_device())
    return workdir, experiment, last


@pytest.fixture
def copy(finished, tmp_path):
    """A copy of the finished run, which a test may change."""
    return shutil.copytree(finished[0], tmp_path / "run")


def test_interrupted_and_resumed_is_bitwise_the_same(finished, tmp_path, monkeypatch, capsys):
    """With an average of the weights, in the middle of a log interval.

    Before that, the run was killed before its first checkpoint: it starts anew.
    """
    whole, experiment, _ = finished
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
            loop.train(experiment, run.path, one_device())
    assert not os.path.exists(run.final)
    assert run.read_metrics() == []
    capsys.readouterr()
    loop.train(experiment, run.path, one_device())
    assert "resuming from step 2" in capsys.readouterr().out

    assert_same_weights(run.path, whole)
    assert losses(run.path) == losses(whole)
    kept = ("step", "eval_loss", "eval_accuracy")
    lines = [
        [[x.get(key) for key in kept] for x in Workdir(w).read_metrics()] for w in (whole, run.path)
    ]
    assert lines[0] == lines[1]


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
        "ema.npz",
        "ema.npz.json",
        "run.log",
    }
    assert Workdir(workdir).read_experiment() == experiment
    lines = Workdir(workdir).read_metrics()
    training = [line for line in lines if "loss" in line]
    assert [line["step"] for line in training] == [3, 6, 9, 12]
    assert all({"learning_rate", "images_per_second"} <= line.keys() for line in training)
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


def shown(workdir, folder):
    """What TensorBoard has read from a folder of a run: an accumulator."""
    path = os.path.join(workdir, "tensorboard", folder)
    accumulator = event_accumulator.EventAccumulator(path, {"tensors": 0})
    return accumulator.Reload()


def test_tensorboard_shows_training_and_validation_in_one_chart(finished):
    workdir, experiment, _ = finished
    curves = {"train": [3, 6, 9, 12], "validation": [6, 12]}
    lines = Workdir(workdir).read_metrics()
    for folder, steps in curves.items():
        events = shown(workdir, folder)
        points = events.Tensors("loss")
        key = {"train": "loss", "validation": "eval_loss"}[folder]
        values = [line[key] for line in lines if key in line]
        assert [point.step for point in points] == steps
        assert [tf.make_ndarray(x.tensor_proto) for x in points] == pytest.approx(values, rel=1e-6)
        for tag in events.Tags()["tensors"]:
            summary = events.SummaryMetadata(tag)
            assert summary.summary_description or summary.plugin_data.plugin_name == "histograms"
    train = shown(workdir, "train")
    assert {"learning_rate", "gradient_norm"} <= set(train.Tags()["tensors"])
    assert "accuracy" in shown(workdir, "validation").Tags()["tensors"]
    (images,) = train.Tensors("training images")
    width, height, *encoded = tf.make_ndarray(images.tensor_proto)
    assert (width, height, len(encoded)) == (b"12", b"12", 16)
    assert tf.io.decode_png(encoded[0]).shape == (12, 12, 3)
    weights = [weight for weight in arrays(workdir) if "MlpBlock" in weight]
    histograms = [tag for tag in train.Tags()["tensors"] if tag.startswith("weights/")]
    assert len([tag for tag in histograms if "/mlp/" in tag]) == len(weights)
    last = train.Tensors("weights/head/kernel")[-1]
    buckets = tf.make_ndarray(last.tensor_proto)
    head = arrays(workdir)["head/kernel"]
    assert last.step == 12 and buckets[:, 2].sum() == head.size
    assert (buckets[0, 0], buckets[-1, 1]) == pytest.approx((head.min(), head.max()))

    whole = shown(workdir, "")
    (text,) = tf.make_ndarray(whole.Tensors("configuration")[-1].tensor_proto).reshape(-1)
    assert json.loads(text.decode().strip("`").removeprefix("json")) == experiment.to_dict()
    content = whole.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    hyperparameters = hparams_metadata.parse_session_start_info_plugin_data(content).hparams
    assert hyperparameters["train.ema_decay"].number_value == 0.9
    assert hyperparameters["model.image_size"].string_value == "12,12"
    (profile,) = (workdir / "tensorboard" / "plugins" / "profile").glob("*/*.xplane.pb")
    names = profile.read_bytes()
    assert b"train" in names and b"step_num" in names


def test_curves_do_not_double_back_and_metrics_are_handed_over(finished, tmp_path):
    run, points = cut_short(finished[0], tmp_path / "run", 6), []
    last = loop.train(finished[1], run, one_device(), on_metrics=points.append)
    assert len(os.listdir(run / "tensorboard" / "train")) == 2
    assert [point.step for point in shown(run, "train").Tensors("loss")] == [3, 6, 9, 12]
    assert [point.step for point in shown(run, "validation").Tensors("loss")] == [6, 12]
    lines = Workdir(run).read_metrics()
    assert points == [line for line in lines if line["step"] > 6] and points[-1] == last


def test_the_log_holds_what_the_run_has_printed(finished, copy, capsys):
    """Also what it said before the workdir was accepted, and the error that ended it."""
    capsys.readouterr()

    def stop(line):
        raise RunError(f"enough at {line['step']}")

    before = (copy / "run.log").read_text().splitlines()
    assert any(line.endswith("wrote " + Workdir(finished[0]).final) for line in before)
    longer = tiny_experiment(*FINISHED, "train.steps=14")
    with pytest.raises(RunError, match="enough at 14"):
        loop.train(longer, copy, one_device(), extend=True, on_metrics=stop)
    log = (copy / "run.log").read_text().splitlines()
    assert log[: len(before)] == before
    printed = capsys.readouterr().out.splitlines()
    assert "resuming from step 12" in printed
    times, lines = zip(*((line[:19], line[20:]) for line in log[len(before) :]), strict=True)
    assert list(lines) == [*printed, "error: enough at 14"]
    assert list(times) == sorted(times) and time.strptime(times[0], "%Y-%m-%d %H:%M:%S")
    progress.say("afterwards")
    with pytest.raises(UserError, match="seed"):
        loop.train(tiny_experiment(*FINISHED, "seed=5"), copy, one_device())
    assert (copy / "run.log").read_text().splitlines() == log


def test_a_finished_run_is_left_as_it_is(finished, capsys):
    workdir, experiment, last = finished
    before = arrays(workdir)
    assert loop.train(experiment, workdir, one_device()) == last
    assert "resuming from step 12" in capsys.readouterr().out
    after = arrays(workdir)
    assert all(np.array_equal(before[key], after[key]) for key in before)


def test_another_configuration_in_the_workdir_is_refused(finished):
    other = tiny_experiment(*FINISHED, "seed=5", "optimizer.learning_rate=0.5")
    with pytest.raises(UserError, match=r"optimizer.learning_rate: 0.002 -> 0.5; seed: 0 -> 5"):
        loop.train(other, finished[0], one_device())


def test_changed_data_are_noticed(finished, copy):
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["data"]["num_examples"] -= 1
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="training data of .* have changed: num_examples: 1296 -> "):
        loop.train(finished[1], copy, one_device())


def test_a_run_is_made_longer_by_extend_only(copy, monkeypatch, capsys):
    before = arrays(copy)
    longer = tiny_experiment(*FINISHED, "train.steps=24")
    with pytest.raises(
        UserError, match=r"train.steps: 12 -> 24\). Add --extend .* to train to step 24"
    ):
        loop.train(longer, copy, one_device())
    other = tiny_experiment(*FINISHED, "train.steps=24", "seed=5")
    with pytest.raises(UserError, match=r"seed: 0 -> 5; train.steps: 12 -> 24\). Choose another"):
        loop.train(other, copy, one_device())
    with pytest.raises(UserError, match="seed: 0 -> 5.*Choose another"):
        loop.train(other, copy, one_device(), extend=True)
    shorter = tiny_experiment(*FINISHED, "train.steps=6")
    with pytest.raises(UserError, match=r"train.steps: 12 -> 6\). Choose another"):
        loop.train(shorter, copy, one_device())
    with pytest.raises(UserError, match="a checkpoint of step 12, more than train.steps=6"):
        loop.train(shorter, copy, one_device(), extend=True)
    assert all(np.array_equal(before[key], value) for key, value in arrays(copy).items())
    assert Workdir(copy).read_experiment().train.steps == 12
    assert model_source.find(copy).kind == "npz"

    def killed(self):
        raise KeyboardInterrupt  # in place of SIGKILL

    # The results of the shorter run are dropped first.
    with monkeypatch.context() as patch:
        patch.setattr(training_loop.TrainingLoop, "run", killed)
        with pytest.raises(KeyboardInterrupt):
            loop.train(longer, copy, one_device(), extend=True)
    assert not (copy / "final.npz").exists() and not (copy / "ema.npz.json").exists()
    assert model_source.find(copy).kind == "checkpoint"
    # The cosine was at its end, and is now in the middle.
    now = 0.001 * (1 + np.cos(np.pi * (12 - 3) / (24 - 3)))
    assert f"rate at step 12: 0.00e+00 -> {now:.2e}\n" in capsys.readouterr().out

    assert loop.train(longer, copy, one_device(), extend=True)["step"] == 24
    rates = {line["step"]: line.get("learning_rate") for line in Workdir(copy).read_metrics()}
    assert rates[15] == pytest.approx(0.001 * (1 + np.cos(np.pi * (14 - 3) / (24 - 3))), rel=1e-5)
    # The same command again changes nothing and prints nothing. The warm-up of the run holds.
    capsys.readouterr()
    scaled = tiny_experiment(*FINISHED, "train.steps=24", "schedule.warmup_steps=6")
    loop.train(scaled, copy, one_device(), extend=True, assigned=["train.steps"])
    said = capsys.readouterr().out
    assert "rate at" not in said and KEPT in said
    assert Workdir(copy).read_experiment() == longer


def test_a_run_that_stopped_early_may_be_shortened(finished, tmp_path):
    """To the steps that it has."""
    run = cut_short(finished[0], tmp_path / "run", 6)
    shorter = tiny_experiment(*FINISHED, "train.steps=6")
    loop.train(shorter, run, one_device(), extend=True)
    assert (run / "final.npz").exists() and checkpoints.steps(run / "checkpoints") == [6]


def test_a_scaled_warm_up_stays_while_a_run_becomes_longer(copy, capsys):
    """The run has 3 steps of warm-up: what 25 of 100 steps are in 12."""
    recipe = tiny_experiment(*FINISHED, "train.steps=100", "schedule.warmup_steps=25")
    same, longer = (override(recipe, [f"train.steps={steps}"]) for steps in (12, 24))
    assert (same.schedule.warmup_steps, longer.schedule.warmup_steps) == (3, 6)
    dry_run(longer, copy, one_device(), extend=True, assigned=["train.steps"])
    in_epochs = override(recipe, [f"train.epochs={16 * 24 / 1297}"])
    dry_run(in_epochs, copy, one_device(), extend=True, assigned=["train.epochs"])
    assert capsys.readouterr().out.count(KEPT) == 2
    with pytest.raises(UserError, match="schedule.warmup_steps: 3 -> 6"):
        assigned = ["train.steps", "schedule.warmup_steps"]
        dry_run(longer, copy, one_device(), extend=True, assigned=assigned)


def test_there_must_be_a_run_to_extend(tmp_path):
    with pytest.raises(UserError, match="--extend continues a run, but .*/run holds no run"):
        loop.train(tiny_experiment(), tmp_path / "run", one_device(), extend=True)
    assert os.listdir(tmp_path) == []


def build(*assignments):
    """A trainer on one device; no dataset is open."""
    experiment = tiny_experiment(*assignments)
    return loop.build_trainer(experiment, experiment.model.config(10), one_device())


def test_linear_decay_never_raises_the_rate(capsys):
    note = "optimizer.learning_rate=1e-06 is below 1e-05, where linear decay ends"
    low = build("schedule.decay=linear", "optimizer.learning_rate=1e-6")
    assert capsys.readouterr().out.count(note) == 1
    assert float(low.optimizer.learning_rate(11)) == pytest.approx(1e-6)
    build("schedule.decay=linear")
    assert "is below" not in capsys.readouterr().out


def test_pixels_outside_of_all_patches_are_said(capsys):
    build("model.image_size=13,12")
    note = "The patches leave out 1 row of pixels at the bottom (13 x 12 pixels in patches of 4)."
    assert note in capsys.readouterr().out


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


def test_batch_size_must_fit_the_replicas(tmp_path):
    with pytest.raises(UserError, match="train.batch_size=15 is not a multiple of 2: 2 replicas"):
        loop.train(tiny_experiment("train.batch_size=15"), tmp_path / "run", two_replicas())
    assert not (tmp_path / "run").exists()


def test_a_folder_without_a_test_split(tmp_path, capsys):
    """A tenth of it is the evaluation split, which config.json names; `dry_run` says so too."""
    folder = image_folder(tmp_path / "images")
    splits = ("data.train_split=auto", "data.eval_split=auto")
    common = (f"data.name=folder:{folder}", *splits, "schedule.decay=constant", "model.layers=1")
    dry_run(tiny_experiment(*common), tmp_path / "run", one_device())
    described = capsys.readouterr().out
    assert '"train_split": "train[:90%]"' in described and "36 examples" in described
    experiment = tiny_experiment(*common, "train.steps=4")
    last = loop.train(experiment, tmp_path / "run", one_device(), origin="recipe tiny: a test")
    takes = "training takes train[:90%], evaluation takes train[90%:]"
    printed = capsys.readouterr().out
    assert printed.count(f"has the split train: {takes}\n") == 1
    assert printed.startswith("recipe tiny: a test\n")
    assert "4 steps of 16 images (1.778 epochs), softmax loss\n" in printed
    assert last["eval_examples"] == 4
    data = Workdir(tmp_path / "run").read_experiment().data
    assert (data.train_split, data.eval_split) == ("train[:90%]", "train[90%:]")
    # The same command finds the run that it has begun.
    assert loop.train(experiment, tmp_path / "run", one_device()) == last
    longer = tiny_experiment(*common, "train.steps=5")
    dry_run(longer, tmp_path / "run", one_device(), extend=True)
    assert "resumes from: step 4" in capsys.readouterr().out
    with pytest.raises(UserError, match="Add --extend"):
        dry_run(longer, tmp_path / "run", one_device())


def image_folder(path, classes="ab", count=20):
    """A folder of small random images, one subfolder per class."""
    rng = np.random.default_rng(0)
    for name in classes:
        (path / name).mkdir(parents=True)
        for index in range(count):
            image = rng.integers(0, 256, [8, 9, 3], np.uint8)
            (path / name / f"{index}.png").write_bytes(tf.io.encode_png(image).numpy())
    return path


def test_weights_that_diverge_in_the_last_step_are_not_saved(tmp_path):
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
    with pytest.raises(RunError, match="is not finite after step 0"):
        loop.train(experiment, tmp_path / "run", one_device())
    assert not (tmp_path / "run" / "final.npz").exists()
    assert checkpoints.steps(tmp_path / "run" / "checkpoints") == []


def test_unpooled_models_are_refused(tmp_path):
    with pytest.raises(UserError, match="model.classifier=unpooled"):
        loop.train(tiny_experiment("model.classifier=unpooled"), tmp_path / "run", one_device())
    assert not (tmp_path / "run").exists()


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


def test_results_without_a_checkpoint_are_not_replaced(finished, copy):
    shutil.rmtree(copy / "checkpoints")
    before = arrays(copy)
    with pytest.raises(UserError, match="holds final.npz and no checkpoint"):
        loop.train(finished[1], copy, one_device())
    after = arrays(copy)
    assert all(np.array_equal(before[key], after[key]) for key in before)
