"""The numbers of the paper's tables, and what its names of data sets are here."""

import json

from tests.conftest import GOLDEN

PUBLISHED = json.loads((GOLDEN / "recipes.json").read_text())
# Name in a table -> `PaperValue.data`; the tables spell some in several ways.
DATA = {
    "ImageNet": "imagenet",
    "ImageNet ReaL": "real",
    "CIFAR-10": "cifar10",
    "CIFAR10": "cifar10",
    "CIFAR-100": "cifar100",
    "CIFAR100": "cifar100",
    "Oxford-IIIT Pets": "pets",
    "Pets": "pets",
    "Oxford Flowers-102": "flowers",
    "Flowers": "flowers",
    "VTAB (19 tasks)": "vtab",
}


def by_data(rows) -> dict:
    """The rows of a table by `PaperValue.data`, without means and the like."""
    return {DATA[name]: values for name, values in rows.items() if name in DATA}
