"""E5: a hybrid against a ViT of equal cost (the paper's figure 5)."""

from pipelines.config import override
from pipelines.research.paper.findings import Claim, Findings, Table, points
from pipelines.research.paper.power import seeds_for
from pipelines.research.paper.study import Study, accuracies, at_rates, choose_rates
from pipelines.research.paper.toy.shapes import CHOOSING, TESTING, VIT

# Most seeds, and the difference that they should see.
_MOST, _EFFECT = 8, 0.03
_RATES = (5e-4, 1e-3, 2e-3)
_STEPS = ("train.steps=600",)
# Nearly equal cost, in multiply-adds for one image; see the test.
ARMS = {
    "ViT": override(VIT, list(_STEPS)),
    "hybrid": override(
        VIT,
        [
            *_STEPS,
            "model.patch_size=1",
            "model.layers=3",
            "model.stem.stage_depths=(1,)",
            "model.stem.width=0.5",
        ],
    ),
}


def _run(lab):
    choice = choose_rates(lab, "hybrids", ARMS, _RATES, CHOOSING)
    power = seeds_for(list(choice.pilots.values()), _EFFECT, most=_MOST)
    cells = accuracies(lab, at_rates("hybrids", ARMS, choice.chosen, TESTING, range(power.seeds)))
    rows = {arm: [each] for arm, each in cells.items()}
    table = Table(title="test accuracy", columns=["accuracy"], rows=rows, reference="ViT")
    found = table.difference("hybrid", 0)
    return Findings(
        [table],
        [Claim("the hybrid is ahead", found.is_above, points(found))],
        [power.text],
        choices=[choice],
    )


HYBRIDS = Study(
    name="E5",
    title="a hybrid against a ViT of equal cost",
    paper=("figure5",),
    question="Does a ViT learn faster from the features of a small ResNet than from pixels?",
    setup="Classes of large drawn shapes at 32 x 32 pixels, 4,000 training images, 600 steps of "
    "64. A ViT with patches of 4 and 4 layers; a hybrid whose stem has one residual unit and ends "
    "with the same 64 tokens, with 3 layers: equal multiply-adds within 1 %. The best of "
    "rate on the validation split; then 5 to 8 seeds, tested on 1,600 images, paired by "
    "seed.",
    minutes=24,
    run=_run,
)
