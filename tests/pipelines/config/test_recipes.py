"""Every number of a recipe comes from the paper, its code or a later paper of its authors."""

import dataclasses
import itertools
import json
import re

import pytest

from pipelines.config import Experiment, FewShot, override
from pipelines.config.recipes import (
    GROUPS,
    RECIPES,
    ablations,
    bit,
    comparisons,
    get_recipe,
    pretraining,
)
from pipelines.config.summary import summary
from pipelines.data.protocols import vtab
from tests.checkout import ROOT
from tests.conftest import GOLDEN

PUBLISHED = json.loads((GOLDEN / "recipes.json").read_text())
RECIPE = {name: get_recipe(name) for name in RECIPES}
# Name of a data set in the tables -> data.name, images per epoch.
DATA = {
    "JFT-300M": ("tfrecord:jft300m", 303_000_000),
    "ImageNet-21k": ("tfrecord:imagenet21k", 14_000_000),
    "ImageNet": ("imagenet2012", 1_281_167),
}
IMAGES = {
    "imagenet2012": 1_281_167,
    "cifar10": 50_000,
    "cifar100": 50_000,
    "oxford_iiit_pet": 3_680,
    "oxford_flowers102": 1_020,
}
# Part of the training split for choices (docs/paper.md F.5); 0.1 for the others.
HELD_OUT = {"imagenet2012": 0.01, "cifar10": 0.02, "cifar100": 0.02}
# data.name -> recipe of table 4.
FINE_TUNING = {
    "imagenet2012": "finetune_imagenet",
    "cifar10": "finetune_cifar10",
    "cifar100": "finetune_cifar100",
    "oxford_iiit_pet": "finetune_pets",
    "oxford_flowers102": "finetune_flowers",
}


def _text(name):
    """The docstring of a recipe in one line."""
    return " ".join(RECIPES[name].__doc__.split())


def _named(model, rows):
    """The row of a table 6 or 7 that has this model's name there."""
    name = re.sub(r"^BiT-R(?=\d)", "ResNet", model).replace("R50+", "R50x1+")
    return [row for row in rows if row[0] == name]


@pytest.mark.parametrize("name", RECIPES)
def test_docstrings_have_what_list_and_docs_print(name):
    first, _, rest = RECIPES[name].__doc__.partition("\n")
    assert len(first) <= 70 and first.endswith(".")  # One line of `--list`.
    parts = re.findall(r"^ *(Source|Command|Expected|Hardware): \S", rest, re.MULTILINE)
    assert parts == ["Source", "Command", "Expected", "Hardware"]
    assert "epochs" in RECIPES[name].__doc__
    assert not re.search(r"[{}]", RECIPES[name].__doc__)


DIFFERS = {
    "finetune_cifar10": ["float32", "bfloat16", "5 to 100 %", "data.crop_resize_to=448"],
    "finetune_vtab": ["float32", "bfloat16", "data.crop=inception"],
    "finetune_imagenet_l16_512": ["float32", "bfloat16"],
    "bit_pets": ["480", "MixUp", "reverse"],
    "augreg_imagenet_medium1": ["float32", "bfloat16", "train[:99%]"],
    "augreg_imagenet21k_light1": ["float32", "bfloat16", "51,200"],
    "imagenet_vit_s16_baseline": ["float32", "bfloat16"],
}


@pytest.mark.parametrize("name", DIFFERS)
def test_docstrings_say_what_differs_from_the_code_of_the_authors(name):
    differs = re.search(r" Differs: (.*) Command: ", _text(name))[1]
    assert all(word in differs for word in DIFFERS[name]), differs


def test_every_recipe_with_another_momentum_says_so():
    """The code of the authors stores it in bfloat16 in fine-tuning and in AugReg."""
    named = [name for name in RECIPES if name.startswith(("finetune_", "augreg_"))]
    for name in [*named, "imagenet_vit_s16_baseline"]:
        assert RECIPE[name].optimizer.momentum_dtype == "float32"
        assert "momentum is float32" in _text(name), name


@pytest.mark.parametrize("name", RECIPES)
def test_published_data_are_not_turned(name):
    """The reference codes read no EXIF orientation; photos in place of such data are turned."""
    data = RECIPE[name].data
    assert data.exif == ("apply" if data.is_builtin else "ignore")

    def exif(*settings):
        return override(RECIPE[name], settings).data.exif

    assert exif("data.name=tfrecord:a") == data.exif  # Maybe a copy of the same data.
    assert exif("data.name=imagenet2012:5.1.0") == "ignore"
    for own in ("folder:a", "list:a.csv"):
        assert exif(f"data.name={own}") == "apply"
        assert exif(f"data.name={own}", "data.exif=ignore") == "ignore"


@pytest.mark.parametrize("name", RECIPES)
def test_the_commands_in_docstrings_work(name):
    """They name the recipe itself, and the command that fits it; assignments are possible."""
    recipe, text = RECIPE[name], _text(name)
    commands = re.findall(r"pipelines\.(\w+)(?: --experiment (\w+))?", text)
    expected = "finetune" if recipe.init_from is not None else "pretrain"
    if name == "regularisation_search":
        expected = "sweep"
    assert commands[0] == (expected, "" if name == "digits" else name)
    assert {experiment for _, experiment in commands[1:]} <= {name}
    for path, values in re.findall(r"--(?:set|grid) ([\w.]+)=(\S*[^\s,.;:])", text):
        assert override(recipe, [f"{path}={values.split(',')[0]}"])


def test_every_recipe_is_in_one_group():
    assert sum(map(len, GROUPS.values())) == len(RECIPES)


def _table_3():
    """`(data set, model, epochs) -> row` of table 3."""
    found = {}
    for row in PUBLISHED["table_3"]["rows"]:
        models = row["models"]
        if models == ["ViT-*"]:
            models = [model for model in PUBLISHED["table_5"]["columns"] if model != "ViT-H/14"]
        for model in models:
            model = f"BiT-{model}" if re.match(r"R\d+x", model) else model
            found |= {(row["dataset"], model, epochs): row for epochs in row["epochs"]}
    return found


def _key(experiment):
    """Data set, model and epochs of a recipe, from its own fields."""
    (dataset,) = [name for name, (data, _) in DATA.items() if data == experiment.data.name]
    epochs = round(experiment.train.steps * experiment.train.batch_size / DATA[dataset][1])
    return dataset, experiment.model.name, epochs


def test_pre_training_is_table_3():
    published, common = _table_3(), PUBLISHED["table_3"]["common"]
    recipes = {_key(RECIPE[name]): RECIPE[name] for name in pretraining.RECIPES}
    assert recipes.keys() == published.keys() and len(recipes) == len(pretraining.RECIPES)
    for key, row in published.items():
        (dataset, name, epochs), recipe = key, recipes[key]
        optimizer, train = recipe.optimizer, recipe.train
        assert (optimizer.name, optimizer.beta_1, optimizer.beta_2) == ("adamw", 0.9, 0.999)
        assert optimizer.learning_rate == row["base_lr"], key
        assert optimizer.weight_decay == row["weight_decay"]
        clipping = common["grad_clip_global_norm"]
        assert optimizer.clip_norm == clipping.get(dataset, clipping["others"])
        assert recipe.schedule.warmup_steps == common["warmup_steps"]
        assert recipe.schedule.decay == row["lr_decay"]
        assert train.batch_size == common["batch_size"] and train.loss == "sigmoid"
        assert train.steps == int(epochs * DATA[dataset][1] / 4096)
        assert recipe.model.image_size == (common["resolution"],) * 2
        config = recipe.model.config(1000)
        assert getattr(config, "dropout", 0.0) == row["dropout"]
        assert config.head_bias == PUBLISHED["table_3"]["head_bias"]
        hidden_size = getattr(config, "hidden_size", None)
        assert getattr(config, "representation_size", None) == hidden_size
        assert (hidden_size is None) == name.startswith("BiT")
    steps = PUBLISHED["table_3"]["steps"]
    assert RECIPE["jft_vit_b16"].train.steps == steps["JFT_7_epochs"]
    assert RECIPE["jft_vit_h14"].train.steps == steps["JFT_14_epochs"]
    assert RECIPE["imagenet_vit_b16"].train.steps == steps["ImageNet_300_epochs_1281167_images"]


def test_few_shot_evaluations_of_pre_training_are_the_protocol():
    """All recipes of the paper that train from random weights; comparisons turn them on."""
    names = {name for name in RECIPES if RECIPE[name].init_from is None}
    for name in names - {"digits", "shapes", "mpp_digits"}:
        recipe = RECIPE[name]
        assert recipe.train.few_shot_every == (10_000 if name in comparisons.RECIPES else 0)
        assert recipe.few_shot == FewShot(
            name="imagenet2012",
            train_split="train[:65000]",
            eval_split="validation",
            preprocessing="protocol",
            shots=(1, 5, 10, 25),
            l2=2.0**10,
            seeds=3,
        )


def test_expected_results_of_pre_training_are_published():
    scratch = PUBLISHED["reference_results"]["upstream_val_precision"]["imagenet1k_300ep_224"]
    columns = PUBLISHED["table_5"]["columns"]
    for name in pretraining.RECIPES:
        dataset, model, epochs = _key(RECIPE[name])
        if dataset == "JFT-300M":
            (row,) = [
                row for row in _named(model, PUBLISHED["table_6"]["rows"]) if row[1] == epochs
            ]
            accuracy = f"{row[2]:g} % on ImageNet after fine-tuning"
            assert f"({row[-1]} exaFLOPs)" in _text(name)
        elif dataset == "ImageNet":
            accuracy = f"{scratch[model]:g} % on the validation split"
        elif epochs == 90:
            row = PUBLISHED["table_5"]["rows"][dataset]["ImageNet"]
            accuracy = f"{row[columns.index(model)]:g} % on ImageNet after fine-tuning"
        else:
            accuracy = "the paper reports 90 epochs only"
        assert f"Expected: {accuracy}" in _text(name)
        assert f"{epochs} epochs of {'303' if dataset == 'JFT-300M' else ''}" in _text(name)


def test_fine_tuning_is_table_4():
    common, code = PUBLISHED["table_4"]["common"], PUBLISHED["reference_code"]
    table_5 = PUBLISHED["table_5"]["rows"]["ImageNet-21k"]
    for row in PUBLISHED["table_4"]["rows"]:
        is_vtab = "tfds" not in row
        name = "finetune_vtab" if is_vtab else FINE_TUNING[row["tfds"]]
        recipe = RECIPE[name]
        assert is_vtab or recipe.data.name == row["tfds"]
        _check_fine_tuning(recipe)
        assert recipe.train.steps == row["steps"] and f"{row['steps']:,} steps" in _text(name)
        assert recipe.optimizer.learning_rate in row["base_lr"]
        warmup = row["reference_warmup_steps"] or code["warmup_steps"]
        assert recipe.schedule.warmup_steps == warmup
        assert recipe.model.image_size == (common["resolution"],) * 2
        assert recipe.model.config(10).dropout == 0
        if not is_vtab:
            grid = ",".join(f"{rate:g}" for rate in row["base_lr"])
            part = HELD_OUT.get(RECIPE[name].data.name, 0.1)
            sweep = f"--grid optimizer.learning_rate={grid} --hold_out={part} "
            assert sweep in _text(name)
            epochs = recipe.train.steps * 512 / IMAGES[row["tfds"]]
            assert f"about {epochs:.0f} epochs" in _text(name)
            dataset = row["dataset"].replace("CIFAR1", "CIFAR-1")
            assert f"Expected: {table_5[dataset][0]:g} %" in _text(name)
    assert RECIPE["finetune_imagenet"].optimizer.learning_rate == code["base_lr"]
    assert RECIPE["finetune_cifar10"].optimizer.learning_rate == code["base_lr_b16_cifar10"]
    rows = PUBLISHED["reference_results"]["imagenet21k_checkpoints_finetuned_384"]["rows"]
    for model, dataset, without_dropout, _ in rows:
        if model == "ViT-B_16":
            assert f"{without_dropout:g} % with the paper's code" in _text(FINE_TUNING[dataset])


def test_the_recipe_of_vtab_has_the_data_of_its_task():
    recipe, settings = RECIPE["finetune_vtab"], vtab.settings("cifar100", "train800val200", "test")
    # That of its `supervised_keys`, which is read without a choice.
    assert settings.pop("data.label") == "label"
    assert recipe.data == override(recipe, [f"{k}={v}" for k, v in settings.items()]).data


def _check_fine_tuning(recipe):
    common, code = PUBLISHED["table_4"]["common"], PUBLISHED["reference_code"]
    optimizer, train = recipe.optimizer, recipe.train
    assert (optimizer.name, optimizer.momentum) == (common["optimizer"].lower(), common["momentum"])
    assert optimizer.weight_decay == common["weight_decay"]
    assert optimizer.clip_norm == common["grad_clip_global_norm"] == code["grad_norm_clip"]
    assert recipe.schedule.decay == common["lr_decay"]
    assert (train.batch_size, train.loss) == (common["batch_size"], "softmax")
    assert train.accumulate_steps == code["accum_steps"]


def test_large_images_of_table_2():
    published = PUBLISHED["table_4"]["large_images"]
    names = ("finetune_imagenet_l16_512", "finetune_imagenet_h14_518")
    found = {RECIPE[name].model.name: RECIPE[name].model.image_size for name in names}
    assert found == {model: (size, size) for model, size in published["resolution"].items()}
    columns = PUBLISHED["table_2"]["columns"]
    for name in names:
        recipe = RECIPE[name]
        _check_fine_tuning(recipe)
        assert recipe.train.ema_decay == published["polyak_averaging_factor"]
        assert recipe.model.config(10).dropout == 0.1
        rows = PUBLISHED["table_2"]["rows"]["ImageNet"]
        accuracy = rows[columns.index(f"{recipe.model.name} JFT")][0]
        assert f"Expected: {accuracy:.2f} %" in _text(name)
    assert f"{rows[columns.index('ViT-L/16 I21k')][0]:.2f} % for ViT-L/16" in _text(names[0])


@pytest.mark.parametrize(
    ("name", "size", "length"),
    [
        ("bit_imagenet", "larger", "else"),
        ("bit_cifar10", "area_below_96x96", "lt_500k"),
        ("bit_cifar100", "area_below_96x96", "lt_500k"),
        ("bit_pets", "larger", "lt_20k"),
        ("bit_flowers", "larger", "lt_20k"),
    ],
)
def test_bit_is_the_hyper_rule(name, size, length):
    published, recipe = PUBLISHED["bit_hyper_rule"], RECIPE[name]
    crop, resize = published[size]["crop"], published[size]["resize"]
    shorter = {"lt_500k": "else"}.get(length, length)
    assert recipe.model.image_size == (crop, crop)
    assert (recipe.data.crop, recipe.data.crop_resize_to) == ("random", resize)
    assert recipe.data.resize == "direct"
    assert recipe.data.mixup == published["mixup_alpha"][shorter]
    assert recipe.train.steps == published["steps"][length]
    assert recipe.train.batch_size == published["batch_size"]
    assert recipe.schedule.warmup_steps == published["warmup_steps"][shorter]
    assert recipe.optimizer.learning_rate == published["base_lr"]
    assert (recipe.optimizer.name, recipe.optimizer.momentum) == ("sgd", 0.9)
    steps, epochs = recipe.train.steps, recipe.train.steps * 512 / IMAGES[recipe.data.name]
    assert f"{steps:,} steps of 512 images are about {epochs:.0f} epochs" in _text(name)


def test_the_hyper_rule_changes_at_its_limits():
    def rule(images, side, model="BiT-R50x1"):
        recipe = bit.hyper_rule(
            model=model,
            weights="a.npz",
            dataset="folder:a",
            eval_split="test",
            images=images,
            image_side=side,
        )
        return recipe.train.steps, recipe.model.image_size[0]

    assert rule(19_999, 95) == (500, 128)
    assert rule(20_000, 96) == (10_000, 384)
    assert rule(499_999, 96) == (10_000, 384)
    assert rule(500_000, 95) == (20_000, 128)
    large = PUBLISHED["bit_hyper_rule"]["larger_R152x4"]["crop"]
    assert rule(500, 96, "BiT-R152x4") == (500, large) != rule(500, 95, "BiT-R152x4")


def test_sgd_of_table_7():
    """BiT's paper states these settings; its decay of 1e-4 is coupled."""
    rows, columns = PUBLISHED["table_7"]["rows"]["ImageNet"], PUBLISHED["table_7"]["columns"]
    for name, column in (("jft_r50x1_sgd", "R50 SGD"), ("jft_r152x2_sgd", "R152x2 SGD")):
        recipe, adam = RECIPE[name], RECIPE[name.removesuffix("_sgd")]
        assert f"Expected: {rows[columns.index(column)]} %" in _text(name)
        assert (recipe.model, recipe.data, recipe.train) == (adam.model, adam.data, adam.train)
        optimizer = recipe.optimizer
        assert (optimizer.name, optimizer.momentum) == ("sgd", 0.9)
        assert (optimizer.learning_rate, optimizer.weight_decay) == (pytest.approx(0.48), 1e-3)
        assert recipe.schedule.decay_at == (0.25, 0.575, 0.75, 0.925)


def test_bit_on_imagenet_is_that_of_its_paper():
    """As with JFT-300M (table 7), but for its length; losses and heads are those of its authors."""
    base, images = RECIPE["jft_r50x1_sgd"], {"imagenet": 1_281_167, "imagenet21k": 14_000_000}
    names = {"regularisation_search", "jft_r50x1_sgd", "jft_r152x2_sgd"}
    for data, model in itertools.product(images, ("R50x1", "R101x1", "R152x2")):
        names.add(name := f"{data}_{model.lower()}")
        recipe = RECIPE[name]
        assert recipe.model.name == f"BiT-{model}" and recipe.model.image_size == (224, 224)
        assert recipe.optimizer == base.optimizer
        schedule = recipe.schedule
        assert (schedule.warmup_steps, schedule.decay) == (5000, "staircase")
        assert [90 * x for x in schedule.decay_at] == pytest.approx([30, 60, 80])
        assert recipe.train.steps == 90 * images[data] // 4096
        loss = "softmax" if data == "imagenet" else "sigmoid"
        assert (recipe.train.loss, recipe.train.batch_size) == (loss, 4096)
        assert recipe.model.config(10).head_bias == (0 if data == "imagenet" else -10)
        assert recipe.data == RECIPE[f"{data}_vit_b16"].data
    assert set(ablations.RECIPES) == names


def test_models_without_a_row_have_that_of_their_nearest():
    table_6 = PUBLISHED["table_6"]["rows"]
    assert len(pretraining.NO_ROW) == 3
    for name in ("jft_r152x2_14epochs", "jft_r200x3_14epochs"):
        recipe, nearest = RECIPE[name], RECIPE["jft_r152x2"]
        (row,) = [row for row in _named(recipe.model.name, table_6) if row[1] == 14]
        assert f"Expected: {row[2]:g} %" in _text(name) and f"({row[-1]} exaFLOPs)" in _text(name)
        assert (recipe.optimizer, recipe.schedule) == (nearest.optimizer, nearest.schedule)
        assert recipe.train.steps == PUBLISHED["table_3"]["steps"]["JFT_14_epochs"]
    recipe, nearest = RECIPE["imagenet21k_vit_h14"], RECIPE["imagenet21k_vit_l16"]
    assert (recipe.optimizer, recipe.schedule, recipe.train, recipe.data) == (
        *(nearest.optimizer, nearest.schedule, nearest.train, nearest.data),
    )
    assert recipe.model.name == "ViT-H/14" and recipe.model.config(10).dropout == 0.1
    accuracy = PUBLISHED["table_5"]["rows"]["ImageNet-21k"]["ImageNet"][-1]
    assert f"Expected: {accuracy:g} %" in _text("imagenet21k_vit_h14")


def _without(experiment, *names):
    """The experiment without what a comparison varies, and without its few-shot evaluations."""
    fields = {k: v for k, v in experiment.model.fields.items() if k not in names}
    train = dataclasses.replace(experiment.train, few_shot_every=0, keep_best=False)
    model = dataclasses.replace(experiment.model, fields=fields)
    return dataclasses.replace(experiment, model=model, train=train)


def test_position_embeddings_are_table_8():
    rows, columns = PUBLISHED["table_8"]["rows"], PUBLISHED["table_8"]["columns"]
    kinds = {"none": "none", "1d": "learned_1d", "2d": "learned_2d", "relative": "relative"}
    places = dict(zip(("stem", "every_layer", "every_layer_shared"), columns, strict=True))
    found = set()
    for kind, values in rows.items():
        for (injection, _), value in zip(places.items(), values, strict=True):
            end = {"stem": "", "every_layer": "_every_layer", "every_layer_shared": "_shared"}
            name = f"jft_positions_{kind}{end[injection]}"
            assert (name in RECIPES) == (value is not None)
            if value is not None:
                config = RECIPE[name].model.config(10)
                assert config.position_embedding == kinds[kind]
                assert config.position_injection == injection
                assert f"Expected: {100 * value:.3f} %" in _text(name)
                found.add(_without(RECIPE[name], "position_embedding", "position_injection"))
    assert found == {RECIPE["jft_vit_b16"]}


def test_classifiers_and_axial_models_have_the_settings_of_their_nearest():
    for name, classifier, rate in (
        ("jft_classifier_token", "token", 8e-4),
        ("jft_classifier_gap", "gap", 3e-4),
        ("jft_classifier_gap_8e4", "gap", 8e-4),
    ):
        recipe = RECIPE[name]
        config = recipe.model.config(10)
        assert config.classifier == classifier
        assert config.representation_size == (768 if classifier == "token" else None)
        assert recipe.optimizer.learning_rate == rate
        base = dataclasses.replace(
            recipe, optimizer=dataclasses.replace(recipe.optimizer, learning_rate=8e-4)
        )
        names = ("classifier", "representation_size")
        assert _without(base, *names) == _without(RECIPE["jft_vit_b16"], *names)
    for name, model, nearest in (
        ("jft_axial_vit_b32", "Axial-ViT-B/32", "jft_vit_b32"),
        ("jft_axial_vit_b16", "Axial-ViT-B/16", "jft_vit_b16"),
        ("jft_axial_r50", "AxialResNet-50L", "jft_r50x1"),
    ):
        base = RECIPE[nearest]
        assert RECIPE[name].model.name == model
        assert getattr(RECIPE[name].model.config(10), "representation_size", None) is None
        assert _without(dataclasses.replace(RECIPE[name], model=base.model)) == base


def test_shapes_vary_one_size_of_the_base():
    """Figure 8; docs/paper.md D.3 states the parameters of its base."""
    base = RECIPE["jft_shape_base"].model.config(1)
    sizes = ("layers", "hidden_size", "mlp_size", "patch_size")
    assert [getattr(base, size) for size in sizes] == [8, 1024, 2048, 32]
    for name in comparisons.RECIPES:
        if match := re.fullmatch(r"jft_shape_(layers|width|mlp|patch)_(\d+)", name):
            config = RECIPE[name].model.config(1)
            (changed,) = [x for x in sizes if getattr(config, x) != getattr(base, x)]
            names = {"width": "hidden_size", "mlp": "mlp_size", "patch": "patch_size"}
            assert changed == names.get(match[1], match[1])
            assert getattr(config, changed) == int(match[2])
            assert config.hidden_size == config.representation_size == 64 * config.heads
    for name, factor in (("jft_shape_half", 0.5), ("jft_shape_double", 2)):
        config = RECIPE[name].model.config(1)
        assert [getattr(config, size) / getattr(base, size) for size in sizes] == [*[factor] * 3, 1]


def test_parts_of_jft_are_those_of_figure_4():
    models = {"vit_s32": "jft_vit_b32", "vit_b32": "jft_vit_b32", "vit_l32": "jft_vit_l32"}
    models |= {x: f"jft_{x}" for x in ("vit_l16", "r50x1", "r152x2")}
    for model, nearest in models.items():
        for millions in (9, 30, 90, 303):
            recipe, base = RECIPE[f"jft{millions}m_{model}"], RECIPE[nearest]
            images = round((recipe.data.fraction or 1) * DATA["JFT-300M"][1])
            assert images == millions * 10**6
            assert (recipe.data.train_split, recipe.data.eval_split) == ("train", "validation")
            assert recipe.train.keep_best and recipe.train.best_metric == "evaluation"
            model_ = recipe.model if model == "vit_s32" else base.model
            base = dataclasses.replace(base, data=recipe.data, model=model_)
            assert _without(recipe) == _without(base)
    config = RECIPE["jft9m_vit_s32"].model.config(1)
    large = RECIPE["jft9m_vit_b32"].model.config(1)
    assert 2 * config.hidden_size == large.hidden_size and 2 * config.mlp_size == large.mlp_size


def test_the_search_holds_out_what_it_does_not_train_on():
    recipe, base = RECIPE["regularisation_search"], RECIPE["imagenet_vit_b16"]
    assert (recipe.data.train_split, recipe.data.eval_split) == ("train[:99%]", "train[99%:]")
    assert (recipe.optimizer, recipe.model, recipe.train) == (
        base.optimizer,
        base.model,
        base.train,
    )
    assert "--hold_out=0.01 " in _text("regularisation_search")


def test_augreg_is_its_grid():
    published, grid = PUBLISHED["augreg"], set()
    for dataset, name, epochs in (
        ("ImageNet-1k", "imagenet", 300),
        ("ImageNet-21k", "imagenet21k", 300),
    ):
        assert epochs in published["epochs"][dataset]
        images = DATA[dataset.removesuffix("-1k")][1]
        for level, (layers, magnitude, mixup) in published["aug_levels_l_m_alpha"].items():
            recipe = RECIPE[f"augreg_{name}_{level}"]
            data, optimizer = recipe.data, recipe.optimizer
            assert (data.randaugment_layers, data.mixup) == (layers, mixup)
            assert not layers or data.randaugment_magnitude == magnitude
            assert optimizer.learning_rate == published["peak_lr"]
            assert [optimizer.beta_1, optimizer.beta_2] == published["adam"]
            assert optimizer.clip_norm == published["grad_clip_global_norm"]
            assert recipe.schedule.warmup_steps == published["warmup_steps"]
            assert recipe.schedule.decay == published["lr_decay"]
            assert recipe.train.batch_size == published["batch_size"]
            assert recipe.train.steps == int(epochs * images / 4096)
            assert recipe.model.config(10).head_bias == published["head_bias_init"][dataset]
            for weight_decay in published["weight_decay"]:
                for rates in published["regularisation"]:
                    point = override(
                        recipe,
                        [f"optimizer.weight_decay={weight_decay}"]
                        + [f"model.{field}={rate}" for field, rate in rates.items()],
                    )
                    grid.add(json.dumps(point.to_dict()))
            assert optimizer.weight_decay in published["weight_decay"]
    assert len(grid) == 2 * 28
    best = PUBLISHED["reference_results"]["augreg_recommended_imagenet_384"]["B/16"]
    assert f"Expected: {best} %" in _text("augreg_imagenet21k_medium1")


def test_model_data_and_weights_can_be_others():
    changed = override(
        RECIPE["imagenet_vit_b16"],
        ["model.name=BiT-R50x1", "data.name=folder:pets", "init_from=runs/a"],
    )
    assert changed.model.fields == {"head_bias": -10.0}
    assert changed.data.train_split == changed.data.eval_split == "auto"
    assert changed.optimizer == RECIPE["imagenet_vit_b16"].optimizer


def test_summary_has_the_main_numbers():
    assert summary(RECIPE["bit_cifar10"], images=50_000) == [
        "BiT-R50x1 at 128 x 128 on cifar10: 10,000 steps of 512 images (102.4 epochs), softmax "
        "loss, from bit_models/BiT-M-R50x1",
        "sgd with a rate of 0.003, warm-up of 500 steps, staircase decay at 0.3 0.6 0.9, weight "
        "decay 0, dropout 0, MixUp 0.1",
    ]
    experiment = override(
        Experiment(),
        [
            "schedule.decay=constant",
            "model.stochastic_depth=0.2",
            "data.randaugment_layers=2",
            "data.cutmix=1",
            "train.label_smoothing=0.1",
            "train.ema_decay=0.9999",
        ],
    )
    assert summary(experiment) == [
        "ViT-B/16 at 224 x 224 on digits: 1,000 steps of 64 images, softmax loss",
        "adamw with a rate of 0.001, warm-up of 0 steps, no decay, weight decay 0, clipping at 1, "
        "dropout 0, stochastic depth 0.2, RandAugment 2 x 10, CutMix 1, label smoothing 0.1, "
        "average of the weights with 0.9999, warmed up",
    ]


def test_the_readme_counts_the_recipes():
    assert f"`--list` prints {len(RECIPES)} recipes" in (ROOT / "README.md").read_text()


def test_masked_patch_prediction_is_the_paper_s():
    published = PUBLISHED["self_supervision"]
    targets = set()
    for name in ("mpp_color", "mpp_downsample", "mpp_pixels"):
        recipe = RECIPE[name]
        assert recipe.task == "masked_patches" and recipe.model.name == "ViT-B/16"
        assert recipe.masking.fraction == published["corrupt_fraction"]
        assert (recipe.train.steps, recipe.train.batch_size) == (
            published["steps"],
            published["batch_size"],
        )
        assert (recipe.optimizer.name, recipe.optimizer.learning_rate) == (
            "adamw",  # Adam, without weight decay.
            published["base_lr"],
        )
        assert recipe.optimizer.weight_decay == 0
        schedule = recipe.schedule
        assert (schedule.warmup_steps, schedule.decay) == (
            published["warmup_steps"],
            published["lr_decay"],
        )
        targets.add(recipe.masking.target)
    assert len(targets) == len(published["targets"]) == 3
    recipe, base = RECIPE["mpp_imagenet"], RECIPE["mpp_color"]
    assert recipe.train.steps == published["diminishing_returns_after_steps"]
    same = {"data": base.data, "train": base.train}
    assert dataclasses.replace(recipe, **same) == base
    assert recipe.data == RECIPE["imagenet_vit_b16"].data
    assert f"Expected: {published['gain_over_scratch_points']} % better" in _text("mpp_imagenet")
    epochs = published["steps"] * published["batch_size"] / DATA["JFT-300M"][1]
    assert round(epochs) == published["epochs_approx"]
    assert f"{published['imagenet_finetune_top1_vit_b16']} %" in _text("mpp_color")
    assert f"masking.fraction={published['tried_other_fraction']}" in _text("mpp_color")
