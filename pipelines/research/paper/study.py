"""A study, and what studies at toy scale share: choosing settings on a hold-out, seeds."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

from pipelines.config import Experiment, override
from pipelines.config.recipes import get_recipe
from pipelines.research.paper.findings import Cell, Choice, Findings, Reading, cell, edge
from pipelines.research.paper.units import Training


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
    """An experiment at toy scale, or a part of the paper at full scale.

    Attributes:
        name: such as "E1" or "table5".
        title: what is compared.
        paper: the tables and figures whose question it asks, such as ("table8",).
        question: one sentence.
        setup: what is trained and how it is analyzed, fixed before the run.
        run: a function of a `Lab` that returns `Findings`.
        minutes: that it takes two processes on 2 quiet cores; None if that is not known.
        default: whether it belongs to the default run.
        is_gate: whether nothing else runs if something that must show does not.
    """

    name: str
    title: str
    paper: tuple[str, ...]
    question: str
    setup: str
    run: Callable[..., Findings]
    minutes: float | None = None
    default: bool = False
    is_gate: bool = False


# Seeds of choices and pilots; no result uses them.
PILOTS = (100, 101, 102)
# How often a grid of rates grows at most.
_EXTENSIONS = 6

# A ViT without regularization, whose result is the mean of the patches; nothing is mirrored.
PLAIN = (
    "model.classifier=gap",
    "model.dropout=0",
    "optimizer.weight_decay=0.05",
    "data.flip=false",
)


def settings(*assignments: str) -> Experiment:
    """The recipe digits with other settings, evaluated once at the end, deterministic."""
    return override(
        get_recipe("digits"),
        [
            "train.deterministic=true",
            "train.eval_every=0",
            "train.checkpoint_every=100",
            "train.keep_last=1",
            "train.log_every=100",
            *assignments,
        ],
    )


def seeded(name, experiment, seeds) -> list[Training]:
    """A training for each seed.

    Args:
        name: of all of them.
        experiment: the `Experiment`; its seed is replaced.
        seeds: the seeds.
    """
    return [
        Training(name=f"{name},seed={seed}", experiment=dataclasses.replace(experiment, seed=seed))
        for seed in seeds
    ]


def choose_rates(lab, name, arms: Mapping[str, Experiment], rates, held_out) -> Choice:
    """The learning rate of each arm; see `choose`.

    Args:
        lab: the `Lab`.
        name: begin of the names of the trainings.
        arms: name -> `Experiment`.
        rates: the learning rates to begin with, of all arms or by arm.
        held_out: assignments of the splits for the choice.
    """

    def units(arm, rate):
        experiment = override(arms[arm], [f"optimizer.learning_rate={rate}", *held_out])
        return seeded(f"{name}/{slug(arm)},rate={rate:g}", experiment, PILOTS)

    begin = rates if isinstance(rates, Mapping) else dict.fromkeys(arms, rates)
    return choose(lab, "learning rate", begin, units)


def choose(lab, what, begin: Mapping[str, Sequence[float]], units) -> Choice:
    """The value of each arm with the lowest loss of held-out images, by three seeds.

    The accuracy of a few hundred held-out images is too coarse for a choice. While the best value
    of an arm is the smallest or the largest that was tried, half or twice that value follows.

    Args:
        lab: the `Lab`.
        what: the setting that is chosen.
        begin: arm -> the values to begin with.
        units: function of an arm and a value; returns a training for each of `PILOTS`, which is
            evaluated on held-out images.
    """
    tried = {arm: {} for arm in begin}
    wanted = dict(begin)
    for _ in range(1 + _EXTENSIONS):
        for arm, values in wanted.items():
            tried[arm] |= {value: units(arm, value) for value in values}
        choice = _choice(lab, what, tried)
        wanted = {arm: [_beyond(choice.losses[arm], choice.chosen[arm])] for arm in choice.at_edge}
        if not wanted:
            break
    return choice


def _beyond(losses, value):
    """The value after the largest or before the smallest, to six digits."""
    return float(f"{value * 2.0 ** edge(losses, value):.6g}")


def _choice(lab, what, tried):
    flat = [unit for by_value in tried.values() for each in by_value.values() for unit in each]
    found = dict(zip(flat, lab.attempts(flat), strict=True))

    def loss(unit):
        return Reading(unit.folder, "loss", found[unit].get("loss", math.inf))

    losses = {
        arm: {value: Cell(tuple(map(loss, each))) for value, each in by_value.items()}
        for arm, by_value in tried.items()
    }
    choice = Choice(what, losses, {})
    best = {arm: tried[arm][value] for arm, value in choice.chosen.items()}
    pilots = {arm: cell(each, [found[unit] for unit in each]) for arm, each in best.items()}
    return dataclasses.replace(choice, pilots=pilots)


def at_rates(name, arms: Mapping[str, Experiment], rates, assignments, seeds) -> dict[str, list]:
    """The trainings of each arm at its rate, one for each seed.

    Args:
        name: begin of the names of the trainings.
        arms: name -> `Experiment`.
        rates: the learning rate of each arm, such as `Choice.chosen`.
        assignments: of the splits.
        seeds: the seeds.
    """
    return {
        arm: seeded(
            f"{name}/{slug(arm)}",
            override(base, [f"optimizer.learning_rate={rates[arm]}", *assignments]),
            seeds,
        )
        for arm, base in arms.items()
    }


def accuracies(lab, units: Mapping[str, Sequence[Training]]) -> dict[str, Cell]:
    """The accuracy of each arm, with a reading for each of its trainings."""
    return {arm: cell(each, lab.results(each)) for arm, each in units.items()}


def slug(text) -> str:
    """A name as part of a folder's name."""
    return text.replace(",", "").replace(" ", "_")
