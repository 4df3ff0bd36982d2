"""However a step is split, the model is the same: micro-batches, replicas, averages, restarts."""

import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

from pipelines.data.sources.open import open_source
from pipelines.evaluation.evaluate import evaluate
from pipelines.runs import checkpoints, model_source
from pipelines.runs.workdir import Workdir
from pipelines.training import loop
from tests.pipelines.process import run_command
from tests.pipelines.tiny import arrays, as_flags, one_device, tiny_experiment, two_replicas

# Over 12 steps in float32: relative for losses; for weights, relative to the largest weight.
TOLERANCE = {"sgd": 1e-6, "adamw": 1e-5}
# Adam divides a gradient by its size. If the first gradient of an element is 1e-5 of the others by
# chance, it is mostly rounding error, and the update of the weight has an error of some per cent of
# the learning rate. With a rate of 0.01 this alone can be 2e-5, so AdamW has the recipe's rate.
RATE = {"sgd": 0.05, "adamw": 0.002}
# In addition to the dropout, attention dropout, stochastic depth, crop and mirroring of every tiny
# run.
EVERYTHING = (
    "data.mixup=0.5",
    "data.randaugment_layers=2",
    "train.batch_size=32",
    "train.ema_decay=0.9",
    "train.checkpoint_every=5",
    "data.eval_split=none",
)


def everything(optimizer):
    chosen = {"optimizer.name": optimizer, "optimizer.learning_rate": RATE[optimizer]}
    return [*EVERYTHING, *(f"{path}={value}" for path, value in chosen.items())]


def train(workdir, strategy, optimizer, *assignments):
    loop.train(tiny_experiment(*everything(optimizer), *assignments), workdir, strategy)
    return workdir


def losses(workdir):
    return [line["loss"] for line in Workdir(workdir).read_metrics() if "loss" in line]


def assert_equal_runs(workdir, expected, optimizer):
    """Checks losses of every step, final weights and their average against the tolerances."""
    tolerance = TOLERANCE[optimizer]
    assert len(losses(expected)) == 12
    np.testing.assert_allclose(losses(workdir), losses(expected), rtol=tolerance)
    for name in ("final.npz", "ema.npz"):
        received, wanted = arrays(workdir, name), arrays(expected, name)
        assert received.keys() == wanted.keys()
        largest = max(np.abs(value).max() for value in wanted.values())
        for key, value in wanted.items():
            # The exact gradient of a key bias is 0; Adam scales up its rounding error.
            if not key.endswith("key/bias"):
                error = np.abs(received[key] - value).max() / largest
                assert error <= tolerance, f"{key} of {name}: {error:.1e} of the largest weight"


@pytest.fixture(scope="module", params=TOLERANCE)
def runs(request, tmp_path_factory):
    """`(optimizer, one, two)`: undisturbed runs on one device and on two replicas."""
    folder, optimizer = tmp_path_factory.mktemp(request.param), request.param
    one = train(folder / "one", one_device(), optimizer)
    return optimizer, one, train(folder / "two", two_replicas(), optimizer)


def test_two_replicas_equal_one_device(runs):
    optimizer, one, two = runs
    assert_equal_runs(two, one, optimizer)
    # The weights have changed by far more than the tolerance.
    final, average = arrays(one), arrays(one, "ema.npz")
    for key, value in final.items():
        if not key.endswith("key/bias"):
            assert np.abs(value - average[key]).max() > 50 * TOLERANCE[optimizer], key


@pytest.mark.parametrize(
    ("strategy", "parts"),
    [
        pytest.param(one_device, 4, id="4 x 8"),
        pytest.param(two_replicas, 4, id="2 replicas of 4 x 4"),
    ],
)
def test_parts_equal_the_whole_batch(runs, tmp_path, strategy, parts):
    optimizer, one, _ = runs
    run = train(tmp_path / "run", strategy(), optimizer, f"train.accumulate_steps={parts}")
    assert_equal_runs(run, one, optimizer)


def cut_short(workdir, path, step):
    """A copy of a run in the state after a power cut right after the checkpoint of `step`."""
    shutil.copytree(workdir, path)
    for name in os.listdir(path):
        if name.startswith(("final", "ema")):
            os.unlink(path / name)
    for later in checkpoints.steps(path / "checkpoints"):
        if later > step:
            shutil.rmtree(path / "checkpoints" / f"step-{later}")
    assert checkpoints.newest(path / "checkpoints") == step
    return path


@pytest.mark.parametrize("begins_on", ["one device", "two replicas"])
def test_a_run_goes_on_with_another_number_of_replicas(runs, tmp_path, capsys, begins_on):
    optimizer, one, two = runs
    begun, strategy = (one, two_replicas()) if begins_on == "one device" else (two, one_device())
    run = train(cut_short(begun, tmp_path / "run", 5), strategy, optimizer)
    assert "resuming from step 5" in capsys.readouterr().out
    assert_equal_runs(run, one, optimizer)


@pytest.mark.process
@pytest.mark.parametrize("runs", ["adamw"], indirect=True)
def test_a_process_with_two_replicas_goes_on_where_one_device_stopped(runs, tmp_path):
    optimizer, one, _ = runs
    run = cut_short(one, tmp_path / "run", 10)
    flags = ["--strategy=mirrored", "--logical_cpus=2", "--workdir=run"]
    result = run_command("pretrain", *as_flags(*everything(optimizer)), *flags, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "2 replicas on CPU" in result.stdout
    assert "resuming from step 10" in result.stdout
    assert_equal_runs(run, one, optimizer)


@pytest.mark.parametrize("strategy", [one_device, two_replicas])
def test_the_average_is_its_closed_form(tmp_path, strategy):
    """Computed from the weights after every step: a_n = d^n w_0 + (1 - d) sum d^(n - i) w_i."""
    decay, steps = 0.8, 5
    assignments = [
        f"train.ema_decay={decay}",
        f"train.steps={steps}",
        "train.checkpoint_every=1",
        "train.keep_last=100",
        "train.accumulate_steps=2",
        "optimizer.learning_rate=0.01",
    ]
    experiment = tiny_experiment(*assignments)
    loop.train(experiment, tmp_path / "run", strategy())
    states = [
        tf.train.load_checkpoint(checkpoints.prefix(tmp_path / "run/checkpoints", step))
        for step in range(1, steps + 1)
    ]
    names = [name for name in states[-1].get_variable_to_shape_map() if name.startswith("ema/")]
    assert len(names) == len(arrays(tmp_path / "run")) - 2 * 2 * 2  # q, k and v are one array
    for name in names:
        values = [
            state.get_tensor(name.replace("ema/", "model/")).astype(np.float64) for state in states
        ]
        # The first update has learning rate 0, so the weights after it are the initial weights.
        expected = decay**steps * values[0] + (1 - decay) * sum(
            decay ** (steps - step) * value for step, value in enumerate(values, start=1)
        )
        average = states[-1].get_tensor(name)
        np.testing.assert_allclose(average, expected, rtol=0, atol=1e-6)
        assert np.abs(values[-1] - average).max() > 1e-4, name
    # Evaluations used the average, and its file can be loaded like any other.
    last = Workdir(tmp_path / "run").read_metrics()[-1]
    source = model_source.find(tmp_path / "run/ema.npz")
    means = evaluate(
        source,
        open_source(experiment.data.name, experiment.data.eval_split),
        one_device(),
        batch_size=experiment.train.batch_size,
        bad_images="stop",
    )
    assert means["loss"] == pytest.approx(last["eval_loss"], rel=1e-6)


def test_the_average_survives_a_restart(tmp_path):
    common = ("train.ema_decay=0.9", "schedule.decay=constant", "train.deterministic=true")
    whole = tiny_experiment(*common, "train.steps=6")
    loop.train(whole, tmp_path / "whole", one_device())
    loop.train(tiny_experiment(*common, "train.steps=4"), tmp_path / "parts", one_device())
    loop.train(whole, tmp_path / "parts", one_device(), extend=True)
    for file in ("final.npz", "ema.npz"):
        expected, received = arrays(tmp_path / "whole", file), arrays(tmp_path / "parts", file)
        for key, value in expected.items():
            np.testing.assert_array_equal(received[key], value)


@pytest.mark.parametrize("runs", ["adamw"], indirect=True)
@pytest.mark.parametrize(
    "without",
    [
        "model.dropout=0",
        "model.attention_dropout=0",
        "model.stochastic_depth=0",
        "data.crop=none",
        "data.mixup=0",
        "data.randaugment_layers=0",
    ],
)
def test_losses_depend_on_every_random_draw(runs, tmp_path, without):
    """Without these draws the results differ, so the comparisons above do test them."""
    optimizer, one, _ = runs
    run = train(tmp_path / "run", one_device(), optimizer, without)
    difference = np.abs(np.array(losses(run)) / losses(one) - 1)
    assert difference[-4:].max() > 50 * TOLERANCE[optimizer]
