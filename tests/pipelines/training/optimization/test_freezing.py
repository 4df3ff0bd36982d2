"""Frozen variables: nothing reads their gradient, nothing changes their bits."""

import numpy as np
import pytest
import tensorflow as tf

import vit_tf
from pipelines.errors import UserError
from pipelines.runs.workdir import Workdir
from pipelines.tasks.task import task_of
from pipelines.training.optimization.freezing import freeze
from pipelines.training.train import build_trainer, train
from tests.pipelines.process import assert_user_error
from tests.pipelines.tiny import (
    arrays,
    as_flags,
    assert_same_weights,
    cut_short,
    one_device,
    tiny_experiment,
    two_replicas,
)
from tests.vit_tf import tiny

STEM = ("model.stem.stage_depths=1,1", "model.stem.width=0.5", "model.patch_size=1")
# Everything that could change a weight is on; the rest is off, for small graphs.
SETTINGS = (
    "model.layers=1",
    "model.dropout=0",
    "model.attention_dropout=0",
    "model.stochastic_depth=0",
    "schedule.warmup_steps=0",
    "optimizer.weight_decay=0.1",
    "optimizer.weight_decay_mask=all",
    "optimizer.clip_norm=0.01",
    "train.ema_decay=0.9",
)


def trainer_of(*assignments, strategy=None):
    """A trainer, by default on one device, whose head is not zero, and one batch."""
    experiment, strategy = tiny_experiment(*SETTINGS, *assignments), strategy or one_device()
    trainer = build_trainer(experiment, task_of(experiment, experiment.model.config(10)), strategy)
    rng = np.random.default_rng(0)
    trainer.model.head.kernel.assign(0.1 * rng.normal(size=trainer.model.head.kernel.shape))
    trainer.ema.initialize()
    size = experiment.train.batch_size
    batch = {
        "image": rng.uniform(-1, 1, [size, *experiment.model.image_size, 3]).astype(np.float32),
        "label": rng.integers(0, 10, size).astype(np.int32),
        "id": np.arange(size),
        "slot": np.arange(size, dtype=np.int32),
        "weight": np.ones(size, np.float32),
    }
    dataset = tf.data.Dataset.from_tensors(batch).repeat()
    trainer.train_dataset = trainer.strategy.experimental_distribute_dataset(dataset)
    return trainer, batch


def named(variables):
    return {variable.path.partition("/")[2]: variable for variable in variables}


def test_frozen_variables_keep_their_bits_on_every_replica():
    trainer, batch = trainer_of("optimizer.freeze=block_0/mlp,*/bias", strategy=two_replicas())
    free, _ = trainer_of()
    model, every = trainer.model, named(free.model.trainable_variables)
    frozen = {path for path in every if path.startswith("block_0/mlp/") or path.endswith("/bias")}
    trained = named(model.trainable_variables)
    assert trained.keys() == every.keys() - frozen and "head/kernel" in trained
    for slots in trainer.optimizer.slots.values():
        assert {path.partition("/")[2] for path in slots} == trained.keys()

    # The norm, which decides about clipping, covers the other gradients.
    step = tf.constant(0, tf.int64)
    _, gradients = free.gradients({key: tf.constant(x) for key, x in batch.items()}, step)
    by_path = dict(zip(every, gradients, strict=True))
    expected = tf.linalg.global_norm([by_path[path] for path in trained])
    before = {path: variable.numpy() for path, variable in named(model.variables).items()}
    trainer.train(tf.constant(1))
    assert float(trainer.log.gradient_norm.numpy()) == pytest.approx(float(expected), rel=1e-5)
    assert float(expected) < 0.99 * float(tf.linalg.global_norm(gradients))
    trainer.train(tf.constant(2))
    averages = {path.partition("/")[2]: x for path, x in trainer.ema.state.by_path.items()}
    assert averages.keys() == every.keys()
    for path, variable in named(model.variables).items():
        if path in frozen:
            np.testing.assert_array_equal(variable.numpy(), before[path])
            np.testing.assert_array_equal(averages[path].numpy(), before[path])
        elif path in trained:
            assert np.abs(variable.numpy() - before[path]).max() > 0, path
            assert np.abs(averages[path].numpy() - before[path]).max() > 0, path


def test_gradients_below_the_lowest_trained_layer_are_not_computed():
    """With everything but the head frozen, one product of matrices belongs to gradients."""
    layers = "patch_embedding,class_token,position_embedding,block_*,norm"
    products = []
    for frozen in ("optimizer.freeze=", f"optimizer.freeze={layers}"):
        trainer, batch = trainer_of(frozen)
        batch = {key: tf.constant(value) for key, value in batch.items()}
        graph = tf.function(trainer.gradients).get_concrete_function(
            batch, tf.constant(0, tf.int64)
        )
        names = [x.name for x in graph.graph.get_operations() if "MatMul" in x.type]
        products.append(sum("gradient_tape" in name for name in names))
    assert products[0] >= 8 and products[1] == 1


def test_frozen_kernels_of_a_stem_in_micro_batches():
    """Standardized kernels are differentiated once for all micro-batches, without frozen ones."""
    step, found = tf.constant(0, tf.int64), []
    for parts in (1, 2):
        trainer, batch = trainer_of(
            *STEM,
            "model.image_size=16",
            "optimizer.freeze=stem/conv_root,stem/block1_*,block_*",
            "train.batch_size=4",
            f"train.accumulate_steps={parts}",
        )
        batch = {key: tf.constant(value) for key, value in batch.items()}
        loss, gradients = trainer._accumulated_gradients(batch, step)
        found.append([loss, *gradients])
    paths = named(trainer.model.trainable_variables)
    assert "stem/block2_unit1/conv1/kernel" in paths and "stem/conv_root/kernel" not in paths
    norm = float(tf.linalg.global_norm(found[0][1:]))
    for received, expected in zip(found[1], found[0], strict=True):
        np.testing.assert_allclose(received, expected, rtol=0, atol=1e-5 * norm)


def test_a_frozen_head_of_zeros_is_refused():
    with pytest.raises(UserError, match="head/kernel.*zeros"):
        model = tiny.model()
        freeze(model, ["head"], model.head.kernel)


@pytest.mark.parametrize("positions", ["learned_1d", "learned_2d"])
def test_frozen_positions_are_loaded_and_saved(tmp_path, positions):
    source, frozen, again = (tiny.model(position_embedding=positions) for _ in range(3))
    tiny.randomize(source)
    vit_tf.save_npz(source, tmp_path / "source.npz")
    freeze(frozen, ["position_embedding"])
    assert not vit_tf.load_npz(frozen, tmp_path / "source.npz").dropped
    vit_tf.save_npz(frozen, tmp_path / "frozen.npz")
    vit_tf.load_npz(again, tmp_path / "frozen.npz")
    for expected, received in zip(source.weights, again.weights, strict=True):
        np.testing.assert_array_equal(received, expected)


def test_a_run_with_micro_batches_and_resume(tmp_path, logged, uncompiled):
    experiment = tiny_experiment(
        *SETTINGS,
        "optimizer.freeze=patch_embedding,block_0/attention",
        "data.eval_split=none",
        "train.steps=2",
        "train.checkpoint_every=1",
        "train.accumulate_steps=2",
    )
    train(experiment, tmp_path / "run", one_device())
    assert "frozen: 6 of 20 variables, 1," in logged.take()
    resumed = cut_short(tmp_path / "run", tmp_path / "resumed", 1)
    train(experiment, resumed, one_device())
    assert_same_weights(resumed, tmp_path / "run")
    model = build_trainer(
        experiment, task_of(experiment, experiment.model.config(10)), one_device()
    ).model
    ended, averaged = (arrays(tmp_path / "run", name) for name in ("final.npz", "ema.npz"))
    start = np.array(model.patch_embedding.kernel)
    for found in (ended, averaged):
        np.testing.assert_array_equal(found["embedding/kernel"], start)
    assert np.abs(ended["head/kernel"] - averaged["head/kernel"]).max() > 0
    assert Workdir(tmp_path / "run").read_metrics()[-1]["gradient_norm"] > 0


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        ("block_0,blok_1", ["'blok_1' matches no variable", "Did you mean block_1"]),
        ("head/weight", ["'head/weight' matches no", "head/"]),
        ("zzz*", ["'zzz*' matches no", "Its layers are patch_embedding, class_token"]),
        ("*", ["optimizer.freeze=* freezes all 32 variables", "Leave out"]),
        ("[!h]*,head", ["freezes all 32 variables"]),
    ],
)
def test_wrong_patterns(tmp_path, command, pattern, texts):
    flags = as_flags(f"optimizer.freeze={pattern}")
    assert_user_error(command("pretrain", "--workdir=run", *flags), *texts)
    assert not (tmp_path / "run" / "config.json").exists()
