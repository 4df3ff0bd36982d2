"""E1: position embeddings (the paper's table 8)."""

import itertools

from pipelines.config import override
from pipelines.research.paper.findings import (
    Chart,
    Claim,
    Findings,
    Point,
    Table,
    difference,
    jointly,
    mean_difference,
    points,
)
from pipelines.research.paper.power import seeds_for
from pipelines.research.paper.study import (
    PLAIN,
    Study,
    accuracies,
    at_rates,
    choose_rates,
    settings,
)
from pipelines.research.paper.toy import digits

_ARMS = {"none": "none", "1-D": "learned_1d", "2-D": "learned_2d", "relative": "relative"}
_RATES = (1e-3, 2e-3, 4e-3)
# Seeds at least and at most, and the differences that they should see.
_LEAST, _MOST, _EFFECT, _EQUAL = 8, 12, 0.03, 0.03
_CHANCE = 0.1
_BASE = settings(
    *PLAIN,
    "train.steps=500",
    "schedule.warmup_steps=50",
)


def _run(lab):
    arms = {
        name: override(_BASE, [f"model.position_embedding={embedding}"])
        for name, embedding in _ARMS.items()
    }
    choice = choose_rates(lab, "positions", arms, _RATES, digits.CHOOSING)
    power = seeds_for(list(choice.pilots.values()), _EFFECT, least=_LEAST, most=_MOST)
    units = at_rates("positions", arms, choice.chosen, digits.TESTING, range(power.seeds))
    cells = accuracies(lab, units)
    rows = {name: [each] for name, each in cells.items()}
    table = Table(title="test accuracy", columns=["accuracy"], rows=rows, reference="none")
    none, *others = cells.values()
    chart = Chart(
        title="test accuracy",
        x_label="position embedding",
        curves={"accuracy": [Point.of(x, each) for x, each in enumerate(cells.values())]},
        joined=False,
        categories=tuple(cells),
        lines={"chance": _CHANCE},
    )
    return Findings([table], _claims(none, others), [power.text], [chart], [choice])


def _claims(none, others):
    together = mean_difference(others, none)
    alone = [difference(each, none, tests=len(others)) for each in others]
    pairs = list(itertools.combinations(others, 2))
    apart = [difference(*pair, tests=len(pairs)) for pair in pairs]
    return [
        Claim(
            "without positions it is clearly below the mean of the others",
            together.is_above,
            points(together),
            must=True,
        ),
        Claim(
            "each of the others alone is clearly above it",
            jointly(*(each.is_above for each in alone)),
            "; ".join(map(points, alone)),
        ),
        Claim(
            f"the others are equal: any two of them differ by less than {_EQUAL:.0%}",
            jointly(*(each.is_within(_EQUAL) for each in apart)),
            "; ".join(map(points, apart)),
        ),
    ]


POSITIONS = Study(
    name="E1",
    title="position embeddings",
    paper=("table8",),
    question="Does a ViT need to know where its patches are, and does it matter how it is told?",
    setup="Digits at 16 x 16 pixels, patches of 4, width 64, 4 layers, the mean of the patches, "
    "500 steps of 64 on half of the training images. For each embedding the best rate by "
    f"the loss on the validation split; then {_LEAST} to {_MOST} seeds, tested on 949 others. "
    "Differences are paired by seed; those of the second and third claim have intervals for three "
    "tests (Bonferroni).",
    minutes=19,
    run=_run,
    default=True,
)
