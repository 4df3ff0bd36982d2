"""E11: axial models: accuracy against cost (the paper's figure 13)."""

from pipelines.config import override
from pipelines.research.paper.findings import (
    Chart,
    Claim,
    Findings,
    Point,
    Table,
    cell,
    difference,
    points,
)
from pipelines.research.paper.measurements import SPEED_BATCH, Speed
from pipelines.research.paper.power import seeds_for
from pipelines.research.paper.study import Study, accuracies, at_rates, choose_rates
from pipelines.research.paper.toy.shapes import BIT, CHOOSING, SHAPES, TESTING, VIT
from vit_tf import cost

# Most seeds, and the difference that they should see.
_MOST, _EFFECT = 8, 0.03
_RATES = (5e-4, 1e-3, 2e-3)
_STEPS = ["train.steps=300"]
_AXIAL_VIT = ["model.axial=true", "model.position_embedding=learned_2d"]
_AXIAL_RESNET = ["model.name=AxialResNet-26S", "model.stage_depths=(2,3,2)", "model.heads=4"]
# Axial model -> the one that it is compared with.
_PAIRS = {"Axial-ViT": "ViT", "AxialResNet": "BiT"}
ARMS = {
    "ViT": override(VIT, _STEPS),
    "Axial-ViT": override(VIT, [*_STEPS, *_AXIAL_VIT]),
    "BiT": override(BIT, _STEPS),
    "AxialResNet": override(SHAPES, [*_STEPS, *_AXIAL_RESNET]),
}
_ACCURACY, _RATE = "accuracy", "images per second"


def _run(lab):
    choice = choose_rates(lab, "axial", ARMS, _RATES, CHOOSING)
    power = seeds_for(list(choice.pilots.values()), _EFFECT, most=_MOST)
    units = at_rates("axial", ARMS, choice.chosen, TESTING, range(power.seeds))
    cells = accuracies(lab, units)
    # After all trainings, one after the other: then what else the machine does is the same for all.
    speeds = {arm: _speed(lab, each) for arm, each in units.items()}
    macs = {arm: cost.macs(base.model.config(8)) for arm, base in ARMS.items()}
    tables = [
        Table(
            title="test accuracy",
            columns=[_ACCURACY],
            rows={arm: [each] for arm, each in cells.items()},
        ),
        Table(
            title="speed of inference, batches of 64",
            columns=[_RATE],
            rows={arm: [each] for arm, each in speeds.items()},
            unit="/s",
        ),
    ]
    charts = [
        Chart(
            title="test accuracy",
            x_label=label,
            curves={arm: [Point.of(x[arm], cells[arm])] for arm in ARMS},
            joined=False,
        )
        for label, x in (
            ("million multiply-adds for an image", {arm: x / 1e6 for arm, x in macs.items()}),
            (_RATE, {arm: each.mean for arm, each in speeds.items()}),
        )
    ]
    shown = ", ".join(f"{arm} {each / 1e6:.1f}" for arm, each in macs.items())
    return Findings(
        tables,
        _claims(cells, speeds, macs),
        [f"million multiply-adds for an image: {shown}", power.text],
        charts,
        [choice],
    )


def _speed(lab, units):
    measured = [
        Speed(of=x, data=x.experiment.data.name, test_split=f"test[:{SPEED_BATCH}]") for x in units
    ]
    return cell(measured, lab.results(measured), _RATE)


def _claims(cells, speeds, macs):
    claims = []
    for axial, plain in _PAIRS.items():
        found = difference(cells[axial], cells[plain])
        pace = {arm: macs[arm] * speeds[arm].mean / 1e9 for arm in (axial, plain)}
        shown = ", ".join(f"{arm} {each:.0f}" for arm, each in pace.items())
        claims += [
            Claim(f"{axial} against {plain} after equal steps", None, points(found)),
            Claim(
                f"multiply-adds in a second of {axial} against {plain}",
                None,
                f"in 1e9: {shown}",
            ),
        ]
    return claims


AXIAL = Study(
    name="E11",
    title="axial models",
    paper=("figure13",),
    question="Does axial attention help for the same number of steps, and what does it cost?",
    setup="Classes of large drawn shapes at 32 x 32 pixels, 4,000 training images, 300 steps of "
    "64: a ViT with patches of 4, a BiT of equal cost, and their axial counterparts with as many "
    "layers and units, which cost more. The best rate on the validation split; 5 to 8 seeds, "
    "tested on 1,600 images.",
    minutes=25,
    run=_run,
)
