"""E4: class token or mean of the patches (the paper's figure 9)."""

from pipelines.config import override
from pipelines.replication.findings import Claim, Findings, Table, cell, difference, points
from pipelines.replication.study import Study, seeded, settings

_ARMS = {"class token": "token", "mean": "gap"}
_RATES = (5e-4, 2e-3, 8e-3)
_SEEDS = (0, 1, 2)
_BASE = settings(
    "model.dropout=0",
    "optimizer.weight_decay=0.05",
    "data.train_split=train+validation",
    "data.eval_split=test",
    "train.steps=300",
    "schedule.warmup_steps=30",
)


def _run(lab):
    rows = {}
    for name, classifier in _ARMS.items():
        base = override(_BASE, [f"model.classifier={classifier}"])
        rows[name] = []
        for rate in _RATES:
            experiment = override(base, [f"optimizer.learning_rate={rate}"])
            units = seeded(f"classifiers/{classifier},rate={rate:g}", experiment, _SEEDS)
            rows[name].append(cell(units, lab.results(units)))
    table = Table(
        title="test accuracy",
        columns=list(_RATES),
        rows=rows,
        reference="class token",
        curve="learning rate",
    )
    best = {name: max(range(len(_RATES)), key=lambda i, c=c: c[i].mean) for name, c in rows.items()}
    token, mean = (rows[name][best[name]] for name in _ARMS)
    at_best = difference(mean, token)
    each = [table.difference("mean", column) for column in range(len(_RATES))]
    largest = max(each, key=lambda found: abs(found.mean))
    rate = _RATES[each.index(largest)]
    return Findings(
        [table],
        [
            Claim("each at its best rate, they are equal", not at_best.shows, points(at_best)),
            Claim(
                "at one rate they are not",
                largest.shows,
                f"rate {rate:g}: mean against class token {points(largest)}",
            ),
        ],
        ["best rates: " + ", ".join(f"{x} {_RATES[i]:g}" for x, i in best.items())],
    )


CLASSIFIERS = Study(
    name="E4",
    title="class token or mean of the patches",
    paper=("figure9",),
    question="Is a class token better than the mean of the patches, or does it need another rate?",
    setup="Digits at 16 x 16 pixels, patches of 4, width 64, 4 layers, 300 steps of 64 with each "
    "of three rates and three seeds, tested on 300 images. Differences are paired by seed.",
    minutes=6.5,
    run=_run,
    default=True,
)
