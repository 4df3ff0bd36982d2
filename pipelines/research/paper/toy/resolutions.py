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
from pipelines.research.paper.study import PILOTS, Study, choose, seeded, slug
from pipelines.research.paper.toy.shapes import VIT
from pipelines.research.paper.units import Training

# Most seeds, and the difference that they should see.
_MOST, _EFFECT = 8, 0.03
# All 16,000 training images. The model sees those of 32 x 32 pixels at other sizes.
_AT_16 = override(VIT, ["data.train_split=train", "model.image_size=16"])
_PRETRAINED = override(_AT_16, ["train.steps=2000", "optimizer.learning_rate=2e-3"])
_TUNED = override(_AT_16, ["train.steps=300", "schedule.warmup_steps=30"])
_LOW, _HIGH, _LONG = "fine-tuned at 16", "fine-tuned at 24", "fine-tuned at 16 at equal cost"
# Nearly equal cost of the last two, in multiply-adds of a training; see the test.
TUNINGS = {
    _LOW: _TUNED,
    _HIGH: override(_TUNED, ["model.image_size=24"]),
    _LONG: override(_TUNED, ["train.steps=724", "schedule.warmup_steps=72"]),
}
_RATES = (2.5e-4, 5e-4, 1e-3)


def _starts(seeds):
    return seeded("resolutions/pretrained", override(_PRETRAINED, ["data.eval_split=test"]), seeds)


def _run(lab):
    def units(arm, rate):
        return _tunings(f"{slug(arm)},rate={rate:g}", arm, _starts(PILOTS), rate, "validation")

    choice = choose(lab, "learning rate", dict.fromkeys(TUNINGS, _RATES), units)
    power = seeds_for(list(choice.pilots.values()), _EFFECT, most=_MOST)
    starts = _starts(range(power.seeds))
    before = cell(starts, lab.results(starts))
    tuned = {}
    for arm, rate in choice.chosen.items():
        units = _tunings(slug(arm), arm, starts, rate, "test")
        tuned[arm] = cell(units, lab.results(units))
    table = Table(
        title="test accuracy",
        columns=["accuracy"],
        rows={"before": [before]} | {arm: [each] for arm, each in tuned.items()},
        reference=_LOW,
    )
    bases = {"before fine-tuning": before, _LOW: tuned[_LOW]}
    claims = with_headroom(bases, _claims(tuned))
    return Findings([table], claims, [power.text], choices=[choice])


def _tunings(name, arm, starts, rate, split):
    """A fine-tuning of each start, evaluated on a split."""
    return [
        Training(
            name=f"resolutions/{name},seed={start.seed}",
            experiment=override(
                TUNINGS[arm],
                [
                    f"optimizer.learning_rate={rate}",
                    f"seed={start.seed}",
                    f"data.eval_split={split}",
                ],
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
    setup="Classes of large drawn shapes of 32 x 32 pixels, 16,000 training images. A ViT with "
    "patches of 4 and 4 layers is pre-trained for 2,000 steps of 64, at one rate, with the images "
    "at 16 x 16. Then it is fine-tuned, with a new head, for 300 steps at 16 x 16; or at 24 x 24 "
    "with resized position embeddings; or at 16 x 16 for 724 steps, which are as many "
    "multiply-adds. The best rate of each fine-tuning by the loss on the validation split; 5 to 8 "
    "seeds, paired, tested on 1,600 images. The claim has a verdict only if the models are from 60 "
    "to 85 % right before, and after fine-tuning at 16 x 16.",
    minutes=18,
    run=_run,
)
