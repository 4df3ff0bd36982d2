"""E7: fine-tuning at a higher resolution (section 3.2)."""

from pipelines.config import override
from pipelines.research.paper.findings import (
    Claim,
    Findings,
    Table,
    cell,
    difference,
    points,
    with_headroom,
)
from pipelines.research.paper.power import seeds_for
from pipelines.research.paper.study import PILOTS, Study, choose, seeded, slug
from pipelines.research.paper.toy.counts import CHOOSING, COUNTS, TESTING
from pipelines.research.paper.units import Training

# Most seeds, and the difference that they should see.
_MOST, _EFFECT = 8, 0.03
_PRETRAINED = override(
    COUNTS,
    [
        "train.steps=1000",
        "schedule.warmup_steps=100",
        "optimizer.learning_rate=2e-3",
        *TESTING,
    ],
)
_TUNED = override(COUNTS, ["train.steps=500", "schedule.warmup_steps=50"])
_LOW, _HIGH = 16, 24


def _arm(side):
    return f"fine-tuned at {side}"


TUNINGS = {_arm(side): override(_TUNED, [f"model.image_size={side}"]) for side in (_LOW, _HIGH)}
_RATES = (5e-4, 1e-3, 2e-3)


def _starts(seeds):
    return seeded("resolutions/pretrained", _PRETRAINED, seeds)


def _run(lab):
    def units(arm, rate):
        return _tunings(f"{slug(arm)},rate={rate:g}", arm, _starts(PILOTS), rate, CHOOSING)

    choice = choose(lab, "learning rate", dict.fromkeys(TUNINGS, _RATES), units)
    power = seeds_for(list(choice.pilots.values()), _EFFECT, most=_MOST)
    starts = _starts(range(power.seeds))
    before = cell(starts, lab.results(starts))
    tuned = {}
    for arm, rate in choice.chosen.items():
        trainings = _tunings(slug(arm), arm, starts, rate, TESTING)
        tuned[arm] = cell(trainings, lab.results(trainings))
    table = Table(
        title="test accuracy",
        columns=["accuracy"],
        rows={"before": [before]} | {arm: [each] for arm, each in tuned.items()},
        reference=_arm(_LOW),
    )
    bases = {"before fine-tuning": before, _arm(_LOW): tuned[_arm(_LOW)]}
    claims = with_headroom(bases, [_claim(tuned)])
    return Findings([table], claims, [power.text], choices=[choice])


def _tunings(name, arm, starts, rate, tested):
    """A fine-tuning of each start."""
    return [
        Training(
            name=f"resolutions/{name},seed={start.seed}",
            experiment=override(
                TUNINGS[arm],
                [f"optimizer.learning_rate={rate}", f"seed={start.seed}", *tested],
            ),
            start=start,
        )
        for start in starts
    ]


def _claim(tuned):
    found = difference(tuned[_arm(_HIGH)], tuned[_arm(_LOW)])
    return Claim(f"{_HIGH} x {_HIGH} is better than {_LOW} x {_LOW}", found.is_above, points(found))


RESOLUTIONS = Study(
    name="E7",
    title="fine-tuning at a higher resolution",
    paper=("section3.2",),
    question="Does it help to fine-tune at a higher resolution than that of pre-training?",
    setup="The number of drawn shapes, 1 to 5, in images of 32 x 32 pixels, 16,000 of them to "
    "train on. A ViT with patches of 4 and 4 layers is pre-trained for 1,000 steps of 64, at one "
    "rate, with the images at 16 x 16. Then it is fine-tuned, with a new head, for 500 steps at "
    "16 x 16, or with resized position embeddings at 24 x 24. The best rate of each fine-tuning "
    "by the loss on the validation split; 5 to 8 seeds, paired, tested on 1,600 images. Shapes "
    "are drawn in cells of a grid of 3 x 3; at 24 x 24 two patches fit a cell, at 16 x 16 none "
    "do, so that alone may help. The claim has a verdict only if the models are from 60 to 85 % "
    "right before, and after fine-tuning at 16 x 16.",
    minutes=20,
    run=_run,
)
