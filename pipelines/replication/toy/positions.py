"""E1: position embeddings (the paper's table 8)."""

from pipelines.config import override
from pipelines.replication.findings import Claim, Findings, Table, mean_difference, points
from pipelines.replication.study import (
    PLAIN,
    Study,
    accuracies,
    at_rates,
    picked_rates,
    rates_text,
    settings,
)
from pipelines.replication.toy import digits

_ARMS = {"none": "none", "1-D": "learned_1d", "2-D": "learned_2d", "relative": "relative"}
_RATES = (1e-3, 2e-3, 4e-3)
_SEEDS = (0, 1, 2)
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
    found = mean_difference(others, none)
    means = [each.mean for each in others]
    return Findings(
        [table],
        [
            Claim(
                "without positions it is worst, and clearly below the mean of the others",
                found.shows and none.mean < min(means) and found.mean > 0,
                f"the others are {points(found)} above it, the lowest of them "
                f"{100 * (min(means) - none.mean):+.1f}",
                must=True,
            ),
            Claim(
                "the others tie",
                None,
                f"{100 * (max(means) - min(means)):.1f} points between the best and the worst",
            ),
        ],
        [rates_text(rates)],
    )


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
