"""The paper's costs of pre-training beside those of the formula (docs/paper.md L.3 and L.4).

Nothing is fitted.
"""

from typing import NamedTuple

from pipelines.config.recipes.rows import IMAGENET_21K, JFT
from pipelines.research.planning.chips import chip_table
from pipelines.research.planning.planning import DAY
from vit_tf import cost


class TrainedModel(NamedTuple):
    """A pre-trained model of the paper.

    `cost` is what the paper states: exaFLOPs in table 6, core-days of TPU v3 in table 2.
    """

    model: str
    data: str
    images: int
    epochs: int
    cost: int


def _jft(model, epochs, stated):
    return TrainedModel(model, "JFT-300M", JFT, epochs, stated)


TABLE_6 = (
    _jft("ViT-B/32", 7, 55),
    _jft("ViT-B/16", 7, 224),
    _jft("ViT-L/32", 7, 196),
    _jft("ViT-L/16", 7, 783),
    _jft("ViT-L/16", 14, 1567),
    _jft("ViT-H/14", 14, 4262),
    _jft("BiT-R50x1", 7, 50),
    _jft("BiT-R50x2", 7, 199),
    _jft("BiT-R101x1", 7, 96),
    _jft("BiT-R152x1", 7, 141),
    _jft("BiT-R152x2", 7, 563),
    _jft("BiT-R152x2", 14, 1126),
    _jft("BiT-R200x3", 14, 3306),
    _jft("R50+ViT-B/32", 7, 106),
    _jft("R50+ViT-B/16", 7, 274),
    _jft("R50+ViT-L/32", 7, 246),
    _jft("R50+ViT-L/16", 7, 859),
    _jft("R50+ViT-L/16", 14, 1668),
)
# Table 2 does not state the epochs; these are those of the rows with its results in tables 5 and 6.
TABLE_2 = (
    _jft("ViT-H/14", 14, 2500),
    _jft("ViT-L/16", 14, 680),
    TrainedModel("ViT-L/16", "ImageNet-21k", IMAGENET_21K, 90, 230),
)


def exaflops(row: TrainedModel) -> float:
    """The formula for a model at 224 x 224 with 1000 classes, without pre-logits."""
    return cost.exaflops(row.model, row.epochs, row.images)


def utilization(row: TrainedModel) -> float:
    """The part of the peak of TPU v3 with which a row of `TABLE_2` took its core-days."""
    peak = chip_table()["v3"].peak("mixed_bfloat16")
    return 1e18 * exaflops(row) / (row.cost * DAY * peak)


def paper_costs() -> dict[str, list[dict]]:
    """Both tables: "table_6" with the formula's exaFLOPs, "table_2" with the utilization."""
    return {
        "table_6": [
            row._asdict() | {"formula": exaflops(row), "ratio": row.cost / exaflops(row)}
            for row in TABLE_6
        ],
        "table_2": [
            row._asdict() | {"exaflops": exaflops(row), "utilization": utilization(row)}
            for row in TABLE_2
        ],
    }
