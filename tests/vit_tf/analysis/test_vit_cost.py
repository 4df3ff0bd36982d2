"""Computed costs against published tables, created models and the graphs of small models."""

import contextlib
import math
import sys

import keras
import pytest

import custom_ops
import vit_tf
from pipelines.training.optimization import optimizers
from tests.vit_tf import graph_costs, tiny
from vit_tf import cost
from vit_tf.config.checks import MAX_CLASSES, MAX_DEPTH, MAX_SIDE
from vit_tf.config.spatial import SPATIAL
from vit_tf.config.variants import VARIANTS, get_variant

STEM = {"stage_depths": (2, 1), "width": 0.5}
HYBRID = {"stem": STEM, "patch_size": 1, "image_size": (50, 66)}
ROOT_ONLY = {"stem": {"stage_depths": (), "width": 0.5}, "patch_size": 2, "image_size": (50, 67)}
MAP = {"classifier": "map", "position_embedding": "sincos_2d"}
BIT = {"stage_depths": (2, 1), "width": 0.5, "image_size": (51, 66), "num_classes": 5}
# Feature maps of 16 x 24 and 8 x 12 pixels.
AXIAL_RESNET = {"stage_depths": (1, 1), "width": 0.125, "heads": 2, "image_size": (64, 96)}

RELATIVE = tiny.config(position_embedding="relative", image_size=(44, 56), layers=1)

SMALL = BIT | {"stage_depths": (1, 1)}
# One model of each layer that takes the place of a convolution, and of squeeze-and-excitation.
COMPARISONS = {
    spatial: vit_tf.ResNetConfig(**SMALL | {"spatial": spatial}) for spatial in SPATIAL[1:]
} | {"squeeze_excite": vit_tf.ResNetConfig(**SMALL | {"squeeze_excite": True})}


def one_stage(name):
    """A model of `COMPARISONS` with a single unit."""
    return COMPARISONS[name].replace(stage_depths=(1,), image_size=(31, 46), num_classes=0)


def one_layer(**fields):
    return tiny.config(layers=1, **fields)


# Every field that changes a count, alone or with one other.
FIELDS = [
    {},
    {"num_classes": 0, "representation_size": 7},
    {"classifier": "unpooled", "representation_size": 7},
    {"classifier": "gap", "position_embedding": "none"},
    {"layers": 5, "dropout": 0.1, "attention_dropout": 0.1, "stochastic_depth": 0.1},
    {"image_size": (4, 40), "heads": 1},
    {"position_embedding": "learned_2d"},
    tiny.AXIAL,
    {"axial": True, "classifier": "map"},
    MAP | {"representation_size": 7},
    {"position_embedding": "relative", "layers": 3},
    {"position_injection": "every_layer", "position_embedding": "learned_2d"},
    {"position_injection": "every_layer_shared", "layers": 3},
    {"layer_scale": 0.1},
    {"activation": "swiglu", "classifier": "map", "qk_norm": True},
    {"position_embedding": "rotary_2d", "key_bias": False},
    {"classifier": "map", "key_bias": False, "qkv_bias": False},
    {"register_tokens": 3},
    MAP | {"register_tokens": 2},
    {"classifier": "token_distilled"},
    {"register_tokens": 1, "classifier": "gap", "position_embedding": "learned_2d"},
]
OTHERS = [
    tiny.config(**HYBRID),
    tiny.config(**HYBRID, **MAP),
    tiny.config(**ROOT_ONLY),
    tiny.config(**HYBRID, position_embedding="relative", classifier="map"),
    tiny.config(**ROOT_ONLY, position_injection="every_layer"),
    tiny.config(stem={"stage_depths": (1, 2, 1, 3)}, patch_size=3, image_size=(100, 170)),
    vit_tf.ResNetConfig(**BIT),
    vit_tf.ResNetConfig(stage_depths=(1,), image_size=1, num_classes=0),
    vit_tf.ResNetConfig(stage_depths=(1, 1, 1, 1, 2), width=1.5, image_size=(1, 70)),
    vit_tf.AxialResNetConfig(**AXIAL_RESNET),
    vit_tf.AxialResNetConfig(stage_depths=(1, 1, 1), norm="group", num_classes=0),
    *COMPARISONS.values(),
]

# One model of each family: exact costs against its graph.
FAMILIES = {
    "token": tiny.config(layers=3),
    "gap_pre_logits": tiny.config(classifier="gap", representation_size=7),
    "unpooled": tiny.config(classifier="unpooled", representation_size=7, num_classes=99),
    "map_sincos": tiny.config(**MAP),
    "axial": tiny.config(**tiny.AXIAL),
    "hybrid": tiny.config(**HYBRID, num_classes=0),
    "root_only": tiny.config(**ROOT_ONLY),
    "bit": vit_tf.ResNetConfig(**BIT),
    "relative": tiny.config(position_embedding="relative", hidden_size=96),
    "every_layer": tiny.config(position_injection="every_layer"),
    "layer_scale": tiny.config(layer_scale=0.1),
    "swiglu": tiny.config(activation="swiglu", position_embedding="rotary_2d"),
    "registers": tiny.config(register_tokens=3),
    "distilled": tiny.config(classifier="token_distilled", num_classes=99),
    "distilled_no_head": tiny.config(classifier="token_distilled", num_classes=0),
    "axial_resnet": vit_tf.AxialResNetConfig(**AXIAL_RESNET),
}
# Whose memory is computed too, most of the others with a half-size dtype: name -> (configuration,
# dtype, compiled).
IN_FLOAT32 = ("token", "gap_pre_logits", "unpooled", "axial", "root_only", "every_layer")
IN_FLOAT32 += ("layer_scale", "swiglu", "registers", "distilled", "distilled_no_head")
MEMORIES = {name: (FAMILIES[name], "float32", True) for name in (*IN_FLOAT32, "axial_resnet")} | {
    "long": (one_layer(image_size=(44, 56)), "mixed_bfloat16", True),
    "long_reference": (one_layer(image_size=(44, 56)), "mixed_bfloat16", False),
    "short_reference": (
        one_layer(patch_size=2, image_size=(4, 6), mlp_size=13),
        "float32",
        False,
    ),
    "wide_pre_logits": (
        one_layer(classifier="unpooled", representation_size=99, num_classes=0),
        "float32",
        True,
    ),
    "bit_last_convolution": (
        vit_tf.ResNetConfig(**BIT | {"stage_depths": (1, 2), "num_classes": 0}),
        "float32",
        True,
    ),
    "bit_small": (vit_tf.ResNetConfig(**SMALL | {"image_size": 7}), "float32", True),
    "dropout": (one_layer(dropout=0.1, mlp_size=48, num_classes=0), "float32", True),
    "attention_dropout": (one_layer(attention_dropout=0.1), "mixed_bfloat16", True),
    "long_axial_reference": (
        one_layer(image_size=(56, 44), mlp_size=13, **tiny.AXIAL),
        "mixed_bfloat16",
        False,
    ),
    "axial_attention_dropout": (
        one_layer(attention_dropout=0.1, **tiny.AXIAL),
        "mixed_bfloat16",
        True,
    ),
    "erf": (
        one_layer(activation="gelu_erf", mlp_size=48, num_classes=0, representation_size=7),
        "mixed_bfloat16",
        True,
    ),
    "map": (one_layer(**MAP, representation_size=7), "mixed_bfloat16", True),
    "hybrid": (one_layer(**HYBRID), "mixed_bfloat16", False),
    "swiglu_half": (one_layer(activation="swiglu", mlp_size=48), "mixed_bfloat16", True),
    "rotary": (one_layer(position_embedding="rotary_2d", mlp_size=5), "mixed_bfloat16", True),
    "qk_norm": (one_layer(qk_norm=True, mlp_size=5), "float32", True),
    "qk_norm_reference": (one_layer(qk_norm=True, mlp_size=5), "mixed_bfloat16", False),
    "relative": (RELATIVE, "mixed_bfloat16", True),
    "relative_reference": (RELATIVE, "mixed_bfloat16", False),
    "relative_dropout": (RELATIVE.replace(attention_dropout=0.1), "mixed_bfloat16", True),
    "bit": (vit_tf.ResNetConfig(**BIT), "mixed_bfloat16", True),
    "axial_group": (
        vit_tf.AxialResNetConfig(
            **AXIAL_RESNET | {"stage_depths": (2,)}, norm="group", num_classes=0
        ),
        "mixed_bfloat16",
        True,
    ),
    "stand_alone": (one_stage("stand_alone"), "mixed_bfloat16", True),
    "local_1d": (one_stage("local_1d"), "mixed_bfloat16", True),
    "sparse": (one_stage("sparse"), "float32", True),
    "full_reference": (one_stage("full"), "float32", False),
    "augmented": (COMPARISONS["augmented"], "mixed_bfloat16", True),
    "squeeze_excite": (one_stage("squeeze_excite"), "float32", True),
}


def check_weights(config):
    with tiny.unallocated():
        model = vit_tf.create_model(config)
        numbers = sum(math.prod(weight.shape) for weight in model.trainable_weights)
        assert cost.parameters(config) == numbers
        assert cost.arrays(config) == len(model.weights)


@pytest.mark.parametrize("fields", FIELDS, ids=str)
def test_parameters_and_arrays(fields):
    check_weights(tiny.config(**fields))


@pytest.mark.parametrize("config", OTHERS, ids=str)
def test_parameters_and_arrays_with_residual_units(config):
    check_weights(config)


@contextlib.contextmanager
def at_most(lines):
    """Fails when the block has run more lines of Python than that."""
    left = lines

    def count(frame, event, argument):
        nonlocal left
        left -= 1
        assert left > 0, f"more than {lines} lines"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        yield
    finally:
        sys.settrace(before)


FUNCTIONS = (
    *(cost.parameters, cost.arrays, cost.macs, cost.macs_by_part, cost.training_macs),
    *(cost.weight_bytes, cost.training_bytes, cost.state_bytes),
    lambda model: cost.exaflops(model, epochs=7, images=1_000_000),
    lambda model: cost.activation_bytes(model, batch=3),
)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_names_and_built_models_cost_as_their_configuration(function):
    config = get_variant("ViT-B/16")
    assert function("ViT-B/16") == function("ViT-B_16") == function(config)
    model = tiny.shared()
    assert function(model) == function(vit_tf.pack_model(model)) == function(model.config)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("vit_base_patch16_224", "ViT-B/16 .*image_size=224"),
        (None, "'ViT-B/16'.*: None"),
        (keras.layers.Dense(3), "name such as .*Dense"),
    ],
)
def test_what_has_no_cost(model, said):
    with pytest.raises(ValueError, match=said):
        cost.macs(model)


def test_absurd_configurations_are_counted_in_a_moment():
    """A file may claim the largest number of layers, units, pixels and classes."""
    many, sizes = MAX_DEPTH, {"image_size": MAX_SIDE, "num_classes": MAX_CLASSES}
    vit = tiny.config(layers=many, **sizes)
    hybrid = tiny.config(stem={"stage_depths": (many,) * 5}, patch_size=1, image_size=MAX_SIDE)
    resnet = vit_tf.ResNetConfig(stage_depths=(many,) * 5, **sizes)
    axial = vit_tf.AxialResNetConfig(stage_depths=(many,) * 5, **sizes)
    others = [resnet.replace(spatial=spatial, squeeze_excite=True) for spatial in SPATIAL]
    for config in (vit, hybrid, resnet, axial, *others):
        with at_most(lines=1_000_000):
            counts = cost.parameters(config), cost.arrays(config), cost.macs(config)
            counts += (cost.activation_bytes(config, many),)
        assert min(counts) > many


@pytest.mark.parametrize("name", [name for name in VARIANTS if name.startswith("Axial-")])
@pytest.mark.parametrize("size", [(224, 224), (96, 160)])
def test_macs_of_axial_models(name, size):
    """Against ViT without a class token: two blocks, and a line instead of all patches."""
    config = get_variant(name).replace(image_size=size)
    vit = get_variant(name.removeprefix("Axial-")).replace(image_size=size, classifier="gap")
    (rows, columns), parts, expected = config.grid, *map(cost.macs_by_part, (config, vit))
    for part in ("projections", "mlp"):
        assert parts[part] == 2 * expected[part]
    patches = rows * columns
    products = 2 * patches * (rows + columns) * config.hidden_size
    assert parts["attention"] == config.layers * products
    assert expected["attention"] == config.layers * 2 * patches**2 * config.hidden_size
    assert {name: parts[name] for name in ("embedding", "head")} == {
        name: expected[name] for name in ("embedding", "head")
    }


def test_parts_of_the_macs():
    b16 = cost.macs_by_part(get_variant("ViT-B/16").replace(representation_size=768))
    assert b16 == {
        "embedding": 196 * 768 * 768,
        "projections": 12 * 4 * 197 * 768 * 768,
        "attention": 12 * 2 * 197 * 197 * 768,
        "mlp": 12 * 2 * 197 * 768 * 3072,
        "pre_logits": 768 * 768,
        "head": 768 * 1000,
    }
    bit = cost.macs_by_part(get_variant("BiT-R50x1"))
    assert list(bit) == ["root", "stage1", "stage2", "stage3", "stage4", "head"]
    assert bit["root"] == 112 * 112 * 7 * 7 * 3 * 64
    hybrid = get_variant("R26+ViT-S/32").replace(classifier="map")
    assert {"stem", "pooling"} <= set(cost.macs_by_part(hybrid))
    for config in (get_variant("BiT-R50x1"), hybrid):
        assert sum(cost.macs_by_part(config).values()) == cost.macs(config)


@pytest.mark.parametrize("name", FAMILIES | COMPARISONS)
def test_macs_are_those_of_the_graph(name):
    config = (FAMILIES | COMPARISONS)[name]
    model = vit_tf.create_model(config)
    assert graph_costs.forward_macs(model) == cost.macs(config)


@pytest.mark.parametrize("name", MEMORIES)
def test_activations_are_those_of_the_graph(name):
    """Except for the few numbers that the rule ignores: in inference, and of BatchNorm."""
    config, dtype, compiled = MEMORIES[name]
    model = vit_tf.create_model(config, dtype=dtype)
    with custom_ops.implementation("compiled" if compiled else "reference"):
        kept = graph_costs.kept_bytes(model, batch=2)
        live = graph_costs.live_bytes(model, batch=2)
    found = cost.activation_bytes(config, 2, dtype, compiled=compiled)
    if config.uses_batch_statistics:
        assert 0.99 * kept <= found < kept
    else:
        assert found == kept
    found = cost.activation_bytes(config, 2, dtype, training=False, compiled=compiled)
    assert 0.97 * live <= found <= live


@pytest.mark.parametrize(("name", "dtype"), [("axial", "mixed_bfloat16"), ("hybrid", "float32")])
def test_recomputed_activations_are_those_of_the_graph(name, dtype):
    """The graph keeps the inputs of the blocks; the tensors of one block come on top."""
    config, macs = FAMILIES[name], {}
    for recompute in ("none", "blocks"):
        model = vit_tf.create_model(config.replace(recompute=recompute), dtype=dtype)
        macs[recompute] = graph_costs.training_macs(model)
    kept = graph_costs.kept_bytes(model, batch=2)
    layer = [cost.activation_bytes(config.replace(layers=n), 2, dtype) for n in (1, 2)]
    one_block = (layer[1] - layer[0]) // (2 if config.axial else 1)
    found = cost.activation_bytes(model.config, 2, dtype)
    assert found == pytest.approx(kept + one_block, rel=0.02 if config.axial else 0)
    again = cost.training_macs(model.config) - cost.training_macs(config)
    assert again == macs["blocks"] - macs["none"] > 0


def test_only_stored_weights_grow_with_the_square_of_the_tokens():
    def bend(training=True, compiled=True, dtype="float32", **fields):
        """Second difference over 100, 200 and 300 tokens: 0 for linear terms."""
        sizes = [
            cost.activation_bytes(
                tiny.config(image_size=(4 * rows, 40), classifier="gap", **fields),
                batch=1,
                dtype=dtype,
                training=training,
                compiled=compiled,
            )
            for rows in (10, 20, 30)
        ]
        return sizes[0] - 2 * sizes[1] + sizes[2]

    squares = (100**2 - 2 * 200**2 + 300**2) * 3  # for 3 heads
    assert bend() == bend(training=False) == bend(dropout=0.1) == bend(dtype="bfloat16") == 0
    assert bend(attention_dropout=0.1, training=False) == 0
    # Two layers in float32: the softmax, and the dropped weights with a mask of one byte.
    assert bend(compiled=False) == 2 * 4 * squares
    assert bend(attention_dropout=0.1) == 2 * (4 + 4 + 1) * squares
    assert bend(compiled=False, training=False) == 4 * squares


def test_activations_grow_with_the_batch():
    config = get_variant("ViT-B/16")
    assert cost.activation_bytes(config, 32) == 32 * cost.activation_bytes(config, 1)
    assert cost.activation_bytes(config, 2, "bfloat16") < cost.activation_bytes(config, 2)
    with pytest.raises(ValueError, match="float16.*'int8'"):
        cost.activation_bytes(config, 1, "int8")


@pytest.mark.parametrize("name, gigabytes", [("B/16", 1.39), ("L/16", 4.87), ("H/14", 10.11)])
def test_training_bytes(name, gigabytes):
    """Published values for AdamW (docs/paper.md L.1)."""
    config = get_variant(f"ViT-{name}")
    assert cost.training_bytes(config, "adamw") / 1e9 == pytest.approx(gigabytes, abs=0.006)
    assert cost.weight_bytes(config) == 4 * cost.parameters(config)


def test_training_bytes_are_those_of_the_optimizers():
    """A weight, its gradient and the actual slots of the optimizer."""
    config = get_variant("BiT-R50x1")
    numbers = cost.parameters(config)
    for name, optimizer in (("sgd", optimizers.SGD), ("adamw", optimizers.AdamW)):
        expected = 4 * (2 + len(optimizer.slot_names)) * numbers
        assert cost.training_bytes(config, name) == expected
        assert cost.training_bytes(config, name, ema=True) == expected + 4 * numbers
        rounded = cost.training_bytes(config, name, momentum_dtype="bfloat16")
        assert rounded == expected - 2 * numbers
        slots = 4 * len(optimizer.slot_names) * numbers
        state = {"weights": 4 * numbers, "gradients": 4 * numbers, "optimizer": slots}
        assert cost.state_bytes(config, name) == state
        assert cost.state_bytes(config, name, ema=True) == state | {"average": 4 * numbers}
    with pytest.raises(ValueError, match="adamw.*'lion'"):
        cost.training_bytes(config, "lion")
