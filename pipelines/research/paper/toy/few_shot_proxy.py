"""E8: few-shot accuracy as a stand-in for that after fine-tuning (section 4.1)."""

from scipy import stats

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
from pipelines.research.paper.study import Study, seeded, slug
from pipelines.research.paper.toy.digits import POOL, TEST
from pipelines.research.paper.toy.few_labels import TUNED, WAYS, pretrained
from pipelines.research.paper.units import Training

_SHOTS = 10
_LEAST = 0.7
# Of pre-training; the last is that of E2.
_STEPS = (150, 300, 600)
_SEEDS = (0, 1)
# Of the choices of few-shot images.
_CHOICES = (0, 1, 2)


def _checkpoints():
    """The pre-trainings: name -> training."""
    found = {}
    for way, experiment in WAYS.items():
        for steps in _STEPS:
            shorter = override(experiment, [f"train.steps={steps}"])
            units = seeded(f"few_labels/pretrained_by_{slug(way)},steps={steps}", shorter, _SEEDS)
            if steps == experiment.train.steps:
                units = pretrained(way, _SEEDS)
            for seed, unit in zip(_SEEDS, units, strict=True):
                found[f"{way}, {steps} steps, seed {seed}"] = unit
    return found


# With all labels of the images from which the few are chosen.
_TUNED = override(TUNED, ["optimizer.learning_rate=1e-3", f"data.eval_split={TEST}"])


def _run(lab):
    starts = _checkpoints()
    tunings = [
        Training(name=f"few_shot_proxy/{slug(name)}", experiment=_TUNED, start=start)
        for name, start in starts.items()
    ]
    frozen = [
        FewShotTest(
            of=start,
            data="digits/low",
            train_split=POOL,
            test_split=TEST,
            shots=(_SHOTS,),
            seeds=_CHOICES,
        )
        for start in starts.values()
    ]
    few = [
        Cell(unit.readings(result, _SHOTS))
        for unit, result in zip(frozen, lab.results(frozen), strict=True)
    ]
    tuned = [
        cell([unit], [result]) for unit, result in zip(tunings, lab.results(tunings), strict=True)
    ]
    rows = {name: list(pair) for name, *pair in zip(starts, few, tuned, strict=True)}
    found = _correlation([x.mean for x in few], [x.mean for x in tuned])
    table = Table(
        title="accuracy on digits 0 to 4",
        columns=["few-shot", "fine-tuned"],
        rows=rows,
        over="choice",
    )
    chart = Chart(
        title="accuracy after fine-tuning",
        x_label="few-shot accuracy",
        curves={
            way: [
                Point(x.mean, y.mean)
                for name, (x, y) in rows.items()
                if name.startswith(f"{way}, ")
            ]
            for way in WAYS
        },
        joined=False,
        x_percent=True,
    )
    return Findings(
        [table],
        [
            Claim(
                f"the order is nearly the same: Spearman's correlation is above {_LEAST}",
                found > _LEAST if len(_SEEDS) >= LEAST_SEEDS else None,
                f"{found:.2f} over {len(rows)} checkpoints",
            )
        ],
        charts=[chart],
    )


def _correlation(x, y):
    """Spearman's; 0 if all of one side are equal."""
    if len(set(x)) == 1 or len(set(y)) == 1:
        return 0.0
    return float(stats.spearmanr(x, y).statistic)


FEW_SHOT_PROXY = Study(
    name="E8",
    title="few-shot accuracy as a stand-in for fine-tuning",
    paper=("section4.1",),
    question="Can cheap few-shot accuracies say which pre-training will fine-tune best?",
    setup="Twelve checkpoints: the two pre-trainings of E2 on digits 5 to 9, for 150, 300 and 600 "
    "steps, with two seeds. For each, ridge regression on frozen features with 10 labels of each "
    "of the digits 0 to 4, mean of three choices; and the accuracy after fine-tuning for 100 steps "
    "at one rate with all labels of the same images.",
    minutes=4,
    run=_run,
)
