"""Evaluation of a saved model: as in training, every example once, with every strategy."""

import functools
import json
import shutil
import time

import numpy as np
import pytest
import tensorflow as tf

import vit_tf
from pipelines.data.sources.open import open_source
from pipelines.errors import UserError
from pipelines.evaluation.evaluate import evaluate
from pipelines.evaluation.evaluation_step import EvaluationData, Evaluator
from pipelines.runs import model_source, progress
from pipelines.runs.strategies import make_strategy
from pipelines.tasks import losses
from pipelines.training import loop
from tests.pipelines.process import assert_user_error, run_here
from tests.pipelines.tiny import one_device, tiny_experiment
from vit_tf.images.decoding import decode_image


def evaluated(source, experiment, strategy):
    data = experiment.data
    return evaluate(
        source,
        open_source(data.name, data.eval_split, data.data_dir),
        strategy,
        batch_size=experiment.train.batch_size,
        bad_images=data.bad_images,
    )


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """`command(*arguments)`: the completed process of `evaluate`."""

    def run(*arguments):
        here = {"monkeypatch": monkeypatch, "capsys": capsys, "cwd": tmp_path}
        return run_here("evaluate", *arguments, **here)

    return run


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run on one device, and its last evaluation."""
    workdir = tmp_path_factory.mktemp("finished") / "run"
    return workdir, loop.train(tiny_experiment(), workdir, one_device())


def test_evaluation_on_every_strategy_counts_once(finished):
    workdir, last = finished
    source = model_source.find(workdir)
    # 300 is not a multiple of 16 or 32; 7 is odd, so it cannot be split between two replicas.
    for strategy in (one_device(), make_strategy("mirrored")):
        for batch_size in (7, 32, 300, 512):
            changed = tiny_experiment(f"train.batch_size={batch_size}")
            means = evaluated(source, changed, strategy)
            assert means["examples"] == 300
            assert means["accuracy"] == last["eval_accuracy"]
            assert means["loss"] == pytest.approx(last["eval_loss"], rel=1e-5)


def test_evaluation_equals_a_plain_loop(finished):
    workdir, last = finished
    from sklearn.datasets import load_digits

    from pipelines.data.builtin.digits import split_indices

    digits = load_digits()
    chosen = split_indices("test")
    images = np.round(digits.images[chosen] * 255 / 16).astype(np.uint8)
    model, preprocessing = model_source.open_model(model_source.find(workdir))
    inputs = preprocessing(tf.repeat(tf.constant(images)[..., None], 3, axis=-1))
    predicted = np.argmax(model(inputs), axis=-1)
    assert np.mean(predicted == digits.target[chosen]) == pytest.approx(last["eval_accuracy"])


def test_evaluating_on_other_classes_is_refused(finished):
    workdir, _ = finished
    with pytest.raises(UserError, match="10 classes.*digits/low has 5"):
        evaluated(model_source.find(workdir), tiny_experiment("data.name=digits/low"), one_device())


@pytest.fixture(scope="module")
def unusual(tmp_path_factory):
    """A finished run in which every setting that affects an evaluation differs from its default."""
    workdir = tmp_path_factory.mktemp("unusual") / "run"
    experiment = tiny_experiment(
        "data.name=digits/low",
        "data.eval_split=validation",
        "data.resize=resize_small",
        "data.resize_to=14",
        "model.dtype=mixed_bfloat16",
        "train.loss=sigmoid",
        "train.label_smoothing=0.2",
        "train.steps=4",
    )
    return workdir, loop.train(experiment, workdir, one_device())


@pytest.mark.parametrize("flag", ["--model", "--workdir"])
def test_a_run_is_evaluated_as_it_was_in_training(unusual, command, flag):
    """With its data, its preprocessing, its loss and its dtype."""
    workdir, last = unusual
    result = command(f"{flag}={workdir}", "--json")
    assert result.returncode == 0, result.stderr
    means = json.loads(result.stdout)
    for name in ("accuracy", "top_5_accuracy"):
        assert means[name] == last[f"eval_{name}"]
    # A float32 evaluation differs by more than 1e-4.
    assert means["loss"] == pytest.approx(last["eval_loss"], rel=1e-6)


def test_settings_change_the_data_of_a_run(unusual, command):
    workdir, last = unusual
    own, test = (
        json.loads(command(f"--model={workdir}", *flags, "--json").stdout)
        for flags in (["--set=train.batch_size=7"], ["--set=data.eval_split=test[:31]"])
    )
    assert own["loss"] == pytest.approx(last["eval_loss"], rel=1e-2)
    assert test["examples"] == 31 != own["examples"]


@pytest.mark.parametrize(
    ("flags", "texts"),
    [
        (["--experiment=digits"], ["run is a run and has its own experiment. Leave out"]),
        (
            ["--set=data.resize=direct", "--set=train.batch_size=3", "--set=data.resize_to=none"],
            ["--set data.resize, data.resize_to has no effect", "train.batch_size"],
        ),
        (["--set=train.loss=softmax"], ["--set train.loss has no effect", "as it was trained"]),
        (["--set=model.name=BiT-R50x1"], ["--set model.name has no effect"]),
        (["--set=model.stem.width=2"], ["--set model.stem.width has no effect"]),
        (["--set=data.crop=none"], ["--set data.crop has no effect"]),
        (["--set=train.steps=3"], ["--set train.steps has no effect"]),
        (["--set=train.step=3"], ["Unknown config path 'train.step'"]),
    ],
)
def test_settings_without_an_effect_are_refused(unusual, command, flags, texts):
    workdir, _ = unusual
    assert_user_error(command(f"--model={workdir}", *flags), *texts)


def test_only_the_data_of_another_model_are_those_of_the_recipe(command):
    assert_user_error(command("--set=data.resize=direct"), "shipped is evaluated as it was trained")
    assert command("--experiment=digits", "--set=data.eval_split=test[:20]").returncode == 0


@pytest.mark.parametrize("kind", ["npz", "keras", "workdir"])
def test_a_model_without_stored_preprocessing(finished, command, tmp_path, kind):
    """The command uses the settings of its flags: here a central crop, and a multi-label loss."""
    model, _ = model_source.open_model(model_source.find(finished[0]))
    path = tmp_path / ("run" if kind == "workdir" else f"model.{kind}")
    if kind == "workdir":
        shutil.copytree(finished[0], path)
        (path / "final.npz.json").unlink()
    elif kind == "npz":
        shutil.copy(finished[0] / "final.npz", path)
    else:
        model.save(path)
    crop = ["--set=data.resize=resize_small", "--set=data.resize_to=18"]
    means = {}
    for loss in ("softmax", "sigmoid"):
        flags = [*crop, f"--set=train.loss={loss}", "--set=data.eval_split=test[:50]"]
        result = command(f"--model={path}", *flags, "--json")
        assert result.returncode == 0, result.stderr
        means[loss] = json.loads(result.stdout)
    examples = open_source("digits", "test[:50]").read([(0, 50)])
    prepare = vit_tf.Preprocessing(image_size=(12, 12), resize="resize_small", resize_to=18)
    images = tf.stack([prepare(decode_image(data)) for data in examples.images])
    logits = model(images).numpy().astype(np.float64)
    targets = np.eye(10)[examples.labels]
    softmax = np.log(np.exp(logits).sum(axis=1)) - (logits * targets).sum(axis=1)
    sigmoid = (np.log1p(np.exp(logits)) - logits * targets).sum(axis=1)
    assert means["softmax"]["loss"] == pytest.approx(softmax.mean(), rel=1e-5)
    assert means["sigmoid"]["loss"] == pytest.approx(sigmoid.mean(), rel=1e-5)
    accuracy = np.mean(logits.argmax(axis=1) == examples.labels)
    assert means["softmax"]["accuracy"] == means["sigmoid"]["accuracy"] == pytest.approx(accuracy)


def test_a_folder_without_a_test_split(command, tmp_path):
    for label in range(10):
        (tmp_path / "images" / str(label)).mkdir(parents=True)
        for i in range(2):
            image = tf.fill([8, 8, 3], tf.constant(20 * label + i, tf.uint8))
            (tmp_path / "images" / str(label) / f"{i}.png").write_bytes(
                tf.io.encode_png(image).numpy()
            )
    result = command("--set=data.name=folder:images", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["examples"] == 2
    assert "images has the split train: evaluation takes train[90%:]" in result.stderr


def test_compiling_is_reported_until_the_first_batch_is_done(finished, monkeypatch):
    monkeypatch.setattr(progress, "_SIGN_EVERY", 0.01)
    lines, counts = [], []

    class Signals:
        def check(self):
            counts.append(len(lines))
            time.sleep(0.05)

    model, preprocessing = model_source.open_model(model_source.find(finished[0]))
    source = open_source("digits", "test[:48]")
    data = EvaluationData(
        source=source, preprocessing=preprocessing, batch_size=16, bad_images=None
    )
    loss = functools.partial(losses.cross_entropy, loss="softmax")
    Evaluator(model, one_device(), data, loss, lines.append, Signals()).run()
    assert len(counts) == 3 and counts[0] >= 1
    # One line may be on its way when the first batch is done.
    assert counts[0] >= len(lines) - 1 and counts[1] == counts[2] == len(lines)


def test_nothing_to_evaluate(command):
    assert_user_error(command("--set=data.eval_split=none"), "data.eval_split is none")


def test_unpooled_models_are_refused(tmp_path):
    model = vit_tf.create_model(tiny_experiment("model.classifier=unpooled").model.config(10))
    vit_tf.save_npz(model, tmp_path / "m.npz")
    with pytest.raises(UserError, match="unpooled"):
        evaluated(model_source.find(tmp_path / "m.npz"), tiny_experiment(), one_device())
