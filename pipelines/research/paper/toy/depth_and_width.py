"""E6: depth and width (the paper's figure 8)."""

from pipelines.config import override
from pipelines.research.paper.findings import (
    Chart,
    Claim,
    Findings,
    Point,
    Table,
    difference,
    differences,
    paired,
    points,
    with_headroom,
)
from pipelines.research.paper.power import seeds_for
from pipelines.research.paper.study import Study, accuracies, at_rates, choose_rates
from pipelines.research.paper.toy.counts import CHOOSING, COUNTS, TESTING
from vit_tf import cost

_CHANCE = 1 / 5
# Most seeds, and the difference that they should see.
_MOST, _EFFECT = 8, 0.03
_RATES = (1e-3, 2e-3, 4e-3)
_BASE = override(COUNTS, ["train.steps=800", "schedule.warmup_steps=80"])
_LAYERS, _WIDTHS = (1, 2, 4), (64, 128)


def layers_of(layers):
    """The name of a model with some layers, of width 64."""
    return f"{layers} layers" if layers > 1 else "1 layer"


def width_of(width):
    """The name of a model with one layer of some width."""
    return layers_of(1) if width == 64 else f"1 layer of width {width}"


def _model(layers, width=64):
    fields = {"layers": layers, "hidden_size": width, "mlp_size": 2 * width}
    return override(_BASE, [f"model.{name}={value}" for name, value in fields.items()])


ARMS = {layers_of(layers): _model(layers) for layers in _LAYERS} | {
    width_of(width): _model(1, width) for width in _WIDTHS
}


def _run(lab):
    choice = choose_rates(lab, "depth_and_width", ARMS, _RATES, CHOOSING)
    power = seeds_for(list(choice.pilots.values()), _EFFECT, most=_MOST)
    cells = accuracies(
        lab, at_rates("depth_and_width", ARMS, choice.chosen, TESTING, range(power.seeds))
    )
    title, depth, width = "test accuracy", "layers of width 64", "width of 1 layer"
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
        lines={"chance": _CHANCE},
    )
    base = layers_of(4)
    claims = with_headroom({base: cells[base]}, _claims(cells))
    return Findings(tables, claims, [power.text], [chart], [choice])


def _row(cells, name, numbers):
    return {"accuracy": [cells[name(x)] for x in numbers]}


def _point(cells, arm):
    return Point.of(cost.macs(ARMS[arm].model.config(5)) / 1e6, cells[arm])


def _claims(cells):
    def gain(more, less):
        return difference(cells[layers_of(more)], cells[layers_of(less)])

    def gains(more, less):
        return differences(*(cells[layers_of(x)].values for x in (more, less)))

    first, last = gain(2, 1), gain(4, 2)
    flattens = paired(gains(2, 1), gains(4, 2))
    equal = difference(cells[layers_of(4)], cells[width_of(128)])
    return [
        Claim("more layers are better", gain(4, 1).is_above, f"4 against 1: {points(gain(4, 1))}"),
        Claim(
            "the gain flattens",
            flattens.is_above,
            f"2 against 1: {points(first)}; 4 against 2: {points(last)}; they differ by "
            f"{points(flattens)}",
        ),
        Claim(
            "at equal cost, 4 layers of width 64 are above 1 layer of width 128",
            equal.is_above,
            points(equal),
        ),
    ]


DEPTH_AND_WIDTH = Study(
    name="E6",
    title="depth and width",
    paper=("figure8",),
    question="Does a ViT gain more from depth or from width?",
    setup="The number of drawn shapes, 1 to 5, in images of 32 x 32 pixels that the models see at "
    "16 x 16, with patches of 4: 1, 2 and 4 layers of width 64, and 1 layer of width 128, which "
    "costs as much as 4 of 64, within 1 %. 800 steps of 64 on 16,000 images. The best rate of "
    "each by the loss on the validation split; then 5 to 8 seeds, tested on 1,600 images, paired "
    "by seed. The claims have verdicts only if the model of 4 layers is from 60 to 85 % right.",
    minutes=29,
    run=_run,
)
