"""E10: SGD against Adam for ResNets (the paper's table 7)."""

from pipelines.config import override
from pipelines.replication.findings import Claim, Findings, Table, cell, points
from pipelines.replication.study import Study, picked_rates, rates_text, seeded
from pipelines.replication.toy.shapes import BIT, HELD_OUT, TESTED

_SEEDS = (0, 1)
_STEPS = "train.steps=600"
# Name -> assignments, and rates: those of SGD with momentum are larger by their nature.
_ARMS = {
    "SGD": (["optimizer.name=sgd", "optimizer.weight_decay=0"], (0.01, 0.03, 0.1)),
    "Adam": (["optimizer.name=adamw"], (5e-4, 1e-3, 2e-3)),
}


def _run(lab):
    rows, rates = {}, {}
    for arm, (assignments, tried) in _ARMS.items():
        base = override(BIT, [_STEPS, *assignments])
        rates |= picked_rates(lab, "optimizers", {arm: base}, tried, HELD_OUT)
        tested = override(base, [f"optimizer.learning_rate={rates[arm]}", *TESTED])
        units = seeded(f"optimizers/{arm}", tested, _SEEDS)
        rows[arm] = [cell(units, lab.results(units))]
    table = Table(title="test accuracy", columns=["accuracy"], rows=rows, reference="SGD")
    return Findings(
        [table],
        [Claim("Adam against SGD", None, points(table.difference("Adam", 0)))],
        [rates_text(rates)],
    )


OPTIMIZERS = Study(
    name="E10",
    title="SGD against Adam for a ResNet",
    paper=("table7",),
    question="Does Adam train a ResNet better than SGD with momentum?",
    setup="Classes of large drawn shapes at 32 x 32 pixels, 4,000 training images, the BiT of E3, "
    "600 steps of 64. The best of three rates on the validation split for each; then two seeds, "
    "tested on 1,600 images, paired. The paper's question is about pre-training and transfer; here "
    "it is one training.",
    minutes=4,
    run=_run,
)
