"""Models open from every kind of source, with the same results."""

import json
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
    """The workdir of a finished run."""
    folder = tmp_path_factory.mktemp("runs") / "ended"
    short = ("train.steps=2", "schedule.warmup_steps=1", "model.dtype=mixed_bfloat16")
    loop.train(tiny_experiment(*short), folder, one_device())
    return folder


@pytest.mark.parametrize("kind", ["workdir", "old workdir", "checkpoint", "npz", "keras"])
def test_models_open_from_every_source(run, tmp_path, kind):
    """In the dtype of training, which sidecars of earlier versions do not store."""
    model, _ = model_source.open_model(model_source.find(run))
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
    assert source.kind == {"workdir": "npz", "old workdir": "npz"}.get(kind, kind)
    assert model_source.has_preprocessing(source) == (kind != "keras")
    opened, preprocessing = model_source.open_model(source)
    assert opened.dtype_policy.name == "mixed_bfloat16"
    assert model_source.open_model(source, "float32")[0].dtype_policy.name == "float32"
    images = tf.random.stateless_uniform([2, 12, 12, 3], [1, 2], -1, 1)
    np.testing.assert_array_equal(opened(images), model(images))
    assert preprocessing.image_size == (12, 12)
    assert preprocessing.labels == (() if kind == "keras" else tuple("0123456789"))
    fresh = vit_tf.create_model(model.config, dtype="mixed_bfloat16")
    report = model_source.load(fresh, source, head="keep")
    assert not report.reset
    np.testing.assert_array_equal(fresh(images), model(images))
