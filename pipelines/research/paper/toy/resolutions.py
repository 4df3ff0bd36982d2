"""E7: fine-tuning at a higher resolution (section 3.2)."""

from pipelines.config import override
from pipelines.research.paper.findings import (
    Claim,
    Findings,
    Table,
    cell,
    difference,
    points,
)
from pipelines.research.paper.headroom import with_headroom
from pipelines.research.paper.power import seeds_for
from pipelines.research.paper.study import PILOTS, Study, choose, choose_rates, seeded, slug
from pipelines.research.paper.toy.counts import CHOOSING, COUNTS, TESTING
from pipelines.research.paper.units import Training

# Most seeds, and the difference that they should see.
_MOST, _EFFECT = 8, 0.03
_PRETRAINED = override(COUNTS, ["train.steps=1000", "schedule.warmup_steps=100"])
_PRETRAINING, _RATES = "pre-training", (1e-3, 2e-3, 4e-3)
_TUNED = override(COUNTS, ["train.steps=300", "schedule.warmup_steps=30"])
_LOW, _HIGH, _LONG = "fine-tuned at 16", "fine-tuned at 24", "fine-tuned at 16 at equal cost"
# Nearly equal cost of the last two, in multiply-adds of a training; see the test.
TUNINGS = {
    _LOW: _TUNED,
    _HIGH: override(_TUNED, ["model.image_size=24"]),
    _LONG: override(_TUNED, ["train.steps=940", "schedule.warmup_steps=94"]),
}
_TUNING_RATES = (5e-4, 1e-3, 2e-3)


def _run(lab):
    first = choose_rates(lab, "resolutions", {_PRETRAINING: _PRETRAINED}, _RATES, CHOOSING)
    rate = first.chosen[_PRETRAINING]
    pretrained = override(_PRETRAINED, [f"optimizer.learning_rate={rate}", *TESTING])

    def starts(seeds):
        return seeded("resolutions/pretrained", pretrained, seeds)

    def units(arm, rate):
        return _tunings(f"{slug(arm)},rate={rate:g}", arm, starts(PILOTS), rate, CHOOSING)

    choice = choose(lab, "learning rate", dict.fromkeys(TUNINGS, _TUNING_RATES), units)
    power = seeds_for(list(choice.pilots.values()), _EFFECT, most=_MOST)
    begins = starts(range(power.seeds))
    before = cell(begins, lab.results(begins))
    tuned = {}
    for arm, rate in choice.chosen.items():
        units = _tunings(slug(arm), arm, begins, rate, TESTING)
        tuned[arm] = cell(units, lab.results(units))
    table = Table(
        title="test accuracy",
        columns=["accuracy"],
        rows={"before": [before]} | {arm: [each] for arm, each in tuned.items()},
        reference=_LOW,
    )
    bases = {"before fine-tuning": before, _LOW: tuned[_LOW]}
    claims = with_headroom(bases, _claims(tuned))
    return Findings([table], claims, [power.text], choices=[first, choice])


def _tunings(name, arm, starts, rate, tested):
    """A fine-tuning of each start."""
    return [
        Training(
            name=f"resolutions/{name},seed={start.seed}",
            experiment=override(
                TUNINGS[arm], [f"optimizer.learning_rate={rate}", f"seed={start.seed}", *tested]
            ),
            start=start,
        )
        for start in starts
    ]


def _claims(tuned):
    equal_steps, equal_cost = (difference(tuned[_HIGH], tuned[x]) for x in (_LOW, _LONG))
    return [
        Claim("the higher resolution is better", equal_steps.is_above, points(equal_steps)),
        Claim(
            "the higher resolution against more steps at the lower one, at equal cost",
            None,
            points(equal_cost),
        ),
    ]


RESOLUTIONS = Study(
    name="E7",
    title="fine-tuning at a higher resolution",
    paper=("section3.2",),
    question="Does it help to fine-tune at a higher resolution than that of pre-training?",
    setup="The number of drawn shapes, 1 to 5, in images of 32 x 32 pixels, 16,000 of them to "
    "train on. A ViT with patches of 4 and 4 layers is pre-trained for 1,000 steps of 64 with the "
    "images at 16 x 16. Then it is fine-tuned, with a new head, for 200 steps at 16 x 16; or at "
    "32 x 32 with resized position embeddings; or at 16 x 16 for 940 steps, which are as many "
    "multiply-adds. The best rates of pre-training and of each fine-tuning by the loss on the "
    "validation split; 5 to 8 seeds, paired, tested on 1,600 images. The claim has a verdict only "
    "if the models are from 60 to 85 % right before, and after fine-tuning at 16 x 16.",
    minutes=18,
    run=_run,
)
