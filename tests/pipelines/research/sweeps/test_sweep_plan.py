"""Plans of sweeps: grids, splits, lengths, initial weights; what is picked and reported."""

import shutil

import numpy as np
import pytest

from pipelines.data.exclusion import exclusion
from pipelines.data.sources.open import open_source
from pipelines.data.sources.subset import held_out_splits
from pipelines.errors import UserError
from pipelines.research.sweeps import choice
from pipelines.runs.json_file import write_json
from tests.pipelines.research.sweeps import sweeps
from tests.pipelines.research.sweeps.sweeps import RATE, RATES, plan_of


def tuning(trial):
    """The experiment of a trial."""
    return trial.tuning["digits"].experiment


def whole(trial):
    """The experiment of the first final run with the settings of a trial."""
    return trial.final["digits"][0].experiment


@pytest.fixture(scope="module")
def initial(tmp_path_factory):
    return sweeps.write_initial(tmp_path_factory.mktemp("initial"))


def test_a_grid_of_several_fields(tmp_path, initial):
    """The last field changes fastest; a value with commas is in parentheses."""
    plan = plan_of(f"{RATE}=0.01,2e-2", "data.crop_area=(0.5,1),(0.8,1.0)", "train.steps=12")
    assert [str(trial) for trial in plan.settings][:2] == [
        f"{RATE}=0.01, data.crop_area=(0.5,1.0), train.steps=12",
        f"{RATE}=0.01, data.crop_area=(0.8,1.0), train.steps=12",
    ]
    assert [whole(trial).optimizer.learning_rate for trial in plan.settings] == [
        0.01,
        0.01,
        0.02,
        0.02,
    ]
    assert [whole(trial).data.crop_area[0] for trial in plan.settings] == [0.5, 0.8, 0.5, 0.8]
    names = [trial.name for trial in plan.settings]
    assert len(set(names)) == 4 and not any(set("()/ ") & set(name) for name in names)
    twice = plan_of("train.steps=12,24").settings
    assert twice[1].tuning["digits"].cost == 2 * twice[0].tuning["digits"].cost
    other = tmp_path / initial.name
    shutil.copy(initial, other)
    names = [trial.name for trial in plan_of(f"init_from={initial},{other}").settings]
    assert len(set(names)) == 2 and max(map(len, names)) < 250 and "/" not in "".join(names)


@pytest.mark.parametrize(
    ("results", "best"),
    [
        ([(0.5, 1.0), (0.75, 2.0), (0.25, 0.1)], 1),
        ([(0.5, 1.0), (0.5, 0.5), (0.25, 0.1)], 1),
        ([(0.5, 1.0), (0.5, 1.0)], 0),
        ([None, (0.1, 9.0)], 1),
        ([None, None], None),
    ],
)
def test_the_pick(results, best):
    """Accuracy, then loss, then order; never a failed trial."""
    found = [
        dict(zip(("accuracy", "loss"), result, strict=True)) if result else {"failed": "why"}
        for result in results
    ]
    assert choice.pick([[result] for result in found]) == best


def test_the_pick_of_groups():
    """The mean over a group decides; a failed training rules its group out."""

    def results(*pairs):
        return [{"accuracy": accuracy, "loss": loss} for accuracy, loss in pairs]

    failed, pick = {"failed": "The loss is not finite."}, choice.pick
    assert pick([results((1.0, 1), (0.0, 1)), results((0.6, 2), (0.5, 2))]) == 1
    assert pick([results((0.5, 1.0), (0.5, 0.4)), results((0.0, 0.2), (1.0, 1.0))]) == 1
    assert pick([[*results((1.0, 0.1)), failed], results((0.1, 1), (0.1, 1))]) == 1
    assert pick([[failed, *results((0.5, 1))], [failed, failed]]) is None


def test_statistics_are_those_of_the_library():
    values = np.random.default_rng(0).uniform(size=5).tolist()
    found = choice.mean_and_deviation(values)
    assert found["mean"] == pytest.approx(np.mean(values))
    assert found["standard_deviation"] == pytest.approx(np.std(values, ddof=1))
    one = choice.mean_and_deviation(values[:1])
    assert one == {"mean": values[0], "standard_deviation": None}
    unknown = {"mean": None, "standard_deviation": None}
    assert choice.mean_and_deviation([]) == unknown
    assert choice.mean_and_deviation([*values, None]) == unknown


def test_trials_train_on_a_part_of_what_is_left():
    """The held-out examples stay all; epochs are those of the part."""
    settings = ("schedule.warmup_steps=0",)
    plan = plan_of("data.fraction=0.1,0.2", "train.epochs=4", settings=settings)
    for trial, part, total in zip(plan.settings, (117, 233), (130, 259), strict=True):
        assert tuning(trial).data.eval_split == "train[1167:1297]"
        assert tuning(trial).data.fraction == whole(trial).data.fraction
        assert tuning(trial).train.steps == 4 * part // 16
        assert whole(trial).train.steps == 4 * total // 16
    (trial,) = plan_of("data.per_class=8", "train.epochs=4", settings=settings).settings
    assert tuning(trial).train.steps == whole(trial).train.steps == 20
    with pytest.raises(UserError, match="data.fraction=0.0001 of the 1,297 examples of digits"):
        plan_of("data.fraction=0.0001,1")


def test_trials_leave_out_what_training_leaves_out(tmp_path):
    """Epochs are those of what is left; trials are compared on all that is held out."""
    path, source = tmp_path / "list.json", open_source("digits", "train")
    write_json(path, exclusion(source, [*range(100), *range(1200, 1220)]))
    settings = ("schedule.warmup_steps=0", f"data.exclude={path}")
    (trial,) = plan_of("train.epochs=4", settings=settings).settings
    assert tuning(trial).data.exclude == whole(trial).data.exclude == str(path)
    assert tuning(trial).data.eval_split == "train[1167:1297]"
    assert tuning(trial).train.steps == 4 * (1167 - 100) // 16
    assert whole(trial).train.steps == 4 * (1297 - 120) // 16
    with pytest.raises(UserError, match="--grid data.exclude: all trials of a sweep have the same"):
        plan_of(f"data.exclude={path},none")


@pytest.mark.parametrize("split", ["train", "train[10%:60%]", "train[:50%]+validation"])
def test_the_held_out_part(split):
    """Together, both parts are the split, in its order within each range."""
    source = open_source("digits", split)
    *parts, examples = held_out_splits(source, 0.2)
    rest, held = (open_source("digits", part) for part in parts)
    assert rest.num_examples == examples
    ids = [set(part.read(range(part.num_examples)).ids.tolist()) for part in (rest, held, source)]
    assert ids[0] | ids[1] == ids[2] and not ids[0] & ids[1]
    assert held.num_examples == pytest.approx(0.2 * source.num_examples, abs=1)
    if "+" in split:  # A part of each range is held out.
        assert {part["split"] for part in held.manifest()["parts"]} == {"train", "validation"}


def test_at_least_one_example_is_held_out():
    three = open_source("digits", "train[:3]")
    assert held_out_splits(three, 0.1) == ("train[0:2]", "train[2:3]", 2)


def test_a_choice_by_few_images_is_named(logged):
    """1,297 digits: 130 are held out of ten percent, 65 of five."""
    plan_of(RATES, seeds=1)
    assert not any("compared" in line for line in logged)
    plan_of(RATES, seeds=1, hold_out=0.05)
    assert "compared on only 65 held-out images: each is 1.5% of the accuracy" in logged.take()


def test_balanced_epochs_have_no_length_in_a_sweep():
    settings = ("data.balance=sample", "schedule.warmup_steps=0", "data.mixing_epochs=2")
    with pytest.raises(UserError, match="data.balance=sample has no length in epochs"):
        plan_of(RATES, settings=settings)


def test_the_users_warmup_is_not_scaled(logged):
    """The recipe's is, and a line says so once."""
    grid = ("train.steps=2,20", f"{RATE}=0.1,0.2")
    plan = plan_of(*grid)
    warmups = [tuning(trial).schedule.warmup_steps for trial in plan.settings]
    assert (
        warmups == [whole(trial).schedule.warmup_steps for trial in plan.settings] == [0, 0, 3, 3]
    )
    assert logged.take() == (
        "the recipe's schedule.warmup_steps=3 does not fit into 2 steps: scaled to 0\n"
    )
    mine = ("schedule.warmup_steps",)
    for changed in (grid, ("train.epochs=0.02,1",)):
        with pytest.raises(UserError, match="schedule.warmup_steps=3 must be below train.steps="):
            plan_of(*changed, assigned=mine)
    # 0.05 epochs are 4 steps of all 1,297 images and 3 of the 1,167 that are not held out.
    with pytest.raises(UserError, match="warmup_steps=3 must be below train.steps=3"):
        plan_of("train.epochs=0.05", assigned=mine)
    (trial,) = plan_of("train.epochs=1", assigned=mine).settings
    assert (tuning(trial).train.steps, whole(trial).train.steps) == (1167 // 16, 1297 // 16)


def test_initial_weights_fit_every_trial(initial):
    settings = (f"init_from={initial}",)
    plan_of("model.dropout=0,0.1", "model.image_size=12,16", settings=settings)
    with pytest.raises(UserError, match=r"^--grid model.patch_size=2 does not fit .*patch_size=4"):
        plan_of("model.patch_size=4,2", settings=settings)


def test_weights_bring_their_architecture(initial, command):
    """Also if they are assigned; the settings of training are the recipe's."""
    flags = [f"--set=init_from={initial}", f"--grid={RATES}", "--dry_run"]
    result = command("sweep", *flags)
    assert result.returncode == 0, result.stderr
    assert "model.hidden_size=16" in result.stderr
    origin, first, *_ = result.stdout.splitlines()
    assert origin.startswith("recipe digits: ")
    assert first.startswith("ViT-Ti/16 at 12 x 12 on digits")
