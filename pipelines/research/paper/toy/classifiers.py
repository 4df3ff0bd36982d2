"""E4: class token or mean of the patches (the paper's figure 9)."""

from pipelines.config import override
from pipelines.research.paper.findings import Claim, Findings, Table, cell, difference, points
from pipelines.research.paper.study import Study, picked_rates, rates_text, seeded, settings, slug
from pipelines.research.paper.toy import digits

_ARMS = {"class token": "token", "mean": "gap"}
_RATES = (5e-4, 2e-3, 8e-3)
_SEEDS = (0, 1, 2)
# Differences below this count as none.
_EQUAL = 0.03
_BASE = settings(
    "model.dropout=0",
    "optimizer.weight_decay=0.05",
    "train.steps=300",
    "schedule.warmup_steps=30",
)


def _run(lab):
    arms = {
        name: override(_BASE, [f"model.classifier={classifier}"])
        for name, classifier in _ARMS.items()
    }
    best = picked_rates(lab, "classifiers", arms, _RATES, digits.CHOOSING)
    rows = {}
    for name, base in arms.items():
        rows[name] = []
        for rate in _RATES:
            experiment = override(base, [f"optimizer.learning_rate={rate}", *digits.TESTING])
            units = seeded(f"classifiers/{slug(name)},rate={rate:g}", experiment, _SEEDS)
            rows[name].append(cell(units, lab.results(units)))
    table = Table(
        title="test accuracy",
        columns=list(_RATES),
        rows=rows,
        reference="class token",
        curve="learning rate",
        log=True,
    )
    token, mean = (table.cell(name, _RATES.index(best[name])) for name in _ARMS)
    at_best = difference(mean, token)
    each = {
        rate: table.difference("mean", column, tests=len(_RATES))
        for column, rate in enumerate(_RATES)
    }
    return Findings(
        [table],
        [
            Claim(
                f"each at its best rate, they differ by less than {_EQUAL:.0%}",
                abs(at_best.mean) + (at_best.half or 0) < _EQUAL,
                points(at_best),
            ),
            Claim(
                "at one rate at least they differ",
                any(found.shows for found in each.values()),
                "; ".join(f"rate {rate:g}: {points(found)}" for rate, found in each.items()),
            ),
        ],
        [rates_text(best), "intervals of the second claim are those of three tests (Bonferroni)"],
    )


CLASSIFIERS = Study(
    name="E4",
    title="class token or mean of the patches",
    paper=("figure9",),
    question="Is a class token better than the mean of the patches, or does it need another rate?",
    setup="Digits at 16 x 16 pixels, patches of 4, width 64, 4 layers, 300 steps of 64 on "
    "half of the training images. The best of three rates by the loss on the validation split; "
    "then each rate with three seeds, tested on 949 others. Differences are paired by seed; they "
    "are equal if the interval lies within 3 points.",
    minutes=8,
    run=_run,
    default=True,
)
