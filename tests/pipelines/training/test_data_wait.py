"""How long training waits for data: from the end of a step until the next batch is there."""

import itertools
import threading

import numpy as np
import pytest
import tensorflow as tf

from pipelines.runs import progress
from pipelines.runs.workdir import Workdir
from pipelines.tasks.task import task_of
from pipelines.training.train import build_trainer, train
from tests.pipelines.tiny import one_device, tiny_experiment
from tests.pipelines.training.faults import STRATEGIES

STEPS = 3


class Clock:
    """Takes the place of `tf.timestamp`: its readings are 1, 2, 4, 8 and so on."""

    def __init__(self, events):
        self._events, self._numbers = events, itertools.count()
        self.asked = threading.Semaphore(0)  # Released by the reading before each batch.

    def _read(self):
        number = next(self._numbers)
        self._events.append("clock")
        if number % 2 == 0:
            self.asked.release()
        return 2.0**number

    def __call__(self, name=None):
        del name
        reading = tf.numpy_function(self._read, [], tf.float64)
        reading.set_shape([])
        return reading


def source_of(clock, events, replicas):
    """A dataset whose batches for a step are ready only after the clock was read before the step.

    If one is needed earlier, that is an error after a minute.
    """

    def produce():
        for index in itertools.count():
            if index % replicas == 0:
                assert clock.asked.acquire(timeout=60)
            events.append("batch")
            yield {"x": np.zeros([1], np.float32)}

    signature = {"x": tf.TensorSpec([1], tf.float32)}

    def dataset(context):
        del context
        return tf.data.Dataset.from_generator(produce, output_signature=signature).prefetch(2)

    return dataset


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_clock_is_read_before_and_after_each_batch(strategy, monkeypatch):
    """Before it: after the step of the batch before. After it: before its own step."""
    strategy, experiment = STRATEGIES[strategy](), tiny_experiment("model.layers=1")
    trainer = build_trainer(experiment, task_of(experiment, experiment.model.config(10)), strategy)
    replicas, events = strategy.num_replicas_in_sync, []
    clock = Clock(events)
    monkeypatch.setattr(tf, "timestamp", clock)

    def step(batch):
        """In place of `replica_step`, after the batch has arrived."""

        def note(x):
            events.append("step")
            return x

        tf.numpy_function(note, [batch["x"]], tf.float32)

    trainer.replica_step = step
    source = source_of(clock, events, replicas)
    trainer.train_dataset = strategy.distribute_datasets_from_function(source)
    trainer.data_wait.assign(1000.0)  # Each loop starts from 0.
    try:
        trainer.train(tf.constant(STEPS))
    finally:
        clock.asked.release(100)  # Batches that were asked for ahead.
    one_step = ["clock", *["batch"] * replicas, "clock", *["step"] * replicas]
    assert events[: STEPS * len(one_step)] == STEPS * one_step
    # The waits are 2 - 1, 8 - 4 and 32 - 16.
    assert trainer.data_wait.numpy() == 21.0


def test_a_run_says_how_much_it_waits(tmp_path, monkeypatch, logged, uncompiled):
    """With a clock on which each batch takes an hour, which is longer than each step."""
    hours = itertools.count(step=3600.0)
    monkeypatch.setattr(tf, "timestamp", lambda: tf.constant(next(hours), tf.float64))
    monkeypatch.setattr(progress, "_JUDGED_SECONDS", 0.0)
    experiment = tiny_experiment(
        "model.layers=1", "data.eval_split=none", "train.steps=8", "train.log_every=2"
    )
    train(experiment, tmp_path / "run", one_device())
    lines = Workdir(tmp_path / "run").read_metrics()
    assert [line["step"] for line in lines] == [2, 4, 6, 8]
    assert all(line["images_per_second"] for line in lines)
    assert [line["data_wait"] for line in lines] == [1.0] * 4
    output = logged.take()
    assert output.count("waited for data 100 % of the time") == 4
    assert output.count("hint: ") == 1 and "pipelines.make_tfrecords" in output
    tags = set()
    for path in (tmp_path / "run" / "tensorboard" / "train").iterdir():
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            tags |= {value.tag for value in event.summary.value}
    assert "data_wait" in tags
