"""E13: what the paper's related work puts in the place of convolutions, at equal cost."""

from pipelines.config import override
from pipelines.research.paper.findings import (
    Chart,
    Claim,
    Findings,
    Point,
    Table,
    difference,
    points,
    with_headroom,
)
from pipelines.research.paper.power import seeds_for
from pipelines.research.paper.study import Study, accuracies, at_rates, choose_rates, settings
from vit_tf import cost

# Most seeds; what an arm may lose and still be no worse; comparisons with a verdict.
_MOST, _MARGIN, _TESTS = 6, 0.05, 4
_CLASSES = 8
_RATES = (1e-3, 2e-3)
_BASE = settings(
    "data.name=shapes/class-large-32x16000",
    "data.train_split=train[:4000]",
    "data.crop_area=(1,1)",
    "data.flip=false",
    "train.steps=500",
    "train.batch_size=32",
    "model.name=BiT-R50x1",
    "model.width=0.5",
    "model.image_size=32",
    "optimizer.weight_decay=0.05",
    "schedule.warmup_steps=50",
)
# Assignments for choices, and for the runs with all seeds.
_CHOOSING, _TESTING = ("data.eval_split=validation",), ("data.eval_split=test",)
_PLAIN, _SASA, _LOCAL = "ResNet", "SASA", "local"
# Published as better than a ResNet at equal cost or less.
_NO_WORSE = ("SE", "AACN", _SASA)


def _resnet(units, *layer):
    return override(_BASE, [f"model.stage_depths={units}", *layer])


# Equal cost, in multiply-adds for one image; see the test.
ARMS = {
    _PLAIN: _resnet("(2,3)"),
    "SE": _resnet("(2,3)", "model.squeeze_excite=true"),
    "AACN": _resnet("(1,3)", "model.spatial=augmented"),
    _SASA: _resnet("(2,1)", "model.spatial=stand_alone"),
    _LOCAL: _resnet("(1,1)", "model.spatial=local_2d"),
}


def _run(lab):
    choice = choose_rates(lab, "related_work", ARMS, _RATES, _CHOOSING)
    power = seeds_for(list(choice.pilots.values()), _MARGIN, most=_MOST, tests=_TESTS)
    units = at_rates("related_work", ARMS, choice.chosen, _TESTING, range(power.seeds))
    cells = accuracies(lab, units)
    table = Table(
        title="test accuracy",
        columns=["accuracy"],
        rows={arm: [each] for arm, each in cells.items()},
        reference=_PLAIN,
    )
    models = {arm: base.model.config(_CLASSES) for arm, base in ARMS.items()}
    chart = Chart(
        title="test accuracy",
        x_label="thousand parameters, at equal cost",
        curves={
            arm: [Point.of(cost.parameters(model) / 1e3, cells[arm])]
            for arm, model in models.items()
        },
        joined=False,
        log=True,
        lines={"chance": 1 / _CLASSES, "ceiling": 1.0},
    )
    sizes = ", ".join(
        f"{arm} {cost.macs(model) / 1e6:.2f} and {cost.parameters(model) / 1e3:.0f}"
        for arm, model in models.items()
    )
    notes = [
        f"million multiply-adds for an image, and thousand parameters: {sizes}",
        power.text,
        f"differences in the expectations have intervals for {_TESTS} tests (Bonferroni)",
    ]
    claims = with_headroom({_PLAIN: cells[_PLAIN]}, _claims(cells))
    return Findings([table], claims, notes, [chart], [choice])


def _claims(cells):
    against_plain = {arm: difference(cells[arm], cells[_PLAIN], _TESTS) for arm in _NO_WORSE}
    positions = difference(cells[_SASA], cells[_LOCAL], _TESTS)
    return [
        *(
            Claim(
                f"{arm} is no worse than the plain ResNet: it loses less than {_MARGIN:.0%}",
                found.is_no_worse(_MARGIN),
                points(found),
            )
            for arm, found in against_plain.items()
        ),
        Claim(
            "SASA, which has relative positions, is above local attention, which has none",
            positions.is_above,
            points(positions),
        ),
    ]


RELATED_WORK = Study(
    name="E13",
    title="related work at equal cost",
    paper=(),
    question="Is attention in the place of convolutions, or squeeze-and-excitation beside them, "
    "as good as a ResNet of the same cost, as its papers say?",
    setup="Classes of large drawn shapes at 32 x 32 pixels, 4,000 training images, 500 steps of "
    "32. A ResNet with 2 and 3 units of half width; the same with squeeze-and-excitation (SE); "
    "and with attention in the place of its 3 x 3 convolutions, in as many units as cost the "
    "same: attention-augmented convolution (AACN, 1 and 3 units, augmented in the second "
    "stage), stand-alone self-attention with relative positions (SASA, 2 and 1) and local "
    "attention in two dimensions without positions (local, 1 and 1). Equal multiply-adds "
    "within 2 %, with those for hidden keys; parameters differ. Maps have 8 x 8 and 4 x 4 "
    "pixels, so a block of local attention is the whole map, and the 7 x 7 pixels of SASA are "
    f"most of it. The best rate of each by the loss on the validation split; then 5 to {_MOST} "
    f"seeds, tested on 1,600 images, paired by seed, with intervals for {_TESTS} tests "
    "(Bonferroni). SE, AACN and SASA are published as better than a ResNet at equal cost or "
    f"less; here, no worse means that the interval lies above -{_MARGIN:.0%}. The claims have "
    "verdicts only if the ResNet is from 60 to 85 % right.",
    minutes=26,
    run=_run,
)
