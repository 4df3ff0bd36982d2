"""Plans of suites: table 4 for every family, the protocol of VTAB, gaps, and wrong input."""

import os

import pytest

from pipelines.config import override
from pipelines.config.names import SuiteName
from pipelines.config.recipes import get_recipe
from pipelines.data.protocols.suites import SUITES
from pipelines.data.protocols.vtab_tasks import TASKS
from pipelines.research.sweeps import suite, suite_plan
from tests.pipelines.process import assert_user_error
from tests.pipelines.published import DATA, PUBLISHED
from tests.pipelines.research.sweeps import suites
from tests.pipelines.research.sweeps.suites import L16, RATE, Source, plan_of

_PARTS = {"cifar10": 0.02, "cifar100": 0.02, "pets": 0.1, "flowers": 0.1}


@pytest.fixture(autouse=True)
def data(monkeypatch):
    suites.replace_data(monkeypatch)


def test_the_suites_are_the_choices_of_the_flag():
    assert list(SUITES) == list(SuiteName.__args__)
    # 7 + 4 + 8 tasks.
    assert [len(suite.tasks) for suite in SUITES.values()] == [19, 1, 1, 1, 1]


def test_settings_of_one_data_set_are_table_4():
    rows = {DATA.get(row["dataset"]): row for row in PUBLISHED["table_4"]["rows"]}
    for name, part in _PARTS.items():
        row, plan = rows[name], plan_of(name, init_from=L16)
        recipe = get_recipe(f"finetune_{name}")
        assert [x.values for x in plan.settings] == [{RATE: rate} for rate in row["base_lr"]]
        assert plan.compares and plan.seeds == 3 and plan.missing == {}
        for setting, rate in zip(plan.settings, row["base_lr"], strict=True):
            experiments = [unit.experiment for unit in setting.final[name]]
            assert [one.seed for one in experiments] == [0, 1, 2]
            whole = experiments[0]
            assert (whole.model.name, whole.model.image_size) == ("ViT-L/16", (384, 384))
            # That of the paper's code for this model; tests are evaluated once, at the end.
            assert whole.model.fields["dropout"] == 0.1 and whole.train.eval_every == 0
            assert whole.train.steps == row["steps"] and whole.optimizer.learning_rate == rate
            assert whole.schedule == recipe.schedule and whole.data == recipe.data
            assert setting.differences == ()
            tuning, (unit,) = setting.tuning[name].experiment.data, setting.tuning.values()
            count = Source(whole.data.name, "train").num_examples
            border = round(count * (1 - part))
            assert tuning.train_split == f"train[0:{border}]"
            assert tuning.eval_split == f"train[{border}:{count}]"
            assert unit.folder == f"trials/{RATE}={rate:g}/{name}"
            assert setting.final[name][2].folder == f"final/{RATE}={rate:g}/{name},seed=2"


def test_a_hybrid_has_the_dropout_of_the_paper_s_code():
    (setting, *_) = plan_of("pets", init_from="imagenet21k/R50+ViT-B_16").settings
    model = setting.final["pets"][0].experiment.model
    assert (model.name, model.fields["dropout"]) == ("R50+ViT-B/16", 0.1)
    (setting, *_) = plan_of("pets", "model.dropout=0.2", init_from=L16).settings
    assert setting.final["pets"][0].experiment.model.fields["dropout"] == 0.2
    assert setting.differences == ("model.dropout: 0.1 -> 0.2",)


@pytest.mark.parametrize(("name", "side", "resized"), [("cifar10", 128, 160), ("pets", 384, 448)])
def test_resnets_have_both_setups(name, side, resized):
    plan = plan_of(name, init_from="bit_models/BiT-M-R50x1")
    *table_4, rule = plan.settings
    rates = [0.001, 0.003, 0.01, 0.03]
    assert [x.values for x in table_4] == [{"setup": "table_4", RATE: rate} for rate in rates]
    assert rule.values == {"setup": "bit_hyper_rule"} and rule.differences == ()
    for setting in table_4:
        (unit, *_) = setting.final[name]
        assert unit.experiment.model.image_size == (384, 384)
        assert unit.experiment.schedule.decay == "cosine"
    experiment, recipe = rule.final[name][0].experiment, get_recipe(f"bit_{name}")
    assert experiment.model.name == "BiT-R50x1" and experiment.model.image_size == (side, side)
    assert experiment.data == recipe.data and experiment.data.crop_resize_to == resized
    assert (experiment.optimizer, experiment.schedule) == (recipe.optimizer, recipe.schedule)
    assert experiment.train.steps == recipe.train.steps
    assert rule.tuning[name].experiment.data.crop_resize_to == resized


def test_vtab_has_one_setting_for_all_tasks():
    plan = plan_of("vtab")
    (setting,) = plan.settings
    assert not plan.compares and setting.tuning == {} and setting.differences == ()
    assert setting.values == {RATE: 0.01} and list(setting.final) == list(TASKS)
    for name, units in setting.final.items():
        assert [unit.experiment.seed for unit in units] == [0, 1, 2]
        for unit in units:
            own, task = unit.experiment, TASKS[name]
            assert (own.train.steps, own.train.batch_size) == (2500, 512)
            assert own.optimizer.learning_rate == 0.01 and own.model.image_size == (384, 384)
            assert (own.data.name, own.data.label) == (task.data_name, task.label)
            assert own.data.train_split == task.splits["train800val200"]
            assert own.data.eval_split == task.splits["test"]
            assert own.data.flip == task.flip and (own.data.crop == "random") == task.crop
            assert own.data.crop_resize_to == (448 if task.crop else None)
    # 2 FLOPs for each multiply-add, three times the forward pass.
    (unit, *_) = setting.final["cifar100"]
    macs = 55.484e9 - 1000 * 768 + 100 * 768
    assert unit.cost == pytest.approx(6 * macs * 512 * 2500, rel=1e-4)


def test_the_search_of_vtab(monkeypatch):
    """Two rates x two schedules, as the paper tried, on 800 examples and tested on 200."""
    suites.replace_data(monkeypatch, opened=(opened := []))
    grid = [f"{RATE}=0.003,0.01", "train.steps=500,2500"]
    plan = plan_of("vtab", grid=grid)
    assert [tuple(x.values.values()) for x in plan.settings] == [
        (rate, steps) for rate in (0.003, 0.01) for steps in (500, 2500)
    ]
    for setting in plan.settings:
        for name, unit in setting.tuning.items():
            own, splits = unit.experiment, TASKS[name].splits
            assert own.data.train_split == splits["train800"]
            assert own.data.eval_split == splits["val200"]
            assert own.train.steps == setting.values["train.steps"]
            assert own.schedule.warmup_steps < own.train.steps
    assert opened.count(("dmlab:2.0.1", "train[:800]", "label")) == 1
    # The rate is not one that the paper reports, the length is not either.
    lines = plan.settings[0].differences
    assert {line.split(":")[0] for line in lines} >= {RATE, "train.steps"}
    assert plan.settings[3].differences == ()


def test_resnets_on_vtab():
    plan = plan_of("vtab", init_from="bit_models/BiT-M-R152x4", seeds=1)
    table_4, rule = plan.settings
    assert plan.compares and table_4.values == {"setup": "table_4", RATE: 0.01}
    for name, (unit,) in rule.final.items():
        small = name in ("cifar100", "svhn", "eurosat") or name.startswith("dsprites")
        own = unit.experiment
        assert own.model.image_size == ((128, 128) if small else (480, 480))
        assert own.train.steps == 500 and own.schedule.decay == "staircase"
        resized = None if own.data.crop == "none" else 160 if small else 512
        assert own.data.crop_resize_to == resized
        assert table_4.final[name][0].experiment.model.image_size == (384, 384)


def test_settings_of_the_user_are_differences():
    plan = plan_of("vtab", "train.steps=100", "data.flip=false", "seed=5", seeds=2)
    (setting,) = plan.settings
    assert [unit.experiment.seed for unit in setting.final["dtd"]] == [5, 6]
    assert not any(units[0].experiment.data.flip for units in setting.final.values())
    assert "train.steps: 2500 -> 100" in setting.differences
    unflipped = "dsprites_location, dsprites_orientation, smallnorb_azimuth"
    assert f"data.flip: True -> False (all but {unflipped})" in setting.differences
    assert setting.differences[-1] == "--seeds: 3 -> 2"
    assert not [line for line in setting.differences if line.startswith("seed")]
    held = plan_of("pets", hold_out=0.2).settings[0]
    assert held.differences == ("--hold_out: 0.1 -> 0.2",)
    assert held.tuning["pets"].experiment.data.eval_split == "train[2944:3680]"


def test_a_difference_of_some_tasks_names_them(monkeypatch):
    """Also if it is none of the first task; tasks without data have no result that differs."""
    flipped = "data.flip: False -> True ({})"
    tasks = "dsprites_location, dsprites_orientation, smallnorb_azimuth"
    assert plan_of("vtab", "data.flip=true").settings[0].differences == (flipped.format(tasks),)
    lines = plan_of("vtab", "data.crop=random", "data.crop_resize_to=448").settings[0].differences
    uncropped = "clevr_count, clevr_distance, dmlab, dsprites_location, kitti_distance"
    assert [line.partition(" (")[2] for line in lines] == [f"{uncropped})"] * 2
    bit = {"init_from": "bit_models/BiT-M-R50x1", "seeds": 1}
    rule = plan_of("vtab", "model.image_size=384", **bit).settings[1].differences
    small = "cifar100, svhn, eurosat, dsprites_location, dsprites_orientation"
    assert f"model.image_size: [128, 128] -> [384, 384] ({small})" in rule
    suites.replace_data(monkeypatch, missing=["dsprites"])
    lines = plan_of("vtab", "data.flip=true").settings[0].differences
    assert lines == (flipped.format("smallnorb_azimuth"),)


def test_missing_data_are_a_gap(monkeypatch, command):
    suites.replace_data(monkeypatch, missing=["clevr", "sun397"])
    plan = plan_of("vtab", seeds=2)
    gone = ["sun397", "clevr_count", "clevr_distance"]
    assert list(plan.missing) == gone and not set(plan.tasks) & set(gone)
    lines = suite.describe(plan)
    (row,) = [line.split() for line in lines if line.startswith("clevr_count")]
    each = plan.settings[0].final["clevr_count"][0].cost / 1e18
    assert row == ["clevr_count", "clevr:3.*.*", "missing", "0", "2", f"{2 * each:.4g}"]
    assert "no data of sun397, which is left out: sun397/tfds:4.*.* is not prepared." in lines
    # Under half a percent of the cost is that of the heads.
    (total,) = [line.split() for line in lines if line.startswith("all runs: at most ")]
    assert float(total[4]) == pytest.approx(16 * 2 * each, rel=5e-3)
    assert (
        " ".join(total[5:]) == f"exaFLOPs, and {6 * each:.4g} for the tasks whose data are missing"
    )

    result = command("sweep", "--suite=vtab", "--dry_run", f"--init_from={suites.B16}")
    assert result.returncode == 0, result.stderr
    assert "--suite=vtab: ViT-B/16 from imagenet21k/ViT-B_16, 19 tasks" in result.stdout
    suites.replace_data(monkeypatch, missing=[""])
    flags = ["--suite=vtab", f"--init_from={suites.B16}", "--workdir=run"]
    assert_user_error(command("sweep", *flags), "None of the 19 tasks has data here", "caltech101")
    planned = command("sweep", *flags, "--dry_run")
    assert_user_error(planned, "None of the 19 tasks has data here")
    assert "no data of caltech101" in planned.stdout
    flags[0] = "--suite=cifar10"
    assert_user_error(command("sweep", *flags), "error: cifar10 is not prepared.")


def test_other_labels_than_the_benchmark_s_are_refused(monkeypatch, command):
    classes = dict(suites._CLASSES, cifar10=9)
    monkeypatch.setattr(suites, "_CLASSES", classes)
    result = command("sweep", "--suite=cifar10", f"--init_from={suites.B16}", "--workdir=run")
    assert_user_error(result, "cifar10 split 'train' has 9 classes, but cifar10", "has 10.")
    monkeypatch.setattr(Source, "multi_label", True)
    result = command("sweep", "--suite=pets", f"--init_from={suites.B16}", "--workdir=run")
    assert_user_error(result, "37 classes in lists of labels, but pets of --suite=pets has 37.")


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        (["--suite=imagenet"], ["--suite", "vtab", "flowers"]),
        (["--suite=vtab", "--experiment=digits"], ["--suite=vtab takes no --experiment"]),
        (["--suite=vtab", "--config=a.json"], ["--suite=vtab takes no --config"]),
        (["--suite=vtab", "--set=data.name=digits"], ["--suite=vtab decides data.name."]),
        (["--suite=pets", "--set=data.eval_split=train"], ["decides data.eval_split. Leave it"]),
        (["--suite=pets", "--grid=data.label=a,b"], ["the same data.label"]),
        (["--suite=vtab", "--hold_out=0.5"], ["--hold_out=0.5 has no effect", "200 examples"]),
        (["--suite=pets", "--hold_out=1.5"], ["--hold_out must be above 0 and below 1"]),
        (["--suite=pets", "--seeds=0"], ["--seeds of at least 1. Received: 0."]),
        (["--suite=pets", f"--grid={RATE}=0.1,1e-1"], ["twice", f"{RATE}=0.1"]),
        (["--suite=pets", f"--grid={RATE}"], ["--grid needs path=value"]),
        (["--suite=pets", "--set=model.layers=3"], ["model.layers=3 does not fit"]),
        (["--suite=pets", "--init_from=nowhere"], ["nowhere"]),
    ],
    ids=str,
)
def test_wrong_input_is_one_sentence(tmp_path, command, arguments, texts):
    assert_user_error(command("sweep", "--workdir=run", *arguments), *texts)
    assert os.listdir(tmp_path) == []


def test_the_shipped_model_is_enlarged():
    """A model that is no published one keeps its architecture and reads the paper's size."""
    plan = plan_of("cifar10", "train.epochs=2", init_from="shipped")
    whole = plan.settings[0].final["cifar10"][0].experiment
    assert whole.model.image_size == (384, 384) and whole.init_from == "shipped"
    assert whole.train.steps == 2 * 50_000 // 512
    assert "model.hidden_size: None -> 64" in plan.settings[0].differences
    shipped = suite_plan.choose(get_recipe("digits"), suite_plan.Request(), "no run")[0]
    sizes = [x.model.config(10).replace(image_size=(8, 8)).hidden_size for x in (whole, shipped)]
    assert sizes[0] == sizes[1]
    assert override(whole, ["train.steps=3"]).train.steps == 3
