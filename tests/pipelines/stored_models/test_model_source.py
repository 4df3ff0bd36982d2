"""Models open from every kind of source, with the same results."""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

import vit_tf
from pipelines.stored_models import model_source
from pipelines.stored_models.model_source import Checkpoint, KerasFile, NpzFile
from pipelines.stored_models.stored_model import Opening
from pipelines.training.train import train
from tests.pipelines.tiny import losses, one_device, tiny_experiment
from tests.pipelines.training_runs import without_compiling
from tests.vit_tf import tiny
from tests.vit_tf.checkpoints import safetensors_models
from vit_tf.checkpoints.sidecar import write_sidecar


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The workdir of a finished run."""
    folder = tmp_path_factory.mktemp("runs") / "ended"
    short = ("train.steps=4", "schedule.warmup_steps=1", "data.eval_split=none", "model.layers=1")
    kind = ("model.dtype=mixed_bfloat16", "train.loss=sigmoid")
    with without_compiling():
        train(tiny_experiment(*short, *kind), folder, one_device())
    return folder


def test_mixed_precision_trains_and_keeps_float32_weights(run):
    assert len(losses(run)) == 4 and np.isfinite(losses(run)).all()
    model = model_source.find(run).open_model().model
    assert {variable.dtype for variable in model.trainable_variables} == {"float32"}


@pytest.mark.parametrize("kind", ["workdir", "old workdir", "checkpoint", "npz", "keras"])
def test_models_open_from_every_source(run, tmp_path, kind):
    """In the dtype of training, which sidecars of earlier versions do not store."""
    model = model_source.find(run).open_model().model
    assert model.dtype_policy.name == "mixed_bfloat16"
    path = {
        "workdir": run,
        "old workdir": tmp_path / "run",
        "checkpoint": tmp_path / "run",
        "npz": run / "final.npz",
        "keras": tmp_path / "model.keras",
    }[kind]
    if kind == "keras":
        model.save(path)
    if kind in ("old workdir", "checkpoint"):
        shutil.copytree(run, path)
    if kind == "old workdir":
        sidecar = json.loads((path / "final.npz.json").read_text())
        assert sidecar.pop("dtype") == "mixed_bfloat16"
        (path / "final.npz.json").write_text(json.dumps(sidecar))
    if kind == "checkpoint":
        for name in ("final.npz", "final.npz.json"):
            (path / name).unlink()
    source = model_source.find(path)
    assert type(source) is {"checkpoint": Checkpoint, "keras": KerasFile}.get(kind, NpzFile)
    assert source.has_preprocessing() == (kind != "keras")
    opened, preprocessing, classes = source.open_model()
    assert opened.dtype_policy.name == "mixed_bfloat16"
    for opening in (Opening(), Opening(activation="sigmoid")):
        assert source.activation(opening) == source.open_model(opening).classes.activation
    assert source.open_model(Opening("float32")).model.dtype_policy.name == "float32"
    images = tf.random.stateless_uniform([2, 12, 12, 3], [1, 2], -1, 1)
    np.testing.assert_array_equal(opened(images), model(images))
    assert preprocessing.image_size == (12, 12)
    assert classes.labels == (() if kind == "keras" else tuple("0123456789"))
    # The model was trained with the sigmoid loss, which a .keras file does not store.
    probability = classes.to_probabilities(tf.zeros([1, 10]))[0, 0]
    assert float(probability) == pytest.approx(0.1 if kind == "keras" else 0.5)
    fresh = vit_tf.create_model(model.config, dtype="mixed_bfloat16")
    report = source.load_into(fresh, head="keep")
    assert not report.reset
    np.testing.assert_array_equal(fresh(images), model(images))


def test_a_keras_file_with_values_that_are_not_finite(tmp_path):
    model = tiny.model()
    model.head.kernel.assign(model.head.kernel * np.nan)
    model.head.bias.assign(model.head.bias + np.inf)
    model.save(tmp_path / "model.keras")
    with pytest.warns(UserWarning, match="NaN .* in 2 of .* head/") as seen:
        model_source.find(tmp_path / "model.keras").open_model()
    assert len(seen) == 1


def test_safetensors_without_a_size_load_into_a_grid_that_is_no_square(tmp_path):
    """As `finetune --init_from` does it."""
    donor = tiny.model(seed=1, heads=1, image_size=(11, 14), **safetensors_models.TIMM)
    model = tiny.model(seed=2, heads=1, image_size=(11, 14), **safetensors_models.TIMM)
    safetensors_models.save(donor, tmp_path, "timm")
    assert model_source.find(tmp_path).activation() == "softmax"
    for path in tmp_path.glob("*.json"):
        path.unlink()
    report = model_source.find(tmp_path).load_into(model, head="keep")
    assert report.resized is None
    for ours, theirs in zip(tiny.values(model), tiny.values(donor), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("kind", ["npz", "keras", "timm"])
def test_initial_weights_are_converted_to_the_pixels_of_the_run(tmp_path, kind):
    """A model of another mean and deviation gives the same logits in a run for [-1, 1]."""
    donor, model = (tiny.model(seed=seed, **safetensors_models.TIMM) for seed in (1, 2))
    preprocessing = vit_tf.Preprocessing(
        image_size=(11, 14), mean=(0.4, 0.5, 0.6), std=(0.3, 0.5, 0.7)
    )
    path = tmp_path / ("model" if kind == "timm" else f"model.{kind}")
    if kind == "timm":
        vit_tf.save_safetensors(donor, path, "timm", preprocessing)
    elif kind == "npz":
        vit_tf.save_npz(donor, path, preprocessing)
    else:
        donor.save(path)
        write_sidecar(path, preprocessing)
    pixels = np.random.default_rng(0).integers(0, 256, (3, 11, 14, 3), np.uint8)
    expected = donor(preprocessing.normalized(pixels)).numpy()

    opened, stored, _ = model_source.find(path).open_model()
    np.testing.assert_array_equal(opened(stored.normalized(pixels)), expected)
    report = model_source.find(path).load_into(model, head="keep")
    assert report.converted
    np.testing.assert_allclose(model(pixels), expected, rtol=1e-4, atol=1e-4)
    report = model_source.find(path).load_into(model, "keep", preprocessing)
    assert not report.converted
    np.testing.assert_array_equal(model(preprocessing.normalized(pixels)), expected)


@pytest.mark.parametrize("kind", ["npz", "keras"])
def test_weights_of_an_unknown_pixel_range_are_not_converted(tmp_path, kind):
    donor, path = tiny.model(seed=1), tmp_path / f"model.{kind}"
    if kind == "npz":
        vit_tf.save_npz(donor, path)
    else:
        donor.save(path)
    model = tiny.model(seed=2)
    preprocessing = vit_tf.Preprocessing(image_size=(11, 14), mean=(0.4, 0.5, 0.6))
    report = model_source.find(path).load_into(model, "keep", preprocessing)
    assert not report.converted
    for ours, theirs in zip(tiny.values(model), tiny.values(donor), strict=True):
        np.testing.assert_array_equal(ours, theirs)
