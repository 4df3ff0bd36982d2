"""Overrides, JSON and validation of experiments."""

import copy
import dataclasses
import json
import pickle

import pytest

from pipelines import config
from pipelines.config import Assignments, Experiment, Model, fields, override, recipes
from pipelines.errors import UserError

# For every path a valid value other than the default. New fields must be added here.
VALUES = {
    "seed": ("7", 7),
    "init_from": ("runs/a", "runs/a"),
    "init_weights": ("ema", "ema"),
    "init_head": ("reset_last", "reset_last"),
    "task": ("masked_patches", "masked_patches"),
    "masking.target": ("pixels", "pixels"),
    "masking.fraction": ("0.15", 0.15),
    "few_shot.name": ("shapes", "shapes"),
    "few_shot.data_dir": ("/data", "/data"),
    "few_shot.label": ("species", "species"),
    "few_shot.preprocessing": ("protocol", "protocol"),
    "few_shot.train_split": ("train[:9]", "train[:9]"),
    "few_shot.eval_split": ("test", "test"),
    "few_shot.shots": ("5,25", (5, 25)),
    "few_shot.l2": ("1", 1.0),
    "few_shot.seeds": ("1", 1),
    "train.few_shot_every": ("10", 10),
    "train.best_metric": ("few_shot", "few_shot"),
    "model.name": ("ViT-Ti/16", "ViT-Ti/16"),
    "model.image_size": ("64,48", (64, 48)),
    "model.patch_size": ("8", 8),
    "model.hidden_size": ("96", 96),
    "model.mlp_size": ("128", 128),
    "model.layers": ("2", 2),
    "model.heads": ("4", 4),
    "model.stem.stage_depths": ("1,2", (1, 2)),
    "model.stem.width": ("0.5", 0.5),
    "model.stem.group_norm_epsilon": ("1e-4", 1e-4),
    "model.stem.variance_epsilon": ("1e-8", 1e-8),
    "model.stem.deviation_epsilon": ("0", 0.0),
    "model.classifier": ("gap", "gap"),
    "model.representation_size": ("32", 32),
    "model.position_embedding": ("learned_2d", "learned_2d"),
    "model.position_injection": ("every_layer", "every_layer"),
    "model.activation": ("gelu_erf", "gelu_erf"),
    "model.axial": ("true", True),
    "model.dropout": ("0.1", 0.1),
    "model.attention_dropout": ("0.2", 0.2),
    "model.stochastic_depth": ("0.3", 0.3),
    "model.layer_norm_epsilon": ("1e-5", 1e-5),
    "model.layer_scale": ("1e-5", 1e-5),
    "model.qk_norm": ("true", True),
    "model.key_bias": ("false", False),
    "model.qkv_bias": ("false", False),
    "model.rotary_base": ("50", 50.0),
    "model.register_tokens": ("4", 4),
    "model.head_bias": ("-10", -10.0),
    "model.dtype": ("mixed_float16", "mixed_float16"),
    "model.recompute": ("blocks", "blocks"),
    "data.name": ("cifar10", "cifar10"),
    "data.data_dir": ("/data", "/data"),
    "data.label": ("coarse_label", "coarse_label"),
    "data.train_split": ("train[:90%]", "train[:90%]"),
    "data.eval_split": ("none", None),
    "data.split_by": ("file", "file"),
    "data.class_order": ("natural", "natural"),
    "data.exclude": ("list.json", "list.json"),
    "data.fraction": ("0.1", 0.1),
    "data.per_class": ("10", 10),
    "data.balance": ("loss", "loss"),
    "data.subset_seed": ("3", 3),
    "data.shuffle_window": ("100", 100),
    "data.sharding": ("files", "files"),
    "data.bad_images": ("skip", "skip"),
    "data.scan": ("headers", "headers"),
    "data.crop": ("random", "random"),
    "data.crop_area": ("0.2,0.9", (0.2, 0.9)),
    "data.crop_resize_to": ("448", 448),
    "data.flip": ("false", False),
    "data.vertical_flip": ("true", True),
    "data.color_jitter": ("0.4,0.3,0.2,0.1", (0.4, 0.3, 0.2, 0.1)),
    "data.randaugment_layers": ("2", 2),
    "data.randaugment_magnitude": ("15", 15.0),
    "data.randaugment_rules": ("published", "published"),
    "data.mixing_steps": ("7", 7),
    "data.mixing_epochs": ("2.5", 2.5),
    "data.random_erasing": ("0.25", 0.25),
    "data.random_erasing_area": ("0.1,0.2", (0.1, 0.2)),
    "data.random_erasing_aspect": ("0.5,2", (0.5, 2.0)),
    "data.random_erasing_fill": ("grey", "grey"),
    "data.mixup": ("0.2", 0.2),
    "data.cutmix": ("1", 1.0),
    "data.resize": ("resize_small", "resize_small"),
    "data.resize_to": ("256", 256),
    "data.crop_fraction": ("0.875", 0.875),
    "data.interpolation": ("area", "area"),
    "data.eval_interpolation": ("area", "area"),
    "data.antialias": ("true", True),
    "data.exif": ("ignore", "ignore"),
    "data.jpeg": ("accurate", "accurate"),
    "data.mean": ("0.4,0.5,0.6", (0.4, 0.5, 0.6)),
    "data.std": ("0.1,0.2,0.3", (0.1, 0.2, 0.3)),
    "data.image_dtype": ("uint8", "uint8"),
    "optimizer.name": ("sgd", "sgd"),
    "optimizer.learning_rate": ("1", 1.0),
    "optimizer.weight_decay": ("0.3", 0.3),
    "optimizer.weight_decay_mask": ("all", "all"),
    "optimizer.momentum": ("0.5", 0.5),
    "optimizer.momentum_dtype": ("bfloat16", "bfloat16"),
    "optimizer.beta_1": ("0.8", 0.8),
    "optimizer.beta_2": ("0.99", 0.99),
    "optimizer.epsilon": ("1e-6", 1e-6),
    "optimizer.clip_norm": ("none", None),
    "optimizer.freeze": ("stem, [ab]*/bias", ("stem", "[ab]*/bias")),
    "optimizer.train_only": ("head", ("head",)),
    "optimizer.layer_decay": ("0.75", 0.75),
    "optimizer.lora_rank": ("8", 8),
    "optimizer.lora_alpha": ("8", 8.0),
    "optimizer.lora_targets": ("qkv, mlp", ("qkv", "mlp")),
    "optimizer.lora_blocks": ("2,3", (2, 3)),
    "schedule.warmup_steps": ("1e1", 10),
    "schedule.warmup_epochs": ("0.5", 0.5),
    "schedule.decay": ("linear", "linear"),
    "schedule.decay_at": ("0.3,0.6", (0.3, 0.6)),
    "train.steps": ("50", 50),
    "train.epochs": ("2.5", 2.5),
    "train.batch_size": ("8", 8),
    "train.accumulate_steps": ("4", 4),
    "train.early_stop_after": ("3", 3),
    "train.ema_decay": ("0.9999", 0.9999),
    "train.ema_warmup": ("true", True),
    "train.loss": ("sigmoid", "sigmoid"),
    "train.label_smoothing": ("0.1", 0.1),
    "train.log_every": ("5", 5),
    "train.eval_every": ("6", 6),
    "train.eval_batches": ("6", 6),
    "train.checkpoint_every": ("7", 7),
    "train.keep_last": ("9", 9),
    "train.keep_every": ("8", 8),
    "train.keep_best": ("true", True),
    "train.profile": ("10:20", "10:20"),
    "train.histograms_every": ("5", 5),
    "train.inspect_every": ("5", 5),
    "train.deterministic": ("true", True),
    "train.jit_compile": ("true", True),
    "train.shard_optimizer": ("true", True),
    "train.worker_timeout": ("60", 60.0),
    "train.non_finite": ("rewind", "rewind"),
}
# Fields that are valid only together.
_STEM = ["model.stem.stage_depths=1,2", "model.patch_size=1"]
COMPANIONS = {
    "model.qkv_bias": ["model.key_bias=false"],
    "data.name": ["data.exif=apply"],  # Of these data it would be "ignore".
    "train.early_stop_after": ["train.eval_every=10"],
    "model.stem.stage_depths": ["model.patch_size=1"],
    "model.stem.width": _STEM,
    "model.stem.group_norm_epsilon": _STEM,
    "model.stem.variance_epsilon": _STEM,
    "model.stem.deviation_epsilon": _STEM,
    "schedule.decay_at": ["schedule.decay=staircase"],
    "train.ema_decay": ["train.ema_warmup=true"],
    "train.best_metric": ["train.few_shot_every=10", "train.keep_best=true"],
    "data.crop": ["data.crop_resize_to=448"],
    "data.crop_resize_to": ["data.crop=random"],
    "data.resize": ["data.resize_to=256"],
    "data.resize_to": ["data.resize=resize_small"],
    "data.crop_fraction": ["data.resize=resize_small"],
}


# The same for fields that a ResNet has and a ViT has not.
RESNET_VALUES = {
    "model.stage_depths": ("1,2", (1, 2)),
    "model.width": ("0.5", 0.5),
    "model.group_norm_epsilon": ("1e-4", 1e-4),
    "model.variance_epsilon": ("1e-8", 1e-8),
    "model.deviation_epsilon": ("1e-3", 1e-3),
    "model.spatial": ("sparse", "sparse"),
    "model.squeeze_excite": ("true", True),
}
RESNET = override(Experiment(), ["model.name=BiT-R50x1"])
# The same for fields that only an AxialResNet has.
AXIAL_VALUES = {
    "model.norm": ("group", "group"),
    "model.pixel_mean": ("0.4,0.5,0.6", (0.4, 0.5, 0.6)),
    "model.pixel_deviation": ("0.2,0.3,0.4", (0.2, 0.3, 0.4)),
    "model.batch_norm_epsilon": ("1e-3", 1e-3),
    "model.batch_norm_momentum": ("0.99", 0.99),
}
AXIAL = override(Experiment(), ["model.name=AxialResNet-26S"])


def _read(experiment, path):
    section, _, name = path.partition(".")
    if section == "model" and name in experiment.model.fields:
        return experiment.model.fields[name]
    return getattr(getattr(experiment, section), name) if name else getattr(experiment, section)


def test_every_path_has_a_value():
    assert set(VALUES) == set(config.config_paths())
    only_resnet = set(config.config_paths("BiT-R50x1")) - set(config.config_paths())
    assert set(RESNET_VALUES) == only_resnet
    others = set(config.config_paths()) | set(config.config_paths("BiT-R50x1"))
    assert set(AXIAL_VALUES) == set(config.config_paths("AxialResNet-26S")) - others


@pytest.mark.parametrize("path", VALUES)
def test_override_sets_one_field_by_its_type(path):
    _check_override(Experiment(), path, *VALUES[path])


@pytest.mark.parametrize(
    ("base", "path", "values"),
    [(AXIAL, *item) for item in AXIAL_VALUES.items()]
    + [(RESNET, *item) for item in RESNET_VALUES.items()],
)
def test_override_sets_one_field_of_a_residual_network(base, path, values):
    _check_override(base, path, *values)
    assert getattr(base.model.config(10), path.removeprefix("model.")) != values[1]


def _check_override(experiment, path, text, expected):
    changed = override(experiment, [f"{path}={text}", *COMPANIONS.get(path, [])])
    received = _read(changed, path)
    assert received == expected
    assert type(received) is type(expected)
    found = fields.differences(experiment.to_dict(), changed.to_dict())
    paths = {line.split(":")[0] for line in found}
    assert path in paths
    assert paths <= {path} | {name.split("=")[0] for name in COMPANIONS.get(path, [])}
    assert Experiment.from_dict(json.loads(json.dumps(changed.to_dict()))) == changed


def _dict():
    return Experiment().to_dict()


def test_one_number_is_a_square_image():
    assert override(Experiment(), ["model.image_size=32"]).model.image_size == (32, 32)


def test_a_new_average_has_a_warm_up():
    """The paper's recipes with an average have none, and so has a config.json without the field."""
    paper = recipes.get_recipe("finetune_imagenet_l16_512")
    for start, texts, expected in (
        (Experiment(), ["train.ema_decay=0.99"], True),
        (Experiment(), ["train.ema_decay=0.99", "train.ema_warmup=false"], False),
        (Experiment(), ["seed=1"], False),
        (paper, ["train.ema_decay=0.99"], False),
        (paper, ["train.ema_warmup=true"], True),
        (override(Experiment(), ["train.ema_decay=0.99"]), ["train.ema_decay=0.9"], True),
        (override(Experiment(), ["train.ema_decay=0.99"]), ["train.ema_decay=none"], False),
    ):
        assert override(start, texts).train.ema_warmup == expected, texts
    old = _dict()
    old["train"] |= {"ema_decay": 0.99}
    del old["train"]["ema_warmup"]
    assert not Experiment.from_dict(old).train.ema_warmup


@pytest.mark.parametrize(
    ("field", "values"), [("exif", ("apply", "ignore")), ("split_by", ("class", "file"))]
)
def test_what_was_stored_before_a_field_goes_on_as_before(field, values):
    """Before data.exif orientations were ignored, before data.split_by ranges were of all files."""
    for value in values:
        stored = override(Experiment(), [f"data.{field}={value}"]).to_dict()
        assert Experiment.from_stored(stored) == Experiment.from_dict(stored)
    before = copy.deepcopy(stored)
    del before["data"][field]
    untouched = copy.deepcopy(before)
    assert Experiment.from_stored(before) == Experiment.from_dict(stored)
    assert before == untouched
    assert getattr(Experiment.from_dict(before).data, field) == values[0]
    for damaged in ({"data": 3}, {"data": {"unknown": 1}}):
        with pytest.raises(UserError, match="data"):
            Experiment.from_stored(damaged)


def test_a_chosen_orientation_stays_for_data_of_the_same_kind():
    own = override(Experiment(), ["data.name=folder:a", "data.exif=ignore"])
    assert override(own, ["data.name=list:b.csv"]).data.exif == "ignore"
    assert override(own, ["data.exif=none"]).data.exif == "apply"
    published = override(Experiment(), ["data.name=cifar10", "data.exif=apply"])
    assert Experiment.from_dict(published.to_dict()).data.exif == "apply"
    assert override(published, ["data.name=cifar100"]).data.exif == "apply"


def test_what_was_stored_without_the_decoding_of_jpegs_keeps_the_fast_one():
    filtered = override(Experiment(), ["data.antialias=true"])
    assert filtered.preprocessing().jpeg == "accurate"
    assert Experiment().preprocessing().jpeg == "fast"
    for experiment in (Experiment(), filtered):
        stored = experiment.to_dict()
        assert Experiment.from_stored(stored) == experiment
        del stored["data"]["jpeg"]
        before = Experiment.from_stored(stored)
        assert before.preprocessing().jpeg == before.train_preprocessing().jpeg == "fast"
    assert Experiment.from_stored({}) == Experiment()


def test_values_may_hold_equal_signs():
    assert override(Experiment(), ["data.data_dir=/a=b"]).data.data_dir == "/a=b"


def test_another_model_name_brings_its_own_sizes():
    recipe = recipes.get_recipe("digits")
    changed = override(recipe, ["model.layers=3", "model.name=ViT-L/16", "model.image_size=64"])
    config_ = changed.model.config(10)
    sizes = (config_.hidden_size, config_.mlp_size, config_.heads, config_.patch_size)
    assert sizes == (1024, 4096, 16, 16)
    assert config_.layers == 3
    assert config_.dropout == 0.1
    assert override(recipe, ["seed=1"]).model == recipe.model


@pytest.mark.parametrize(
    ("recipe", "texts", "size", "note"),
    [
        ("jft_vit_l32", ["model.name=ViT-B/16"], 768, "768 instead of 1024: the hidden size"),
        ("jft_vit_l32", ["model.name=ViT-B/16", "model.hidden_size=96"], 96, "96 instead of 1024"),
        ("jft_vit_l32", ["model.name=ViT-L/16"], 1024, None),
        ("jft_vit_l32", ["model.name=ViT-B/16", "model.representation_size=5"], 5, None),
        ("jft_vit_l32", ["model.name=ViT-B/16", "model.representation_size=none"], None, None),
        ("jft_vit_l32", ["model.name=BiT-R50x1"], None, None),
        ("jft_vit_l32", ["model.classifier=gap"], None, "gap has a linear head: model.represent"),
        ("jft_vit_l32", ["model.classifier=gap", "model.representation_size=5"], 5, None),
        ("jft_vit_l32", ["model.classifier=token"], 1024, None),
        ("jft_vit_l32", ["model.name=Axial-ViT-B/16"], None, "gap has a linear head"),
        ("augreg_imagenet_medium2", ["model.name=ViT-S/16"], 384, "384 instead of 768"),
        ("imagenet_vit_s16_baseline", ["model.name=ViT-B/16"], 768, "768 instead of 384"),
    ],
)
def test_pre_logits_follow_the_model(recipe, texts, size, note):
    """A recipe's pre-logits have the new model's hidden size; a GAP head loses its pre-logits."""
    experiment, notes = Assignments.parse(texts).apply(recipes.get_recipe(recipe))
    assert experiment.model.fields.get("representation_size") == size
    assert len(notes) == (note is not None)
    assert note is None or note in notes[0]


def test_pre_logits_of_a_gap_recipe_and_of_the_user_stay():
    own = ["model.classifier=gap", "model.representation_size=64"]
    recipe = override(Experiment(), own)
    assert override(recipe, ["seed=1"]).model == recipe.model
    assigned = Assignments.parse(["model.classifier=map"]).apply(recipe, own[1].split("=")[:1])[0]
    assert assigned.model.fields["representation_size"] == 64


def test_another_data_set_brings_its_own_splits():
    own = ["data.train_split=train[:90%]", "data.eval_split=train[90%:]"]
    experiment = override(Experiment(), ["data.name=cifar10", *own])
    kept = override(experiment, ["data.name=cifar10", "seed=1"]).data
    assert (kept.train_split, kept.eval_split) == ("train[:90%]", "train[90%:]")
    changed = override(experiment, ["data.name=folder:pets", "data.eval_split=val"]).data
    assert (changed.train_split, changed.eval_split) == ("auto", "val")
    labeled = override(experiment, ["data.label=coarse_label"])
    assert override(labeled, ["data.name=cifar10"]).data.label == "coarse_label"
    assert override(labeled, ["data.name=oxford_iiit_pet"]).data.label is None
    other = ["data.name=oxford_iiit_pet", "data.label=species"]
    assert override(labeled, other).data.label == "species"
    without = override(experiment, ["data.eval_split=none"])
    assert override(without, ["data.name=folder:pets"]).data.eval_split is None


@pytest.mark.parametrize(
    ("assignments", "refused"),
    [
        (["model.name=ViT-S/16"], True),
        (["model.name=ViT-S/16", "model.image_size=16"], False),
        (["model.name=ViT-S/16", "model.patch_size=16"], False),
        (["model.name=ViT-S/8"], False),
        (["model.name=BiT-R50x1"], False),
        (["model.stem.stage_depths=1"], True),
        (["seed=1"], False),
    ],
)
def test_a_grid_of_one_patch_is_refused_unless_its_sizes_are_set(assignments, refused):
    recipe = recipes.get_recipe("digits")
    if refused:
        with pytest.raises(UserError, match="16 x 16 .*larger model"):
            override(recipe, assignments)
    else:
        changed = override(recipe, assignments)
        # Values that were set before are kept.
        assert override(changed, ["seed=2"]).model == changed.model


def test_a_resnet_keeps_what_it_has_a_field_for():
    recipe = override(recipes.get_recipe("digits"), ["model.head_bias=-10"])
    changed = override(recipe, ["model.name=BiT-R50x1", "model.width=0.5"])
    assert changed.model.fields == {"head_bias": -10.0, "width": 0.5}
    assert changed.model.image_size == (16, 16)
    config_ = changed.model.config(10)
    assert (config_.stage_depths, config_.width, config_.head_bias) == ((3, 4, 6, 3), 0.5, -10.0)


def test_a_stem_makes_a_hybrid_and_changes_one():
    own = ["model.stem.stage_depths=1,2", "model.stem.width=0.5", "model.patch_size=1"]
    stem = override(Experiment(), own).model.config(10).stem
    assert (stem.stage_depths, stem.width, stem.deviation_epsilon) == ((1, 2), 0.5, 1e-5)
    hybrid = ["model.name=R50+ViT-B/16", "model.stem.width=0.5"]
    stem = override(Experiment(), hybrid).model.config(10).stem
    assert (stem.stage_depths, stem.width) == ((3, 4, 9), 0.5)
    assert override(override(Experiment(), own), ["model.name=ViT-B/16"]) == Experiment()


def test_the_title_names_sizes_that_differ():
    assert Model().title() == "ViT-B/16"
    changed = Model(fields={"layers": 4, "hidden_size": 96, "dropout": 0.3})
    assert changed.title() == "ViT-B/16 with hidden_size=96, layers=4"


def test_none_is_the_value_of_the_variant():
    recipe = recipes.get_recipe("digits")
    changed = override(recipe, ["model.layers=none", "model.dropout=none"])
    assert changed.model.fields.keys() == recipe.model.fields.keys() - {"layers", "dropout"}
    assert changed.model.config(10).layers == 12
    given = Model(fields={"layers": None, "heads": 2})
    assert given == Model(fields={"heads": 2}) and hash(given) == hash(Model())
    positions = override(recipe, ["model.position_embedding=none"]).model
    assert positions.config(10).position_embedding == "none"


def test_paths_in_json_are_those_of_set():
    own = ["model.stem.stage_depths=1,2", "model.patch_size=1"]
    model = override(Experiment(), own).to_dict()["model"]
    assert model == {
        "name": "ViT-B/16",
        "image_size": [224, 224],
        "dtype": "float32",
        "recompute": "none",
        "patch_size": 1,
        "stem": {"stage_depths": [1, 2]},
    }
    with pytest.raises(TypeError):
        Experiment().model.fields["layers"] = 3


def test_only_models_with_blocks_recompute_them():
    changed = override(Experiment(), ["model.name=R50+ViT-B/16", "model.recompute=blocks"])
    assert changed.model_config(10).recompute == "blocks"
    with pytest.raises(UserError, match="blocks.*BiT-R50x1"):
        override(Experiment(), ["model.name=BiT-R50x1", "model.recompute=blocks"])


def test_order_of_assignments_does_not_matter():
    assignments = ["schedule.warmup_steps=2000", "train.steps=3000"]
    assert override(Experiment(), assignments) == override(Experiment(), assignments[::-1])


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_recipes_survive_json(name):
    recipe = recipes.get_recipe(name)
    assert Experiment.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe


def test_experiments_cannot_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Experiment().seed = 3


def test_experiments_can_be_copied():
    recipe = recipes.get_recipe("digits")
    for copied in (copy.copy(recipe), copy.deepcopy(recipe), pickle.loads(pickle.dumps(recipe))):
        assert copied == recipe and hash(copied) == hash(recipe)
        with pytest.raises(TypeError, match="cannot be changed"):
            copied.model.fields["layers"] = 3
    assert dataclasses.asdict(recipe)["model"]["fields"] == dict(recipe.model.fields)
    for change in ("update", "setdefault", "pop", "__delitem__", "__ior__"):
        with pytest.raises(TypeError, match="cannot be changed"):
            getattr(recipe.model.fields, change)("layers")
    for change in ("clear", "popitem"):
        with pytest.raises(TypeError, match="cannot be changed"):
            getattr(recipe.model.fields, change)()


def test_differences_are_readable():
    changed = override(Experiment(), ["train.steps=5", "seed=2"])
    assert fields.differences(_dict(), changed.to_dict()) == [
        "seed: 0 -> 2",
        "train.steps: 1000 -> 5",
    ]
