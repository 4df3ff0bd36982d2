"""A study, and what studies at toy scale share: choosing settings on a hold-out, seeds."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from pipelines.config import Experiment, override
from pipelines.config.recipes import get_recipe
from pipelines.research.paper.findings import Cell, Findings, cell
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
        minutes: that it takes on 2 quiet cores; None if that is not known.
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


def pick(lab, arms: Mapping[str, Sequence[Training]]) -> dict[str, int]:
    """The index of the best of each arm's trainings: that with the lowest loss.

    The accuracy of a few hundred held-out images is too coarse for a choice.

    Args:
        lab: the `Lab`.
        arms: name -> trainings, which are evaluated on held-out training images.
    """
    flat = [unit for units in arms.values() for unit in units]
    found = dict(zip(flat, lab.results(flat), strict=True))

    return {
        name: min(range(len(units)), key=lambda index, units=units: found[units[index]]["loss"])
        for name, units in arms.items()
    }


def picked_rates(lab, name, arms: Mapping[str, Experiment], rates, held_out) -> dict[str, float]:
    """The learning rate of each arm that is best on held-out images.

    Args:
        lab: the `Lab`.
        name: begin of the names of the trainings.
        arms: name -> `Experiment`.
        rates: the learning rates to choose from.
        held_out: assignments of the splits for the choice.
    """
    tried = {
        arm: [
            Training(
                name=f"{name}/{slug(arm)},rate={rate:g}",
                experiment=override(base, [f"optimizer.learning_rate={rate}", *held_out]),
            )
            for rate in rates
        ]
        for arm, base in arms.items()
    }
    return {arm: rates[index] for arm, index in pick(lab, tried).items()}


def at_rates(name, arms: Mapping[str, Experiment], rates, assignments, seeds) -> dict[str, list]:
    """The trainings of each arm at its rate, one for each seed.

    Args:
        name: begin of the names of the trainings.
        arms: name -> `Experiment`.
        rates: the learning rate of each arm.
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


def rates_text(rates: Mapping[str, float]) -> str:
    """A sentence about picked rates."""
    shown = ", ".join(f"{name} {rate:g}" for name, rate in rates.items())
    return f"learning rates, picked on held-out images: {shown}"


def slug(text) -> str:
    """A name as part of a folder's name."""
    return text.replace(",", "").replace(" ", "_")
