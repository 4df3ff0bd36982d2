"""The plan of a sweep: the trials of its grid, and the part of the training split it holds out."""

import dataclasses
import functools
import itertools
import logging
import re
import zlib
from typing import Any

from pipelines.config import Assignments, Experiment
from pipelines.config.data import NAMING_FIELDS
from pipelines.data.sources.open import choose_splits
from pipelines.data.sources.subset import held_out_splits, open_train_split, subset_size
from pipelines.errors import UserError, counted
from pipelines.research.sweeps.sweep_table import value_text
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
class Trial:
    """One combination of the values of a grid.

    Attributes:
        name: name of its folder, such as "optimizer.learning_rate=0.01,train.steps=500".
        values: the value of each field of the grid, by path, as in config.json.
        tuning: trains without the held-out part, and is evaluated on it.
        whole: trains on the whole training split, and is evaluated on the evaluation split.
        flops: cost of one of these trainings.
    """

    name: str
    values: dict[str, Any]
    tuning: Experiment
    whole: Experiment
    flops: int

    def __str__(self):
        return ", ".join(f"{path}={value_text(value)}" for path, value in self.values.items())

    def final(self, index) -> Experiment:
        """The experiment `whole` with the seed number `index`, from 0."""
        return dataclasses.replace(self.whole, seed=self.whole.seed + index)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """A sweep.

    Attributes:
        base: the experiment whose fields the grid changes; its splits are chosen.
        hold_out: the fraction of the training split that is held out.
        seeds: how often the best trial is trained on the whole training split.
        trials: in the order of the grid; the last field changes fastest.
    """

    base: Experiment
    hold_out: float
    seeds: int
    trials: tuple[Trial, ...]


# Fewer held-out images make the choice of the best trial doubtful.
_FEW_IMAGES = 100


def make_plan(experiment, grid, hold_out, seeds, replicas, assigned=()) -> Plan:
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
    trials = []
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
        trials.append(
            Trial(
                name=folder_name(values),
                values=values,
                tuning=dataclasses.replace(tuning.experiment, data=data),
                whole=whole.experiment,
                flops=whole.sizes.training_flops,
            )
        )
    refuse_twins(trials)
    return Plan(base=base, hold_out=hold_out, seeds=seeds, trials=tuple(trials))


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


def refuse_twins(trials):
    """Raises `UserError` if two trials have the same name."""
    seen = set()
    for trial in trials:
        if trial.name in seen:
            raise UserError(f"--grid has {trial} twice. Leave one of the equal values out.")
        seen.add(trial.name)
