"""E3: ViT against BiT by the number of training images (the paper's figures 3 and 4)."""

import math

import numpy as np
from scipy import stats

from pipelines.config import override
from pipelines.research.paper.findings import Choice, Claim, Findings, Table, cell, points
from pipelines.research.paper.study import Study, choose_rates, seeded
from pipelines.research.paper.toy.shapes import BIT, VIT

SIZES = (250, 1000, 4000, 16000)
_SEEDS = (0, 1)
_RATES = (5e-4, 1e-3, 2e-3)
_TUNED_AT = 1000
_STEPS = ("train.steps=1200",)
ARMS = {"ViT": override(VIT, list(_STEPS)), "BiT": override(BIT, list(_STEPS))}


def trained(lab) -> tuple[dict, Choice]:
    """The trainings, arm -> size -> one for each seed, which may not have run; and the rates."""
    held_out = (f"data.train_split=train[:{_TUNED_AT}]", "data.eval_split=validation")
    choice = choose_rates(lab, "data_size", ARMS, _RATES, held_out)
    units = {
        arm: {
            size: seeded(
                f"data_size/{arm},images={size}",
                override(
                    base,
                    [
                        f"optimizer.learning_rate={choice.chosen[arm]}",
                        f"data.train_split=train[:{size}]",
                        "data.eval_split=test",
                    ],
                ),
                _SEEDS,
            )
            for size in SIZES
        }
        for arm, base in ARMS.items()
    }
    return units, choice


def _run(lab):
    units, choice = trained(lab)
    rows = {
        arm: [cell(each, lab.results(each)) for each in by_size.values()]
        for arm, by_size in units.items()
    }
    table = Table(
        title="test accuracy",
        columns=list(SIZES),
        rows=rows,
        reference="ViT",
        curve="training images",
        log=True,
    )
    few, many = table.difference("BiT", 0), table.difference("BiT", len(SIZES) - 1)
    slope, half = _slope(table)
    return Findings(
        [table],
        [
            Claim(f"BiT is ahead with {SIZES[0]} images", few.is_above, points(few)),
            Claim(
                "its lead shrinks with more images",
                # As few seeds as the first claim's give no verdict either.
                None if few.is_above is None else slope + half < 0,
                f"{100 * slope:+.1f} ± {100 * half:.1f} points for twice the images; with "
                f"{SIZES[-1]:,} images {points(many)}",
            ),
        ],
        choices=[choice],
    )


def _slope(table):
    """The change of BiT's lead when the images double, and half of its 95 % interval."""
    x, y = [], []
    for column, size in enumerate(SIZES):
        bits, vits = (table.cell(arm, column).values for arm in ("BiT", "ViT"))
        for bit, vit in zip(bits, vits, strict=True):
            x.append(math.log2(size))
            y.append(bit - vit)
    (slope, _), covariance = np.polyfit(x, y, 1, cov=True)
    return float(slope), float(stats.t.ppf(0.975, len(x) - 2) * covariance[0, 0] ** 0.5)


DATA_SIZE = Study(
    name="E3",
    title="ViT against BiT by the number of images",
    paper=("figure3", "figure4"),
    question="Is a ResNet ahead with few images, and does a ViT catch up with more?",
    setup="Classes of large drawn shapes at 32 x 32 pixels; 250 to 16,000 training images, the "
    "smaller sets within the larger; a ViT and a BiT of equal cost; 1,200 steps of 64 images "
    f"for all. The rate of each is the best with {_TUNED_AT} images on the validation "
    "split. Two seeds, 1,600 test images. The lead of BiT is regressed on the logarithm of the "
    "number of images (Student's interval of the slope).",
    minutes=51,
    run=_run,
)
