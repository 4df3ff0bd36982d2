"""Runs with a fault at a known step, and their expected results."""

import json
import os

import numpy as np
import tensorflow as tf

import vit_tf
from pipelines.data import batch_listing, pipeline
from pipelines.data.sources.open import open_source
from pipelines.distribution.strategies import make_strategy
from pipelines.tasks.task import task_of
from pipelines.training.train import build_trainer
from pipelines.training.train_data import TrainData
from tests.pipelines.tiny import tiny_experiment
from vit_tf.layers import dropout, encoder

# Deterministic, because runs are compared bit for bit. A log line every 4 steps, so that several
# steps run in one loop on the device. One block, because compiling takes most of the time.
COMMON = (
    "model.layers=1",
    "data.eval_split=none",
    "train.deterministic=true",
    "train.ema_decay=0.9",
    "train.accumulate_steps=2",
    "train.log_every=4",
    "train.checkpoint_every=4",
    "optimizer.learning_rate=0.01",
)
# The weight decay of the first update makes every kernel overflow.
EXPLODING = (
    "optimizer.name=sgd",
    "optimizer.learning_rate=1e10",
    "optimizer.weight_decay=1e30",
    "schedule.warmup_steps=0",
)
STRATEGIES = {
    "one": lambda: tf.distribute.OneDeviceStrategy("CPU:0"),
    "mirrored": lambda: make_strategy("mirrored"),
}
BAD = 6  # step or batch with the fault: the middle of the second log interval


def experiment_with(*assignments):
    return tiny_experiment(*COMMON, *assignments)


def ids_of(experiment, step):
    """Ids of a batch, in the order in which the command `batch` lists them."""
    source = open_source(experiment.data.name, experiment.data.train_split)
    batch = batch_listing.list_batch(source, experiment.sampling(), step)
    return [example["id"] for example in batch["examples"]]


def spoil(monkeypatch, ids, value=np.nan, key="image"):
    """Gives some images of the training data an impossible value."""
    original = pipeline.train_dataset

    def train_dataset(*args, **kwargs):
        def change(batch):
            hit = tf.reduce_any(batch["id"][:, None] == tf.constant(ids, tf.int64), axis=1)
            hit = tf.reshape(hit, [-1] + [1] * (batch[key].shape.rank - 1))
            return {**batch, key: tf.where(hit, tf.cast(value, batch[key].dtype), batch[key])}

        return original(*args, **kwargs).map(change)

    monkeypatch.setattr(pipeline, "train_dataset", train_dataset)


def break_block(monkeypatch, change, name="block_1"):
    """Applies `change(output of the block's MLP, bool per row)` in slot 3 of step `BAD`."""
    original = encoder.MlpBlock.call

    def call(self, tokens, training=False):
        outputs = original(self, tokens, training=training)
        context = dropout._current.get()
        if context is None or f"{name}/" not in self.dense_0.path:
            return outputs
        hit = (context.slots == 3) & (context.step == BAD)
        return change(outputs, hit[:, None, None])

    monkeypatch.setattr(encoder.MlpBlock, "call", call)


def nan_forward(outputs, hit):
    return tf.where(hit, np.float32(np.nan), outputs)


def nan_backward(outputs, hit):
    @tf.custom_gradient
    def identity(x):
        nan = tf.cast(np.nan, x.dtype)
        return tf.identity(x), lambda gradient: tf.where(hit, nan, gradient)

    return identity(outputs)


def records(run):
    with open(os.path.join(run, "non_finite.jsonl"), encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def train_data(experiment):
    """The training data of an experiment, as `train.train` opens them."""
    source = open_source(experiment.data.name, experiment.data.train_split)
    return TrainData(
        source=source,
        sampling=experiment.sampling(),
        augmentation=experiment.data,
        preprocessing=experiment.preprocessing(),
    )


def make_trainer(strategy, experiment):
    """`(trainer, data)` with the initial weights of a run; no dataset is open."""
    data = train_data(experiment)
    model_config = experiment.model.config(data.source.num_classes)
    trainer = build_trainer(experiment, task_of(experiment, model_config), strategy)
    trainer.ema.initialize()
    return trainer, data


def train_by_hand(strategy, experiment, plan, folder):
    """Trains in stretches (first step, first batch, steps), without the loop and its offset."""
    trainer, data = make_trainer(strategy, experiment)
    for step, batch, count in plan:
        trainer.step.assign(step)
        trainer.open_dataset(lambda _, context, batch=batch: data.dataset(batch, context))
        trainer.train(tf.constant(count))
        assert trainer.step.numpy() == step + count
    folder.mkdir()
    vit_tf.save_npz(trainer.model, folder / "final.npz")
    with trainer.ema.swapped_in():
        vit_tf.save_npz(trainer.model, folder / "ema.npz")
