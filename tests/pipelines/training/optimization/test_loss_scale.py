"""Loss scaling in float16: an overflow skips its step and halves the scale."""

import numpy as np
import pytest
import tensorflow as tf

from pipelines.runs.workdir import Workdir
from pipelines.stored_models import model_source
from pipelines.training.optimization import loss_scale
from pipelines.training.train import train
from tests.pipelines.tiny import (
    assert_same_weights,
    cut_short,
    one_device,
    tiny_experiment,
    two_replicas,
)
from tests.pipelines.training.faults import (
    BAD,
    break_block,
    experiment_with,
    make_trainer,
    nan_backward,
    records,
)
from tests.pipelines.training_runs import without_compiling

# Without dropout and without warm-up, so that steps can be compared and every one moves weights.
PLAIN = (
    "model.layers=1",
    "model.dropout=0",
    "model.attention_dropout=0",
    "model.stochastic_depth=0",
    "optimizer.name=sgd",
    "schedule.warmup_steps=0",
    "train.ema_decay=0.9",
)
FP16 = "model.dtype=mixed_float16"


def set_scale(scale, value, updates=0):
    scale.value.assign(value)
    scale.updates.assign(updates)


def state(scale):
    return float(scale.value.numpy()), int(scale.updates.numpy())


def test_the_scale_follows_the_documented_rule():
    scale = loss_scale.LossScale()
    assert state(scale) == (2.0**15, 0)
    yes, no = tf.constant(True), tf.constant(False)
    scale.update(yes, no)
    assert state(scale) == (2.0**15, 1)
    scale.update(no, yes)
    assert state(scale) == (2.0**14, 0)
    set_scale(scale, 2.0**14, 1998)
    scale.update(yes, no)
    assert state(scale) == (2.0**14, 1999)
    scale.update(no, no)  # A loop that has halted.
    assert state(scale) == (2.0**14, 1999)
    scale.update(yes, no)
    assert state(scale) == (2.0**15, 0)
    set_scale(scale, 2.0**24, 1999)
    scale.update(yes, no)
    assert state(scale) == (2.0**24, 0)
    nan, inf = np.float32(np.nan), np.float32(np.inf)
    # The scale has no influence on the loss, and cannot become smaller than 1.
    for value, loss, norm, answered in [
        (2.0, 1.0, inf, True),
        (2.0, 1.0, nan, True),
        (2.0, 1.0, 1.0, False),
        (2.0, inf, nan, False),
        (2.0, nan, nan, False),
        (1.0, 1.0, inf, False),
    ]:
        set_scale(scale, value)
        assert bool(scale.answers(tf.constant(loss), tf.constant(norm))) == answered


def new_trainer(strategy, *assignments):
    """`(trainer, data)`; the head is random, since zeros would stop all float16 gradients."""
    trainer, data = make_trainer(strategy, tiny_experiment(*PLAIN, *assignments))
    kernel = trainer.model.head.kernel
    kernel.assign(tf.random.stateless_normal(kernel.shape, [1, 2], stddev=0.3))
    trainer.ema.initialize()
    return trainer, data


def train_after_overflows(strategy, *assignments):
    """Trains 14 steps from a scale that is far too large.

    Returns:
        `(trainer, number of overflows)`.
    """
    trainer, data = new_trainer(strategy, FP16, *assignments)
    start = [weight.numpy() for weight in trainer.model.weights]
    averages = [average.numpy() for average in trainer.ema.state.by_path.values()]
    set_scale(trainer.loss_scale, 2.0**24)
    trainer.open_dataset(data.dataset)
    trainer.train(tf.constant(1))
    # An overflow changes nothing but the counters, and is no reason to stop.
    assert trainer.step.numpy() == trainer.log.skipped.numpy() == 1
    assert state(trainer.loss_scale) == (2.0**23, 0) and not trainer.halt.halted.numpy()
    for old, new in zip(start, trainer.model.weights, strict=True):
        np.testing.assert_array_equal(new.numpy(), old)
    for old, new in zip(averages, trainer.ema.state.by_path.values(), strict=True):
        np.testing.assert_array_equal(new.numpy(), old)
    trainer.train(tf.constant(13))
    assert trainer.step.numpy() == 14 and not trainer.halt.halted.numpy()
    overflows = int(trainer.log.skipped.numpy())
    assert 2 <= overflows <= 12
    assert state(trainer.loss_scale) == (2.0 ** (24 - overflows), 14 - overflows)
    return trainer, overflows


def test_after_overflows_steps_equal_those_in_float32():
    """On one device, and on two replicas with two micro-batches."""
    with without_compiling():
        trainer, overflows = train_after_overflows(one_device())
        exact, data = new_trainer(one_device())
        exact.step.assign(overflows)
        exact.open_dataset(data.dataset)
        exact.train(tf.constant(14 - overflows))
    for name in ("loss_sum", "gradient_norm"):
        received, expected = (float(getattr(x.log, name).numpy()) for x in (trainer, exact))
        assert received == pytest.approx(expected, rel=2e-3), name
    split, also = train_after_overflows(two_replicas(), "train.accumulate_steps=2")
    assert also == overflows
    assert float(split.log.loss_sum.numpy()) == pytest.approx(
        float(trainer.log.loss_sum.numpy()), rel=2e-3
    )
    for weight, one, other in zip(
        exact.model.trainable_variables,
        trainer.model.trainable_variables,
        split.model.trainable_variables,
        strict=True,
    ):
        tolerance = 2e-3 * max(np.abs(weight.numpy()).max(), 0.01)
        np.testing.assert_allclose(one.numpy(), weight.numpy(), rtol=0, atol=tolerance)
        np.testing.assert_allclose(other.numpy(), weight.numpy(), rtol=0, atol=tolerance)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run whose first steps overflow, with a checkpoint in the middle of a log interval."""
    experiment = tiny_experiment(
        FP16,
        "train.deterministic=true",
        "train.ema_decay=0.9",
        "train.checkpoint_every=3",
        "train.log_every=4",
        "train.keep_last=9",
    )
    workdir = tmp_path_factory.mktemp("float16") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loss_scale, "INITIAL", 2.0**24)
        with without_compiling():
            train(experiment, workdir, one_device())
    return workdir, experiment


def test_overflows_are_in_the_metrics_and_resume_is_exact(whole, tmp_path, logged, uncompiled):
    workdir, experiment = whole
    names = ("step", "loss", "gradient_norm", "skipped", "loss_scale", "eval_loss")
    lines = [[line.get(name) for name in names] for line in Workdir(workdir).read_metrics()]
    # Three lines of losses, then one of an evaluation. Each skipped step halves the scale.
    first, second, third = [line[3] or 0 for line in lines[:3]]
    assert first and second and lines[3][3] is None
    halvings = [first, first + second, first + second + third]
    assert [line[4] for line in lines[:3]] == [2.0 ** (24 - n) for n in halvings]
    assert all(np.isfinite(line[1]) for line in lines[:3])
    run = cut_short(workdir, tmp_path / "run", 6)
    train(experiment, run, one_device())
    assert f"step 8/12  loss {lines[1][1]:.4f}  skipped {second} step" in logged.take()
    assert_same_weights(run, workdir)
    assert [[line.get(name) for name in names] for line in Workdir(run).read_metrics()] == lines


def test_a_run_in_float16_opens_in_its_dtype(whole):
    model = model_source.find(whole[0]).open_model().model
    assert model.dtype_policy.name == "mixed_float16"
    assert {variable.dtype for variable in model.trainable_variables} == {"float32"}
    logits = model(tf.zeros([2, 12, 12, 3]))
    assert logits.dtype == tf.float32 and np.isfinite(logits).all()


def test_a_fault_that_no_scale_answers_is_a_case_for_non_finite(tmp_path, monkeypatch, uncompiled):
    """At the smallest scale, the same NaN in the backward pass that is skipped above it."""
    break_block(monkeypatch, nan_backward, "block_0")
    experiment = experiment_with(FP16, "train.non_finite=skip")
    for initial, skips in ((2.0, []), (1.0, ["skip"])):
        monkeypatch.setattr(loss_scale, "INITIAL", initial)
        run = tmp_path / f"run-{initial}"
        train(experiment, run, one_device())
        found = records(run) if skips else []
        assert [record["action"] for record in found] == skips
        assert all(record["step"] == BAD for record in found)
        lines = Workdir(run).read_metrics()
        assert [line.get("skipped") for line in lines] == [None, 1, None]
        assert {line["loss_scale"] for line in lines[1:]} == {1.0}
        assert (run / "non_finite.jsonl").exists() == bool(skips)
