"""Runs that share a model and its graphs against runs that build their own."""

import contextlib
import dataclasses
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipelines.config import override
from pipelines.evaluation.evaluation_step import Evaluator
from pipelines.runs import checkpoints
from pipelines.tasks.task import task_of
from pipelines.training import reuse as module
from pipelines.training.reuse import Reuse
from pipelines.training.train import build_trainer, train
from pipelines.training.train_step import Trainer
from tests.pipelines.tiny import (
    assert_same_weights,
    cut_short,
    one_device,
    tiny_experiment,
    two_replicas,
    untimed_metrics,
)
from tests.pipelines.training_runs import FINISHED

# Without the pictures and profiles of `FINISHED`, which change no result.
RUN = (*FINISHED, "train.histograms_every=0", "train.inspect_every=0", "train.profile=none")
# Another seed, rate, split, and length of an evaluation's data.
OTHER = (
    "seed=5",
    "optimizer.learning_rate=0.003",
    "data.train_split=train[:50%]",
    "data.eval_split=test[:70]",
    "data.per_class=30",
    "train.log_every=4",
)


@pytest.fixture
def traced(monkeypatch):
    """The names of the classes whose step is called, once for each trace."""
    found = []
    for owner in (Trainer, Evaluator):

        def step(self, batch, original=owner.replica_step):
            found.append(type(self).__name__)
            return original(self, batch)

        monkeypatch.setattr(owner, "replica_step", step)
    return found


def states(workdir):
    """Step -> the values of the checkpoint by name."""
    folder, found = workdir / "checkpoints", {}
    for step in checkpoints.steps(folder):
        reader = tf.train.load_checkpoint(checkpoints.prefix(folder, step))
        names = reader.get_variable_to_shape_map()
        found[step] = {x: reader.get_tensor(x) for x in names if "OBJECT_GRAPH" not in x}
    return found


@pytest.mark.heavy("training")
def test_a_run_with_the_graphs_of_another_has_the_bits_of_a_run_alone(
    finished_run, tmp_path, traced
):
    """Also after an interruption; dropout is on, and the average of the weights is evaluated."""
    reuse, strategy = Reuse(), one_device()
    for name, settings in (("first", (*RUN, *OTHER)), ("second", RUN)):
        train(tiny_experiment(*settings), tmp_path / name, strategy, reuse=reuse)
        reuse.end_run()
    cut = cut_short(tmp_path / "second", tmp_path / "resumed", 8)
    train(tiny_experiment(*settings), cut, strategy, reuse=reuse)
    assert sorted(traced) == ["Evaluator", "Trainer"]

    expected = states(finished_run)
    assert len(expected) == 3
    for name in ("second", "resumed"):
        run = tmp_path / name
        assert_same_weights(run, finished_run)
        assert untimed_metrics(run) == untimed_metrics(finished_run)
        received = states(run)
        assert received.keys() == expected.keys()
        for step, values in expected.items():
            assert received[step].keys() == values.keys()
            for key, value in values.items():
                np.testing.assert_array_equal(received[step][key], value, err_msg=f"{key} {step}")


def trainer_of(reuse, experiment, strategy):
    """The trainer that a run of an experiment would have."""
    task = task_of(experiment, experiment.model_config(10))
    return reuse.trainer(experiment, task, strategy)


@contextlib.contextmanager
def created():
    """Yields the list of the variables that are created in the block."""
    variables = []

    def note(next_creator, **kwargs):
        variables.append(next_creator(**kwargs))
        return variables[-1]

    with tf.variable_creator_scope(note):
        yield variables


def test_a_kept_trainer_begins_in_the_state_of_a_new_one(monkeypatch):
    """Every variable is another number in between, as is what it has returned of bad rows."""
    monkeypatch.setattr(keras.utils, "clear_session", lambda: None)  # It would end `created`.
    settings = ("train.ema_decay=0.9", "data.bad_images=skip", "model.dtype=mixed_float16")
    experiment, strategy, reuse = tiny_experiment(*settings), one_device(), Reuse()
    with created() as variables:
        trainer = trainer_of(reuse, experiment, strategy)
    other = override(experiment, ["seed=3", "optimizer.learning_rate=0.25"])
    for variable in variables:
        variable.assign(tf.cast(tf.ones(variable.shape), variable.dtype))
    trainer.bad_rows.take()
    assert trainer_of(reuse, other, strategy) is trainer

    with created() as wanted:
        new = build_trainer(other, task_of(other, other.model_config(10)), strategy)
    inputs, state = variables[:2], variables[2:]
    assert [x.numpy() for x in inputs] == [3, 0.25]
    assert len(state) == len(wanted) > 100
    for variable, expected in zip(state, wanted, strict=True):
        np.testing.assert_array_equal(variable.numpy(), expected.numpy(), err_msg=expected.name)

    batch = {"weight": tf.constant([0.0, 1.0]), "id": tf.range(2), "slot": tf.range(2)}
    for rows in (trainer.bad_rows, new.bad_rows):
        strategy.run(rows.add, args=(batch, tf.constant(5, tf.int64), tf.constant(True)))
        assert rows.take() == ([(5, 0)], 0)
    rates = [float(x.optimizer.learning_rate(7)) for x in (trainer, new)]
    assert rates[0] == rates[1] > 0


@pytest.fixture
def built(monkeypatch):
    """The keywords of each call of `build_trainer`, which builds nothing; nor is a model drawn."""
    calls = []

    def build(*arguments, **keywords):
        calls.append(keywords)
        return types.SimpleNamespace(notes=(), bad_rows=None)

    monkeypatch.setattr(module, "build_trainer", build)
    monkeypatch.setattr(module, "draw_model", lambda *_: None)
    monkeypatch.setattr(keras.utils, "clear_session", lambda: None)
    return calls


@pytest.mark.parametrize(
    "setting",
    [
        "model.layers=1",
        "model.dropout=0.1",
        "train.batch_size=8",
        "train.steps=13",
        "train.ema_decay=0.5",
        "train.non_finite=skip",
        "optimizer.weight_decay=0.25",
        "schedule.warmup_steps=2",
        "data.bad_images=skip",
    ],
)
def test_another_graph_is_built_anew(setting, built):
    experiment, strategy, reuse = tiny_experiment(), one_device(), Reuse()
    first = trainer_of(reuse, experiment, strategy)
    second = trainer_of(reuse, override(experiment, [setting]), strategy)
    assert second is not first
    assert trainer_of(reuse, override(experiment, [setting, *OTHER]), strategy) is second
    assert len(built) == 2


def test_weights_of_classes_build_anew(built):
    """They are constants of the loss, and belong to the data."""
    experiment, strategy, reuse = tiny_experiment("data.balance=loss"), one_device(), Reuse()
    task = task_of(experiment, experiment.model_config(10))
    trainers = [
        reuse.trainer(experiment, dataclasses.replace(task, class_weights=(x,) * 10), strategy)
        for x in (1.0, 1.0, 2.0)
    ]
    assert trainers[0] is trainers[1] is not trainers[2] and len(built) == 2


@pytest.mark.parametrize(
    ("settings", "strategy"), [(["task=masked_patches"], one_device), ([], two_replicas)]
)
def test_masked_patches_and_several_replicas_keep_nothing(settings, strategy, built):
    experiment, strategy, reuse = tiny_experiment(*settings), strategy(), Reuse()
    first, second = (trainer_of(reuse, experiment, strategy) for _ in range(2))
    assert first is not second
    assert built == [{}] * 2  # The seed and the rate are constants.
