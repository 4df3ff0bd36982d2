"""The numbers of the paper: against the printed tables and against each other."""

import statistics

import pytest

import vit_tf
from pipelines.evaluation.benchmarks.paper_results import (
    comparison,
    merged,
    nearest_values,
    paper_value,
    paper_values,
    pretraining_of,
)
from pipelines.evaluation.vtab import GROUPS, vtab_score
from tests.pipelines.published import DATA, PUBLISHED

_COLUMNS = {
    "ViT-H/14 JFT": ("ViT-H/14", "JFT-300M"),
    "ViT-L/16 JFT": ("ViT-L/16", "JFT-300M"),
    "ViT-L/16 I21k": ("ViT-L/16", "ImageNet-21k"),
    "BiT-L R152x4": ("BiT-R152x4", "JFT-300M"),
}
_VTAB = [("ViT-H/14", "JFT-300M"), ("ViT-L/16", "JFT-300M"), ("ViT-L/16", "ImageNet-21k")]


@pytest.mark.parametrize(
    "table, model, data, pretraining, percent, deviation",
    [
        ("2", "ViT-L/16", "imagenet", "ImageNet-21k", 85.30, 0.02),
        ("2", "BiT-R152x4", "vtab", "JFT-300M", 76.29, 1.70),
        ("5", "ViT-B/16", "cifar100", "ImageNet-21k", 91.67, None),
        ("5", "ViT-L/32", "flowers", "ImageNet", 86.36, None),
        ("6", "BiT-R200x3", "pets", "JFT-300M", 96.32, None),
        ("6", "R50+ViT-L/16", "imagenet", "JFT-300M", 86.60, None),  # 7 epochs, not 14.
        ("9", "ViT-L/16", "vtab/dsprites_orientation", "ImageNet-21k", 64.9, None),
        ("D.9", "ViT-H/14", "objectnet_top5", "JFT-300M", 82.1, None),
    ],
)
def test_numbers_are_those_of_the_tables(table, model, data, pretraining, percent, deviation):
    value = paper_value(table, model, data, pretraining)
    assert (value.percent, value.deviation) == (percent, deviation)
    assert value in paper_values(data) and value in paper_values(data, model)


def _of_table(table):
    return [
        x for data in dict.fromkeys(DATA.values()) for x in paper_values(data) if x.table == table
    ]


def test_tables_2_5_and_6_are_complete():
    """Against the copies of the tables that the tests of recipes read."""
    expected = {
        (*_COLUMNS[column], DATA[row]): tuple(cell)
        for row, cells in PUBLISHED["table_2"]["rows"].items()
        for column, cell in zip(PUBLISHED["table_2"]["columns"], cells, strict=True)
        if column in _COLUMNS and row in DATA
    }
    found = _of_table("2")
    assert {(x.model, x.pretraining, x.data): (x.percent, x.deviation) for x in found} == expected
    assert len(found) == len(expected) == 28
    expected = {
        (model, pretraining, DATA[row]): percent
        for pretraining, rows in PUBLISHED["table_5"]["rows"].items()
        for row, cells in rows.items()
        for model, percent in zip(PUBLISHED["table_5"]["columns"], cells, strict=True)
        if percent is not None
    }
    found = _of_table("5")
    assert {(x.model, x.pretraining, x.data): x.percent for x in found} == expected
    assert len(found) == len(expected) == 84
    names = {"ResNet": "BiT-R", "R50x1+": "R50+"}
    expected = []
    for name, epochs, *cells, _ in PUBLISHED["table_6"]["rows"]:
        for old, new in names.items():
            name = name.replace(old, new)
        for column, percent in zip(PUBLISHED["table_6"]["columns"][2:], cells, strict=False):
            if not name.startswith("ViT"):
                expected.append((name, DATA[column], percent, f"{epochs} epochs of pre-training"))
    found = [(x.model, x.data, x.percent, x.note) for x in _of_table("6")]
    assert sorted(found) == sorted(expected) and len(found) == 72


def test_a_number_that_a_table_does_not_have():
    assert paper_value("5", "ViT-H/14", "cifar10", "ImageNet") is None
    assert paper_values("cifar10", "ViT-Ti/16") == ()


@pytest.mark.parametrize("model, pretraining", _VTAB)
def test_the_tasks_of_table_9_give_its_means_and_those_of_table_2(model, pretraining):
    tasks = [name for group in GROUPS.values() for name in group]
    score = {x: paper_value("9", model, f"vtab/{x}", pretraining).percent for x in tasks}
    mean = vtab_score(score)["mean"]
    assert mean == pytest.approx(statistics.fmean(score.values()))
    # The tasks are printed with one digit.
    assert paper_value("9", model, "vtab", pretraining).percent == pytest.approx(mean, abs=0.05)
    assert paper_value("2", model, "vtab", pretraining).percent == pytest.approx(mean, abs=0.015)


def test_every_model_can_be_created():
    models = {x.model for data in ("imagenet", "cifar10", "vtab") for x in paper_values(data)}
    assert len(models) == 16 and models <= set(vit_tf.list_models())


def test_weights_of_the_paper():
    assert pretraining_of("imagenet21k/ViT-B_16") == "ImageNet-21k"
    assert pretraining_of("imagenet21k+imagenet2012/ViT-B_16") is None
    assert pretraining_of("imagenet21k+imagenet2012/ViT-B_16", fine_tuned=True) == "ImageNet-21k"
    for other in (None, "runs/mine", "bit_models/BiT-M-R50x1", "sam/ViT-B_16"):
        assert pretraining_of(other) is None


def test_comparison_names_what_differs():
    every, weights = paper_values("cifar10", "ViT-B/16"), "imagenet21k/ViT-B_16"
    values = nearest_values(every, weights)
    assert comparison(values, model="ViT-B/16", weights=weights) == [
        "paper: 98.95 % (ViT-B/16 from ImageNet-21k; table 5)",
        "differs from the paper: nothing that is known here",
    ]
    steps = "train.steps: 10000 -> 5"
    lines = comparison(values, model="ViT-S/16", weights="x.npz", differences=[steps])
    assert lines[-1] == f"differs from the paper: the model, ViT-S/16; the weights, x.npz; {steps}"
    assert comparison((), model="ViT-S/16", weights=None) == [
        "paper: no number for ViT-S/16 on these data"
    ]
    value = paper_value("2", "ViT-L/16", "imagenet", "ImageNet-21k")
    expected = "85.30 +- 0.02 % (ViT-L/16 from ImageNet-21k, 512 x 512 pixels, averaged weights; "
    assert str(value) == expected + "table 2)"


def test_values_of_other_weights_are_left_out():
    """All are shown where the paper has none of these weights."""
    every = paper_values("cifar10", "ViT-B/16")
    assert [x.pretraining for x in every] == ["ImageNet", "ImageNet-21k", "JFT-300M"]
    assert nearest_values(every, "imagenet21k/ViT-B_16") == every[1:2]
    assert nearest_values(every, "imagenet21k+imagenet2012/ViT-B_16") == every
    assert nearest_values(every, "imagenet21k+imagenet2012/ViT-B_16", True) == every[1:2]
    assert nearest_values(every, "x.npz") == nearest_values(every, None) == every
    assert nearest_values((), "x.npz") == ()


def test_differences_name_what_they_concern():
    found = merged({"a": ["x", "y"], "b": ["x", "y"], "c": ["x"], "d": ["z", "x", "y"], "e": ["x"]})
    assert found == ["x", "y (all but c, e)", "z (d)"]
    assert merged({"a": ["x"], "b": []}) == ["x (a)"] and merged({None: ["x"]}) == ["x"]
    assert merged({}) == []
