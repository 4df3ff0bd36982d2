"""The configurations of stems and residual networks: validation, JSON."""

import json

import pytest

from tests.vit_tf import tiny
from vit_tf.config import ResNetConfig, StemConfig
from vit_tf.config.variants import VARIANTS, get_variant
from vit_tf.families import config_from_dict


@pytest.mark.parametrize("name", [name for name in VARIANTS if "BiT" in name or "R" in name[:3]])
def test_json_round_trip_of_residual_networks(name):
    config = get_variant(name)
    assert config_from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"stage_depths": ()}, "must name 1 to 5 stages"),
        ({"stage_depths": (1, 0)}, "stage_depths.* 1 to"),
        ({"stage_depths": (1,) * 6}, "must name 1 to 5 stages"),
        ({"stage_depths": 3}, "one number for each stage"),
        ({"stage_depths": (1.5,)}, "stage_depths .*int"),
        ({"width": 0}, "multiple of 0.5"),
        ({"width": 0.7}, "multiple of 0.5"),
        ({"variance_epsilon": -1.0}, "at least 0"),
        ({"stage_depths": (3, 2**10 + 1)}, "stage_depths.*1024"),
        ({"width": 2049}, "from 0.5 to 2048"),
        ({"num_classes": 2**24 + 1}, "from 0 to 16777216"),
        ({"image_size": (0, 8)}, "from 1 to"),
        ({"num_classes": -1}, "from 0 to"),
        ({"spatial": "cnn"}, "spatial .*'cnn'"),
        ({"squeeze_excite": 1}, "squeeze_excite.*: 1"),
        ({"spatial": "augmented"}, r"stage_depths=\(1,\)"),
        ({"spatial": "full", "image_size": (8, 1)}, r"2 x 2 .*\(8, 1\)"),
        ({"heads": 3}, "field 'heads'"),
        ({"family": "cnn"}, "family .*'cnn'"),
    ],
)
def test_residual_networks_out_of_range(fields, words):
    known = ResNetConfig(stage_depths=(1,)).to_dict()
    with pytest.raises((TypeError, ValueError), match=words):
        config_from_dict(known | fields)


def test_a_stem_may_be_its_stage_depths():
    expected = StemConfig(stage_depths=(2, 1))
    for stem in (expected, (2, 1), [2, 1], {"stage_depths": [2, 1]}):
        assert tiny.config(stem=stem, image_size=64, patch_size=1).stem == expected
    with pytest.raises(ValueError, match="image_size=.*one patch"):
        tiny.config(stem=(2, 1), image_size=16)
