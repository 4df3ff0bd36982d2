"""The tables and figures at full scale: which number of which command stands where."""

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import Literal

from pipelines.config.recipes import comparisons
from pipelines.data.protocols.vtab_tasks import TASKS
from pipelines.evaluation.benchmarks.paper_results import paper_value
from pipelines.evaluation.vtab import GROUPS
from pipelines.research.paper.full.commands import Command, on_imagenet, pretrained, real, suite
from pipelines.research.planning.paper_costs import TABLE_6, exaflops

_FIVE_SHOTS = "few_shot_5_accuracy"
_JFT = {
    "ViT-B/32": "jft_vit_b32",
    "ViT-B/16": "jft_vit_b16",
    "ViT-L/32": "jft_vit_l32",
    "ViT-L/16": "jft_vit_l16",
    "ViT-L/16, 14 epochs": "jft_vit_l16_14epochs",
    "ViT-H/14": "jft_vit_h14",
    "BiT-R50x1": "jft_r50x1",
    "BiT-R50x2": "jft_r50x2",
    "BiT-R101x1": "jft_r101x1",
    "BiT-R152x1": "jft_r152x1",
    "BiT-R152x2": "jft_r152x2",
    "BiT-R152x2, 14 epochs": "jft_r152x2_14epochs",
    "BiT-R200x3": "jft_r200x3_14epochs",
    "R50+ViT-B/32": "jft_r50_vit_b32",
    "R50+ViT-B/16": "jft_r50_vit_b16",
    "R50+ViT-L/32": "jft_r50_vit_l32",
    "R50+ViT-L/16": "jft_r50_vit_l16",
    "R50+ViT-L/16, 14 epochs": "jft_r50_vit_l16_14epochs",
}


# What is read from a command: the command, and the name of the number in its result.
Place = tuple[Command, str]


@dataclasses.dataclass(frozen=True)
class Expectation:
    """Something that the paper says of a table: some places are above others.

    Attributes:
        text: the sentence.
        above: `((row, column), (row, column))` pairs: the first is above the second.
    """

    text: str
    above: Sequence[tuple[tuple[str, int], tuple[str, int]]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grid:
    """A table of places.

    Attributes:
        title: what the numbers are.
        columns: names of the columns.
        rows: name -> a place for each column, or None where the paper has no number.
        paper: the paper's numbers in percent by row, or None where it only plots them.
        curve: name of the axis if the columns are numbers of a curve; None: no chart.
        compares: where the paper's order is looked for: between the columns of a row, or between
            the rows of a column.
        costs: exaFLOPs of pre-training of each row, for a chart over them; None: no chart.
        expected: what else the paper says of it.
    """

    title: str
    columns: Sequence[str | int]
    rows: Mapping[str, Sequence[Place | None]]
    paper: Mapping[str, Sequence[float | None]] | None = None
    curve: str | None = None
    compares: Literal["columns", "rows"] = "columns"
    costs: Mapping[str, float] | None = None
    expected: Sequence[Expectation] = ()


def _place(task, start, recipe="finetune_imagenet") -> Place:
    """Where the accuracy of a pre-training on a data set of the tables comes from."""
    if task == "imagenet":
        return on_imagenet(start, recipe), "mean"
    if task == "real":
        return real(on_imagenet(start, recipe)), "accuracy"
    if task == "vtab":
        return suite("vtab", start), "mean"
    if task.startswith("vtab/"):
        return suite("vtab", start), task.removeprefix("vtab/")
    return suite(task, start), task


@functools.cache
def _printed(table):
    text = (
        resources.files("pipelines.research.paper.full")
        .joinpath("paper_tables.json")
        .read_text("utf-8")
    )
    return json.loads(text)[table]


def _percent(table, model, data, pretraining):
    found = paper_value(table, model, data, pretraining)
    return found and found.percent


def _beside_paper(table, title, models, tasks) -> Grid:
    """The accuracies of some models on some tasks beside those of a table of the paper.

    Args:
        table: its number.
        title: of the grid.
        models: name -> model and data as the paper calls them, and the recipes of pre-training and,
            if it is another than usual, of fine-tuning on ImageNet.
        tasks: their names.
    """
    return Grid(
        title=title,
        columns=list(models),
        rows={
            task: [_place(task, pretrained(x), *tuned) for _, _, x, *tuned in models.values()]
            for task in tasks
        },
        paper={
            task: [_percent(table, model, task, data) for model, data, *_ in models.values()]
            for task in tasks
        },
    )


def _table_2():
    # The models of ImageNet have larger images and averaged weights.
    models = {
        "ViT-H/14 JFT": ("ViT-H/14", "JFT-300M", "jft_vit_h14", "finetune_imagenet_h14_518"),
        "ViT-L/16 JFT": ("ViT-L/16", "JFT-300M", "jft_vit_l16_14epochs", _L16),
        "ViT-L/16 I21k": ("ViT-L/16", "ImageNet-21k", "imagenet21k_vit_l16", _L16),
    }
    return [_beside_paper("2", "accuracy after fine-tuning", models, (*_SIX, "vtab"))]


_L16 = "finetune_imagenet_l16_512"
_SIX = ("imagenet", "real", "cifar10", "cifar100", "pets", "flowers")


def _table_5():
    sizes = {"ViT-B/16": "b16", "ViT-B/32": "b32", "ViT-L/16": "l16", "ViT-L/32": "l32"}
    data = {
        "ImageNet": {model: f"imagenet_vit_{x}" for model, x in sizes.items()},
        "ImageNet-21k": {
            model: f"imagenet21k_vit_{x}" for model, x in (sizes | {"ViT-H/14": "h14"}).items()
        },
        "JFT-300M": {model: f"jft_vit_{x}" for model, x in sizes.items()}
        | {"ViT-L/16": "jft_vit_l16_14epochs", "ViT-H/14": "jft_vit_h14"},
    }
    return [
        _beside_paper(
            "5",
            f"accuracy after pre-training on {name}",
            {model: (model, name, recipe) for model, recipe in models.items()},
            _SIX,
        )
        for name, models in data.items()
    ]


def _table_6():
    rows = {
        model: [_place(task, pretrained(recipe)) for task in _SIX] for model, recipe in _JFT.items()
    }
    return [
        Grid(
            title="accuracy after pre-training on JFT-300M",
            columns=list(_SIX),
            rows=rows,
            paper=_printed("table6")["rows"],
            compares="rows",
        )
    ]


def _figure_5():
    (grid,) = _table_6()
    column = _SIX.index("imagenet")
    pairs = {
        "ViTs are above ResNets that cost more": [
            ("ViT-L/32", "BiT-R50x2"),
            ("ViT-L/16", "BiT-R152x2, 14 epochs"),
        ],
        "a small hybrid is above a ViT of twice the cost": [("R50+ViT-B/32", "ViT-B/16")],
    }
    expected = [
        Expectation(f"{text}, on ImageNet", [((a, column), (b, column)) for a, b in each])
        for text, each in pairs.items()
    ]
    costs = dict(zip(grid.rows, map(exaflops, TABLE_6), strict=True))
    return [dataclasses.replace(grid, costs=costs, expected=expected)]


def _table_7():
    recipes = ("jft_r50x1", "jft_r50x1_sgd", "jft_r152x2", "jft_r152x2_sgd")
    printed = _printed("table7")
    return [
        Grid(
            title="accuracy by the optimizer of pre-training",
            columns=printed["columns"],
            rows={
                task: [_place(task, pretrained(recipe)) for recipe in recipes]
                for task in printed["rows"]
            },
            paper=printed["rows"],
        )
    ]


def _table_8():
    printed, ends = _printed("table8"), ("", "_every_layer", "_shared")
    return [
        Grid(
            title="ImageNet by 5 shots",
            columns=printed["columns"],
            rows={
                kind: [
                    value and (pretrained(f"jft_positions_{kind}{end}"), _FIVE_SHOTS)
                    for end, value in zip(ends, values, strict=True)
                ]
                for kind, values in printed["rows"].items()
            },
            paper=printed["rows"],
            compares="rows",
            expected=[
                Expectation(
                    "without positions it is worst",
                    [((kind, 0), ("none", 0)) for kind in printed["rows"] if kind != "none"],
                )
            ],
        )
    ]


_OF_VTAB = {
    "ViT-H/14 (JFT)": ("ViT-H/14", "JFT-300M", "jft_vit_h14"),
    "ViT-L/16 (JFT)": ("ViT-L/16", "JFT-300M", "jft_vit_l16_14epochs"),
    "ViT-L/16 (I21k)": ("ViT-L/16", "ImageNet-21k", "imagenet21k_vit_l16"),
}


def _figure_2():
    """The groups of VTAB's tasks; the figure prints no numbers."""
    rows = {
        group: [(suite("vtab", pretrained(x)), group) for _, _, x in _OF_VTAB.values()]
        for group in (*GROUPS, "mean")
    }
    return [
        Grid(
            title="accuracy on VTAB by group",
            columns=list(_OF_VTAB),
            rows=rows,
            expected=[
                Expectation(
                    "ViT-H/14 is above ViT-L/16 on natural and structured tasks",
                    [((group, 0), (group, 1)) for group in ("natural", "structured")],
                )
            ],
        )
    ]


def _table_9():
    return [_beside_paper("9", "accuracy on VTAB", _OF_VTAB, [f"vtab/{task}" for task in TASKS])]


def _figure_3():
    """Fine-tuned on ImageNet, by the data of pre-training; the paper plots BiT as an area."""
    data = ("imagenet", "imagenet21k", "jft")
    sizes = {"ViT-B/32": "b32", "ViT-B/16": "b16", "ViT-L/32": "l32", "ViT-L/16": "l16"}
    rows: dict[str, list[Place | None]] = {
        model: [_place("imagenet", pretrained(f"{x}_vit_{end}")) for x in data]
        for model, end in sizes.items()
    }
    rows["ViT-H/14"] = [
        None,
        *(_place("imagenet", pretrained(f"{x}_vit_h14")) for x in data[1:]),
    ]
    return [
        Grid(
            title="ImageNet after fine-tuning",
            columns=list(data),
            rows=rows,
            expected=[
                Expectation(
                    "with ImageNet alone, large models are below base models",
                    [((f"ViT-B/{x}", 0), (f"ViT-L/{x}", 0)) for x in (32, 16)],
                ),
                Expectation(
                    "with JFT-300M, large models are above base models",
                    [((f"ViT-L/{x}", 2), (f"ViT-B/{x}", 2)) for x in (32, 16)],
                ),
            ],
        )
    ]


def _figure_4():
    models = {"ViT-b/32": "vit_s32", "ViT-B/32": "vit_b32", "ViT-L/32": "vit_l32"}
    models |= {"ViT-L/16": "vit_l16", "BiT-R50x1": "r50x1", "BiT-R152x2": "r152x2"}
    sizes = (9, 30, 90, 303)
    return [
        Grid(
            title="ImageNet by 5 shots",
            columns=list(sizes),
            rows={
                model: [(pretrained(f"jft{size}m_{name}"), _FIVE_SHOTS) for size in sizes]
                for model, name in models.items()
            },
            curve="million images of JFT-300M",
            expected=[
                Expectation(
                    "with 9 million images, ViT-B/32 is below BiT-R50x1",
                    [(("BiT-R50x1", 0), ("ViT-B/32", 0))],
                ),
                Expectation(
                    "from 90 million on, it is above",
                    [(("ViT-B/32", place), ("BiT-R50x1", place)) for place in (2, 3)],
                ),
            ],
        )
    ]


def _comparison(prefix, title, above, others=()):
    """A table with a row for each recipe of a comparison, and some more.

    Args:
        prefix: begin of the names of the recipes.
        title: of the table.
        above: the paper's sentence, and the pairs of rows of which the first is above the second.
        others: more rows: name -> recipe.
    """

    def grids():
        recipes = {x.removeprefix(prefix): x for x in comparisons.RECIPES if x.startswith(prefix)}
        recipes |= dict(others)
        text, pairs = above
        return [
            Grid(
                title=title,
                columns=["ImageNet by 5 shots"],
                rows={name: [(pretrained(x), _FIVE_SHOTS)] for name, x in recipes.items()},
                expected=[Expectation(text, [((a, 0), (b, 0)) for a, b in pairs])],
            )
        ]

    return grids


# Part of the paper -> its tables.
FULL: dict[str, Callable[[], list[Grid]]] = {
    "table2": _table_2,
    "table5": _table_5,
    "table6": _table_6,
    "table7": _table_7,
    "table8": _table_8,
    "table9": _table_9,
    "figure2": _figure_2,
    "figure3": _figure_3,
    "figure4": _figure_4,
    "figure5": _figure_5,
    "figure8": _comparison(
        "jft_shape_",
        "shapes of a ViT",
        (
            "more layers and smaller patches help",
            [("layers_64", "base"), ("base", "layers_2"), ("patch_16", "base")],
        ),
    ),
    "figure9": _comparison(
        "jft_classifier_",
        "class token or mean",
        ("the mean needs a lower rate than the class token", [("gap", "gap_8e4")]),
    ),
    # The ViTs have the recipes with few shots during training.
    "figure13": _comparison(
        "jft_axial_",
        "axial models",
        ("axial ViTs are above ViTs", [("vit_b32", "ViT-B/32"), ("vit_b16", "ViT-B/16")]),
        {
            "ViT-B/32": "jft303m_vit_b32",
            "ViT-B/16": "jft_positions_1d",
            "BiT-R50x1": "jft303m_r50x1",
        },
    ),
}
