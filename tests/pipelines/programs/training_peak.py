"""Prints the peak of the memory that training adds to a built model, and the planned one, as JSON.

usage: python -m tests.pipelines.programs.training_peak MODEL IMAGES [path.to.field=value ...]

Two steps with AdamW, 10 classes. Linux only: the peak is reset when the model is built.
"""

import gc
import json
import pathlib
import sys

import tensorflow as tf

from pipelines.config import override, recipes
from pipelines.optimization.optimizers import optimizer_of
from pipelines.tasks.task import task_of
from pipelines.training.prepare import sizes_of
from pipelines.training.train_step import StepSettings, Trainer
from tests.pipelines.tiny import one_device


def memory(name):
    """A number of /proc/self/status, in bytes."""
    status = pathlib.Path("/proc/self/status").read_text()
    return 1024 * int(status.partition(f"{name}:")[2].split()[0])


def batch_of(images, size):
    return {
        "image": tf.random.stateless_uniform([images, *size, 3], [1, 2], -1, 1),
        "label": tf.range(images) % 10,
        "id": tf.range(images, dtype=tf.int64),
        "slot": tf.range(images),
        "weight": tf.ones([images]),
    }


def main(name, images, *assignments):
    images = int(images)
    settings = [f"model.name={name}", "model.image_size=224", f"train.batch_size={images}"]
    experiment = override(
        recipes.get_recipe("digits"), [*settings, "optimizer.name=adamw", *assignments]
    )
    train = experiment.train
    task = task_of(experiment, experiment.model_config(10))
    planned = sizes_of(experiment, task.config, replicas=1).memory
    batch = batch_of(images, experiment.model.image_size)
    strategy = one_device()
    with strategy.scope():
        model = task.create_model(experiment.model.dtype)
        gc.collect()
        before = memory("VmRSS")
        pathlib.Path("/proc/self/clear_refs").write_text("5")
        optimizer, _ = optimizer_of(
            model, experiment.optimizer, lambda step: 1e-4, task.zero_kernel(model)
        )
    step = StepSettings(
        losses=task.losses,
        batch_size=images,
        accumulate_steps=train.accumulate_steps,
        seed=0,
        break_at_non_finite=False,
    )
    trainer = Trainer(model, optimizer, strategy, step)
    trainer.open_dataset(lambda first, context: tf.data.Dataset.from_tensors(batch).repeat())
    trainer.train(tf.constant(2))
    assert int(trainer.step.numpy()) == 2
    added = sum(planned.values()) - planned["weights"]
    print(json.dumps({"measured": memory("VmHWM") - before, "planned": added}))


if __name__ == "__main__":
    main(*sys.argv[1:])
