"""Moving averages of BatchNorm in the training step, in the Polyak average and in checkpoints."""

import numpy as np
import pytest
import tensorflow as tf

from pipelines.errors import UserError
from pipelines.runs import checkpoint_weights, checkpoints
from pipelines.runs.checkpoints import CheckpointStore
from pipelines.tasks.task import task_of
from pipelines.training.prepare import check_input
from pipelines.training.train import build_trainer
from tests.pipelines.families import axial_resnet
from tests.pipelines.tiny import one_device
from vit_tf.layers import BatchNorm


def make_trainer(*assignments):
    experiment = axial_resnet("train.ema_decay=0.5", "train.ema_warmup=false", *assignments)
    trainer = build_trainer(
        experiment, task_of(experiment, experiment.model.config(10)), one_device()
    )
    trainer.ema.initialize()
    return trainer


@pytest.fixture
def trainer():
    return make_trainer()


def draw(seed=0):
    rng = np.random.default_rng(seed)
    return {
        "image": tf.constant(rng.uniform(-1, 1, (16, 16, 16, 3)).astype(np.float32)),
        "label": tf.constant(rng.integers(0, 10, 16).astype(np.int32)),
        "slot": tf.range(16),
        "weight": tf.constant([1.0] * 15 + [0.0]),
    }


def values(variables):
    return {variable.path: np.array(variable) for variable in variables}


def test_a_step_updates_them_and_the_polyak_average(trainer):
    """The first norm's mean from its definition; the average is of old and new, half each."""
    batch, norm = draw(), trainer.model.root_norm
    before = values(trainer.model.weights)
    trainer.replica_step(batch)
    after = values(trainer.model.weights)
    moving = [v.path for v in trainer.model.non_trainable_weights]
    assert moving and all(np.any(before[path] != after[path]) for path in moving)
    padded = tf.pad(batch["image"][:15], [[0, 0], [3, 3], [3, 3], [0, 0]])
    mean = np.mean(trainer.model.root(padded), axis=(0, 1, 2))
    np.testing.assert_allclose(norm.moving_mean, 0.1 * mean, rtol=1e-4, atol=1e-6)
    averages = trainer.ema.state.by_path
    assert averages.keys() == after.keys()
    for path in moving:
        expected = 0.5 * before[path] + 0.5 * after[path]
        np.testing.assert_allclose(averages[path], expected, rtol=1e-5, atol=1e-7)


def test_a_step_that_is_not_finite_changes_nothing(trainer):
    trainer.replica_step(draw())
    before = values(trainer.model.weights)
    image = draw(1)["image"].numpy()
    image[0, 0, 0, 0] = np.nan
    *_, applied = trainer.replica_step(draw(1) | {"image": tf.constant(image)})
    assert not applied
    for path, value in values(trainer.model.weights).items():
        np.testing.assert_array_equal(value, before[path], err_msg=path)


def test_checkpoints_hold_them(trainer, tmp_path):
    """The weights, and their Polyak averages, of another model built from the checkpoint."""
    trainer.replica_step(draw())
    CheckpointStore(tmp_path, trainer.checkpoint, keep_last=1, keep_every=0).save(1)
    prefix, other = checkpoints.prefix(tmp_path, 1), make_trainer().model
    for ema in (False, True):
        checkpoint_weights.read_weights(prefix, other, ema)
        expected = trainer.ema.state.by_path if ema else values(trainer.model.weights)
        for variable in other.weights:
            np.testing.assert_array_equal(variable, expected[variable.path])
    assert [x for x in checkpoint_weights.weight_shapes(prefix) if x]


def test_a_moving_average_that_is_not_finite_is_noticed(trainer):
    trainer.model.root_norm.moving_variance.assign(np.full(8, np.inf))
    assert not np.isfinite(trainer.weight_sum())


def test_accumulation_is_refused_with_batch_norm_only():
    settings = axial_resnet("train.accumulate_steps=2")
    with pytest.raises(UserError, match="steps=2 .*model.norm=group"):
        check_input(settings.train, settings.model.config(10), 1)
    grouped = axial_resnet("train.accumulate_steps=2", "model.norm=group")
    check_input(grouped.train, grouped.model.config(10), 1)
    model = make_trainer("model.norm=group").model
    assert not model.non_trainable_weights
    assert not any(isinstance(layer, BatchNorm) for layer in model.unit_layers)
