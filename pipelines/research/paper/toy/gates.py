"""G0: what every training here must be able to do, before anything is compared."""

from pipelines.research.paper.findings import Claim, Findings, Table, cell
from pipelines.research.paper.study import Study, settings, slug
from pipelines.research.paper.units import Training

_FEW = settings(
    "data.train_split=train[:256]",
    "data.eval_split=train[:256]",
    "data.crop_area=(1,1)",
    "data.flip=false",
    "model.dropout=0",
    "optimizer.weight_decay=0",
    "train.steps=200",
    "schedule.warmup_steps=20",
)
_SHAPES = (
    "model.image_size=32",
    "model.patch_size=4",
    "data.train_split=train",
    "data.eval_split=test",
    "data.flip=false",
    "optimizer.weight_decay=0.05",
    "schedule.warmup_steps=50",
)
_COLOR = settings("data.name=shapes/colour-32x4000", *_SHAPES, "train.steps=300")
_CLASS = settings(
    "data.name=shapes/class-large-32x16000",
    *_SHAPES,
    "data.crop_area=(1,1)",
    "model.classifier=gap",
    "model.dropout=0",
    "train.steps=3500",
)
# Name -> experiment, smallest accuracy.
_GATES = {
    "256 digits, on themselves": (_FEW, 1.0),
    "color of shapes": (_COLOR, 0.95),
    "class of large shapes": (_CLASS, 0.70),
}


def _run(lab):
    units = [
        Training(name=f"gates/{slug(name)}", experiment=experiment)
        for name, (experiment, _) in _GATES.items()
    ]
    results = lab.results(units)
    claims = [
        Claim(
            f"{name}: at least {least:.0%}",
            result["accuracy"] >= least,
            f"{result['accuracy']:.1%}",
            must=True,
        )
        for (name, (_, least)), result in zip(_GATES.items(), results, strict=True)
    ]
    rows = {
        name: [cell([unit], [result])]
        for name, unit, result in zip(_GATES, units, results, strict=True)
    }
    return Findings([Table(title="accuracy", columns=["accuracy"], rows=rows)], claims)


GATES = Study(
    name="G0",
    title="gates",
    paper=(),
    question="Can a small ViT be trained here at all?",
    setup="256 digits are learned by heart; colors and classes of drawn shapes are learned from "
    "4,000 and 16,000 images and tested on 400 and 1,600 others. If one of them fails, nothing "
    "else runs.",
    minutes=4,
    run=_run,
    default=True,
    is_gate=True,
)
