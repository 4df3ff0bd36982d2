"""A study, and what studies at toy scale share: choosing settings on a hold-out, seeds."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from pipelines.config import Experiment, override
from pipelines.config.recipes import get_recipe
from pipelines.replication.findings import Findings
from pipelines.replication.units import Training


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


def seeded(name, experiment, seeds, start=None) -> list[Training]:
    """A training for each seed; with starts, from the start of the same seed.

    Args:
        name: of all of them.
        experiment: the `Experiment`; its seed is replaced.
        seeds: the seeds.
        start: None, or a training for each seed.
    """
    starts = [None] * len(seeds) if start is None else start
    return [
        Training(
            name=f"{name},seed={seed}",
            experiment=dataclasses.replace(experiment, seed=seed),
            start=begin,
        )
        for seed, begin in zip(seeds, starts, strict=True)
    ]


def pick(lab, arms: Mapping[str, Sequence[Training]]) -> dict[str, int]:
    """The index of the best of each arm's trainings: with the highest accuracy, then lowest loss.

    Args:
        lab: the `Lab`.
        arms: name -> trainings, which are evaluated on held-out training images.
    """
    flat = [unit for units in arms.values() for unit in units]
    found = dict(zip(flat, lab.results(flat), strict=True))

    def rank(unit):
        return found[unit]["accuracy"], -found[unit]["loss"]

    return {
        name: max(range(len(units)), key=lambda index, units=units: rank(units[index]))
        for name, units in arms.items()
    }


@dataclasses.dataclass(frozen=True)
class Tuned:
    """Trainings at the best rate of each arm.

    Attributes:
        units: arm -> a training for each seed.
        rates: arm -> the rate.
    """

    units: dict[str, list[Training]]
    rates: dict[str, float]

    def __str__(self):
        rates = ", ".join(f"{name} {rate:g}" for name, rate in self.rates.items())
        return f"rates, picked on held-out images: {rates}"


def tune(lab, name, arms: Mapping[str, Experiment], rates, seeds, held_out, tested) -> Tuned:
    """Picks the rate of each arm on held-out images, and declares the trainings that are compared.

    Args:
        lab: the `Lab`.
        name: begin of the names of the trainings.
        arms: name -> `Experiment`.
        rates: the learning rates to choose from.
        seeds: those of the trainings that are compared.
        held_out: assignments of the splits for the choice.
        tested: assignments of the splits for the comparison.
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
    best = {arm: rates[index] for arm, index in pick(lab, tried).items()}
    units = {
        arm: seeded(
            f"{name}/{slug(arm)}",
            override(base, [f"optimizer.learning_rate={best[arm]}", *tested]),
            seeds,
        )
        for arm, base in arms.items()
    }
    return Tuned(units, best)


def slug(text) -> str:
    """A name as part of a folder's name."""
    return text.replace(" ", "_")
