"""Losses and gradients that are not finite: the cause is found, recorded and acted upon."""

import os

import numpy as np
import pytest
import tensorflow as tf

from pipelines.data.order import TrainBatches
from pipelines.data.sources.open import open_source
from pipelines.errors import NonFiniteError, RunError
from pipelines.runs import checkpoint_weights, checkpoints
from pipelines.runs.checkpoints import CheckpointStore
from pipelines.runs.workdir import Workdir
from pipelines.training import non_finite
from pipelines.training import train as train_module
from pipelines.training.find_non_finite import find_non_finite
from pipelines.training.train import train
from pipelines.training.train_step import Trainer
from tests.pipelines.tiny import assert_same_weights, cut_short
from tests.pipelines.training.faults import (
    BAD,
    EXPLODING,
    STRATEGIES,
    break_block,
    experiment_with,
    ids_of,
    make_trainer,
    nan_backward,
    nan_forward,
    records,
    spoil,
    train_by_hand,
)
from tests.pipelines.training_runs import without_compiling


@pytest.mark.parametrize(
    ("strategy", "shared"),
    [
        ("mirrored", False),
        pytest.param("mirrored", True, marks=pytest.mark.heavy("training")),
        pytest.param("one", False, marks=pytest.mark.heavy("training")),
    ],
)
def test_a_bad_step_and_those_after_it_change_nothing(monkeypatch, strategy, shared):
    own = [f"train.shard_optimizer={str(shared).lower()}", "optimizer.clip_norm=1"]
    experiment = experiment_with("train.loss=sigmoid", *own)
    spoil(monkeypatch, ids_of(experiment, BAD)[3:4])
    trainer, data = make_trainer(STRATEGIES[strategy](), experiment)
    trainer.open_dataset(data.dataset)
    trainer.train(tf.constant(BAD))
    assert trainer.step.numpy() == BAD and not trainer.halt.halted.numpy()

    def state():
        values = [trainer.log.loss_sum, trainer.log.gradient_norm, trainer.step]
        values += [trainer.batch_offset, trainer.log.skipped]
        values += trainer.model.trainable_variables
        for arrays in (trainer.ema.state.by_path, *trainer.optimizer.slots.values()):
            values += [value.joined() if shared else value for value in arrays.values()]
        return [value.numpy() for value in values]

    before = state()
    assert all(np.isfinite(value).all() for value in before)
    trainer.train(tf.constant(4))
    assert trainer.halt.halted.numpy() and np.isnan(trainer.halt.loss_and_norm.numpy()).all()
    for old, new in zip(before, state(), strict=True):
        np.testing.assert_array_equal(new, old)
    # The next loop continues with good batches.
    trainer.train(tf.constant(2))
    assert trainer.step.numpy() == BAD + 2 and not trainer.halt.halted.numpy()
    moved = [np.abs(old - new).max() for old, new in zip(before[5:9], state()[5:9], strict=True)]
    assert min(moved) > 0
    # A loss out of range is enough: the gradient of a sigmoid loss is at most 1, however large a
    # finite logit is.
    (bias,) = (v for v in trainer.model.trainable_variables if v.path.endswith("head/bias"))
    bias.assign(tf.fill([10], 3e38))
    trainer.train(tf.constant(1))
    loss, norm = trainer.halt.loss_and_norm.numpy()
    assert trainer.halt.halted.numpy() and np.isinf(loss) and np.isfinite(norm)
    finding = find_non_finite(trainer.model, trainer.gradients, data.dataset(0).take(1), 0)
    assert (finding.what, finding.layer, finding.variable) == ("loss", None, None)


@pytest.mark.heavy("training")
def test_the_step_compiles_with_xla():
    experiment = experiment_with("train.accumulate_steps=1")
    trainer, data = make_trainer(STRATEGIES["one"](), experiment)
    step = tf.function(trainer.replica_step, jit_compile=True)
    batch = next(iter(data.dataset(0)))
    loss, norm, counts = trainer.strategy.run(step, args=(batch,))
    assert counts and np.isfinite([loss, norm]).all()
    before = [variable.numpy() for variable in trainer.model.trainable_variables]
    batch["image"] = tf.fill(batch["image"].shape, np.float32(np.nan))
    assert not trainer.strategy.run(step, args=(batch,))[2]
    for old, variable in zip(before, trainer.model.trainable_variables, strict=True):
        np.testing.assert_array_equal(variable.numpy(), old)


def count_traces(monkeypatch):
    """A list that gets an element whenever the step of a replica is traced."""
    traces, replica_step = [], Trainer.replica_step

    def counted(self, batch):
        traces.append(self)
        return replica_step(self, batch)

    monkeypatch.setattr(Trainer, "replica_step", counted)
    return traces


def test_stop_names_layer_variable_step_and_images_and_skip_goes_on(tmp_path, monkeypatch):
    """On two replicas of two micro-batches."""
    experiment, run = experiment_with("model.layers=2"), tmp_path / "run"
    break_block(monkeypatch, nan_forward)
    with pytest.raises(NonFiniteError) as error, without_compiling():
        train(experiment, run, STRATEGIES["mirrored"]())
    layer, variable = "block_1/mlp", "head/bias"
    assert str(error.value).startswith(
        f"The loss is not finite at step {BAD}, first in the output of layer {layer} and in the "
        f"gradient of {variable}. Lower optimizer.learning_rate, lengthen schedule.warmup_steps, "
        "or look at the images. With train.non_finite=skip or rewind the run goes on."
    )
    assert str(error.value).endswith(
        f"{run / 'non_finite.jsonl'}. The newest checkpoint in the workdir: step 4."
    )
    (record,) = records(run)
    ids = ids_of(experiment, BAD)
    source = open_source("digits", experiment.data.train_split)
    indices = TrainBatches(source, experiment.sampling()).indices(BAD)
    assert record["ids"] == ids == source.read(indices).ids.tolist()
    assert record["shown_by"] == ids[3:4]
    assert record["names"] == [source.describe(ids[3])]
    expected = {"step": BAD, "batch": BAD, "what": "layer", "action": "stop"}
    expected |= {"layer": layer, "variable": variable, "loss": "nan", "gradient_norm": "nan"}
    assert expected.items() <= record.items()
    assert checkpoints.steps(run / "checkpoints") == [4]
    assert not (run / "final.npz").exists()

    traces = count_traces(monkeypatch)
    experiment = experiment_with("model.layers=2", "train.non_finite=skip")
    assert train(experiment, run, STRATEGIES["mirrored"]())["step"] == 12
    assert len(traces) == 2, "the step was compiled again"
    assert [x["action"] for x in records(run)] == ["stop", "skip"]
    lines = Workdir(run).read_metrics()
    assert [line.get("skipped") for line in lines] == [None, 1, None]
    assert all(2.0 < line["loss"] < 2.6 for line in lines)


def halt(workdir, experiment, loss_and_norm, change=lambda model: None):
    """Calls the policy as after a step `BAD` with this loss and norm, without training."""
    trainer, data = make_trainer(STRATEGIES["one"](), experiment)
    change(trainer.model)
    trainer.step.assign(BAD)
    trainer.halt.halted.assign(True)
    trainer.halt.loss_and_norm.assign(loss_and_norm)
    workdir.mkdir()
    run, action = Workdir(workdir), experiment.train.non_finite
    store = checkpoints.CheckpointStore(run.checkpoints, None, keep_last=1, keep_every=0)
    policy = non_finite.NonFinitePolicy(action, trainer, store=store, run=run, data=data)
    return policy.recover(BAD)


def test_a_gradient_is_named_by_its_variable(tmp_path, monkeypatch):
    """The loss is finite; in backward order the head and the last norm come before the fault."""
    break_block(monkeypatch, nan_backward, "block_0")
    with pytest.raises(NonFiniteError, match=f"gradient norm .*step {BAD}"):
        halt(tmp_path / "run", experiment_with("model.layers=2"), [2.3, np.nan])
    (record,) = records(tmp_path / "run")
    assert record["what"] == "gradient" and np.isfinite(record["loss"])
    assert (record["layer"], record["variable"]) == (
        "block_0/mlp/dense_1",
        "block_0/mlp/dense_1/bias",
    )
    # The image cannot be determined, but the micro-batch can: one of two.
    assert record["shown_by"] == ids_of(experiment_with(), BAD)[:8]


@pytest.mark.parametrize(
    ("value", "key", "what", "layer"),
    [
        (np.inf, "image", "image", None),
        (3e38, "image", "layer", "patch_embedding"),
        (np.nan, "weight", "loss", None),
    ],
)
def test_what_the_data_bring_with_them(tmp_path, monkeypatch, value, key, what, layer):
    ids = ids_of(experiment_with(), BAD)
    spoil(monkeypatch, [ids[11]], value, key)
    with pytest.raises(NonFiniteError, match=f"The loss .*step {BAD}"):
        halt(tmp_path / "run", experiment_with(), [np.nan, np.nan])
    (record,) = records(tmp_path / "run")
    assert (record["what"], record["layer"], record["ids"]) == (what, layer, ids)
    assert record["shown_by"] == (ids[8:] if what == "loss" else [ids[11]])


def test_skipping_cannot_repair_weights(tmp_path):
    def explode(model):
        model.patch_embedding.kernel.assign(model.patch_embedding.kernel * np.inf)

    with pytest.raises(NonFiniteError, match=f"step {BAD}, .*patch_embedding/kernel.*repair"):
        halt(tmp_path / "run", experiment_with("train.non_finite=skip"), [np.nan] * 2, explode)
    (record,) = records(tmp_path / "run")
    assert record["layer"] == "patch_embedding" and record["action"] == "stop"
    assert record["shown_by"] == []


def test_a_full_disk_does_not_hide_what_was_found(tmp_path, monkeypatch):
    spoil(monkeypatch, ids_of(experiment_with(), BAD)[:1])

    def full(self, values):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Workdir, "append_non_finite", full)
    with pytest.raises(RunError, match="input images.*disk is full"):
        halt(tmp_path / "run", experiment_with("train.non_finite=skip"), [np.nan, np.nan])


def count_rows(monkeypatch, experiment):
    """A list of the numbers of rows that each read of the training data reads."""
    source_class = type(open_source(experiment.data.name, experiment.data.train_split))
    rows, locate = [], source_class.locate

    def counted(self, indices):
        rows.append(len(indices))
        return locate(self, indices)

    monkeypatch.setattr(source_class, "locate", counted)
    return rows


def assert_no_window_was_read_again(rows, bad_batches):
    """Windows are the whole split, and the next two are looked up ahead.

    For each bad batch its rows are read additionally; TensorBoard shows 16 images.
    """
    examples, batch_size = 1297, 16
    assert examples <= sum(rows) <= 3 * examples + bad_batches * batch_size + 16, rows


def test_a_skipped_step_is_as_if_it_had_been_left_out(tmp_path, monkeypatch, logged, uncompiled):
    """Also after a restart from a checkpoint between the skip and the log line that counts it.

    And in the loops for TPUs, which go on reading batches after the bad step.
    """
    experiment = experiment_with(
        "train.non_finite=skip",
        "train.accumulate_steps=1",
        "train.checkpoint_every=7",
        "train.keep_last=9",
        "data.shuffle_window=8192",
    )
    run, again = tmp_path / "run", tmp_path / "again"
    with monkeypatch.context() as patch:
        spoil(patch, ids_of(experiment, BAD)[3:4])
        rows = count_rows(patch, experiment)
        train(experiment, run, STRATEGIES["one"]())
        assert_no_window_was_read_again(rows, 1)
        train(experiment, cut_short(run, again, BAD + 1), STRATEGIES["one"]())
        output = logged.take()
        patch.setattr(train_module, "is_tpu", lambda strategy: True)
        train(experiment, tmp_path / "further", STRATEGIES["one"]())
    assert f"skipping step {BAD}" in output and "skipped 1 step " in output
    (record,) = records(run)
    assert (record["step"], record["what"], record["action"]) == (BAD, "image", "skip")

    plan = [(0, 0, BAD), (BAD + 1, BAD + 1, 11 - BAD)]
    train_by_hand(STRATEGIES["one"](), experiment, plan, tmp_path / "expected")
    assert_same_weights(run, tmp_path / "expected")
    assert_same_weights(again, run)
    assert_same_weights(tmp_path / "further", run)

    lines = Workdir(run).read_metrics()
    assert [line["step"] for line in lines] == [4, 8, 12]
    assert [line.get("skipped") for line in lines] == [None, 1, None]
    # The mean is over the three valid steps: log 10 and a little more, as in other runs here.
    assert all(2.0 < line["loss"] < 2.6 for line in lines)
    kept = ("step", "loss", "skipped", "gradient_norm")
    first, second = (
        [{key: line.get(key) for key in kept} for line in Workdir(path).read_metrics()]
        for path in (run, again)
    )
    assert first == second


@pytest.mark.parametrize(
    "strategy", ["one", pytest.param("mirrored", marks=pytest.mark.heavy("training"))]
)
def test_a_rewind_goes_on_behind_the_bad_batch(tmp_path, monkeypatch, logged, strategy, uncompiled):
    """Batch 2 is bad before the first checkpoint; 9 and 12 are bad after it."""
    experiment = experiment_with(
        *("train.non_finite=rewind", "train.accumulate_steps=1", "train.log_every=2"),
        "data.shuffle_window=8192",
    )
    bad = [2, 9, 12]
    run, again = tmp_path / "run", tmp_path / "again"
    with monkeypatch.context() as patch:
        spoil(patch, [ids_of(experiment, batch)[3] for batch in bad])
        rows = count_rows(patch, experiment)
        train(experiment, run, STRATEGIES[strategy]())
    assert_no_window_was_read_again(rows, len(bad))
    output = logged.take()
    for step, batch in ((0, 3), (4, 10), (4, 13)):
        assert f"rewinding to step {step}, which goes on with batch {batch}\n" in output
    # Step 0 reads batch 3, and so on; step 6 reads batch 9, which is bad. Then step 4 reads batch
    # 10, and step 6 reads 12, which is bad. Then step 4 reads batch 13, and so on.
    found = [(x["step"], x["batch"], x["action"]) for x in records(run)]
    assert found == [(2, 2, "rewind"), (6, 9, "rewind"), (6, 12, "rewind")]
    # Steps that were logged more than once have one line.
    lines = Workdir(run).read_metrics()
    assert [line["step"] for line in lines] == [2, 4, 6, 8, 10, 12]
    assert all(2.0 < line["loss"] < 2.6 for line in lines)
    if strategy == "one":
        plan = [(0, 3, 4), (4, 13, 8)]
        train_by_hand(STRATEGIES["one"](), experiment, plan, tmp_path / "expected")
        assert_same_weights(run, tmp_path / "expected")
        # A restart from a checkpoint after the rewind uses the shifted data.
        train(experiment, cut_short(run, again, 8), STRATEGIES["one"]())
        assert_same_weights(again, run)
        assert len(records(again)) == 3


@pytest.mark.heavy("training")
def test_a_rewind_from_weights_that_diverged(tmp_path, monkeypatch, uncompiled):
    """The update of step 0 makes weights that must not be saved; its loss came before."""
    monkeypatch.setattr(non_finite, "LIMIT", 3)
    experiment = experiment_with(*EXPLODING, "train.non_finite=rewind", "train.checkpoint_every=1")
    with pytest.raises(NonFiniteError, match="step 0, .*patch_embedding/.* 3 rewinds"):
        train(experiment, tmp_path / "run", STRATEGIES["one"]())
    found = records(tmp_path / "run")
    assert [x["batch"] for x in found] == list(range(4))
    assert [x["action"] for x in found] == ["rewind"] * 3 + ["stop"]
    assert checkpoints.steps(tmp_path / "run" / "checkpoints") == [0]


@pytest.mark.heavy("training")
def test_a_rewind_comes_before_an_evaluation(tmp_path, monkeypatch, uncompiled):
    """The weights diverged between two checkpoints."""
    monkeypatch.setattr(non_finite, "LIMIT", 2)
    experiment = experiment_with(
        *EXPLODING, "train.non_finite=rewind", "train.eval_every=1", "data.eval_split=test[:20]"
    )
    with pytest.raises(NonFiniteError, match="step 0, .* 2 rewinds"):
        train(experiment, tmp_path / "run", STRATEGIES["one"]())
    assert [x["action"] for x in records(tmp_path / "run")] == ["rewind"] * 2 + ["stop"]
    assert Workdir(tmp_path / "run").read_metrics() == []


@pytest.mark.heavy("training")
def test_skips_in_a_row_are_limited(tmp_path, monkeypatch, uncompiled):
    """A good step resets the count."""
    assert non_finite.LIMIT == 10
    monkeypatch.setattr(non_finite, "LIMIT", 3)
    experiment = experiment_with("train.non_finite=skip")
    bad = [1, 2, 3, 5, 6, 7, 8, 9]
    spoil(monkeypatch, [example for step in bad for example in ids_of(experiment, step)])
    with pytest.raises(NonFiniteError, match="step 8, .*3 steps before"):
        train(experiment, tmp_path / "run", STRATEGIES["one"]())
    found = [(x["step"], x["action"]) for x in records(tmp_path / "run")]
    assert found == [(step, "skip") for step in bad[:6]] + [(8, "stop")]
    lines = Workdir(tmp_path / "run").read_metrics()
    assert [line["skipped"] for line in lines] == [3, 3]
    assert all(2.0 < line["loss"] < 2.6 for line in lines)
    assert checkpoints.newest(tmp_path / "run" / "checkpoints") == 8


def test_checkpoints_of_before_are_refused_clearly(tmp_path):
    experiment = experiment_with()
    trainer, _ = make_trainer(STRATEGIES["one"](), experiment)
    state = tf.train.Checkpoint(
        model=checkpoint_weights.weights_by_path(trainer.model.weights),
        optimizer=trainer.optimizer.state,
        step=trainer.step,
        loss_sum=trainer.log.loss_sum,
        ema=trainer.ema.state,
    )
    run = Workdir(tmp_path / "run")
    run.create(experiment)
    CheckpointStore(run.checkpoints, state, keep_last=1, keep_every=0).save(4)
    with pytest.raises(RunError, match="match .*not bound.*workdir"):
        train(experiment, run.path, STRATEGIES["one"]())


def test_a_full_disk_leaves_the_lines_before(tmp_path, monkeypatch):
    run = Workdir(tmp_path)
    run.append_non_finite({"step": 1})

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            run.append_non_finite({"step": 2})
    run.append_non_finite({"step": 3})
    assert records(tmp_path) == [{"step": 1}, {"step": 3}]
