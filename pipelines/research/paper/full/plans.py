"""What a table or figure takes at full scale: commands, steps, chips, memory, core-days, data."""

import dataclasses
import functools
import logging

from pipelines.config import Data, Experiment, override
from pipelines.data.protocols.suites import TABLE_4
from pipelines.data.protocols.vtab_tasks import TASKS
from pipelines.data.sources.subset import open_train_split
from pipelines.errors import DataError, UserError, counted
from pipelines.reports.text_table import aligned
from pipelines.research.paper.full.commands import Command
from pipelines.research.paper.full.parts import FULL, Grid
from pipelines.research.planning.assumptions import Assumptions
from pipelines.research.planning.chips import find_chip
from pipelines.research.planning.paper_costs import TABLE_2, TABLE_6
from pipelines.research.planning.planning import plan_that_fits, usual_classes
from pipelines.research.sweeps.suite_plan import SEEDS


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


@dataclasses.dataclass(frozen=True)
class Target:
    """What commands run on.

    Attributes:
        chip: name of a chip, or a file, as for `pipelines.plan`.
        chips: their number.
        devices: flags of the devices, such as ("--strategy=tpu",).
    """

    chip: str = "v3"
    chips: int = 128
    devices: tuple[str, ...] = ()

    def flags_of(self, command: Command) -> list[str]:
        """Flags of a command for the target: devices, and settings that fit it into memory.

        Raises:
            UserError: if the model does not fit on the chips.
        """
        return self.flags(command, self.cost(command))

    def flags(self, command: Command, cost: Cost | None) -> list[str]:
        """Flags of a command with a cost, as `flags_of`.

        A timing on other than a GPU may take as much memory as a device of the target has.
        """
        if command.module == "plan" and (chip := find_chip(self.chip)).kind != "gpu":
            return ["--memory_gb", f"{chip.device_memory / 1e9:g}"]
        devices = self.devices if command.takes_devices else ()
        changed = () if cost is None else cost.changed
        return [*devices, *(flag for each in changed for flag in ("--set", each))]

    def cost(self, command: Command) -> Cost | None:
        """The cost of a command; None if it trains nothing, which takes little.

        Raises:
            UserError: if the model does not fit on the chips.
        """
        return _cost(command, self.chip, self.chips)


@functools.cache
def _cost(command, chip, chips):
    """See `Target.cost`; tables have commands in common."""
    if command.recipe is None:
        return None
    experiment, trainings = command.experiment, 1
    if command.module == "sweep":
        experiment, trainings = _fine_tuning(command)
    try:
        where = find_chip(chip), chips, Assumptions()
        made, changed = plan_that_fits(experiment, usual_classes(experiment.data), *where)
    except UserError as error:
        raise UserError(f"{command.name}: {error}") from None
    days = trainings * made.core_days
    return Cost(made.experiment, changed, trainings, made.needed_memory, days)


def _fine_tuning(command):
    """The experiment of the trainings of a sweep, and their largest number."""
    if command.suite is None:
        (rates,) = [x for x in command.flags if x.startswith("optimizer.learning_rate=")]
        return command.experiment, len(rates.split(",")) + SEEDS
    suite, model = command.suite, command.model
    setups = suite.recipes(model.startswith("BiT"), model)
    recipe = next(iter(setups[TABLE_4].values()))
    recipe = override(recipe, [f"model.name={model}"])
    settings = len(suite.rates) + len(setups) - 1
    trials = settings if settings > 1 else 0
    return recipe, len(suite.tasks) * (trials + SEEDS)


def missing_data(command: Command) -> list[str]:
    """The data sets of a command that cannot be opened here."""
    if command.recipe is None:
        needed = command.reads
    elif command.suite is None:
        experiment = command.experiment
        needed = [experiment.data]
        few_shot = experiment.few_shot
        if experiment.train.few_shot_every and few_shot.name is not None:
            needed.append(Data(name=few_shot.name, train_split=few_shot.train_split))
    elif command.suite.is_vtab:
        needed = [Data(name=x.data_name, train_split=x.splits["train800"]) for x in TASKS.values()]
    else:
        needed = [Data(name=x.data_name) for x in command.suite.tasks.values()]
    return [data.name for data in needed if not _is_here(data)]


@functools.cache
def _is_here(data):
    logging.disable(logging.INFO)  # Opening says which label it takes.
    try:
        open_train_split(data)
    except DataError:
        return False
    finally:
        logging.disable(logging.NOTSET)
    return True


def summary(name, target: Target) -> tuple[float, list[str], list[str]]:
    """The core-days of a table or figure, what does not fit, and data that are not here."""
    every = commands(name)
    costs, unfit = _costs(every, target)
    return _core_days(costs), unfit, _missing(every)


def _core_days(costs):
    return sum(found.core_days for found in costs.values() if found)


def _missing(every):
    return list(dict.fromkeys(data for command in every for data in missing_data(command)))


def _costs(every, target):
    """Command -> its cost, without those that do not fit; and messages about these."""
    costs, unfit = {}, []
    for command in every:
        try:
            costs[command] = target.cost(command)
        except UserError as error:
            unfit.append(str(error))
    return costs, unfit


def describe(name, root, target: Target) -> list[str]:
    """Lines about a table or figure at full scale, which is not run.

    Args:
        name: the table or figure.
        root: the folder of all units.
        target: what to run on.
    """
    every = commands(name)
    costs, unfit = _costs(every, target)
    rows = [["", "trainings", "steps", "batch", "GB per device", "core-days"]]
    for command in every:
        found = costs.get(command)
        if found is None:
            last = "little" if command in costs else "does not fit"
            rows.append([command.name, "", "", "", "", last])
            continue
        train = found.experiment.train
        rows.append(
            [
                command.name,
                str(found.trainings),
                f"{train.steps:,}",
                f"{train.batch_size:,}",
                f"{found.memory / 1e9:.1f}",
                f"{found.core_days:,.1f}",
            ]
        )
    where = f"{counted(target.chips, 'chip')} of {target.chip}"
    lines = [f"{name} on {where}: {counted(len(every), 'command')}, with settings that fit there"]
    lines += [f"  {x.line(root, target.flags(x, costs.get(x)))}" for x in every]
    total, missing = _core_days(costs), _missing(every)
    lines += ["", *aligned(rows), f"together at most {total:,.0f} core-days of {target.chip}"]
    lines += [f"does not fit: {text}" for text in unfit]
    lines += _of_paper(name)
    if any(command.module == "plan" for command in every):
        lines.append("a timing is that of the GPU, or of the cores of the CPU, where it is started")
    if missing:
        lines.append(f"data that are not here: {', '.join(missing)}")
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
