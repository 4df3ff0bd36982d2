"""However a step is split, the model is the same: micro-batches, replicas, averages, restarts."""

import numpy as np
import pytest
import tensorflow as tf

import vit_tf
from pipelines.data.sources.open import open_source
from pipelines.evaluation.evaluate import evaluate
from pipelines.runs import checkpoints
from pipelines.runs.workdir import Workdir
from pipelines.stored_models import model_source
from pipelines.training.train import train
from tests.pipelines.equal_runs import TOLERANCE, assert_equal_runs, everything
from tests.pipelines.process import run_command
from tests.pipelines.tiny import (
    arrays,
    as_flags,
    assert_same_weights,
    cut_short,
    one_device,
    tiny_experiment,
    two_replicas,
)
from tests.pipelines.training.faults import train_data
from tests.pipelines.training_runs import without_compiling
from vit_tf.layers import RandomContext

SHARED = (
    "train.shard_optimizer=true",
    "optimizer.clip_norm=0.1",
    "optimizer.freeze=patch_embedding",
)


def train_with(workdir, strategy, optimizer, *assignments):
    train(tiny_experiment(*everything(optimizer), *assignments), workdir, strategy)
    return workdir


def _states(run, *steps):
    """The checkpoints of a run after these steps."""
    folder = run / "checkpoints"
    return [tf.train.load_checkpoint(checkpoints.prefix(folder, step)) for step in steps]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """`runs(name of a run)`: its workdir; an optimizer and how a step is split. Trained once."""
    folder = tmp_path_factory.mktemp("runs")
    kinds = {
        "sgd": ("sgd", one_device, 1),
        "sgd, 2 x 4 x 4": ("sgd", two_replicas, 4),
        "adamw": ("adamw", one_device, 1),
        "adamw, 4 x 8": ("adamw", one_device, 4),
        "adamw, 2 x 16": ("adamw", two_replicas, 1),
        "sgd, 2 slices": ("sgd", two_replicas, 2, *SHARED),
        "adamw, 2 slices": ("adamw", two_replicas, 1, *SHARED),
    }

    def run(name):
        if not (folder / name).exists():
            optimizer, strategy, parts, *more = kinds[name]
            parts = f"train.accumulate_steps={parts}"
            train_with(folder / name, strategy(), optimizer, parts, *more)
        return folder / name

    return run


# SGD, whose update has the size of the sum of the gradients. The optimizer gets only this sum.
@pytest.mark.parametrize(
    ("optimizer", "split"),
    [
        ("sgd", "2 x 4 x 4"),
        pytest.param("adamw", "4 x 8", marks=pytest.mark.heavy("training")),
        pytest.param("adamw", "2 x 16", marks=pytest.mark.release),
    ],
)
def test_replicas_and_parts_equal_the_whole_batch(runs, optimizer, split):
    whole = runs(optimizer)
    assert_equal_runs(runs(f"{optimizer}, {split}"), whole, optimizer)
    # The weights and their averages have changed by far more than the tolerance.
    first, last = _states(whole, 1, 12)
    for name in first.get_variable_to_shape_map():
        if name.startswith(("model/", "ema/")):
            change = np.abs(last.get_tensor(name) - first.get_tensor(name)).max()
            assert change > 50 * TOLERANCE[optimizer], name


def test_one_device_goes_on_where_two_replicas_stopped(runs, tmp_path, logged):
    run = cut_short(runs("sgd, 2 x 4 x 4"), tmp_path / "run", 5)
    # Also in another number of micro-batches, if the memory is smaller.
    with without_compiling():
        train_with(run, one_device(), "sgd", "train.accumulate_steps=2")
    assert "resuming from step 5" in logged.take()
    assert_equal_runs(run, runs("sgd"), "sgd")


@pytest.mark.parametrize(
    "optimizer",
    [
        pytest.param("sgd", marks=pytest.mark.heavy("training")),
        pytest.param("adamw", marks=pytest.mark.release),
    ],
)
def test_replicas_that_share_the_optimizer_equal_one_device(runs, optimizer, tmp_path, logged):
    """Each goes on where the other stopped; the gradients are clipped in every step."""
    shared = runs(f"{optimizer}, 2 slices")
    clipped = cut_short(shared, tmp_path / "whole", 5)
    with without_compiling():
        train_with(clipped, one_device(), optimizer, *SHARED[1:])
    assert "resuming from step 5" in logged.take()
    assert_equal_runs(clipped, shared, optimizer)
    norms = [x["gradient_norm"] for x in Workdir(shared).read_metrics() if "gradient_norm" in x]
    assert len(norms) == 12 and min(norms) > 0.1
    again = cut_short(clipped, tmp_path / "shared", 9)
    with without_compiling():
        train_with(again, two_replicas(), optimizer, *SHARED)
    assert_equal_runs(again, shared, optimizer)
    resumed = cut_short(shared, tmp_path / "resumed", 8)
    parts = f"train.accumulate_steps={2 if optimizer == 'sgd' else 1}"
    train_with(resumed, two_replicas(), optimizer, parts, *SHARED)
    assert_same_weights(resumed, shared)


@pytest.mark.heavy("training")
def test_recomputed_activations_change_no_bit(runs, tmp_path, logged):
    """A run goes on with `model.recompute`, with all kinds of dropout, replicas, micro-batches."""
    expected = runs("sgd, 2 x 4 x 4")
    run = cut_short(expected, tmp_path / "run", 8)
    parts = "train.accumulate_steps=4"
    train_with(run, two_replicas(), "sgd", parts, "model.recompute=blocks")
    assert "resuming from step 8" in logged.take()
    assert_same_weights(run, expected)


@pytest.mark.process
@pytest.mark.heavy("training")
def test_a_process_with_two_replicas_goes_on_where_one_device_stopped(runs, tmp_path):
    run = cut_short(runs("adamw"), tmp_path / "run", 5)
    flags = ["--strategy=mirrored", "--logical_cpus=2", "--workdir=run"]
    result = run_command("pretrain", *as_flags(*everything("adamw")), *flags, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "2 replicas on CPU" in result.stdout
    assert "resuming from step 5" in result.stdout
    assert_equal_runs(run, runs("adamw"), "adamw")


@pytest.mark.parametrize(
    "name", ["sgd, 2 x 4 x 4", pytest.param("adamw", marks=pytest.mark.heavy("training"))]
)
def test_the_average_is_its_closed_form(runs, name):
    """The recursion in float64, from the weights after every step, with the warm-up's decays."""
    steps, run = 12, runs(name)
    states = _states(run, *range(1, steps + 1))
    names = [name for name in states[-1].get_variable_to_shape_map() if name.startswith("ema/")]
    # In each of 2 layers the kernels of q, k and v are one variable, and so are their biases.
    assert len(names) == len(arrays(run)) - 2 * 4
    for name in names:
        values = [
            state.get_tensor(name.replace("ema/", "model/")).astype(np.float64) for state in states
        ]
        # The first update has learning rate 0, so the weights after it are the initial weights.
        expected = values[0]
        for step, value in enumerate(values):
            decay = min(0.9, (1 + step) / (10 + step))
            expected = decay * expected + (1 - decay) * value
        average = states[-1].get_tensor(name)
        np.testing.assert_allclose(average, expected, rtol=0, atol=1e-6)
        assert np.abs(values[-1] - average).max() > 1e-5, name
    # Evaluations used the average, and its file can be loaded like any other.
    last = Workdir(run).read_metrics()[-1]
    source = model_source.find(run / "ema.npz")
    data = tiny_experiment(*everything("sgd")).data
    means = evaluate(
        source,
        open_source(data.name, data.eval_split),
        one_device(),
        batch_size=32,
        bad_images="stop",
    )
    assert means["loss"] == pytest.approx(last["eval_loss"], rel=1e-6)


def first_batch(*assignments):
    data = train_data(tiny_experiment(*everything("adamw"), *assignments))
    return next(data.dataset(0).as_numpy_iterator())


def logits(batch, *assignments):
    """In training, with random weights that do not depend on the draws."""
    model = vit_tf.create_model(
        tiny_experiment(*everything("adamw"), *assignments).model.config(10)
    )
    for index, variable in enumerate(model.trainable_variables):
        variable.assign(0.3 * tf.random.stateless_normal(variable.shape, [0, index]))
    with RandomContext(0, tf.constant(0, tf.int64), batch["slot"]):
        return model(batch["image"], training=True).numpy()


def test_every_random_draw_changes_the_results():
    """Without one of these draws the results differ, so the comparisons above do test them."""
    batch = first_batch()
    image, without = batch["image"], []
    for draw in ("randaugment_layers=0", "mixup=0", "flip=false", "crop=none"):
        without.append(f"data.{draw}")
        before, image = image, first_batch(*without)["image"]
        assert np.abs(image - before).max() > 0.1, draw
    expected = logits(batch)
    np.testing.assert_allclose(logits(batch), expected, rtol=1e-6)
    for path in ("dropout", "attention_dropout", "stochastic_depth"):
        assert np.abs(logits(batch, f"model.{path}=0") - expected).max() > 0.01, path
