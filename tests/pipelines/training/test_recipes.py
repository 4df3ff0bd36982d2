"""Recipes run: their learning rates, their dry runs without data, and a few steps of each kind."""

import os

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipelines.config import config_paths, override
from pipelines.config.recipes import RECIPES, get_recipe
from pipelines.data.sources import tfds_features
from pipelines.runs.workdir import Workdir
from pipelines.tasks.task import task_of
from pipelines.training.dry_run import dry_run
from pipelines.training.optimization.optimizers import make_schedule
from pipelines.training.train import build_trainer
from pipelines.training.train_data import open_data
from tests.pipelines.process import described
from tests.pipelines.tiny import one_device
from vit_tf.config.variants import get_variant

RECIPE = {name: get_recipe(name) for name in RECIPES}
# Sizes of the smallest model of each family; a recipe's own kinds of layers stay.
SMALL = {
    "model.hidden_size": "16",
    "model.mlp_size": "16",
    "model.layers": "1",
    "model.heads": "2",
    "model.stage_depths": "1",
    "model.width": "0.5",
}
_BIT = ("r50x1", "r101x1", "r152x2")
BOUNDARIES = {
    "bit_pets": (200, 300, 400),
    "bit_flowers": (200, 300, 400),
    "bit_cifar10": (3000, 6000, 9000),
    "bit_cifar100": (3000, 6000, 9000),
    "bit_imagenet": (6000, 12_000, 18_000),
    "jft_r50x1_sgd": (129_456, 297_748, 388_366, 478_985),
    "jft_r152x2_sgd": (129_456, 297_748, 388_366, 478_985),
    # After 30, 60 and 80 of 90 epochs, in steps of 4096 of 1,281,167 and of 14 million images.
    **{f"imagenet_{model}": (9_383, 18_767, 25_022) for model in _BIT},
    **{f"imagenet21k_{model}": (102_539, 205_078, 273_437) for model in _BIT},
}


def _rate(name, step):
    """The equations of docs/paper.md F.3 for one step, in Python."""
    recipe = RECIPE[name]
    peak, warmup, total = (
        recipe.optimizer.learning_rate,
        recipe.schedule.warmup_steps,
        recipe.train.steps,
    )
    progress = min(max((step - warmup) / (total - warmup), 0), 1)
    decayed = {
        "linear": 1e-5 + (peak - 1e-5) * (1 - progress),
        "cosine": peak * (1 + np.cos(np.pi * progress)) / 2,
        "staircase": peak / 10 ** sum(step > boundary for boundary in BOUNDARIES.get(name, ())),
    }
    return decayed[recipe.schedule.decay] * min(1, step / warmup)


@pytest.mark.parametrize("name", RECIPES)
def test_learning_rates_are_those_of_the_equations(name):
    recipe = RECIPE[name]
    warmup, total = recipe.schedule.warmup_steps, recipe.train.steps
    steps = [0, 1, warmup // 2, warmup, (warmup + total) // 2, total - 1, total]
    steps += [step for boundary in BOUNDARIES.get(name, ()) for step in (boundary, boundary + 1)]
    schedule = make_schedule(recipe.schedule, recipe.optimizer.learning_rate, total)
    expected = [_rate(name, step) for step in steps]
    np.testing.assert_allclose(schedule(tf.constant(steps)), expected, rtol=1e-6, atol=1e-10)


def _step_kind(experiment):
    """The settings that decide the code of a step; steps of a kind differ in numbers only."""
    optimizer, config = experiment.optimizer, experiment.model_config(10)
    switches = ("stem", "representation_size", "classifier", "position_embedding")
    return (
        config.family,
        tuple(str(getattr(config, name, None) or "") and name for name in switches[:2]),
        tuple(getattr(config, name, None) for name in switches[2:]),
        (optimizer.name, optimizer.weight_decay_mask, optimizer.clip_norm is None),
        (experiment.schedule.decay, experiment.train.loss),
        experiment.train.ema_decay is not None,
        (experiment.task, experiment.masking.target),
    )


def _data_kind(experiment):
    """The same for the batches."""
    data = experiment.data
    return data.crop, data.flip, data.randaugment_layers > 0, data.mixup > 0, data.cutmix > 0


def _one_of_each(kind):
    """A recipe of each kind."""
    return sorted({kind(experiment): name for name, experiment in RECIPE.items()}.values())


def shrink(experiment):
    """The recipe with one layer, on digits, in three steps."""
    known = config_paths(experiment.model.name)
    sizes = {path: value for path, value in SMALL.items() if path in known}
    if "model.patch_size" in known:
        stem = getattr(get_variant(experiment.model.name), "stem", None)
        sizes["model.patch_size"] = "1" if stem else "4"
        sizes |= {"model.stem.stage_depths": "1", "model.stem.width": "0.5"} if stem else {}
        if experiment.model.fields.get("representation_size"):
            sizes["model.representation_size"] = "8"
    return override(
        experiment,
        [
            *(f"{path}={value}" for path, value in sizes.items()),
            "model.image_size=16",
            "init_from=none",
            "data.name=digits",
            "data.train_split=train[:40]",
            "data.eval_split=none",
            "train.batch_size=8",
            f"train.accumulate_steps={min(experiment.train.accumulate_steps, 2)}",
            "train.steps=3",
            "schedule.warmup_steps=1",
        ],
    )


@pytest.mark.parametrize("name", _one_of_each(_step_kind))
def test_every_kind_of_recipe_shrinks_to_a_few_steps(name):
    """The first step has a rate of 0, and the second changes the weights. Without tracing."""
    experiment = shrink(RECIPE[name])
    assert _step_kind(experiment) == _step_kind(RECIPE[name])
    trainer = build_trainer(
        experiment, task_of(experiment, experiment.model_config(10)), one_device()
    )
    batch = _batch(experiment.train.batch_size)
    before = [np.array(variable) for variable in trainer.model.trainable_variables]
    for step in range(2):
        trainer.step.assign(step)
        loss, norm, applied = trainer.strategy.run(trainer.replica_step, args=(batch,))
        assert applied.numpy() and np.isfinite([float(loss), float(norm)]).all()
        after = [np.array(variable) for variable in trainer.model.trainable_variables]
        changed = [np.any(a != b) for a, b in zip(before, after, strict=True)]
        assert any(changed) == (step == 1)
    assert (trainer.ema is not None) == (experiment.train.ema_decay is not None)


def _batch(size):
    rng = np.random.default_rng(0)
    return {
        "image": tf.constant(rng.uniform(-1, 1, [size, 16, 16, 3]), tf.float32),
        "label": tf.constant(rng.integers(0, 10, size), tf.int32),
        "weight": tf.ones(size),
        "slot": tf.range(size),
    }


@pytest.mark.parametrize("name", _one_of_each(_data_kind))
def test_every_kind_of_recipe_makes_batches(name, tmp_path):
    experiment = shrink(RECIPE[name])
    assert _data_kind(experiment) == _data_kind(RECIPE[name])
    data = open_data(experiment, Workdir(tmp_path)).train
    batch = next(iter(data.dataset(0)))
    assert batch["image"].shape == (8, 16, 16, 3)
    assert np.abs(batch["image"]).max() <= 1 and np.std(batch["image"]) > 0.1
    mixed = experiment.data.mixup > 0
    assert batch["label"].shape == ((8, 10) if mixed else (8,))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("jft_vit_h14", ""),
        ("bit_pets", "oxford_iiit_pet: the label is label. Others for data.label: species\n"),
    ],
)
def test_a_dry_run_needs_neither_data_nor_weights(name, said, monkeypatch, command):
    """It creates no variable: ViT-H/14 would take 2.5 GB."""
    monkeypatch.setattr(keras.Variable, "__init__", lambda *_, **__: pytest.fail("a variable"))
    module = "finetune" if RECIPE[name].init_from else "pretrain"
    tfds_features._log_once.cache_clear()  # A test before may have logged the label.
    result = command(module, "--dry_run", f"--experiment={name}")
    assert (result.returncode, result.stderr) == (0, said)
    lines, config = described(result.stdout)
    assert config["train"]["steps"] == RECIPE[name].train.steps
    assert lines[0] == f"recipe {name}: {(RECIPES[name].__doc__ or '').splitlines()[0]}"


@pytest.mark.parametrize("name", sorted(set(RECIPES) - {"digits", "shapes", "mpp_digits"}))
def test_every_recipe_describes_itself(name, tmp_path, capsys):
    recipe = RECIPE[name]
    dry_run(recipe, tmp_path / "run", one_device())
    lines, _ = described(capsys.readouterr().out)
    assert f"{recipe.train.steps:,} steps of {recipe.train.batch_size:,} images" in "".join(lines)
    assert any(line.startswith("size: ") for line in lines)
    assert lines[-1].startswith("first batch: none, since the data are not here. ")
    initial = [line for line in lines if line.startswith("starts from: ")]
    weights = recipe.init_from
    assert initial == ([f"starts from: {weights}, published weights"] if weights else [])
    assert not os.listdir(tmp_path)
