"""Measures the cost of the training loop over the bare compiled train step.

Both run the same compiled function on the same prefetched random batches, in turn. The loop adds
signals, progress lines, metrics and TensorBoard. The claim is at most 5 %.

usage: python -m benchmarks.bench_train_loop [rounds] [steps per round]
"""

import dataclasses
import json
import statistics
import sys
import tempfile
import time

import numpy as np
import tensorflow as tf

from pipelines.config import override, recipes
from pipelines.distribution.signals import Signals
from pipelines.runs.progress import Progress
from pipelines.runs.workdir import Workdir
from pipelines.tasks.task import task_of
from pipelines.training.actions import log_action
from pipelines.training.loop import TrainingLoop
from pipelines.training.profiler import Profiler
from pipelines.training.train import build_trainer

BATCH = 8


def random_batches(batch=BATCH):
    """Endless copies of four prefetched random batches."""
    rng = np.random.default_rng(0)
    batches = {
        "image": rng.uniform(-1, 1, [4, batch, 224, 224, 3]).astype(np.float32),
        "label": rng.integers(0, 1000, [4, batch]).astype(np.int32),
        "id": np.zeros([4, batch], np.int64),
        "slot": np.tile(np.arange(batch, dtype=np.int32), [4, 1]),
        "weight": np.ones([4, batch], np.float32),
    }
    return tf.data.Dataset.from_tensor_slices(batches).repeat().prefetch(4)


def main(rounds=6, steps_per_round=12):
    experiment = override(
        recipes.get_recipe("digits"),
        [
            "model.name=ViT-Ti/16",
            "model.image_size=224",
            "model.dropout=0",
            "schedule.warmup_steps=0",
            f"train.batch_size={BATCH}",
            f"train.steps={10**6}",
            f"train.log_every={steps_per_round}",
            "train.checkpoint_every=0",
            "optimizer.name=sgd",
        ],
    )
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    trainer = build_trainer(
        experiment, task_of(experiment, experiment.model.config(1000)), strategy
    )
    trainer.train_dataset = strategy.experimental_distribute_dataset(random_batches())
    variables = trainer.model.trainable_variables
    bare_step = tf.function(trainer.train_step)
    iterator = iter(trainer.train_dataset)
    bare_step(iterator)
    trainer.train(tf.constant(1))
    before = [variable.numpy() for variable in variables[:3]]

    with tempfile.TemporaryDirectory() as folder, Signals() as signals:
        run = Workdir(folder)

        def bare():
            for _ in range(steps_per_round):
                bare_step(iterator)
            trainer.log.loss_sum.numpy()

        def loop():
            start = int(trainer.step.numpy())
            # The range is aligned so that it contains one log line.
            end = start - start % steps_per_round + steps_per_round
            progress = Progress(run, step=start, total_steps=end, batch_size=BATCH)
            with progress:
                progress._compiled.set()
                settings = dataclasses.replace(experiment.train, steps=end)
                TrainingLoop(
                    read_metrics=list,
                    settings=settings,
                    trainer=trainer,
                    data=None,
                    actions=[log_action(settings, trainer, progress)],
                    store=None,
                    non_finite=None,
                    progress=progress,
                    profiler=Profiler(None, folder),
                    signals=signals,
                ).run()
            return end - start

        loop()
        times = {"bare": [], "loop": []}
        for _ in range(rounds):
            begin = time.perf_counter()
            bare()
            middle = time.perf_counter()
            done = loop()
            times["bare"].append((middle - begin) / steps_per_round)
            times["loop"].append((time.perf_counter() - middle) / done)
        lines = len(run.read_metrics())

    moved = [
        np.abs(variable - value).max() for variable, value in zip(variables, before, strict=False)
    ]
    assert min(moved) > 0 and lines >= rounds, "the timed steps did not train"
    print("ViT-Ti/16 at 224, batch 8, ms per step      best   median   spread")
    for name, seconds in times.items():
        best, median = min(seconds) * 1e3, statistics.median(seconds) * 1e3
        spread = (max(seconds) - min(seconds)) * 1e3
        print(f"{name:40} {best:8.1f} {median:8.1f} {spread:8.1f}")
    ratios = {
        "best": min(times["loop"]) / min(times["bare"]) - 1,
        "median": statistics.median(times["loop"]) / statistics.median(times["bare"]) - 1,
    }
    print(f"loop over bare step: best {ratios['best']:+.1%}, median {ratios['median']:+.1%}")
    print(json.dumps({"seconds": times, "overhead": ratios}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
