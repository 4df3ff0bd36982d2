"""Training on batches of uint8 images is training on the same images as floats."""

import numpy as np
import pytest
import tensorflow as tf

from pipelines.evaluation.evaluation_step import Evaluator
from pipelines.runs.workdir import Workdir
from pipelines.training.dry_run import dry_run
from pipelines.training.train import train
from pipelines.training.train_data import open_few_shot_data
from pipelines.training.train_step import Trainer
from tests.pipelines.tiny import arrays, losses, one_device, tiny_experiment, two_replicas

# Digits at their own size: nothing is resized, so rounding changes nothing. SGD, since Adam scales
# up the rounding error of gradients that are zero.
SETTINGS = (
    "model.image_size=8",
    "model.layers=1",
    "data.crop=none",
    "data.flip=true",
    "data.antialias=true",
    "optimizer.name=sgd",
    "optimizer.learning_rate=0.1",
    "schedule.warmup_steps=0",
    "train.steps=2",
    "train.eval_batches=2",
)
# Models map a level with two roundings of float32: its value differs by at most 1.2e-7.
TOLERANCE = 1e-6


def test_two_steps_and_an_evaluation_are_the_same(tmp_path, monkeypatch, uncompiled):
    """On two replicas with two micro-batches each, too."""
    dtypes = set()

    def note(owner):
        step = owner.replica_step

        def noted(self, batch):
            dtypes.add((owner, batch["image"].dtype))
            return step(self, batch)

        monkeypatch.setattr(owner, "replica_step", noted)

    note(Trainer)
    note(Evaluator)
    for dtype, strategy, parts in (("float32", one_device(), 1), ("uint8", two_replicas(), 2)):
        dtypes.clear()
        own = (f"data.image_dtype={dtype}", f"train.accumulate_steps={parts}")
        train(tiny_experiment(*SETTINGS, *own), tmp_path / dtype, strategy)
        assert dtypes == {(owner, tf.as_dtype(dtype)) for owner in (Trainer, Evaluator)}
    levels, floats = tmp_path / "uint8", tmp_path / "float32"
    assert len(losses(floats)) == 2
    np.testing.assert_allclose(losses(levels), losses(floats), rtol=TOLERANCE)
    evaluated, expected = (Workdir(path).read_metrics()[-1] for path in (levels, floats))
    assert evaluated["eval_accuracy"] == expected["eval_accuracy"]
    assert evaluated["eval_loss"] == pytest.approx(expected["eval_loss"], rel=TOLERANCE)
    received, expected = arrays(levels), arrays(floats)
    largest = max(np.abs(value).max() for value in expected.values())
    for name, value in expected.items():
        np.testing.assert_allclose(received[name], value, rtol=0, atol=TOLERANCE * largest)


def test_a_dry_run_shows_the_dtype(tmp_path, capsys):
    experiment = tiny_experiment(*SETTINGS, "data.image_dtype=uint8")
    dry_run(experiment, tmp_path / "run", one_device())
    assert "first batch: image uint8 [16, 8, 8, 3], label int32 [16]" in capsys.readouterr().out


@pytest.mark.parametrize(("antialias", "dtype"), [("true", "uint8"), ("false", "float32")])
def test_few_shot_evaluations_are_exact(antialias, dtype):
    """Where rounding would change the images, evaluations get floats, as a saved model does."""
    own = (f"data.antialias={antialias}", "data.image_dtype=uint8", "train.few_shot_every=1")
    few_shot = open_few_shot_data(tiny_experiment(*own))
    for data in (few_shot.train, few_shot.test):
        dataset, _ = data.distributed(one_device())
        assert dataset.element_spec["image"].dtype == dtype
