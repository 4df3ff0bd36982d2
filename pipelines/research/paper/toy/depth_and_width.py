"""E6: depth and width (the paper's figure 8)."""

from pipelines.config import override
from pipelines.research.paper.findings import (
    Chart,
    Claim,
    Findings,
    Point,
    Table,
    difference,
    paired,
    points,
)
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
from vit_tf import cost

# Most seeds, and the difference that they should see.
_MOST, _EFFECT = 8, 0.03
_RATES = (1e-3, 2e-3, 4e-3)
_BASE = settings(*PLAIN, "train.steps=400", "schedule.warmup_steps=40", "model.layers=2")
_LAYERS, _WIDTHS = (1, 2, 4, 8), (32, 64, 128)


def layers_of(layers):
    """The name of a model with some layers, of width 64."""
    return f"{layers} layers"


def width_of(width):
    """The name of a model with two layers of some width."""
    return layers_of(2) if width == 64 else f"width {width}"


ARMS = {layers_of(layers): override(_BASE, [f"model.layers={layers}"]) for layers in _LAYERS} | {
    width_of(width): override(_BASE, [f"model.hidden_size={width}", f"model.mlp_size={2 * width}"])
    for width in _WIDTHS
}


def _run(lab):
    choice = choose_rates(lab, "depth_and_width", ARMS, _RATES, digits.CHOOSING)
    power = seeds_for(list(choice.pilots.values()), _EFFECT, most=_MOST)
    cells = accuracies(
        lab, at_rates("depth_and_width", ARMS, choice.chosen, digits.TESTING, range(power.seeds))
    )
    title, depth, width = "test accuracy", "layers of width 64", "width of 2 layers"
    tables = [
        Table(title=f"{title}, {depth}", columns=_LAYERS, rows=_row(cells, layers_of, _LAYERS)),
        Table(title=f"{title}, {width}", columns=_WIDTHS, rows=_row(cells, width_of, _WIDTHS)),
    ]
    chart = Chart(
        title=title,
        x_label="million multiply-adds for an image",
        curves={
            depth: [_point(cells, layers_of(x)) for x in _LAYERS],
            width: [_point(cells, width_of(x)) for x in _WIDTHS],
        },
        log=True,
    )
    return Findings(tables, _claims(cells), [power.text], [chart], [choice])


def _row(cells, name, numbers):
    return {"accuracy": [cells[name(x)] for x in numbers]}


def _point(cells, arm):
    return Point.of(cost.macs(ARMS[arm].model.config(10)) / 1e6, cells[arm])


def _claims(cells):
    def gain(more, less):
        return difference(cells[layers_of(more)], cells[layers_of(less)])

    def gains(more, less):
        values = (cells[layers_of(x)].values for x in (more, less))
        return [a - b for a, b in zip(*values, strict=True)]

    first, last = gain(2, 1), gain(8, 4)
    flattens = paired(*(gains(*pair) for pair in ((2, 1), (8, 4))))
    equal = difference(cells[layers_of(8)], cells[width_of(128)])
    return [
        Claim("more layers are better", gain(4, 1).is_above, f"4 against 1: {points(gain(4, 1))}"),
        Claim(
            "the gain flattens",
            flattens.is_above,
            f"2 against 1: {points(first)}; 8 against 4: {points(last)}; they differ by "
            f"{points(flattens)}",
        ),
        Claim(
            "at equal cost, 8 layers of width 64 are above 2 layers of width 128",
            equal.is_above,
            points(equal),
        ),
    ]


DEPTH_AND_WIDTH = Study(
    name="E6",
    title="depth and width",
    paper=("figure8",),
    question="Does a ViT gain more from depth or from width?",
    setup="Digits at 16 x 16 pixels, patches of 4, the mean of the patches, half of the training "
    "images, 400 steps of 64. 1, 2, 4 and 8 layers of width 64; widths 32, 64 and 128 with 2 "
    "layers, so that 2 layers of 128 cost as much as 8 of 64, within 2 %. The best rate "
    "on the validation split; then 5 to 8 seeds, tested on 949 others, paired by seed.",
    minutes=16,
    run=_run,
)
