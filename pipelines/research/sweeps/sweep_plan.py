"""The plan of a sweep: the settings of its grid, and the held-out part of the training split."""

import dataclasses
import functools
import itertools
import logging
import re
import zlib

from pipelines.config import Assignments, Experiment
from pipelines.config.data import NAMING_FIELDS
from pipelines.data.sources.open import choose_splits
from pipelines.data.sources.subset import held_out_splits, open_train_split, subset_size
from pipelines.errors import UserError, counted
from pipelines.research.lab.unit import Training
from pipelines.research.sweeps.choice import Choice, Setting, value_text
from pipelines.training.fine_tuning import check_initial
from pipelines.training.prepare import resolve

_log = logging.getLogger(__name__)

# Trials are compared by the same images and the same seed.
_SHARED = (
    "seed",
    *NAMING_FIELDS,
    "data.train_split",
    "data.eval_split",
    "data.exclude",
    "train.deterministic",
    "train.eval_batches",
    "task",
    "masking.target",
    "masking.fraction",
)
# Longer names of folders are cut; file systems allow 255 bytes.
_LONGEST_NAME = 200


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepPlan(Choice):
    """A sweep; its settings are those of the grid, its only task is the data.

    Attributes:
        base: the experiment whose fields the grid changes; its splits are chosen.
        hold_out: the fraction of the training split that is held out.
    """

    base: Experiment
    hold_out: float


# Fewer held-out images make the choice of the best trial doubtful.
_FEW_IMAGES = 100


def make_plan(experiment, grid, hold_out, seeds, replicas, assigned=()) -> SweepPlan:
    """Builds and checks the experiments of a sweep.

    Args:
        experiment: the `Experiment` to start from.
        grid: a text "path=value,value,..." for each field to vary.
        hold_out: the fraction of the training split that is held out.
        seeds: how often the best trial is trained on the whole training split.
        replicas: number of replicas that train.
        assigned: the paths that the user assigned besides the grid; see `Assignments.apply`.

    Raises:
        UserError: if a value of the grid, the data or the initial weights cannot be used.
    """
    if not 0 < hold_out < 1:
        raise UserError(f"--hold_out must be above 0 and below 1. Received: {hold_out}.")
    if not grid:
        raise UserError(
            "--grid is missing. Name a field and its values, such as "
            "--grid optimizer.learning_rate=0.003,0.01,0.03."
        )
    fields = parse_grid(grid)
    base = dataclasses.replace(experiment, data=choose_splits(experiment.data))
    if base.data.eval_split is None:
        raise UserError(
            "data.eval_split is none, but the best trial is tested there. Set it to a split."
        )
    source = open_train_split(base.data)
    rest, held, examples = held_out_splits(source, hold_out)
    compared = sum(part["stop"] - part["start"] for part in source.manifest()["parts"]) - examples
    if base.data.exclude is not None:  # Not of the images that trials are compared on.
        rest_data = dataclasses.replace(base.data, train_split=rest)
        examples = open_train_split(rest_data).num_examples
    if compared < _FEW_IMAGES:
        _log.info(
            f"the trials are compared on only {counted(compared, 'held-out image')}: each is "
            f"{1 / compared:.1%} of the accuracy. A larger --hold_out makes the choice safer"
        )
    checked = set()  # Initial weights and models that fit.
    say_once = functools.cache(_log.info)  # Trials with the same steps have the same lines.
    dataclasses.replace(base, seed=base.seed + max(seeds - 1, 0))  # Checks the largest seed.
    settings, task = [], base.data.name
    for texts in itertools.product(*fields.values()):
        pairs = map("=".join, zip(fields, texts, strict=True))
        assignments = Assignments.parse(pairs, "--grid")
        trial, notes = assignments.apply(base, assigned)
        values = {path: value_at(trial, path) for path in fields}
        _check_balance(trial)
        # Without the held-out part, an epoch has fewer steps.
        whole, tuning = (
            resolve(trial, source, replicas, assigned={*fields, *assigned}, images=images)
            for images in (
                subset_size(trial.data, source),
                subset_size(trial.data, source, examples),
            )
        )
        for note in (*notes, *whole.notes, *tuning.notes):
            say_once(note)
        start = (trial.init_from, trial.init_weights, trial.init_head, trial.model)
        if trial.init_from and start not in checked:
            check_initial(whole.experiment, assignments)
            checked.add(start)
        data = dataclasses.replace(trial.data, train_split=rest, eval_split=held)
        tuned = dataclasses.replace(tuning.experiment, data=data)
        name, flops = folder_name(values), whole.sizes.training_flops
        settings.append(
            Setting(
                name=name,
                values=values,
                tuning={task: Training(folder=f"trials/{name}", experiment=tuned, cost=flops)},
                final={task: final_trainings(f"final/{name}", whole.experiment, seeds, flops)},
            )
        )
    refuse_twins(settings)
    return SweepPlan(base=base, hold_out=hold_out, seeds=seeds, settings=tuple(settings))


def final_trainings(folder, experiment, seeds, cost) -> tuple[Training, ...]:
    """The trainings of an experiment with its seed, seed + 1 and so on, `seeds` or at least one."""
    last = experiment.seed + max(seeds, 1)
    return tuple(
        Training(
            folder=f"{folder},seed={seed}",
            experiment=dataclasses.replace(experiment, seed=seed),
            cost=cost,
        )
        for seed in range(experiment.seed, last)
    )


def parse_grid(grid) -> dict[str, list[str]]:
    """Returns the texts of the values to try, by path.

    Args:
        grid: as for `make_plan`.

    Raises:
        UserError: for another form, or a field that must be the same in all trials.
    """
    fields = {}
    for text in grid:
        path, _, values = text.partition("=")
        # A comma inside parentheses is part of a value.
        found = [value.strip() for value in re.split(r",(?![^()]*\))", values)]
        if not all(found):
            raise UserError(
                f"--grid needs path=value,value, such as train.steps=500,2000. Received: {text!r}."
            )
        if path in _SHARED:
            raise UserError(
                f"--grid {path}: all trials of a sweep have the same {path}, so that they can be "
                "compared. Set it with --set."
            )
        if path in fields:
            raise UserError(f"--grid {path} is given twice. List all values in one --grid.")
        fields[path] = [_without_parentheses(value) for value in found]
    return fields


def _without_parentheses(text):
    return text[1:-1] if text.startswith("(") and text.endswith(")") else text


def _check_balance(trial):
    """Refuses epochs whose length is only known after the labels of a part have been read."""
    lengths = (trial.train.epochs, trial.schedule.warmup_epochs, trial.data.mixing_epochs)
    if trial.data.balance == "sample" and any(length is not None for length in lengths):
        raise UserError(
            "A sweep with data.balance=sample has no length in epochs, since the part of the data "
            "for its trials has another one. Set train.steps, schedule.warmup_steps and "
            "data.mixing_steps."
        )


def value_at(experiment, path):
    """Returns the value of a field as in config.json; None for a model field that has no own."""
    value = experiment.to_dict()
    for name in path.split("."):
        value = (value or {}).get(name)
    return value


def folder_name(values) -> str:
    """Returns the name of the folder of a trial: its values by path, as a name that is allowed."""
    name = ",".join(f"{path}={value_text(value)}" for path, value in values.items())
    plain = re.sub(r"[^\w.,=+-]", "_", name, flags=re.ASCII)
    if plain == name and len(name) <= _LONGEST_NAME:
        return name
    # Names that differ only in replaced or cut characters still differ.
    return f"{plain[:_LONGEST_NAME]}-{zlib.crc32(name.encode()):08x}"


def refuse_twins(settings):
    """Raises `UserError` if two settings have the same name."""
    seen = set()
    for setting in settings:
        if setting.name in seen:
            raise UserError(f"--grid has {setting} twice. Leave one of the equal values out.")
        seen.add(setting.name)
