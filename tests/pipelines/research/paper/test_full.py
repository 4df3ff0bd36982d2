"""Full scale: the paper's numbers, the commands that lead to each, and a small table that runs."""

import importlib
import itertools
import json
import math
import os
import re
import shlex

import numpy as np
import pytest

from pipelines.cli import request
from pipelines.config import override, recipes
from pipelines.config.recipes import RECIPES, get_recipe
from pipelines.errors import RunError, UserError
from pipelines.research.lab.lab import Stage
from pipelines.research.paper import catalog, records, report
from pipelines.research.paper.findings import Cell, Reading, Table
from pipelines.research.paper.full import commands, numbers, parts, plans, results
from pipelines.research.paper.full.commands import (
    Command,
    few_shots,
    inspected,
    on_imagenet,
    pretrained,
    real,
    suite,
    timed,
)
from pipelines.research.paper.full.grids import Grid
from pipelines.research.paper.full.parts import FULL
from pipelines.research.paper.session import Listing, StudyLab
from pipelines.research.planning.measuring import MODELS, SIZES, MeasuredBatch
from pipelines.research.planning.paper_costs import TABLE_2, TABLE_6
from pipelines.runs.json_file import read_json
from pipelines.runs.workdir import Workdir
from pipelines.training.prepare import check_step
from tests.pipelines.published import PUBLISHED, by_data

TARGET = plans.Target("v3", 128)
FOUND = {name: {grid.title: grid for grid in FULL[name]()} for name in FULL}


def test_tables_2_and_5_are_the_paper_s():
    (grid,) = FOUND["table2"].values()
    rows = by_data(PUBLISHED["table_2"]["rows"])
    assert grid.paper == {task: [x[0] for x in rows[task][:3]] for task in grid.rows}
    assert list(grid.columns) == PUBLISHED["table_2"]["columns"][:3]
    for data, rows in PUBLISHED["table_5"]["rows"].items():
        grid = FOUND["table5"][f"accuracy after pre-training on {data}"]
        order = [PUBLISHED["table_5"]["columns"].index(model) for model in grid.columns]
        expected = {task: [row[place] for place in order] for task, row in by_data(rows).items()}
        assert grid.paper == expected and grid.rows.keys() == expected.keys()


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
    assert grid.paper == by_data(PUBLISHED["table_7"]["rows"])
    assert grid.rows.keys() == grid.paper.keys()
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


def accepted(line):
    """The flags of a printed line, which its own program takes."""
    python, option, module, *flags = shlex.split(line)
    assert (python, option) == ("python", "-m")
    own = importlib.import_module(module)
    values = request.define_shared(getattr(own, "SHARED_FLAGS", request.SHARED_FLAGS))
    if "experiment" in values:
        request.define_config(values)
    own.define(values)
    assert values([module, *flags]) == [module]  # No flag is unknown, and nothing else is there.
    return own, values


@pytest.mark.parametrize("name", catalog.PARTS)
def test_every_part_prints_commands_that_their_programs_take(command, name):
    """With settings that exist, and that can run on the 256 devices."""
    result = command("paper", "--run", name, "--scale=full", "--dry_run")
    assert result.returncode == 0, result.stderr
    lines = [x.strip() for x in result.stdout.splitlines() if x.startswith("  python -m")]
    unfit = re.findall(r"^does not fit: (\S+): ", result.stdout, re.MULTILINE)
    assert all("r200x3" in name for name in unfit)  # docs/scaling.md: its optimizer has no place.
    for line, planned in zip(lines, plans.commands(name), strict=True):
        own, values = accepted(line)
        if planned.name in unfit:
            continue
        if own.__name__.endswith((".pretrain", ".sweep")) and values["experiment"].present:
            experiment = override(get_recipe(values.experiment), values.set)
            check_step(experiment.train, experiment.model_config(10), 256, True, "here")
        elif own.__name__.endswith(".plan"):
            assert values.measure and values.memory_gb == pytest.approx(34.36 / 2)
            for model, size in itertools.product(values.models, values.sizes.split(",")):
                fields = (f"model.name={model}", f"model.image_size={size}")
                assert MeasuredBatch(
                    assignments=fields, images=1, passes=values.passes
                ).experiment()
        elif own.__name__.endswith((".inspect", ".fewshot")):
            assert {text.partition("=")[0] for text in values.set} <= set(own.FIELDS)
            assert override(get_recipe("jft_vit_b16"), values.set)


@pytest.mark.parametrize(
    "unit",
    [
        pretrained("jft_vit_h14"),
        pretrained("imagenet21k_r152x2"),
        pretrained("mpp_color"),
        on_imagenet(pretrained("jft_vit_l16")),
    ],
    ids=lambda unit: unit.name,
)
@pytest.mark.parametrize("chips", [32, 128])
def test_plan_finds_the_settings_of_paper(command, unit, chips):
    chosen = plans.Target("v3", chips).flags_of(unit)
    sets = [f"--set={x}" for flag, x in itertools.pairwise(unit.flags) if flag == "--set"]
    flags = ["--experiment", unit.recipe, *sets, "--chip=v3", f"--chips={chips}"]
    result = command("plan", *flags, "--json")
    assert result.returncode == 0, result.stderr
    said = [line for line in result.stderr.splitlines() if "planned with --set" in line]
    assert len(said) == bool(chosen)
    assert re.findall(r"--set (\S+)", "".join(said)) == chosen[1::2]
    cost = plans.Target("v3", chips).cost(unit)
    assert sum(json.loads(result.stdout)["memory"].values()) == cost.memory


def test_bit_is_beside_the_vits_in_figure_3():
    (grid,) = FOUND["figure3"].values()
    found = {name: row for name, row in grid.rows.items() if name.startswith("BiT")}
    assert [*found] == ["BiT-R50x1", "BiT-R101x1", "BiT-R152x2"]
    for name, row in found.items():
        starts = [command.start.experiment for command, _ in row]
        assert [start.model.name for start in starts] == [name] * 3
        data = [start.data.name for start in starts]
        assert data == ["imagenet2012", "tfrecord:imagenet21k", "tfrecord:jft300m"]


def test_figure_10_has_three_settings_side_by_side():
    """Those in the titles of the figure's parts."""
    (grid,) = FOUND["figure10"].values()
    (look,) = {command for row in grid.rows.values() for command, _ in row}
    assert look.line("/runs").count("--model") == 3
    found = []
    for start in look.needs:
        train, optimizer = start.experiment.train, start.experiment.optimizer
        epochs = round(train.steps * train.batch_size / 303e6)
        found.append((epochs, optimizer.learning_rate, optimizer.weight_decay))
        assert start.experiment.model.name == "ViT-L/16"
    assert found == [(7, 2e-4, 0.01), (7, 4e-4, 0.1), (14, 4e-4, 0.1)]
    for number, (epochs, rate, decay) in enumerate(found):
        name = f"{epochs} epochs, rate {rate:g}, weight decay {decay:g}"
        assert grid.rows[name][0] == (look, numbers.seen(number, "neighbors"))


def test_section_4_6_is_the_paper_s():
    published = PUBLISHED["self_supervision"]
    (grid,) = FOUND["section4.6"].values()
    scratch, masked, own, labels = (row[0] for row in grid.paper.values())
    assert masked == published["imagenet_finetune_top1_vit_b16"] and own is None
    assert round(masked - scratch) == published["gain_over_scratch_points"]
    assert round(labels - masked) == published["gap_to_supervised_points"]
    models = {command.start.experiment.model.name for ((command, _),) in grid.rows.values()}
    assert models == {"ViT-B/16"}
    tasks = [command.start.experiment.task for ((command, _),) in grid.rows.values()]
    assert tasks == ["classification", "masked_patches", "masked_patches", "classification"]
    rows = cells({name: [x[0] and x[0] / 100] for name, x in grid.paper.items()})
    assert [results._judged(each, rows).shows for each in grid.expected] == [True, None, True]


def test_commands_that_train_nothing():
    start = pretrained("jft_vit_b16")
    target = plans.Target("v3", 8, ("--strategy=tpu",))
    look, shots, timing = inspected("a", [start], 3), few_shots(start, 5), timed(MODELS, SIZES)
    assert target.flags_of(look) == [] and target.flags_of(shots) == ["--strategy=tpu"]
    assert target.flags_of(timing) == ["--memory_gb", "17.18"]
    assert plans.Target("h100", 1).flags_of(timing) == []  # Its own memory is the limit.
    assert plans.missing_data(look) == plans.missing_data(shots) == ["imagenet2012"]
    assert plans.missing_data(timing) == [] and timing.needs == ()
    two = inspected("a", [start, pretrained("jft_vit_b32")], 3)
    assert two.folder != look.folder and two.needs == (start, pretrained("jft_vit_b32"))


def test_numbers_of_an_inspection(tmp_path):
    """Positions whose similarity is known by the places of two patches, and three layers."""
    rows, columns = 3, 4

    def kind(y, x, v, u):
        if abs(y - v) + abs(x - u) < 2:
            return "self" if (y, x) == (v, u) else "neighbors"
        return "one row or column" if y == v or x == u else "others"

    values = {"self": 1.0, "neighbors": 0.5, "one row or column": 0.25, "others": -0.5}
    places = list(itertools.product(range(rows), range(columns)))
    similarity = np.reshape(
        [values[kind(*one, *other)] for one in places for other in places],
        (rows, columns, rows, columns),
    )
    model = {
        "numbers": {"similarity": similarity.tolist(), "distance": [[1, 5], [6, 8], [9, 11]]},
        "numbers_of_random_weights": {"distance": [[4, 4], [4, None], [4, 4]]},
        "images": [
            {"rank_correlation_with_random_weights": {"rollout": value}}
            for value in (0.25, 0.75, None)
        ],
    }
    (tmp_path / "inspect.json").write_text(json.dumps({"models": [{**model, "images": []}, model]}))
    found = numbers.of_inspection(tmp_path)
    for name in numbers.SIMILARITIES:
        assert found[numbers.seen(1, name)] == values[name] == found[numbers.seen(0, name)]
    distances = [found[numbers.seen(0, name)] for name in numbers.DISTANCES]
    assert distances == [3, 7, 10, 1, 5]
    assert found[numbers.seen(1, numbers.ROLLOUT)] == 0.5
    assert numbers.seen(0, numbers.ROLLOUT) not in found
    assert numbers.seen(0, "middle layer", "random") not in found  # Not a number.
    assert found[numbers.seen(0, "last layer", "random")] == 4


def test_numbers_of_a_timing(tmp_path):
    row = {"model": "a", "image_size": 64, "largest_batch": 7, "images_per_second_per_core": 2.5}
    none = {**row, "image_size": 128, "largest_batch": 0, "images_per_second_per_core": None}
    (tmp_path / "measured.json").write_text(json.dumps({"rows": [row, none]}))
    assert numbers.of_measurement(tmp_path) == {
        "images per second of a at 64": 2.5,
        "largest batch of a at 64": 7,
        "largest batch of a at 128": 0,
    }


@pytest.mark.parametrize(
    ("second", "shows"),
    [([1, 2, 3, 4], True), ([4, 3, 2, 1], False), ([2, 1, 4, 3], False), ([1, 1, 1, 1], None)],
)
def test_columns_of_nearly_the_same_order(second, shows):
    rows = {str(n): [(n + 1) / 10, value / 10] for n, value in enumerate(second)}
    assert results._alike("same", cells(rows | {"missing": [0.5, None]})).shows is shows


def test_costs_are_those_of_the_planner():
    """Core-days of pre-training beside the paper's, with the planner's stated utilization."""
    for row in TABLE_2:
        recipe = {"ViT-H/14": "jft_vit_h14"}.get(row.model, "jft_vit_l16_14epochs")
        if row.data == "ImageNet-21k":
            recipe = "imagenet21k_vit_l16"
        found = TARGET.cost(pretrained(recipe))
        assert 0.6 < found.core_days / row.cost < 1.5
        assert found.trainings == 1 and found.memory < 16e9
    tuned = TARGET.cost(suite("cifar10", pretrained("jft_vit_b32")))
    assert tuned.trainings == 4 + 3 and tuned.experiment.train.steps == 10_000
    tuned = TARGET.cost(suite("pets", pretrained("jft_r50x1")))
    assert tuned.trainings == 5 + 3  # BiT-HyperRule is one more setting.
    tuned = TARGET.cost(suite("vtab", pretrained("jft_vit_b32")))
    assert tuned.trainings == 19 * 3
    large = TARGET.cost(on_imagenet(pretrained("jft_vit_h14")))
    assert large.trainings == 7 and "model.recompute=blocks" in large.changed


def test_the_plan_of_a_table_is_complete():
    lines = plans.describe("table7", "/runs", plans.Target("v3", 64, ("--strategy=tpu",)))
    text = "\n".join(lines)
    for recipe in ("jft_r50x1", "jft_r50x1_sgd", "jft_r152x2", "jft_r152x2_sgd"):
        assert f"python -m pipelines.pretrain --experiment {recipe} --workdir /runs/" in text
        for task in ("cifar10", "cifar100", "pets", "flowers"):
            assert re.search(rf"sweep --suite {task} .*/pretrain/{recipe}-\w+ --strategy=tpu", text)
        assert re.search(rf"sweep --experiment finetune_imagenet .*/pretrain/{recipe}-", text)
    assert sum(line.startswith("  python -m") for line in lines) == 4 * 6
    assert all("--strategy=tpu" in x for x in lines if x.startswith("  python"))
    assert "together at most" in text and "data that are not here: " in text
    assert "tfrecord:jft300m" in text and "imagenet2012" in text
    assert all(f"{row.cost:,} exaFLOPs" in "\n".join(plans._of_paper("table6")) for row in TABLE_6)
    lines = plans.describe("table2", "/runs", plans.Target("v3", 1))
    assert any(re.fullmatch(r"finetune_imagenet_h14\S+ +does not fit", line) for line in lines)
    assert any(line.startswith("does not fit: finetune_imagenet_h14") for line in lines)
    with pytest.raises(UserError, match="does not fit on --chips=1 of"):
        plans.Target("v3", 1).flags_of(
            on_imagenet(pretrained("jft_vit_h14"), "finetune_imagenet_h14_518")
        )
    few_shots = plans.missing_data(pretrained("jft_positions_none"))
    assert few_shots == ["tfrecord:jft300m", "imagenet2012"]


@pytest.mark.parametrize("chips", [32, 128])
def test_the_printed_settings_divide_the_batch(chips):
    """What a line sets, over what it trains by, can run on the devices of the target."""
    for command in (
        on_imagenet(pretrained("jft_vit_b16")),
        suite("flowers", pretrained("jft_vit_l16")),
        pretrained("jft_vit_h14"),
        suite("vtab", pretrained("jft_r50x1")),
    ):
        flags = plans.Target("v3", chips).flags_of(command)
        assigned = flags[1::2]
        assert flags[::2] == ["--set"] * len(assigned)
        for experiment in command.experiments:
            experiment = override(experiment, [f"model.name={command.model}", *assigned])
            check_step(experiment.train, experiment.model_config(10), 2 * chips, True, "here")
        assert not set(assigned) & set(command.flags)  # They are not a part of its folder.


def test_real_labels_are_of_the_weights_that_training_evaluates():
    averaged = on_imagenet(pretrained("jft_vit_h14"), "finetune_imagenet_h14_518")
    assert "--weights ema" in real(averaged).line("/runs")
    assert "--weights" not in real(on_imagenet(pretrained("jft_vit_h14"))).line("/runs")


def test_another_recipe_of_a_suite_is_another_folder(monkeypatch):
    before = suite("pets", pretrained("jft_vit_b32")).folder
    assert before == suite("pets", pretrained("jft_vit_b32")).folder
    changed = {**RECIPES, "finetune_pets": RECIPES["finetune_flowers"]}
    monkeypatch.setattr(recipes, "RECIPES", changed)
    assert suite("pets", pretrained("jft_vit_b32")).folder != before


def cells(rows):
    return {
        name: [value and Cell((Reading("a", "m", value),)) for value in row]
        for name, row in rows.items()
    }


@pytest.mark.parametrize(
    ("compares", "rows", "shows", "numbers"),
    [
        # Columns are tasks of one difficulty, rows are models: only the rows are compared.
        ("rows", {"a": [0.1, 0.7], "b": [0.2, 0.8]}, True, "2 of 2"),
        ("rows", {"a": [0.2, 0.7], "b": [0.1, 0.8]}, False, "1 of 2"),
        ("rows", {"a": [0.2, 0.8], "b": [0.2, 0.8]}, False, "0 of 2"),
        ("rows", {"a": [0.1, None], "b": [0.2, 0.8]}, True, "1 of 1"),
        ("columns", {"a": [0.1, 0.7], "b": [0.9, 0.8]}, False, "1 of 2"),
    ],
)
def test_the_order_is_looked_for_where_the_paper_has_one(compares, rows, shows, numbers):
    paper = {"a": [10.0, 70.0], "b": [20.0, 80.0]}
    table = Table(title="t", columns=["x", "y"], rows=cells(rows), paper=paper)
    claim = results._order(table, compares)
    assert claim.shows is shows and claim.numbers.startswith(f"{numbers} pairs")


def test_expectations_name_places_that_are_there():
    """Each part has an order or an expectation, but for pictures; 8 without positions is worst."""
    for name in FULL:
        grids = FULL[name]()
        said = any(x.paper is not None or x.expected or x.alike for x in grids)
        assert said != (name in ("figure6", "figure14")), name
        for grid in grids:
            for expectation in grid.expected:
                places = [grid.rows[x][y] for pair in expectation.above for x, y in pair]
                assert places and None not in places
    (grid,) = FULL["table8"]()
    for none, shows in ((0.1, True), (0.9, False), (None, None)):
        rows = {kind: [0.5, 0.5, 0.5] for kind in grid.rows} | {"none": [none, None, None]}
        assert results._judged(grid.expected[0], cells(rows)).shows is shows


def test_figure_5_has_the_costs_of_table_6():
    """With the paper's own numbers, what it says of them shows, and the points are theirs."""
    (grid,) = FULL["figure5"]()
    printed = {(row[0].replace("ResNet", "BiT-R"), row[1]): row for row in _published("table_6")}
    rows = cells({name: [x / 100 for x in values] for name, values in grid.paper.items()})
    assert all(results._judged(each, rows).shows for each in grid.expected)
    rows["BiT-R50x1"][0] = None
    table = Table(title="t", columns=grid.columns, rows=rows)
    imagenet, others = results._over_costs(table, grid.costs)
    assert {name: len(points) for name, points in imagenet.curves.items()} == {
        "ViT": 6,
        "BiT": 6,
        "hybrid": 5,
    }
    assert len(others.curves["BiT"]) == 7
    for chart, columns in ((imagenet, [2]), (others, range(3, 8))):
        for points in chart.curves.values():
            for point in points:
                row = min(printed.values(), key=lambda row, x=point.x: abs(math.log(row[-1] / x)))
                assert row[-1] == pytest.approx(point.x, rel=0.1)
                mean = sum(row[column] for column in columns) / len(columns) / 100
                assert point.y == pytest.approx(mean)


def _published(name):
    return PUBLISHED[name]["rows"]


def test_the_best_checkpoint_is_read_where_the_run_keeps_it(tmp_path):
    lines = [
        {"step": 1, "eval_accuracy": 0.5},
        {"step": 1, "few_shot_5_accuracy": 0.4},
        {"step": 2, "eval_accuracy": 0.3},
        {"step": 2, "few_shot_5_accuracy": 0.6, "loss": 1.0},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    read = numbers.of_training
    last = {"eval_accuracy": 0.3, "few_shot_5_accuracy": 0.6}
    assert read(Workdir(str(tmp_path)), keeps_best=False) == last
    best = {"eval_accuracy": 0.5, "few_shot_5_accuracy": 0.4}
    assert read(Workdir(str(tmp_path)), keeps_best=True) == best


def test_an_interrupted_command_is_waited_for(tmp_path, monkeypatch):
    """The child saves its state before the lock of its unit is free."""
    seen = []

    class Child:
        def __init__(self, command, **options):
            seen.append(command[2])

        def __enter__(self):
            return self

        def __exit__(self, *exc_info):
            seen.append("left")

        def communicate(self):
            raise KeyboardInterrupt

        def terminate(self):
            seen.append("terminated")

        def wait(self):
            seen.append("ended")

    monkeypatch.setattr(commands.subprocess, "Popen", Child)
    with pytest.raises(KeyboardInterrupt):
        pretrained("jft_vit_b32").run(tmp_path, TARGET)
    assert seen == ["pipelines.pretrain", "terminated", "ended", "left"]


def test_numbers_of_suites_are_means_of_their_seeds(tmp_path):
    record = {
        "tasks": {"dtd": {"mean": 0.5}, "svhn": {"mean": None}},
        "score": {"natural": {"mean": 0.25}, "mean": {"mean": 0.75}},
    }
    (tmp_path / "suite.json").write_text(json.dumps(record))
    assert numbers.of_suite(tmp_path) == {"dtd": 0.5, "natural": 0.25, "mean": 0.75}


def test_names_at_full_scale():
    assert [study.name for study in catalog.choose("all", "full")] == [*catalog.PARTS]
    assert set(FULL) == set(catalog.PARTS) and len(FULL) == 23
    for name in (None, "E1"):
        with pytest.raises(UserError, match="Name one with --run"):
            catalog.choose(name, "full")


SHORT = ("train.steps=2", "schedule.warmup_steps=0", "train.eval_every=0", "model.layers=1")
FLAGS = ("--experiment", "digits", *itertools.chain(*(("--set", x) for x in SHORT)))


@pytest.mark.process
def test_a_small_table_runs_and_is_read(tmp_path, monkeypatch):
    """Pre-training, a sweep from it, and evaluations of both, each in its own process."""
    root = tmp_path / "runs"
    begin = Command(name="pretrain/small", module="pretrain", flags=FLAGS, recipe="digits")
    tuned = Command(
        name="sweep/small",
        module="sweep",
        flags=(*FLAGS, "--grid", "optimizer.learning_rate=0.001,0.002", "--seeds", "1"),
        start=begin,
        recipe="digits",
    )
    tested = Command(name="evaluate/small", module="evaluate", flags=(), start=tuned)
    look = Command(
        name="inspect/small",
        module="inspect",
        flags=("--noocclusion", "--show", "2"),
        start=begin,
        beside=(tuned,),
    )
    shots = Command(
        name="fewshot/small",
        module="fewshot",
        flags=("--shots", "1", "--seeds", "2", "--noknn", "--noprobe"),
        start=begin,
    )
    grid = Grid(
        title="small",
        columns=["a", "b", "c"],
        rows={"x": [(begin, "eval_accuracy"), (tuned, "mean"), (tested, "accuracy")]},
        paper={"x": [10.0, 20.0, None]},
    )
    names = (numbers.seen(0, "neighbors"), numbers.seen(1, "last layer"))
    looks = Grid(
        title="looks",
        columns=["d", "e", "f"],
        rows={"y": [*((look, name) for name in names), (shots, numbers.shots(1))]},
    )
    monkeypatch.setitem(parts.FULL, "small", lambda: [grid, looks])
    target = plans.Target("h100", 1, ("--strategy=one_device",))
    lab = StudyLab(root, target, {"small": Stage(5, None)})
    findings = results.run(lab, "small")
    pretraining, sweep, evaluation = (cell.mean for cell in findings.tables[0].rows["x"])
    with open(os.path.join(root, begin.folder, "metrics.jsonl")) as file:
        lines = [json.loads(line) for line in file]
    assert [x["eval_accuracy"] for x in lines if "eval_accuracy" in x] == [pretraining]
    assert sweep == evaluation  # The test images of one final run.
    same = int((pretraining - sweep) * (10 - 20) > 0)
    assert findings.claims[0].numbers.startswith(f"{same} of 1 pairs")
    near, far, few = (cell.mean for cell in findings.tables[1].rows["y"])
    first, second = read_json(root / look.folder / "inspect.json")["models"]
    similar = first["numbers"]["similarity"]
    places = list(itertools.product(range(len(similar)), range(len(similar[0]))))
    pairs = [(a, b) for a in places for b in places if math.dist(a, b) == 1]
    mean = sum(similar[y][x][v][u] for (y, x), (v, u) in pairs) / len(pairs)
    assert near == pytest.approx(mean)
    assert far == pytest.approx(np.mean(second["numbers"]["distance"][-1]))
    record = read_json(root / shots.folder / "fewshot.json")
    assert [few] == [x["mean"] for x in record["few_shot"] if x["l2"] == 1024]
    study = catalog.choose("figure6", "full")[0]
    report.write(tmp_path, study, records.make_record(study, findings, lab))
    (place,) = re.findall(r'page: <a href="([^"]+)"', (tmp_path / "figure6.html").read_text())
    assert (tmp_path / place).name == "inspect.html" and (tmp_path / place).exists()
    broken = Command(name="pretrain/broken", module="pretrain", flags=("--set", "train.steps=-1"))
    with pytest.raises(RunError, match="It ended with exit code 2: python -m pipelines.pretrain"):
        lab.results([broken])
