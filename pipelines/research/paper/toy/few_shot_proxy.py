"""E8: few-shot accuracy as a stand-in for that after fine-tuning (section 4.1)."""

import dataclasses

from pipelines.config import override
from pipelines.research.paper.findings import (
    LEAST_SEEDS,
    Cell,
    Chart,
    Claim,
    Findings,
    Point,
    Table,
    cell,
)
from pipelines.research.paper.measurements import FewShotTest
from pipelines.research.paper.rank_correlation import correlation, within_strata
from pipelines.research.paper.study import PILOTS, Study, choose, seeded, slug
from pipelines.research.paper.toy.digits import HELD_OUT, POOL, TEST
from pipelines.research.paper.toy.few_labels import TUNED, WAYS, pretrained
from pipelines.research.paper.units import Training

_SHOTS = 10
# Of pre-training; the last is that of E2.
_STEPS = (150, 300, 600)
# E2 has seeds below: its results say nothing about these.
_SEEDS = range(8, 16)
# Of the choices of few-shot images.
_CHOICES = (0, 1, 2)
_RATES = (5e-4, 1e-3, 2e-3)
# The only arm of the choice: all checkpoints have one rate.
_ALL = "all checkpoints"


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Checkpoint:
    """A pre-training.

    Attributes:
        way: of `WAYS`.
        steps: their number.
        training: the unit.
    """

    way: str
    steps: int
    training: Training

    @property
    def name(self):
        return f"{self.way}, {self.steps} steps, seed {self.training.seed}"


def _checkpoints():
    found = []
    for way, experiment in WAYS.items():
        for steps in _STEPS:
            shorter = override(experiment, [f"train.steps={steps}"])
            units = seeded(
                f"few_shot_proxy/pretrained_by_{slug(way)},steps={steps}", shorter, _SEEDS
            )
            found += [_Checkpoint(way=way, steps=steps, training=unit) for unit in units]
    return found


def _tuning(name, start, rate, tested):
    """A fine-tuning with all labels of the images from which the few are chosen."""
    experiment = override(
        TUNED,
        [f"optimizer.learning_rate={rate}", f"data.eval_split={tested}", f"seed={start.seed}"],
    )
    return Training(name=f"few_shot_proxy/{name}", experiment=experiment, start=start)


def _choose(lab):
    """The rate with the lowest mean loss over the longest pre-trainings of both ways."""

    def units(_, rate):
        return [
            _tuning(f"{slug(way)},rate={rate:g},seed={start.seed}", start, rate, HELD_OUT)
            for way in WAYS
            for start in pretrained(way, PILOTS)
        ]

    return choose(lab, "learning rate", {_ALL: _RATES}, units)


def _run(lab):
    choice = _choose(lab)
    checkpoints = _checkpoints()
    rate = choice.chosen[_ALL]
    tunings = [_tuning(slug(x.name), x.training, rate, TEST) for x in checkpoints]
    frozen = [
        FewShotTest(
            of=x.training,
            data="digits/low",
            train_split=POOL,
            test_split=TEST,
            shots=(_SHOTS,),
            seeds=_CHOICES,
        )
        for x in checkpoints
    ]
    few = [
        Cell(unit.readings(result, _SHOTS))
        for unit, result in zip(frozen, lab.results(frozen), strict=True)
    ]
    tuned = [
        cell([unit], [result]) for unit, result in zip(tunings, lab.results(tunings), strict=True)
    ]
    table = Table(
        title="accuracy on digits 0 to 4",
        columns=["few-shot", "fine-tuned"],
        rows={x.name: [*pair] for x, *pair in zip(checkpoints, few, tuned, strict=True)},
        over="choice",
    )
    return Findings(
        [table],
        _claims(checkpoints, [x.mean for x in few], [x.mean for x in tuned]),
        charts=[_chart(checkpoints, few, tuned)],
        choices=[choice],
    )


def _chart(checkpoints, few, tuned):
    curves = {}
    for each, x, y in zip(checkpoints, few, tuned, strict=True):
        curves.setdefault(f"{each.way}, {each.steps} steps", []).append(Point(x.mean, y.mean))
    return Chart(
        title="accuracy after fine-tuning",
        x_label="few-shot accuracy",
        curves=curves,
        joined=False,
        x_percent=True,
    )


def _claims(checkpoints, few, tuned):
    steps = [x.steps for x in checkpoints]
    both = [(x.way, x.steps) for x in checkpoints]
    found = within_strata(few, tuned, steps)
    inside = {
        each: [place for place, x in enumerate(steps) if x == each] for each in dict.fromkeys(steps)
    }
    alone = {
        each: correlation([few[x] for x in places], [tuned[x] for x in places])
        for each, places in inside.items()
    }
    return [
        Claim(
            "of pre-trainings of equal length, the better few-shot accuracy goes with the better "
            "one after fine-tuning: the partial rank correlation, length removed, is above its "
            "interval without a relation",
            found.is_above if len(_SEEDS) >= LEAST_SEEDS else None,
            f"{found.text}; {len(checkpoints)} checkpoints",
        ),
        Claim(
            "the same of each length alone",
            None,
            "; ".join(f"{each:,} steps: {x.text}" for each, x in alone.items()),
        ),
        Claim(
            "the same with length and way of pre-training removed",
            None,
            within_strata(few, tuned, both).text,
        ),
        Claim(
            "the rank correlation over all checkpoints, which length alone may explain",
            None,
            f"{correlation(few, tuned).text}; of the length with the fine-tuned accuracies "
            f"{correlation(steps, tuned).text}",
        ),
    ]


FEW_SHOT_PROXY = Study(
    name="E8",
    title="few-shot accuracy as a stand-in for fine-tuning",
    paper=("section4.1",),
    question="Can cheap few-shot accuracies say which pre-training will fine-tune best?",
    setup="The two pre-trainings of E2 on digits 5 to 9, for 150, 300 and 600 steps, with "
    f"{len(_SEEDS)} other seeds: {len(WAYS) * len(_STEPS) * len(_SEEDS)} checkpoints. For each, "
    "ridge regression on frozen features with 10 labels of each of the digits 0 to 4, mean of "
    "three choices; and the accuracy after fine-tuning for 100 steps with all labels of the same "
    "images, at one rate: the best on held-out images for the longest pre-trainings of both ways. "
    "Longer pre-trainings may be better in both, so the lengths are strata: ranks lose the mean of "
    "their length, and the interval is that of 20,000 permutations within the lengths. It shows a "
    "correlation of 0.5 with a chance of 91 %. The claim says that there is a relation, not that "
    "it is strong.",
    minutes=15,
    run=_run,
)
