"""The configuration: checked values, near names, JSON, variants."""

import dataclasses
import json
import math
import subprocess
import sys

import pytest

import vit_tf
from tests.vit_tf import tiny
from vit_tf.config import ResNetConfig, StemConfig, ViTConfig, config_from_dict
from vit_tf.config.variants import VARIANTS, get_variant

# A legal value other than the default for every field.
OTHER = {
    "hidden_size": 16,
    "mlp_size": 24,
    "layers": 3,
    "heads": 4,
    "patch_size": 2,
    "image_size": (12, 10),
    "num_classes": 0,
    "classifier": "unpooled",
    "representation_size": 9,
    "position_embedding": "none",
    "activation": "gelu_erf",
    "dropout": 0.1,
    "attention_dropout": 0.2,
    "stochastic_depth": 0.3,
    "layer_norm_epsilon": 1e-5,
    "head_bias": -10.0,
    "stem": StemConfig(stage_depths=(1,), width=0.5, group_norm_epsilon=1e-3),
    "implementation": "reference",
}
FIELDS = [field.name for field in dataclasses.fields(ViTConfig)]


def test_other_values_cover_every_field():
    config = tiny.config()
    assert OTHER.keys() == set(FIELDS)
    assert all(OTHER[name] != getattr(config, name) for name in FIELDS)


def test_defaults_are_the_papers():
    config = ViTConfig(hidden_size=8, mlp_size=8, layers=1, heads=2, patch_size=16)
    assert config == ViTConfig(
        hidden_size=8,
        mlp_size=8,
        layers=1,
        heads=2,
        patch_size=16,
        image_size=(224, 224),
        num_classes=1000,
        classifier="token",
        representation_size=None,
        position_embedding="learned_1d",
        activation="gelu_tanh",
        dropout=0.0,
        attention_dropout=0.0,
        stochastic_depth=0.0,
        layer_norm_epsilon=1e-6,
        head_bias=0.0,
        stem=None,
        implementation="auto",
    )
    assert config.grid == (14, 14)


@pytest.mark.parametrize("name", FIELDS)
def test_json_round_trip_of_every_field(name):
    fields = {name: OTHER[name]}
    if name == "hidden_size":
        fields["heads"] = 4
    if name == "heads":
        fields["hidden_size"] = 16
    if name == "stem":
        fields["patch_size"] = 1
    config = tiny.config(**fields)
    written = config.to_dict()
    assert list(written) == FIELDS
    again = ViTConfig.from_dict(json.loads(json.dumps(written)))
    if name == "implementation":
        assert written[name] == again.implementation == "auto"
        assert again == config.replace(implementation="auto")
    else:
        assert again == config
        assert getattr(again, name) == OTHER[name]


def test_config_is_a_value():
    config = tiny.config()
    assert config == tiny.config() and hash(config) == hash(tiny.config())
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.layers = 3
    longer = config.replace(layers=3)
    assert (config.layers, longer.layers) == (2, 3)
    assert longer.replace(layers=2) == config


@pytest.mark.parametrize("size", [32, (32, 32), [32, 32]])
def test_image_size_is_height_and_width(size):
    assert tiny.config(image_size=size).image_size == (32, 32)


@pytest.mark.parametrize(
    "size, patch, grid",
    [((32, 48), 8, (4, 6)), (384, 14, (27, 27)), (512, 14, (36, 36)), ((15, 8), 8, (1, 1))],
)
def test_grid_leaves_incomplete_patches_out(size, patch, grid):
    assert tiny.config(image_size=size, patch_size=patch).grid == grid


@pytest.mark.parametrize(
    "name, value, words",
    [
        ("hidden_size", 0, "at least 1.* Received: 0"),
        ("mlp_size", 0, "at least 1.* Received: 0"),
        ("heads", 0, "at least 1.* Received: 0"),
        ("patch_size", 0, "at least 1.* Received: 0"),
        ("layers", -1, "at least 1.* Received: -1"),
        ("num_classes", -1, "at least 0.* Received: -1"),
        ("representation_size", 0, "at least 1"),
        ("image_size", 0, "at least 1"),
        ("image_size", (0, 8), "at least 1"),
        ("image_size", (8,), "height, width"),
        ("image_size", (8, 8, 3), "height, width"),
        ("image_size", (3, 80), "smaller than one patch: patch_size=4"),
        ("hidden_size", 16, "=16 is not a multiple of heads=3"),
        *((n, 1.0, r"\[0, 1\)") for n in ("dropout", "attention_dropout", "stochastic_depth")),
        *((n, -0.1, "-0.1") for n in ("dropout", "attention_dropout", "stochastic_depth")),
        ("dropout", math.nan, "finite"),
        ("dropout", 10**400, "finite and below 1e300"),
        ("hidden_size", 10**400, "below 2.40. Received: a longer number"),
        ("layer_norm_epsilon", 0.0, "above 0"),
        ("classifier", "cls", "token, gap, map, unpooled. Received: 'cls'"),
        ("position_embedding", "sinusoidal", "learned_1d, sincos_2d, none. Received: 'sinusoidal'"),
        ("activation", "gelu", "gelu_tanh, gelu_erf. Received: 'gelu'"),
        ("implementation", "cuda", "auto, compiled, reference. Received: 'cuda'"),
    ],
)
def test_values_out_of_range(name, value, words):
    with pytest.raises(ValueError, match=f"{name}.*{words}"):
        tiny.config(**{name: value})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["layer_norm_epsilon", "head_bias"])
def test_numbers_are_finite(name, value):
    """JSON files may hold NaN and Infinity; a model made of them computes nothing."""
    with pytest.raises(ValueError, match=name):
        tiny.config(**{name: value})


@pytest.mark.parametrize("value", [2.0, "2", True, (2,)])
@pytest.mark.parametrize(
    "name", ["hidden_size", "mlp_size", "layers", "heads", "patch_size", "num_classes"]
)
def test_integers_of_another_type(name, value):
    with pytest.raises(TypeError, match=f"{name} must be an int. Received: "):
        tiny.config(**{name: value})


@pytest.mark.parametrize("value", ["0.1", None, True, [0.1]])
@pytest.mark.parametrize(
    "name", ["dropout", "attention_dropout", "stochastic_depth", "layer_norm_epsilon", "head_bias"]
)
def test_numbers_of_another_type(name, value):
    with pytest.raises(TypeError, match=f"{name} must be a number. Received: "):
        tiny.config(**{name: value})


@pytest.mark.parametrize("value", [None, 3.5, "224", {"height": 8}, (8.0, 8), (True, True)])
def test_image_size_of_another_type(value):
    with pytest.raises((TypeError, ValueError), match="image_size"):
        tiny.config(image_size=value)


@pytest.mark.parametrize("unknown, near", [("layer", "layers"), ("hiddensize", "hidden_size")])
def test_unknown_fields_name_the_near_ones(unknown, near):
    fields = tiny.config().to_dict() | {unknown: 3}
    for refuse in (
        lambda: ViTConfig.from_dict(fields),
        lambda: tiny.config().replace(**{unknown: 3}),
        lambda: vit_tf.create_model("ViT-Ti/16", **{unknown: 3}),
    ):
        with pytest.raises(ValueError, match=f"field '{unknown}'.*Did you mean {near}"):
            refuse()


def test_an_unknown_field_like_nothing_lists_all():
    with pytest.raises(ValueError, match="'zzz'. Known fields: .*'stochastic_depth'"):
        tiny.config().replace(zzz=1)


@pytest.mark.parametrize("fields", [{}, {"hidden_size": 8}])
def test_missing_fields_are_named(fields):
    with pytest.raises(ValueError, match="needs the fields .*'layers'"):
        ViTConfig.from_dict(fields)


@pytest.mark.parametrize("fields", [None, 5, "ViT-B/16", ["hidden_size"]])
def test_from_dict_refuses_what_is_no_dictionary(fields):
    """What a hostile sidecar may hold in place of the configuration."""
    with pytest.raises((TypeError, ValueError), match="ViTConfig|model field"):
        ViTConfig.from_dict(fields)


@pytest.mark.parametrize("name", VARIANTS)
def test_file_names_are_read(name):
    assert get_variant(name) == get_variant(name.replace("/", "_")) == VARIANTS[name]


def test_names_are_the_papers():
    sizes, patches = ("Ti", "S", "B", "L", "H"), (8, 14, 16, 32)
    names = [f"ViT-{size}/{patch}" for size in sizes for patch in patches]
    for name in names:
        assert VARIANTS[name].patch_size == int(name.split("/")[1])
    names += ["R+ViT-Ti/16", "R26+ViT-S/32", "R26+ViT-B/32"]
    names += ["R50+ViT-B/16", "R50+ViT-B/32", "R50+ViT-L/16", "R50+ViT-L/32"]
    nets = "50x1 50x2 50x3 101x1 101x3 152x1 152x2 152x4 200x3"
    names += [f"BiT-R{net}" for net in nets.split()]
    assert sorted(vit_tf.list_models()) == sorted(names)


@pytest.mark.parametrize(
    "name, grid, grid_at_384, channels",
    [
        ("R+ViT-Ti/16", (7, 7), (12, 12), 64),
        ("R26+ViT-S/32", (7, 7), (12, 12), 2048),
        ("R50+ViT-B/16", (14, 14), (24, 24), 1024),
        ("R50+ViT-L/32", (7, 7), (12, 12), 2048),
    ],
)
def test_hybrids_are_the_papers(name, grid, grid_at_384, channels):
    """paper.md C.3: sides are halved as often as the total reduction says, rounding up."""
    config = get_variant(name)
    assert (config.grid, config.replace(image_size=384).grid) == (grid, grid_at_384)
    assert config.stem.channels == channels
    assert config.replace(image_size=(225, 100)).feature_size == tuple(
        math.ceil(side / (4 if "R+" in name else int(name.split("/")[1]))) for side in (225, 100)
    )


@pytest.mark.parametrize("name", [name for name in VARIANTS if "BiT" in name or "R" in name[:3]])
def test_json_round_trip_of_residual_networks(name):
    config = get_variant(name)
    assert config_from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_a_file_does_not_choose_the_implementation():
    fields = tiny.config().to_dict() | {"implementation": "compiled"}
    assert config_from_dict(fields).implementation == "auto"


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"stage_depths": ()}, "at least one stage"),
        ({"stage_depths": (1, 0)}, "units must be at least 1"),
        ({"stage_depths": (1,) * 6}, "at most 5 stages"),
        ({"stage_depths": 3}, "one number for each stage"),
        ({"stage_depths": (1.5,)}, "units must be an int"),
        ({"width": 0}, "multiple of 0.5"),
        ({"width": 0.7}, "multiple of 0.5"),
        ({"variance_epsilon": -1.0}, "at least 0"),
        ({"image_size": (0, 8)}, "at least 1"),
        ({"num_classes": -1}, "at least 0"),
        ({"heads": 3}, "Unknown model field 'heads'"),
        ({"family": "cnn"}, "Unknown family of models 'cnn'"),
    ],
)
def test_residual_networks_out_of_range(fields, words):
    known = ResNetConfig(stage_depths=(1,)).to_dict()
    with pytest.raises((TypeError, ValueError), match=words):
        config_from_dict(known | fields)


def test_a_stem_may_be_its_units():
    expected = StemConfig(stage_depths=(2, 1))
    for stem in (expected, (2, 1), [2, 1], {"stage_depths": [2, 1]}):
        assert tiny.config(stem=stem, image_size=64, patch_size=1).stem == expected
    with pytest.raises(ValueError, match="feature map of image_size=.* smaller than one patch"):
        tiny.config(stem=(2, 1), image_size=16)


def test_fixed_positions_need_four_parts():
    with pytest.raises(ValueError, match="multiple of 4"):
        tiny.config(position_embedding="sincos_2d", hidden_size=6)


@pytest.mark.parametrize(
    "name, hidden_size, mlp_size, layers, heads",
    [
        ("ViT-Ti/16", 192, 768, 12, 3),
        ("ViT-S/16", 384, 1536, 12, 6),
        ("ViT-B/16", 768, 3072, 12, 12),
        ("ViT-L/16", 1024, 4096, 24, 16),
        ("ViT-H/14", 1280, 5120, 32, 16),
    ],
)
def test_sizes_are_the_papers(name, hidden_size, mlp_size, layers, heads):
    config = get_variant(name)
    assert (config.hidden_size, config.mlp_size) == (hidden_size, mlp_size)
    assert (config.layers, config.heads) == (layers, heads)


@pytest.mark.parametrize(
    "name, near",
    [
        ("ViT-B/15", "ViT-B/16"),
        ("ViT-B-16", "ViT-B/16"),
        ("ViT_B_16", "ViT-B/16"),
        ("vit-b/16", "ViT-B/16"),
        ("ViT-H14", "ViT-H/14"),
    ],
)
def test_unknown_names_bring_the_near_ones(name, near):
    with pytest.raises(ValueError, match=f"Unknown model '{name}'. Did you mean .*{near}"):
        get_variant(name)


@pytest.mark.process
def test_config_does_not_start_tensorflow():
    """The module is for every level; only the package around it imports Keras."""
    path = sys.modules[ViTConfig.__module__].__file__
    code = (
        f"import runpy, sys; module = runpy.run_path({path!r}); "
        "print(len(module['CLASSIFIERS']), {'tensorflow', 'keras', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "4 set()"
