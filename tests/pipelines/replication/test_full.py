"""Full scale: the paper's numbers, the commands that lead to each, and a small table that runs."""

import itertools
import json
import os

import pytest

from pipelines.cluster.paper_costs import TABLE_2, TABLE_6
from pipelines.errors import RunError, UserError
from pipelines.replication import catalog
from pipelines.replication.full import parts, plans, results
from pipelines.replication.full.commands import Command, on_imagenet, pretrained, suite
from pipelines.replication.full.parts import FULL, Grid
from pipelines.replication.lab import Expected, Lab, Listing
from tests.conftest import GOLDEN

PUBLISHED = json.loads((GOLDEN / "recipes.json").read_text())
TASKS = {
    "imagenet": "ImageNet",
    "real": "ImageNet ReaL",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "pets": "Oxford-IIIT Pets",
    "flowers": "Oxford Flowers-102",
    "vtab": "VTAB (19 tasks)",
}
FOUND = {name: {grid.title: grid for grid in FULL[name]()} for name in FULL}


def test_tables_2_and_5_are_the_paper_s():
    (grid,) = FOUND["table2"].values()
    for task, values in grid.paper.items():
        assert values == [row[0] for row in PUBLISHED["table_2"]["rows"][TASKS[task]][:3]]
    assert list(grid.columns) == PUBLISHED["table_2"]["columns"][:3]
    for data, rows in PUBLISHED["table_5"]["rows"].items():
        grid = FOUND["table5"][f"accuracy after pre-training on {data}"]
        order = [PUBLISHED["table_5"]["columns"].index(model) for model in grid.columns]
        assert set(grid.rows) == set(grid.paper) == set(TASKS) - {"vtab"}
        for task, values in grid.paper.items():
            assert values == [rows[TASKS[task]][place] for place in order]


def test_tables_6_7_and_8_are_the_paper_s():
    (grid,) = FOUND["table6"].values()
    published = {tuple(row[2:8]) for row in PUBLISHED["table_6"]["rows"]}
    assert {tuple(row) for row in grid.paper.values()} == published and len(published) == 18
    for row in PUBLISHED["table_6"]["rows"]:  # Each row is that of its model and epochs.
        name = row[0].replace("ResNet", "BiT-R").replace("R50x1+", "R50+")
        (own,) = [x for x, values in grid.paper.items() if values == row[2:8]]
        command, _ = grid.rows[own][0]
        pretraining = command.start.experiment
        assert own.partition(",")[0] == pretraining.model.name == name
        assert round(pretraining.train.steps * 4096 / 303e6) == row[1]
    (grid,) = FOUND["table7"].values()
    rows = PUBLISHED["table_7"]["rows"]
    names = TASKS | {"cifar10": "CIFAR10", "cifar100": "CIFAR100"}
    assert grid.paper == {task: rows[names[task]] for task in grid.rows}
    (grid,) = FOUND["table8"].values()
    for kind, values in PUBLISHED["table_8"]["rows"].items():
        own = [value and value / 100 for value in grid.paper[kind]]
        assert own == pytest.approx(values)
        for place, value in zip(grid.rows[kind], values, strict=True):
            assert (place is None) == (value is None)


@pytest.mark.parametrize("name", FULL)
def test_commands_come_after_what_they_need(name):
    every = plans.commands(name)
    assert len({command.folder for command in every}) == len(every)
    for place, command in enumerate(every):
        assert all(need in every[:place] for need in command.needs)
    listing = Listing()
    study = catalog.choose(name, "full")[0]
    study.run(listing)
    assert set(listing.units) == {command.folder for command in every}
    for grid in FULL[name]():
        assert all(len(row) == len(grid.columns) for row in grid.rows.values())


def test_costs_are_those_of_the_planner():
    """Core-days of pre-training beside the paper's, with the planner's stated utilization."""
    for row in TABLE_2:
        recipe = {"ViT-H/14": "jft_vit_h14"}.get(row.model, "jft_vit_l16_14epochs")
        if row.data == "ImageNet-21k":
            recipe = "imagenet21k_vit_l16"
        found = plans.cost(pretrained(recipe), "v3", 128)
        assert 0.6 < found.core_days / row.cost < 1.5
        assert found.trainings == 1 and found.memory < 16e9
    tuned = plans.cost(suite("cifar10", pretrained("jft_vit_b32")), "v3", 128)
    assert tuned.trainings == 4 + 3 and tuned.experiment.train.steps == 10_000
    tuned = plans.cost(suite("pets", pretrained("jft_r50x1")), "v3", 128)
    assert tuned.trainings == 5 + 3  # BiT-HyperRule is one more setting.
    tuned = plans.cost(suite("vtab", pretrained("jft_vit_b32")), "v3", 128)
    assert tuned.trainings == 19 * 3
    large = plans.cost(on_imagenet(pretrained("jft_vit_h14")), "v3", 128)
    assert large.trainings == 7 and "model.recompute=blocks" in large.changed


def test_the_plan_of_a_table_is_complete():
    text = "\n".join(plans.describe("table7"))
    for command in plans.commands("table7"):
        assert command.describe() in text and f"\n{command.name}  " in text
    assert "together at most" in text and "data that are not here: " in text
    assert "tfrecord:jft300m" in text and "imagenet2012" in text
    assert all(f"{row.cost:,} exaFLOPs" in "\n".join(plans._of_paper("table6")) for row in TABLE_6)
    with pytest.raises(UserError, match="does not fit on --chips=1 of"):
        plans.describe("table2", "v3", 1)


def test_names_at_full_scale():
    assert [study.name for study in catalog.choose("all", "full")] == [*FULL]
    for name, text in (
        (None, "Name one with --run"),
        ("E1", "Name one with --run"),
        ("figure6", "figure6 is not run: pipelines.inspect"),
    ):
        with pytest.raises(UserError, match=text):
            catalog.choose(name, "full")
    for name, part in catalog.PARTS.items():
        assert (name in FULL) == (part.instead == ""), name


SHORT = ("train.steps=2", "schedule.warmup_steps=0", "train.eval_every=0", "model.layers=1")
FLAGS = ("--experiment", "digits", *itertools.chain(*(("--set", x) for x in SHORT)))


@pytest.mark.process
def test_a_small_table_runs_and_is_read(tmp_path, monkeypatch):
    """Pre-training, a sweep from it and an evaluation of the sweep, each in its own process."""
    begin = Command(name="pretrain/small", module="pretrain", flags=FLAGS, recipe="digits")
    tuned = Command(
        name="sweep/small",
        module="sweep",
        flags=(*FLAGS, "--grid", "optimizer.learning_rate=0.001,0.002", "--seeds", "1"),
        start=begin,
        recipe="digits",
    )
    tested = Command(name="evaluate/small", module="evaluate", flags=(), start=tuned)
    grid = Grid(
        title="small",
        columns=["a", "b", "c"],
        rows={"x": [(begin, "eval_accuracy"), (tuned, "mean"), (tested, "accuracy")]},
        paper={"x": [10.0, 20.0, None]},
    )
    monkeypatch.setitem(parts.FULL, "small", lambda: [grid])
    lab = Lab(tmp_path, ["--strategy=one_device"], {"small": Expected(3, None)})
    lab.begin("small")
    findings = results.run(lab, "small")
    pretraining, sweep, evaluation = (cell.mean for cell in findings.tables[0].rows["x"])
    with open(os.path.join(tmp_path, begin.folder, "metrics.jsonl")) as file:
        lines = [json.loads(line) for line in file]
    assert [x["eval_accuracy"] for x in lines if "eval_accuracy" in x] == [pretraining]
    assert sweep == evaluation  # The test images of one final run.
    same = int((pretraining - sweep) * (10 - 20) > 0)
    assert findings.claims[0].numbers.startswith(f"{same} of 1 pairs")
    broken = Command(name="pretrain/broken", module="pretrain", flags=("--set", "train.steps=-1"))
    with pytest.raises(RunError, match="pretrain.* ended with exit code 2"):
        lab.results([broken])
