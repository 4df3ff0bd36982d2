"""E12: one order of the patches for all images (section 3.1)."""

from pipelines.config import override
from pipelines.research.paper.findings import Claim, Findings, Table, points
from pipelines.research.paper.power import seeds_for
from pipelines.research.paper.study import (
    PLAIN,
    Study,
    accuracies,
    at_rates,
    choose_rates,
    settings,
)
from pipelines.research.paper.toy import digits

_BOTH = ("data.crop_area=(1,1)", "data.flip=false", "train.steps=400", "schedule.warmup_steps=40")
# A square of 2 x 2 pixels is a patch of the ViT. The BiT sees the same pixels, enlarged.
_MODELS = {
    "ViT": settings(*PLAIN, *_BOTH, "model.image_size=8", "model.patch_size=2"),
    "BiT": settings(
        *_BOTH,
        "model.name=BiT-R50x1",
        "model.stage_depths=(1,1)",
        "model.width=0.5",
        "model.image_size=32",
        "optimizer.weight_decay=0.05",
    ),
}
_PLAIN, _PATCHES, _PIXELS = "as they are", "patches", "pixels"
_DATA = {_PLAIN: "digits", _PATCHES: "digits/shuffled-2", _PIXELS: "digits/shuffled-1"}
_RATES = (1e-3, 2e-3, 4e-3)
_LEAST, _MOST, _EQUAL = 8, 12, 0.02


def _arm(model, data):
    return f"{model}, {data}"


ARMS = {
    _arm(model, data): override(base, [f"data.name={name}"])
    for model, base in _MODELS.items()
    for data, name in _DATA.items()
}


def _run(lab):
    choice = choose_rates(lab, "permutations", ARMS, _RATES, digits.CHOOSING)
    pilots = [choice.pilots[_arm("ViT", data)] for data in (_PLAIN, _PATCHES)]
    power = seeds_for(pilots, _EQUAL, least=_LEAST, most=_MOST, equality=True)
    units = at_rates("permutations", ARMS, choice.chosen, digits.TESTING, range(power.seeds))
    cells = accuracies(lab, units)
    tables = {
        model: Table(
            title=f"test accuracy of the {model}",
            columns=["accuracy"],
            rows={data: [cells[_arm(model, data)]] for data in _DATA},
            reference=_PLAIN,
        )
        for model in _MODELS
    }
    return Findings(list(tables.values()), _claims(tables), [power.text], choices=[choice])


def _claims(tables):
    moved = {model: table.difference(_PATCHES, 0) for model, table in tables.items()}
    claims = [
        Claim(
            f"another order of the patches changes the ViT by less than {_EQUAL:.0%}",
            moved["ViT"].is_within(_EQUAL),
            points(moved["ViT"]),
        ),
        Claim("it costs the BiT accuracy", moved["BiT"].is_below, points(moved["BiT"])),
    ]
    for model, table in tables.items():
        found = table.difference(_PIXELS, 0)
        claims.append(
            Claim(
                f"another order of the pixels costs the {model} accuracy",
                found.is_below,
                points(found),
            )
        )
    return claims


PERMUTATIONS = Study(
    name="E12",
    title="one order of the patches for all images",
    paper=("section3.1",),
    question="Does a ViT know before it learns which patches are neighbors, as a ResNet does?",
    setup="Digits of 8 x 8 pixels as they are; with their squares of 2 x 2 pixels, the patches "
    "of the ViT, in another order that is the same for all images of training and test; and with "
    "their pixels in another order. A ViT whose positions are learned, and a BiT that sees the "
    "images enlarged to 32 x 32; 400 steps of 64 on half of the training images. The best rate "
    "of each by the loss on the validation split; then "
    f"{_LEAST} to {_MOST} seeds, tested on 949 others. The positions of the ViT are drawn alike "
    "for all patches, so it should not matter where they lie; filters and pooling of the BiT join "
    "neighbors. Differences are paired by seed.",
    minutes=26,
    run=_run,
    default=True,
)
