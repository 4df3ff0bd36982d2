"""E7: fine-tuning at a higher resolution (section 3.2)."""

from pipelines.config import override
from pipelines.research.paper.findings import Claim, Findings, Table, cell, points
from pipelines.research.paper.study import PILOTS, Study, choose, seeded
from pipelines.research.paper.toy.shapes import VIT
from pipelines.research.paper.units import Training

_SEEDS = (0, 1, 2)
_SIDES = (32, 48)
_RATES = (2.5e-4, 5e-4, 1e-3)
_PRETRAINED = override(
    VIT,
    [
        "data.name=shapes/class-large-64x4000",
        "data.train_split=train",
        "data.eval_split=test",
        "optimizer.learning_rate=1e-3",
        "train.steps=1200",
    ],
)
_TUNED = override(_PRETRAINED, ["train.steps=150", "schedule.warmup_steps=10"])


def _tuning(name, start, side, rate, split):
    experiment = override(
        _TUNED,
        [
            f"model.image_size={side}",
            f"optimizer.learning_rate={rate}",
            f"data.eval_split={split}",
            f"seed={start.experiment.seed}",
        ],
    )
    return Training(name=f"resolutions/{side},{name}", experiment=experiment, start=start)


def _run(lab):
    starts = seeded("resolutions/pretrained", _PRETRAINED, _SEEDS)
    pilots = seeded("resolutions/pretrained", _PRETRAINED, PILOTS)

    def units(side, rate):
        name = f"rate={rate:g},seed="
        return [_tuning(f"{name}{x.seed}", x, side, rate, "validation") for x in pilots]

    choice = choose(lab, "learning rate", dict.fromkeys(map(str, _SIDES), _RATES), units)
    rows = {"before": [cell(starts, lab.results(starts))]}
    for side, rate in choice.chosen.items():
        units = [_tuning(f"seed={x.experiment.seed}", x, side, rate, "test") for x in starts]
        rows[f"fine-tuned at {side}"] = [cell(units, lab.results(units))]
    low, high = (f"fine-tuned at {side}" for side in _SIDES)
    table = Table(title="test accuracy", columns=["accuracy"], rows=rows, reference=low)
    found = table.difference(high, 0)
    return Findings(
        [table],
        [Claim("the higher resolution is better", found.is_above, points(found))],
        choices=[choice],
    )


RESOLUTIONS = Study(
    name="E7",
    title="fine-tuning at a higher resolution",
    paper=("section3.2",),
    question="Does it help to fine-tune at a higher resolution than that of pre-training?",
    setup="Classes of large drawn shapes of 64 x 64 pixels, 4,000 training images. A ViT with "
    "patches of 4 is trained for 1,200 steps of 64 at 32 x 32 and then fine-tuned for 150 steps, "
    "at 32 x 32, or at 48 x 48 with resized position embeddings. The best rate on the "
    "validation split; three seeds, paired, tested on 400 images.",
    minutes=14,
    run=_run,
)
