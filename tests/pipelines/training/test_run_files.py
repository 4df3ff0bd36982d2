"""The files of a run: the documented files, TensorBoard, the log, and lines of metrics."""

import json
import logging
import os
import shutil
import time

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing import plugin_event_accumulator as event_accumulator
from tensorboard.plugins.hparams import metadata as hparams_metadata

from pipelines.config import Request
from pipelines.errors import RunError, UserError
from pipelines.runs.workdir import Workdir
from pipelines.stored_models import model_source
from pipelines.training.dry_run import dry_run
from pipelines.training.train import train
from pipelines.training.train_data import open_data
from tests.pipelines.tiny import arrays, cut_short, one_device, tiny_experiment
from tests.pipelines.training_runs import FINISHED
from vit_tf import analysis

EXPERIMENT = tiny_experiment(*FINISHED)


def test_a_run_leaves_what_is_documented(finished_run):
    assert set(os.listdir(finished_run)) == {
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
    assert Workdir(finished_run).read_experiment() == EXPERIMENT
    lines = Workdir(finished_run).read_metrics()
    training = [line for line in lines if "loss" in line]
    assert [line["step"] for line in training] == [3, 6, 9, 12]
    assert all({"learning_rate", "images_per_second"} <= line.keys() for line in training)
    evaluations = [line for line in lines if "eval_loss" in line]
    assert [line["step"] for line in evaluations] == [4, 8, 12]
    assert all(line["eval_examples"] == 300 for line in evaluations)
    manifest = json.loads((finished_run / "manifest.json").read_text())
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


def test_tensorboard_shows_training_and_validation_in_one_chart(finished_run):
    curves = {"train": [3, 6, 9, 12], "validation": [4, 8, 12]}
    lines = Workdir(finished_run).read_metrics()
    for folder, steps in curves.items():
        events = shown(finished_run, folder)
        points = events.Tensors("loss")
        key = {"train": "loss", "validation": "eval_loss"}[folder]
        values = [line[key] for line in lines if key in line]
        assert [point.step for point in points] == steps
        assert [tf.make_ndarray(x.tensor_proto) for x in points] == pytest.approx(values, rel=1e-6)
        for tag in events.Tags()["tensors"]:
            summary = events.SummaryMetadata(tag)
            assert summary.summary_description or summary.plugin_data.plugin_name == "histograms"
    train = shown(finished_run, "train")
    assert {"learning_rate", "gradient_norm"} <= set(train.Tags()["tensors"])
    assert "accuracy" in shown(finished_run, "validation").Tags()["tensors"]
    (images,) = train.Tensors("training images")
    width, height, *encoded = tf.make_ndarray(images.tensor_proto)
    assert (width, height, len(encoded)) == (b"12", b"12", 16)
    assert tf.io.decode_png(encoded[0]).shape == (12, 12, 3)
    weights = [weight for weight in arrays(finished_run) if "MlpBlock" in weight]
    histograms = [tag for tag in train.Tags()["tensors"] if tag.startswith("weights/")]
    assert len([tag for tag in histograms if "/mlp/" in tag]) == len(weights)
    last = train.Tensors("weights/head/kernel")[-1]
    buckets = tf.make_ndarray(last.tensor_proto)
    head = arrays(finished_run)["head/kernel"]
    assert last.step == 12 and buckets[:, 2].sum() == head.size
    assert (buckets[0, 0], buckets[-1, 1]) == pytest.approx((head.min(), head.max()))

    # Pictures of the average of the weights, which evaluations use too.
    validation = shown(finished_run, "validation")
    assert [point.step for point in validation.Tensors("attention")] == [6, 12]
    data = open_data(EXPERIMENT, Workdir(finished_run)).evaluation
    stored = data.source.read(
        np.linspace(0, 299, 16).round().astype(int)[[0, 2, 4, 6, 9, 11, 13, 15]]
    )
    prepare = data.preprocessing
    pixels = [tf.floor(prepare.resized(tf.io.decode_png(x)) + 0.5) for x in stored.images]
    inputs = prepare.normalized(tf.stack(pixels))
    average = model_source.find(finished_run, "ema").open_model().model
    expected = tf.reduce_mean(analysis.attention_distance(average, inputs))
    *_, last = validation.Tensors("attention distance/layer 01")
    assert tf.make_ndarray(last.tensor_proto) == pytest.approx(float(expected), rel=1e-5)
    assert (finished_run / "tensorboard/validation/projector_config.pbtxt").exists()

    whole = shown(finished_run, "")
    (text,) = tf.make_ndarray(whole.Tensors("configuration")[-1].tensor_proto).reshape(-1)
    assert json.loads(text.decode().strip("`").removeprefix("json")) == EXPERIMENT.to_dict()
    content = whole.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    hyperparameters = hparams_metadata.parse_session_start_info_plugin_data(content).hparams
    assert hyperparameters["train.ema_decay"].number_value == 0.9
    assert hyperparameters["model.image_size"].string_value == "12,12"
    (profile,) = (finished_run / "tensorboard" / "plugins" / "profile").glob("*/*.xplane.pb")
    names = profile.read_bytes()
    assert b"train" in names and b"step_num" in names


def test_curves_do_not_double_back_and_metrics_are_handed_over(finished_run, tmp_path, uncompiled):
    run, points = cut_short(finished_run, tmp_path / "run", 4), []
    last = train(EXPERIMENT, run, one_device(), on_metrics=points.append)
    assert len(os.listdir(run / "tensorboard" / "train")) == 2
    assert [point.step for point in shown(run, "train").Tensors("loss")] == [3, 6, 9, 12]
    assert [point.step for point in shown(run, "validation").Tensors("loss")] == [4, 8, 12]
    lines = Workdir(run).read_metrics()
    assert points == [line for line in lines if line["step"] > 4] and points[-1] == last


def test_the_log_holds_what_the_run_has_printed(finished_run, tmp_path, logged, uncompiled):
    """Also what it said before the workdir was accepted, and the error that ended it."""
    copy = shutil.copytree(finished_run, tmp_path / "run")
    logged.clear()

    def stop(line):
        raise RunError(f"enough at {line['step']}")

    before = (copy / "run.log").read_text().splitlines()
    assert any(line.endswith("wrote " + Workdir(finished_run).final) for line in before)
    longer = tiny_experiment(*FINISHED, "train.steps=14")
    with pytest.raises(RunError, match="enough at 14"):
        train(longer, copy, one_device(), Request(extend=True), on_metrics=stop)
    log = (copy / "run.log").read_text().splitlines()
    assert log[: len(before)] == before
    printed = logged.take().splitlines()
    assert "resuming from step 12" in printed
    times, lines = zip(*((line[:19], line[20:]) for line in log[len(before) :]), strict=True)
    assert list(lines) == [*printed, "error: enough at 14"]
    assert list(times) == sorted(times) and time.strptime(times[0], "%Y-%m-%d %H:%M:%S")
    logging.getLogger("pipelines.training").info("afterwards")
    with pytest.raises(UserError, match="seed"):
        train(tiny_experiment(*FINISHED, "seed=5"), copy, one_device())
    assert (copy / "run.log").read_text().splitlines() == log


def test_weights_have_the_filter_of_evaluations(tmp_path, uncompiled):
    """Training has its own: the batches differ from an evaluation's."""
    own = ("data.eval_interpolation=area", "train.steps=1", "schedule.warmup_steps=0")
    experiment = tiny_experiment(*own, "model.layers=1", "train.ema_decay=0.9")
    train(experiment, tmp_path, one_device())
    for name in ("final.npz", "ema.npz"):
        sidecar = json.loads((tmp_path / f"{name}.json").read_text())
        assert sidecar["preprocessing"]["interpolation"] == "area"
    data = open_data(experiment, Workdir(tmp_path))
    assert data.evaluation.preprocessing.interpolation == "area"
    assert data.train.preprocessing.interpolation == "bilinear"


def test_a_folder_without_a_test_split(tmp_path, capsys, logged, uncompiled):
    """A tenth of it is the evaluation split, which config.json names; `dry_run` says so too."""
    folder = image_folder(tmp_path / "images")
    splits = ("data.train_split=auto", "data.eval_split=auto")
    common = (f"data.name=folder:{folder}", *splits, "schedule.decay=constant", "model.layers=1")
    dry_run(tiny_experiment(*common), tmp_path / "run", one_device())
    described = capsys.readouterr().out
    logged.clear()
    assert '"train_split": "train[:90%]"' in described and "36 examples" in described
    experiment = tiny_experiment(*common, "train.steps=4")
    last = train(experiment, tmp_path / "run", one_device(), Request(origin="recipe tiny: a test"))
    takes = "training takes train[:90%], evaluation takes train[90%:]"
    printed = logged.take()
    assert printed.count(f"has the split train: {takes}\n") == 1
    assert printed.count("warning: only 4 images to evaluate: each is 25.0% of the accuracy") == 1
    assert printed.startswith("recipe tiny: a test\n")
    assert "4 steps of 16 images (1.778 epochs), softmax loss\n" in printed
    assert last["eval_examples"] == 4
    data = Workdir(tmp_path / "run").read_experiment().data
    assert (data.train_split, data.eval_split) == ("train[:90%]", "train[90%:]")
    # The same command finds the run that it has begun.
    assert train(experiment, tmp_path / "run", one_device()) == last
    longer = tiny_experiment(*common, "train.steps=5")
    dry_run(longer, tmp_path / "run", one_device(), Request(extend=True))
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
