"""Models open from every kind of source, with the same results."""

import shutil

import numpy as np
import pytest
import tensorflow as tf

import vit_tf
from pipelines.runs import model_source
from pipelines.training import loop
from tests.pipelines.tiny import one_device, tiny_experiment


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The workdir of a run that has ended."""
    folder = tmp_path_factory.mktemp("runs") / "ended"
    loop.train(tiny_experiment("train.steps=2", "schedule.warmup_steps=1"), folder, one_device())
    return folder


@pytest.mark.parametrize("kind", ["workdir", "checkpoint", "npz", "keras"])
def test_models_open_from_every_source(run, tmp_path, kind):
    model, _ = model_source.open_model(model_source.find(run))
    path = {
        "workdir": run,
        "checkpoint": tmp_path / "run",
        "npz": run / "final.npz",
        "keras": tmp_path / "model.keras",
    }[kind]
    if kind == "keras":
        model.save(path)
    if kind == "checkpoint":
        shutil.copytree(run, path)
        for name in ("final.npz", "final.npz.json"):
            (path / name).unlink()
    source = model_source.find(path)
    assert source.kind == {"workdir": "npz"}.get(kind, kind)
    opened, preprocessing = model_source.open_model(source)
    images = tf.random.stateless_uniform([2, 12, 12, 3], [1, 2], -1, 1)
    np.testing.assert_array_equal(opened(images), model(images))
    assert preprocessing.image_size == (12, 12)
    assert preprocessing.labels == (() if kind == "keras" else tuple("0123456789"))
    fresh = vit_tf.create_model(model.config)
    report = model_source.load(fresh, source, head="keep")
    assert not report.reset
    np.testing.assert_array_equal(fresh(images), model(images))
