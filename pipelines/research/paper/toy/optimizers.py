"""E10: SGD against Adam for ResNets (the paper's table 7)."""

from pipelines.config import override
from pipelines.research.paper.findings import Claim, Findings, Table, points
from pipelines.research.paper.power import seeds_for
from pipelines.research.paper.study import Study, accuracies, at_rates, choose_rates
from pipelines.research.paper.toy.shapes import BIT, CHOOSING, TESTING

# Most seeds, and the difference that they should see.
_MOST, _EFFECT = 8, 0.03
_STEPS = "train.steps=600"
_ARMS = {
    "SGD": override(BIT, [_STEPS, "optimizer.name=sgd", "optimizer.weight_decay=0"]),
    "Adam": override(BIT, [_STEPS, "optimizer.name=adamw"]),
}
# Those of SGD with momentum are larger by their nature.
_RATES = {"SGD": (0.01, 0.03, 0.1), "Adam": (5e-4, 1e-3, 2e-3)}


def _run(lab):
    choice = choose_rates(lab, "optimizers", _ARMS, _RATES, CHOOSING)
    power = seeds_for(list(choice.pilots.values()), _EFFECT, most=_MOST)
    cells = accuracies(
        lab, at_rates("optimizers", _ARMS, choice.chosen, TESTING, range(power.seeds))
    )
    rows = {arm: [each] for arm, each in cells.items()}
    table = Table(title="test accuracy", columns=["accuracy"], rows=rows, reference="SGD")
    return Findings(
        [table],
        [Claim("Adam against SGD", None, points(table.difference("Adam", 0)))],
        [power.text],
        choices=[choice],
    )


OPTIMIZERS = Study(
    name="E10",
    title="SGD against Adam for a ResNet",
    paper=("table7",),
    question="Does Adam train a ResNet better than SGD with momentum?",
    setup="Classes of large drawn shapes at 32 x 32 pixels, 4,000 training images, the BiT of E11, "
    "600 steps of 64. The best rate on the validation split for each; then 5 to 8 seeds, "
    "tested on 1,600 images, paired. The paper's question is about pre-training and transfer; here "
    "it is one training.",
    minutes=24,
    run=_run,
)
