"""Lengths in epochs, and warm-ups that do not fit."""

import dataclasses

import pytest

from pipelines.config import Assignments, Experiment, Schedule, Train, override
from pipelines.config.epochs import with_steps
from pipelines.config.summary import summary
from pipelines.errors import UserError

RECIPE = Experiment(train=Train(steps=1000, batch_size=10), schedule=Schedule(warmup_steps=100))


def resolve(*assignments, examples=100, recipe=RECIPE):
    """`(steps, warm-up, what was said)` of the recipe with assignments."""
    parsed = Assignments.parse(assignments)
    experiment, said = parsed.apply(recipe)
    experiment, notes = with_steps(experiment, examples, parsed.values)
    assert experiment.train.epochs is experiment.schedule.warmup_epochs is None
    return experiment.train.steps, experiment.schedule.warmup_steps, [*said, *notes]


@pytest.mark.parametrize(
    ("assignments", "expected"),
    [
        ([], (1000, 100)),
        (["train.epochs=20"], (200, 100)),
        (["train.epochs=20", "schedule.warmup_epochs=0.5"], (200, 5)),
        (["schedule.warmup_epochs=2"], (1000, 20)),
        (["train.epochs=20", "schedule.warmup_steps=7"], (200, 7)),
        # 0.29 * 1000 / 10 is 28.999999999999996 in floating point.
        (["train.epochs=100", "schedule.warmup_epochs=2.9"], (1000, 29)),
        (["train.epochs=0.25", "schedule.warmup_steps=0"], (2, 0)),
        (["train.epochs=0.001", "schedule.warmup_epochs=0"], (1, 0)),
        (["train.steps=1e2", "schedule.warmup_steps=1e1"], (100, 10)),
    ],
)
def test_epochs_are_steps_once_the_number_of_examples_is_known(assignments, expected):
    assert resolve(*assignments)[:2] == expected


def test_epochs_of_mixing_are_steps():
    """2.9 epochs of 100 examples in batches of 10, whatever the unit of the run is."""
    for length in ("train.epochs=20", "train.steps=200"):
        parsed = Assignments.parse([length, "data.mixing_epochs=2.9"])
        experiment, notes = with_steps(parsed.apply(RECIPE)[0], 100, parsed.values)
        data = experiment.data
        assert (data.mixing_steps, data.mixing_epochs, experiment.train.steps) == (29, None, 200)
        assert notes[-1].startswith("data.mixing_epochs=2.9 with 100 examples")
    both = ["data.mixing_epochs=2", "data.mixing_steps=3"]
    with pytest.raises(UserError, match=r"data\.mixing_epochs"):
        Assignments.parse(both).apply(RECIPE)


def test_the_reference_numbers_of_steps():
    """Those of 300 epochs of ImageNet and 7 and 14 epochs of JFT-300M in batches of 4096."""
    recipe = dataclasses.replace(RECIPE, train=Train(batch_size=4096))
    for epochs, examples, steps in (
        (300, 1_281_167, 93_835),
        (7, 303_000_000, 517_822),
        (14, 303_000_000, 1_035_644),
    ):
        found = resolve(f"train.epochs={epochs}", examples=examples, recipe=recipe)
        assert found[:2] == (steps, 100)
        assert f"{steps:,} steps" in found[2][0]


@pytest.mark.parametrize("length", ["train.steps=50", "train.epochs=5"])
def test_a_warm_up_of_the_recipe_is_scaled_and_said(length):
    steps, warmup, said = resolve(length)
    assert (steps, warmup) == (50, 5)
    assert said[-1] == (
        "the recipe's schedule.warmup_steps=100 does not fit into 50 steps: scaled to 5"
    )
    assert resolve("train.steps=101")[1:] == (100, [])
    assert resolve("train.steps=100")[1] == 10


@pytest.mark.parametrize(
    ("assignments", "text"),
    [
        (["train.steps=50", "schedule.warmup_steps=50"], "warmup_steps.*at most 49"),
        (["train.epochs=5", "schedule.warmup_steps=60"], "warmup_steps.*at most 49"),
        (["schedule.warmup_epochs=100"], "warmup_epochs=100 .*1,000"),
        (["train.epochs=1.05", "schedule.warmup_epochs=1.01"], "epochs=1.01 .* 10 steps"),
        (["train.epochs=1e300"], "epochs=1e.300.*2.40"),
        (["schedule.warmup_epochs=1e99"], "warmup_epochs=1e.99"),
        (["train.epochs=20", "train.profile=150:201"], "train.steps=200"),
        (["train.epochs=5", "schedule.warmup_epochs=5"], "below train.epochs=5"),
        (["train.epochs=5", "train.steps=50"], "train.steps and .*epochs"),
        (["schedule.warmup_epochs=1", "schedule.warmup_steps=50"], "steps and .*warmup_epochs"),
        (["train.epochs=0"], "train.epochs.* 0"),
        (["schedule.warmup_epochs=-1"], "warmup_epochs.* 0"),
    ],
)
def test_lengths_that_contradict_each_other(assignments, text):
    with pytest.raises(UserError, match=text) as error:
        resolve(*assignments)
    assert "\n" not in str(error.value)


def test_what_epochs_replace_decides_nothing():
    """The recipe's steps do not limit what is profiled, and its warm-up is not scaled."""
    assert resolve("train.epochs=200", "train.profile=1500:1510")[0] == 2000
    recipe = override(RECIPE, ["schedule.warmup_epochs=0"])
    steps, warmup, said = resolve("train.steps=50", recipe=recipe)
    assert (steps, warmup) == (50, 0) and not any("scaled" in line for line in said)


def test_the_summary_names_the_length_that_holds():
    assert "1,000 steps of 10 images, softmax" in summary(RECIPE)[0]
    experiment = override(RECIPE, ["train.epochs=7.5", "schedule.warmup_epochs=0.5"])
    lines = summary(experiment, images=100)
    assert "7.5 epochs in batches of 10 images, softmax" in lines[0]
    assert "warm-up of 0.5 epochs" in lines[1] and "steps" not in "".join(lines)


def test_assigned_steps_replace_epochs():
    recipe = override(RECIPE, ["train.epochs=3", "schedule.warmup_epochs=1"])
    assert resolve(recipe=recipe)[:2] == (30, 10)
    changed = override(recipe, ["train.steps=70", "schedule.warmup_steps=7"])
    assert with_steps(changed, 100) == (changed, [])
    assert (changed.train.steps, changed.schedule.warmup_steps) == (70, 7)
    kept = override(RECIPE, ["train.steps=70", "train.epochs=none", "schedule.warmup_steps=7"])
    assert kept.train.steps == 70
