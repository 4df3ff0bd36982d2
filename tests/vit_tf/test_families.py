"""The table of families: each entry can be imported, and each configuration has a family."""

import json
import math

import keras
import pytest

import vit_tf
from tests.vit_tf import tiny
from vit_tf.families import FAMILIES, config_from_dict, family_of

CONFIGS = {
    "vit": tiny.config(),
    "resnet": vit_tf.ResNetConfig(stage_depths=(1,), width=0.5, image_size=32),
    "axial_resnet": vit_tf.AxialResNetConfig(stage_depths=(1,), width=0.125, image_size=16),
}


def test_every_family_has_a_configuration_here():
    assert [family.config.family for family in FAMILIES] == list(CONFIGS)


@pytest.mark.parametrize("name", CONFIGS)
def test_entries_resolve(name):
    config = CONFIGS[name]
    family = family_of(config)
    assert family.config is type(config)
    assert issubclass(family.model, keras.Model)
    model = vit_tf.create_model(config)
    assert type(model) is family.model
    costs = family.cost(config, 4, True).values()
    trainable = sum(math.prod(weight.shape) for weight in model.trainable_weights)
    assert sum(cost.parameters for cost in costs) == trainable


@pytest.mark.parametrize("name", CONFIGS)
def test_dictionaries_say_their_family(name):
    written = json.loads(json.dumps(CONFIGS[name].to_dict()))
    assert written.get("family", "vit") == name
    assert config_from_dict(written) == CONFIGS[name]


@pytest.mark.parametrize("name", ["cnn", None, ["vit"]])
def test_an_unknown_family_is_refused(name):
    with pytest.raises(ValueError, match="family .*vit, resnet"):
        config_from_dict(tiny.config().to_dict() | {"family": name})


def test_what_is_no_configuration_has_no_family():
    with pytest.raises(TypeError, match="configuration.*'ViT-B/16'"):
        family_of("ViT-B/16")


def test_a_file_does_not_choose_the_implementation():
    fields = tiny.config().to_dict() | {"implementation": "compiled"}
    assert config_from_dict(fields).implementation == "auto"
