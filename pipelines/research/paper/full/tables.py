"""The paper's tables at full scale, and the figures with numbers of the same commands."""

import dataclasses
import functools
import json
from importlib import resources

from pipelines.data.protocols.vtab_tasks import TASKS
from pipelines.evaluation.benchmarks.paper_results import paper_value
from pipelines.evaluation.vtab import GROUPS
from pipelines.research.paper.full.commands import pretrained, suite
from pipelines.research.paper.full.grids import FIVE_SHOTS, Expectation, Grid, after_tuning
from pipelines.research.planning.paper_costs import TABLE_6, exaflops

# Row of table 6 -> recipe.
JFT = {
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


@functools.cache
def _printed(table):
    text = (
        resources.files("pipelines.research.paper.full")
        .joinpath("paper_tables.json")
        .read_text("utf-8")
    )
    return json.loads(text)[table]


def percent(table, model, data, pretraining) -> float | None:
    """The paper's accuracy of a model on a data set; None if a table has none."""
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
            task: [after_tuning(task, pretrained(x), *tuned) for _, _, x, *tuned in models.values()]
            for task in tasks
        },
        paper={
            task: [percent(table, model, task, data) for model, data, *_ in models.values()]
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
        model: [after_tuning(task, pretrained(recipe)) for task in _SIX]
        for model, recipe in JFT.items()
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
                task: [after_tuning(task, pretrained(recipe)) for recipe in recipes]
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
                    value and (pretrained(f"jft_positions_{kind}{end}"), FIVE_SHOTS)
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


TABLES = {
    "table2": _table_2,
    "table5": _table_5,
    "table6": _table_6,
    "table7": _table_7,
    "table8": _table_8,
    "table9": _table_9,
    "figure2": _figure_2,
    "figure5": _figure_5,
}
