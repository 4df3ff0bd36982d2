"""An experiment that runs in a second, and helpers for its tests."""

import os
import shutil

import numpy as np
import tensorflow as tf

from pipelines.config import override, recipes
from pipelines.distribution.strategies import make_strategy
from pipelines.runs import checkpoints
from pipelines.runs.workdir import Workdir

# All kinds of dropout and augmentation are on, so that a draw that depends on the split is noticed.
TINY = [
    "model.image_size=12",
    "model.hidden_size=16",
    "model.mlp_size=32",
    "model.heads=2",
    "model.layers=2",
    "model.dropout=0.2",
    "model.attention_dropout=0.1",
    "model.stochastic_depth=0.2",
    "data.train_split=train",
    "data.eval_split=test",
    "data.shuffle_window=64",
    "train.batch_size=16",
    "train.steps=12",
    "train.log_every=1",
    "train.eval_every=0",
    "train.checkpoint_every=0",
    "schedule.warmup_steps=3",
]


def tiny_experiment(*assignments):
    """The `digits` recipe, shrunk, with further overrides."""
    return override(recipes.get_recipe("digits"), [*TINY, *assignments])


def as_flags(*assignments):
    """The same assignments as flags of a command line."""
    return [part for text in [*TINY, *assignments] for part in ("--set", text)]


def one_device():
    return tf.distribute.OneDeviceStrategy("CPU:0")


def two_replicas():
    return make_strategy("mirrored")


def arrays(workdir, name="final.npz"):
    """The weights that a run has written, by name."""
    with np.load(os.path.join(workdir, name), allow_pickle=False) as file:
        return dict(file)


def losses(workdir):
    """The logged training losses of a run, in the order of the steps."""
    return [line["loss"] for line in Workdir(workdir).read_metrics() if "loss" in line]


def untimed_metrics(workdir):
    """The lines of metrics.jsonl without values that depend on time."""
    return [
        {k: v for k, v in x.items() if "per_second" not in k and k not in ("data_wait", "time")}
        for x in Workdir(workdir).read_metrics()
    ]


def cut_short(workdir, path, step):
    """A copy of a run in the state right after the checkpoint of `step`."""
    shutil.copytree(workdir, path)
    for name in os.listdir(path):
        if name.startswith(("final", "ema")):
            os.unlink(path / name)
    for later in checkpoints.steps(path / "checkpoints"):
        if later > step:
            shutil.rmtree(path / "checkpoints" / f"step-{later}")
    assert checkpoints.newest(path / "checkpoints") == step
    return path


def assert_same_weights(workdir, expected, names=("final.npz", "ema.npz")):
    """Checks that the weights that two runs have written are bitwise equal."""
    for name in names:
        received, wanted = arrays(workdir, name), arrays(expected, name)
        assert received.keys() == wanted.keys()
        for key, value in wanted.items():
            np.testing.assert_array_equal(received[key], value, err_msg=f"{key} of {name}")
