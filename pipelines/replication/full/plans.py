"""What a table or figure takes at full scale: commands, steps, chips, memory, core-days, data."""

import dataclasses
import functools
import logging

from pipelines.cluster.assumptions import Assumptions
from pipelines.cluster.chips import find_chip
from pipelines.cluster.paper_costs import TABLE_2, TABLE_6
from pipelines.cluster.planning import plan
from pipelines.config import Data, Experiment, override
from pipelines.config.recipes import get_recipe
from pipelines.data.protocols.vtab_tasks import TASKS
from pipelines.data.sources.splits import choose_splits
from pipelines.data.sources.subset import open_train_split
from pipelines.errors import DataError, UserError, counted
from pipelines.replication.full.commands import Command
from pipelines.replication.full.parts import FULL, Grid
from pipelines.reports.text_table import aligned
from pipelines.studies.suite_plan import SEEDS
from pipelines.studies.suites import SUITES

# Classes of data that are usually not where a plan is made; docs/paper.md F.1.
_CLASSES = {"tfrecord:jft300m": 18_000, "tfrecord:imagenet21k": 21_843, "imagenet2012": 1000}
_FEW_CLASSES = 100
# What is tried in turn until a run fits into the memory of the chips.
_WAYS = (
    (),
    ("model.dtype=mixed_bfloat16",),
    ("model.dtype=mixed_bfloat16", "model.recompute=blocks"),
)


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a command takes.

    Attributes:
        experiment: of each of its trainings.
        changed: settings that fit it into the memory of the chips, as for `--set`.
        trainings: their largest number.
        memory: bytes on each device.
        core_days: of all of them: days of a device, which is a core of a TPU v3.
    """

    experiment: Experiment
    changed: tuple[str, ...]
    trainings: int
    memory: int
    core_days: float


def commands(name) -> list[Command]:
    """The commands of a table or figure, each once, after those that they need."""
    found = {}

    def add(command):
        for need in command.needs:
            add(need)
        found[command.folder] = command

    for grid in FULL[name]():
        for place in places(grid):
            add(place[0])
    return list(found.values())


def places(grid: Grid):
    """The places of a table, row by row."""
    return [place for row in grid.rows.values() for place in row if place is not None]


def cost(command: Command, chip, chips) -> Cost | None:
    """The cost of a command on chips; None for an evaluation, which takes little.

    Args:
        command: the `Command`.
        chip: name of a chip, or a file, as for `pipelines.plan`.
        chips: their number.

    Raises:
        UserError: if the model does not fit on them.
    """
    experiment, trainings = command.experiment, 1
    if command.module == "sweep":
        experiment, trainings = _fine_tuning(command)
    if experiment is None:
        return None
    # Micro-batches are chosen for the chips.
    train = dataclasses.replace(experiment.train, accumulate_steps=1)
    experiment = dataclasses.replace(experiment, train=train)
    made, changed = _fitting(experiment, find_chip(chip), chips)
    days = trainings * made.core_days
    return Cost(made.experiment, changed, trainings, made.needed_memory, days)


def _fitting(experiment, chip, chips):
    """The plan of an experiment with the first of `_WAYS` that fits, and its settings."""
    classes = _CLASSES.get(experiment.data.name, _FEW_CLASSES)
    has_blocks = hasattr(experiment.model_config(classes), "recompute")
    ways = [way for way in _WAYS if has_blocks or "model.recompute=blocks" not in way]
    for way in ways:
        fitted = override(experiment, list(way))
        try:
            made = plan(fitted, fitted.model_config(classes), chip, chips, Assumptions(), True)
        except UserError:
            if way == ways[-1]:
                raise
            continue
        steps = made.experiment.train.accumulate_steps
        return made, (*way, *([f"train.accumulate_steps={steps}"] if steps > 1 else []))
    raise AssertionError("every way has failed without an error")


def _fine_tuning(command):
    """The experiment of the trainings of a sweep, and their largest number."""
    rates = next((x for x in command.flags if x.startswith("optimizer.learning_rate=")), None)
    if rates is not None:
        return command.experiment, len(rates.split(",")) + SEEDS
    suite = _suite(command)
    name = command.start.experiment.model.name
    setups = suite.recipes(name.startswith("BiT"), name)
    recipe = get_recipe(suite.recipe)
    model = dataclasses.replace(recipe.model, name=name, fields={})
    settings = len(suite.rates) + len(setups) - 1
    trials = settings if settings > 1 else 0
    return dataclasses.replace(recipe, model=model), len(suite.tasks) * (trials + SEEDS)


def missing_data(command: Command) -> list[str]:
    """The data sets of a command that cannot be opened here."""
    if command.module == "evaluate":
        needed = [Data(name="imagenet2012_real", train_split="validation")]
    elif command.experiment is not None:
        needed = [command.experiment.data]
    elif "vtab" in command.flags:
        needed = [Data(name=x.data_name, train_split=x.splits["train800"]) for x in TASKS.values()]
    else:
        needed = [Data(name=x.data_name) for x in _suite(command).tasks.values()]
    return [data.name for data in needed if not _is_here(data)]


def _suite(command):
    return SUITES[command.flags[command.flags.index("--suite") + 1]]


@functools.cache
def _is_here(data):
    logging.disable(logging.INFO)  # Opening says which label it takes.
    try:
        open_train_split(choose_splits(data, evaluation=False))
    except DataError:
        return False
    finally:
        logging.disable(logging.NOTSET)
    return True


def describe(name, chip="v3", chips=128) -> list[str]:
    """Lines about a table or figure at full scale, which is not run.

    Raises:
        UserError: if a model does not fit on the chips.
    """
    every = commands(name)
    rows = [
        [
            "",
            "trainings",
            "steps",
            "batch",
            "GB per device",
            "core-days",
            "settings for these chips",
        ]
    ]
    total, missing = 0.0, {}
    for command in every:
        for data in missing_data(command):
            missing.setdefault(data, command.name)
        try:
            found = cost(command, chip, chips)
        except UserError as error:
            raise UserError(f"{command.name}: {error}") from None
        if found is None:
            rows.append([command.name, "", "", "", "", "little", ""])
            continue
        total += found.core_days
        train = found.experiment.train
        rows.append(
            [
                command.name,
                str(found.trainings),
                f"{train.steps:,}",
                f"{train.batch_size:,}",
                f"{found.memory / 1e9:.1f}",
                f"{found.core_days:,.1f}",
                " ".join(found.changed),
            ]
        )
    lines = [f"{name} on {counted(chips, 'chip')} of {chip}: {counted(len(every), 'command')}"]
    lines += [f"  {command.describe()}" for command in every]
    lines += ["", *aligned(rows), f"together at most {total:,.0f} core-days of {chip}"]
    lines += _of_paper(name)
    if missing:
        gone = ", ".join(missing)
        lines.append(f"data that are not here: {gone}")
    return lines


def _of_paper(name):
    """The costs that the paper prints for a part."""
    if name == "table2":
        return [
            f"the paper: {row.cost:,} core-days of TPU v3 for {row.model} on {row.data}"
            for row in TABLE_2
        ]
    if name in ("table6", "figure5"):
        return [
            f"the paper: {row.cost:,} exaFLOPs for {row.model}, {row.epochs} epochs"
            for row in TABLE_6
        ]
    return ["the paper prints no costs with it"]
