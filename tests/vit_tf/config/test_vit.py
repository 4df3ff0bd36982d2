"""The configuration of a ViT: validation, near names, JSON."""

import dataclasses
import json
import math

import pytest

import vit_tf
from tests.vit_tf import tiny
from vit_tf.config import StemConfig, ViTConfig
from vit_tf.config.vit import POSITION_EMBEDDINGS, POSITION_INJECTIONS

INTEGERS = ("hidden_size", "mlp_size", "layers", "heads", "patch_size", "num_classes")
INTEGERS += ("register_tokens",)
NUMBERS = (
    "dropout",
    "attention_dropout",
    "stochastic_depth",
    "layer_norm_epsilon",
    "layer_scale",
    "rotary_base",
    "head_bias",
)
NOT_FINITE = (math.nan, math.inf, -math.inf)

# For every field a valid value other than the default.
OTHER = {
    "hidden_size": 16,
    "mlp_size": 24,
    "layers": 3,
    "heads": 4,
    "patch_size": 2,
    "image_size": (12, 10),
    "num_classes": 0,
    "classifier": "unpooled",
    "register_tokens": 4,
    "representation_size": 9,
    "position_embedding": "relative",
    "position_injection": "every_layer",
    "activation": "gelu_erf",
    "dropout": 0.1,
    "attention_dropout": 0.2,
    "stochastic_depth": 0.3,
    "layer_norm_epsilon": 1e-5,
    "layer_scale": 1e-5,
    "qk_norm": True,
    "key_bias": False,
    "qkv_bias": False,
    "rotary_base": 50.0,
    "head_bias": -10.0,
    "stem": StemConfig(stage_depths=(1,), width=0.5, group_norm_epsilon=1e-3),
    "axial": True,
    "implementation": "reference",
    "recompute": "blocks",
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
        register_tokens=0,
        representation_size=None,
        position_embedding="learned_1d",
        position_injection="stem",
        activation="gelu_tanh",
        dropout=0.0,
        attention_dropout=0.0,
        stochastic_depth=0.0,
        layer_norm_epsilon=1e-6,
        layer_scale=0.0,
        qk_norm=False,
        key_bias=True,
        qkv_bias=True,
        rotary_base=100.0,
        head_bias=0.0,
        stem=None,
        implementation="auto",
        recompute="none",
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
    if name == "qkv_bias":
        fields["key_bias"] = False
    config = tiny.config(**fields)
    written = config.to_dict()
    assert list(written) == FIELDS
    again = ViTConfig.from_dict(json.loads(json.dumps(written)))
    of_process = {"implementation": "auto", "recompute": "none"}
    if name in of_process:
        assert written[name] == getattr(again, name) == of_process[name]
        assert again == config.replace(**{name: of_process[name]})
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
        ("hidden_size", 0, "from 1 to .* Received: 0"),
        ("mlp_size", 0, "from 1 to .* Received: 0"),
        ("heads", 0, "from 1 to .* Received: 0"),
        ("patch_size", 0, "from 1 to .* Received: 0"),
        ("layers", -1, "from 1 to .* Received: -1"),
        ("num_classes", -1, "from 0 to .* Received: -1"),
        ("register_tokens", -1, "from 0 to .* Received: -1"),
        ("layers", 2**10 + 1, "from 1 to 1024"),
        ("hidden_size", 2**17 + 1, "from 1 to 131072"),
        ("mlp_size", 2**19 + 1, "from 1 to 524288"),
        ("patch_size", 2**14 + 1, "from 1 to 16384"),
        ("image_size", 2**14 + 1, "from 1 to 16384"),
        ("num_classes", 2**24 + 1, "from 0 to 16777216"),
        ("representation_size", 2**17 + 1, "from 1 to 131072"),
        ("representation_size", 0, "from 1 to"),
        ("image_size", 0, "from 1 to"),
        ("image_size", (0, 8), "from 1 to"),
        *(("image_size", x, "height, width") for x in ((8,), (8, 8, 3), None, 3.5, "224", {})),
        ("image_size", (3, 80), "one patch.*patch_size=4"),
        ("hidden_size", 16, "16 .*heads=3"),
        *((n, 1.0, r"\[0, 1\)") for n in ("dropout", "attention_dropout", "stochastic_depth")),
        *((n, -0.1, "-0.1") for n in ("dropout", "attention_dropout", "stochastic_depth")),
        ("dropout", math.nan, "finite"),
        # JSON files may hold NaN and Infinity.
        *((n, x, "") for n in NUMBERS[3:] for x in NOT_FINITE),
        ("dropout", 10**400, "finite and below 1e300"),
        ("hidden_size", 10**400, "131072.*longer number"),
        ("layer_norm_epsilon", 0.0, "above 0"),
        ("rotary_base", 1.0, "above 1"),
        ("classifier", "cls", "unpooled.*'cls'"),
        ("position_embedding", "sinusoidal", "none.*'sinusoidal'"),
        ("position_injection", "all", "every_layer.*'all'"),
        ("activation", "gelu", "gelu_erf.*'gelu'"),
        ("implementation", "cuda", "compiled.*'cuda'"),
    ],
)
def test_values_out_of_range(name, value, words):
    with pytest.raises(ValueError, match=f"{name}.*{words}"):
        tiny.config(**{name: value})


@pytest.mark.parametrize(
    "name, value, words",
    [
        *((n, x, "an int") for n in INTEGERS for x in (2.0, "2", True, (2,))),
        *((n, x, "a number") for n in NUMBERS for x in ("0.1", None, True, [0.1])),
        ("image_size", (8.0, 8), r"int.*8.0 \(float\)"),
        ("image_size", (True, True), r"int.*True \(bool\)"),
    ],
)
def test_values_of_another_type(name, value, words):
    with pytest.raises(TypeError, match=f"{name} .*{words}"):
        tiny.config(**{name: value})


@pytest.mark.parametrize("unknown, near", [("layer", "layers"), ("hiddensize", "hidden_size")])
def test_unknown_fields_name_the_near_ones(unknown, near):
    fields = tiny.config().to_dict() | {unknown: 3}
    for refuse in (
        lambda: ViTConfig.from_dict(fields),
        lambda: tiny.config().replace(**{unknown: 3}),
        lambda: vit_tf.create_model("ViT-Ti/16", **{unknown: 3}),
    ):
        with pytest.raises(ValueError, match=f"'{unknown}'.*{near}"):
            refuse()


def test_an_unknown_field_like_nothing_lists_all():
    with pytest.raises(ValueError, match="'zzz'.*stochastic_depth"):
        tiny.config().replace(zzz=1)


@pytest.mark.parametrize("fields", [{}, {"hidden_size": 8}, None, 5, "ViT-B/16", ["hidden_size"]])
def test_from_dict_needs_all_fields(fields):
    """A hostile sidecar may have other values in place of the configuration."""
    words = "fields .*'layers'" if isinstance(fields, dict) else "ViTConfig.*dictionary"
    with pytest.raises(ValueError, match=words):
        ViTConfig.from_dict(fields)


@pytest.mark.parametrize("classifier, prefix", [("token", 5), ("gap", 4), ("map", 4)])
def test_registers_count_as_prefix(classifier, prefix):
    config = tiny.config(classifier=classifier, register_tokens=4)
    assert (config.num_prefix_tokens, config.mutual_places) == (prefix, prefix + 6)
    assert config.has_class_token == (classifier == "token")
    assert config.summary().endswith(", 4 registers")


def test_a_distillation_token_counts_as_prefix():
    config = tiny.config(classifier="token_distilled")
    assert (config.num_prefix_tokens, config.mutual_places, config.has_class_token) == (2, 8, True)
    assert config.summary().endswith(", a distillation token")


@pytest.mark.parametrize("kind", POSITION_EMBEDDINGS)
@pytest.mark.parametrize("injection", POSITION_INJECTIONS)
def test_injections_without_meaning_are_refused(kind, injection):
    """docs/paper.md D.1 lists which exist; fixed positions are the same table in every layer."""
    refused = {("none", "every_layer"), ("none", "every_layer_shared")}
    refused |= {("relative", "every_layer"), ("relative", "every_layer_shared")}
    refused |= {("rotary_2d", "every_layer"), ("rotary_2d", "every_layer_shared")}
    refused |= {("sincos_2d", "every_layer")}
    fields = {"position_embedding": kind, "position_injection": injection}
    if (kind, injection) in refused:
        with pytest.raises(ValueError, match=rf"{kind} .*injection.*{injection}\."):
            tiny.config(**fields)
    else:
        assert tiny.config(**fields).position_injection == injection


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"position_embedding": "learned_2d", "hidden_size": 9}, "even hidden_size: 9"),
        ({"position_embedding": "sincos_2d", "hidden_size": 6}, "multiple of 4"),
        ({"position_embedding": "relative", "axial": True}, "stem .*axial=false"),
        ({"position_embedding": "rotary_2d", "axial": True}, "stem .*axial=false"),
        ({"position_embedding": "rotary_2d", "heads": 2}, "multiple of 4 .*heads=2"),
        ({"position_injection": "every_layer", "axial": True}, "stem .*axial=false"),
        ({"qkv_bias": False}, "bias of keys too: set key_bias=false"),
        ({"classifier": "token_distilled", "axial": True}, "distillation token .*axial=false"),
        (
            {"classifier": "token_distilled", "register_tokens": 1},
            "one token .*register_tokens=0. Received: 1",
        ),
        (
            {"classifier": "token_distilled", "representation_size": 7},
            "linear .*representation_size=none. Received: 7",
        ),
        ({"register_tokens": 4, "axial": True}, "register_tokens=4 .*axial=false"),
        ({"register_tokens": 4, "position_embedding": "relative"}, "tokens=4 .*relative.*offset"),
        ({"register_tokens": 4, "position_injection": "every_layer"}, "every_layer .*at stem"),
    ],
)
def test_positions_that_do_not_fit_the_other_fields(fields, words):
    with pytest.raises(ValueError, match=words):
        tiny.config(**fields)
