"""Evaluation of a model from disk counts every example once, on every strategy."""

import json

import numpy as np
import pytest
import tensorflow as tf

import vit_tf
from pipelines.data.sources.open import open_source
from pipelines.errors import UserError
from pipelines.evaluation.evaluate import evaluate
from pipelines.runs import model_source
from pipelines.runs.strategies import make_strategy
from pipelines.training import loop
from tests.pipelines.process import assert_user_error, run_here
from tests.pipelines.tiny import one_device, tiny_experiment


def evaluated(source, experiment, strategy):
    data = experiment.data
    return evaluate(
        source,
        open_source(data.name, data.eval_split, data.data_dir),
        strategy,
        batch_size=experiment.train.batch_size,
        loss=experiment.train.loss,
        bad_images=data.bad_images,
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run on one device, and its evaluation at the end."""
    workdir = tmp_path_factory.mktemp("finished") / "run"
    return workdir, loop.train(tiny_experiment(), workdir, one_device())


def test_evaluation_on_every_strategy_counts_once(finished):
    workdir, last = finished
    source = model_source.find(workdir)
    # 300 is no multiple of 16 or 32; 7 is odd and does not divide among replicas.
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


def test_a_folder_without_a_test_split(monkeypatch, capsys, tmp_path):
    for label in range(10):
        (tmp_path / "images" / str(label)).mkdir(parents=True)
        for i in range(2):
            image = tf.fill([8, 8, 3], tf.constant(20 * label + i, tf.uint8))
            (tmp_path / "images" / str(label) / f"{i}.png").write_bytes(
                tf.io.encode_png(image).numpy()
            )
    here = {"monkeypatch": monkeypatch, "capsys": capsys, "cwd": tmp_path}
    result = run_here("evaluate", "--set=data.name=folder:images", "--json", **here)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["examples"] == 2
    assert "images has the split train: evaluation takes train[90%:]" in result.stderr


def test_nothing_to_evaluate(monkeypatch, capsys, tmp_path):
    here = {"monkeypatch": monkeypatch, "capsys": capsys, "cwd": tmp_path}
    result = run_here("evaluate", "--set=data.eval_split=none", **here)
    assert_user_error(result, "data.eval_split is none")


def test_unpooled_models_are_refused(tmp_path):
    model = vit_tf.create_model(tiny_experiment("model.classifier=unpooled").model.config(10))
    vit_tf.save_npz(model, tmp_path / "m.npz")
    with pytest.raises(UserError, match="unpooled"):
        evaluated(model_source.find(tmp_path / "m.npz"), tiny_experiment(), one_device())
