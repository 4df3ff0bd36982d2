"""Names of an earlier version are refused with the new ones, all at once."""

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


def test_all_of_a_config_are_listed():
    """Also where a field of this name held nothing, as in every configuration of a ViT."""
    old = {}
    for path in RENAMED:
        section, name = path.split(".")
        old.setdefault(section, {})[name] = None
    old["model"] |= {"name": "ViT-Ti/16", "heads": None}
    with pytest.raises(UserError) as error:
        Experiment.from_dict(old | {"seed": 3})
    assert str(error.value).startswith("config.json has names of an earlier version")
    for path, new in RENAMED.items():
        assert f"{path} -> {new}" in str(error.value)


def test_a_resnet_has_fields_of_its_own():
    names = ["model.name=BiT-R50x1", "model.width=0.5", "model.group_norm_epsilon=1e-4"]
    assert override(Experiment(), names).model.config(10).width == 0.5
    with pytest.raises(UserError, match="Rename them: model.units -> model.stage_depths"):
        override(Experiment(), [*names, "model.units=1,2"])
