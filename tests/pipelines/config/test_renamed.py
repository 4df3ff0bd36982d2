"""One error lists the new names of all option names of an earlier version."""

import pytest

from pipelines.config import Experiment, config_paths, override
from pipelines.config.renamed import _RENAMED
from pipelines.errors import UserError

RENAMED = {
    "train.accumulation": "train.accumulate_steps",
    "train.average": "train.ema_decay",
    "data.window": "data.shuffle_window",
    "data.erasing": "data.random_erasing",
    "data.erasing_area": "data.random_erasing_area",
    "data.erasing_aspect": "data.random_erasing_aspect",
    "data.erasing_fill": "data.random_erasing_fill",
    "data.colour_jitter": "data.color_jitter",
    "model.units": "model.stem.stage_depths",
    "model.width": "model.stem.width",
    "model.group_norm_epsilon": "model.stem.group_norm_epsilon",
    "model.variance_epsilon": "model.stem.variance_epsilon",
    "model.deviation_epsilon": "model.stem.deviation_epsilon",
    "optimizer.decay": "optimizer.weight_decay_mask",
}


def test_every_old_name_is_tested():
    assert _RENAMED.keys() == RENAMED.keys()
    known = config_paths("ViT-B/16") | config_paths("BiT-R50x1")
    assert all(new in known for names in _RENAMED.values() for new in names)


@pytest.mark.parametrize("old", RENAMED)
def test_set_with_an_old_name(old):
    with pytest.raises(UserError) as error:
        override(Experiment(), [f"{old}=1", "seed=3"])
    assert f"--set has names of an earlier version. Rename them: {old} -> {RENAMED[old]}." in str(
        error.value
    )


# The fields that every configuration of the version before had in these sections.
OLD_SECTIONS = {
    "data": {
        "name": "digits",
        "train_split": "train",
        "window": 8192,
        "erasing": 0.0,
        "erasing_area": [0.02, 0.4],
        "erasing_aspect": [0.3, 1 / 0.3],
        "erasing_fill": "noise",
        "colour_jitter": [0.0, 0.0, 0.0, 0.0],
    },
    "optimizer": {"name": "adamw", "decay": "kernels", "clip_norm": None},
    "train": {"steps": 1000, "accumulation": 1, "average": None},
}
# That version listed the fields of all models; null meant the value of the variant.
OLD_MODEL = {
    "name": "ViT-B/16",
    "image_size": [224, 224],
    "patch_size": None,
    "hidden_size": None,
    "mlp_size": None,
    "layers": None,
    "heads": None,
    "units": None,
    "width": None,
    "group_norm_epsilon": None,
    "variance_epsilon": None,
    "deviation_epsilon": None,
    "classifier": None,
    "representation_size": None,
    "position_embedding": None,
    "activation": None,
    "dropout": None,
    "attention_dropout": None,
    "stochastic_depth": None,
    "layer_norm_epsilon": None,
    "head_bias": None,
    "dtype": "float32",
}
OLD_STEM = {
    "units": [1, 2],
    "width": 0.5,
    "group_norm_epsilon": 1e-4,
    "variance_epsilon": 1e-8,
    "deviation_epsilon": 0.0,
}


@pytest.mark.parametrize(
    ("model", "renamed"),
    [
        ({"name": "ViT-Ti/16", "heads": 3}, {}),
        ({"name": "R50+ViT-B/16"}, {}),
        (
            {"name": "ViT-B/16"} | OLD_STEM,
            {path: new for path, new in RENAMED.items() if path.startswith("model.")},
        ),
        ({"name": "BiT-R50x1"}, {}),
        ({"name": "BiT-R50x1"} | OLD_STEM, {"model.units": "model.stage_depths"}),
    ],
    ids=["vit", "hybrid", "own hybrid", "resnet", "own resnet"],
)
def test_all_of_a_config_are_listed(model, renamed):
    """The error lists all names that must change, and no others; then the file can be read."""
    old = {"seed": 3, "init_from": None, "model": OLD_MODEL | model} | OLD_SECTIONS
    renamed = renamed | {path: new for path, new in RENAMED.items() if "model." not in path}
    with pytest.raises(UserError) as error:
        Experiment.from_dict(old)
    start, end = "config.json has names of an earlier version. Rename them: ", "."
    text = str(error.value)
    assert text.startswith(start) and text.endswith(end)
    listed = text.removeprefix(start).removesuffix(end).split(", ")
    assert sorted(listed) == sorted(f"{path} -> {new}" for path, new in renamed.items())

    for path, new in renamed.items():
        section, name = path.split(".")
        old[section] = dict(old[section])
        value = old[section].pop(name)
        *sections, name = new.split(".")
        inner = old
        for key in sections:
            inner = inner.setdefault(key, {})
        inner[name] = value
    read = Experiment.from_dict(old).model
    own = {name: value for name, value in model.items() if name != "name"}
    assert list(read.fields.values()) == [_as_read(value) for value in own.values()]


def _as_read(value):
    return tuple(value) if isinstance(value, list) else value


def test_null_is_no_excuse_for_an_unknown_field():
    with pytest.raises(UserError, match="Unknown model field 'layer' of ViT-B/16"):
        Experiment.from_dict({"model": {"layer": None}})
    with pytest.raises(UserError, match="model.image_size is of type"):
        Experiment.from_dict({"model": {"image_size": None}})


def test_a_resnet_has_fields_of_its_own():
    names = ["model.name=BiT-R50x1", "model.width=0.5", "model.group_norm_epsilon=1e-4"]
    assert override(Experiment(), names).model.config(10).width == 0.5
    with pytest.raises(UserError, match="Rename them: model.units -> model.stage_depths"):
        override(Experiment(), [*names, "model.units=1,2"])
