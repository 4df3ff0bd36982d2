"""Computed costs against published tables, created models and the graphs of small models."""

import math
import time

import pytest
import tensorflow as tf

import custom_ops
import vit_tf
from pipelines.training import optimizers
from tests.vit_tf import tiny
from vit_tf import cost
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


FIELDS = [
    {},
    {"num_classes": 0},
    {"num_classes": 0, "representation_size": 7},
    {"representation_size": 7},
    {"classifier": "gap"},
    {"classifier": "unpooled", "representation_size": 7},
    {"position_embedding": "none"},
    {"classifier": "gap", "position_embedding": "none"},
    {"layers": 5, "dropout": 0.1, "attention_dropout": 0.1, "stochastic_depth": 0.1},
    {"image_size": (4, 40), "heads": 1},
    {"position_embedding": "sincos_2d"},
    {"position_embedding": "learned_2d"},
    {"position_embedding": "learned_2d", "classifier": "gap"},
    tiny.AXIAL,
    {"axial": True},
    {"axial": True, "classifier": "map"},
    MAP | {"representation_size": 7},
    {"position_embedding": "relative", "layers": 3},
    {"position_injection": "every_layer", "layers": 3},
    {"position_injection": "every_layer_shared", "layers": 3},
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
]

# GMAC at 224 and 384, and the fraction of them in attention (docs/paper.md L.2).
VITS = {
    "ViT-Ti/16": (1.254, 4.682, 0.179, 1.534),
    "ViT-S/32": (1.143, 3.443, 0.023, 0.194),
    "ViT-S/16": (4.599, 15.490, 0.358, 3.068),
    "ViT-B/32": (4.409, 13.044, 0.046, 0.388),
    "ViT-B/16": (17.564, 55.484, 0.715, 6.137),
    "ViT-B/8": (78.148, 294.045, 11.358, 97.93),
    "ViT-L/32": (15.378, 45.276, 0.123, 1.033),
    "ViT-L/16": (61.555, 191.066, 1.908, 16.364),
    "ViT-H/14": (167.295, 503.481, 5.411, 43.655),
}
# GMAC at 224, 384 and, for BiT, 480 (docs/paper.md L.2).
OTHER_GMACS = {
    "R+ViT-Ti/16": (0.434, 1.327),
    "R26+ViT-S/32": (3.464, 10.264),
    "R26+ViT-B/32": (6.711, 19.808),
    "R50+ViT-B/32": (8.458, 24.941),
    "R50+ViT-B/16": (21.535, 67.156),
    "R50+ViT-L/32": (19.413, 57.136),
    "R50+ViT-L/16": (65.539, 202.775),
    "BiT-R50x1": (4.089, 12.01, 18.77),
    "BiT-R50x2": (16.117, 47.36, 73.99),
    "BiT-R50x3": (36.082, 106.03, 165.66),
    "BiT-R101x1": (7.801, 22.92, 35.82),
    "BiT-R101x3": (69.492, 204.21, 319.08),
    "BiT-R152x1": (11.514, 33.83, 52.86),
    "BiT-R152x2": (45.814, 134.63, 210.36),
    "BiT-R152x4": (182.777, 537.13, 839.25),
    "BiT-R200x3": (134.347, 394.8, 616.88),
}
# GMAC at 224 (docs/paper.md E.1).
AXIAL_GMACS = {"Axial-ViT-B/32": 8.453, "Axial-ViT-B/16": 33.512}
# GMAC at 224 (docs/paper.md E.2).
AXIAL_RESNET_GMACS = {
    "AxialResNet-26S": 1.812,
    "AxialResNet-50S": 2.843,
    "AxialResNet-50M": 5.955,
    "AxialResNet-50L": 10.194,
}
# Name, epochs, exaFLOPs of table 6 of the paper (docs/paper.md L.3).
TABLE_6 = [
    ("ViT-B/32", 7, 55),
    ("ViT-B/16", 7, 224),
    ("ViT-L/32", 7, 196),
    ("ViT-L/16", 7, 783),
    ("ViT-L/16", 14, 1567),
    ("ViT-H/14", 14, 4262),
    ("BiT-R50x1", 7, 50),
    ("BiT-R50x2", 7, 199),
    ("BiT-R101x1", 7, 96),
    ("BiT-R152x1", 7, 141),
    ("BiT-R152x2", 7, 563),
    ("BiT-R152x2", 14, 1126),
    ("BiT-R200x3", 14, 3306),
    ("R50+ViT-B/32", 7, 106),
    ("R50+ViT-B/16", 7, 274),
    ("R50+ViT-L/32", 7, 246),
    ("R50+ViT-L/16", 7, 859),
    ("R50+ViT-L/16", 14, 1668),
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
    "axial_resnet": vit_tf.AxialResNetConfig(**AXIAL_RESNET),
}
# The same families, and settings that change only the memory: name -> (configuration, dtype,
# fused).
MEMORIES = {name: (config, "float32", True) for name, config in FAMILIES.items()} | {
    "long": (tiny.config(image_size=(44, 56)), "float32", True),
    "long_bfloat16": (tiny.config(image_size=(44, 56)), "mixed_bfloat16", True),
    "long_reference": (tiny.config(image_size=(44, 56)), "float32", False),
    "long_reference_bfloat16": (tiny.config(image_size=(44, 56)), "mixed_bfloat16", False),
    "short_reference": (
        tiny.config(patch_size=2, image_size=(4, 6), mlp_size=13),
        "float32",
        False,
    ),
    "wide_pre_logits": (
        tiny.config(classifier="unpooled", representation_size=99, num_classes=0),
        "float32",
        True,
    ),
    "bit_last_convolution": (
        vit_tf.ResNetConfig(**BIT | {"stage_depths": (1, 2), "num_classes": 0}),
        "float32",
        True,
    ),
    "bit_small": (vit_tf.ResNetConfig(**BIT | {"image_size": 7}), "float32", True),
    "dropout": (tiny.config(dropout=0.1, mlp_size=48, num_classes=0), "float32", True),
    "attention_dropout": (tiny.config(attention_dropout=0.1), "mixed_bfloat16", True),
    "long_axial_reference": (
        tiny.config(image_size=(56, 44), mlp_size=13, **tiny.AXIAL),
        "mixed_bfloat16",
        False,
    ),
    "axial_attention_dropout": (
        tiny.config(attention_dropout=0.1, **tiny.AXIAL),
        "mixed_bfloat16",
        True,
    ),
    "erf": (
        tiny.config(activation="gelu_erf", mlp_size=48, num_classes=0, representation_size=7),
        "mixed_bfloat16",
        True,
    ),
    "map_bfloat16": (tiny.config(**MAP, representation_size=7), "mixed_bfloat16", True),
    "hybrid_bfloat16": (tiny.config(**HYBRID), "mixed_bfloat16", False),
    "relative_bfloat16": (RELATIVE, "mixed_bfloat16", True),
    "relative_reference_bfloat16": (RELATIVE, "mixed_bfloat16", False),
    "relative_dropout": (RELATIVE.replace(attention_dropout=0.1), "mixed_bfloat16", True),
    "bit_bfloat16": (vit_tf.ResNetConfig(**BIT), "mixed_bfloat16", True),
    "axial_group_bfloat16": (
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
# Operations whose output uses the memory of their first input, and operations that overwrite an
# input of the same size if no other operation reads it later.
ALIASES = {"Reshape", "Identity", "IdentityN", "Squeeze", "ExpandDims", "StopGradient"}
IN_PLACE = {"BiasAdd", "AddV2", "Sub", "Mul", "Neg", "Relu", "Tanh", "Square", "Erfc", "Softmax"}


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


def test_absurd_configurations_are_counted_at_once():
    """A file may claim any number of layers, units, pixels or classes."""
    many, start = 10**12, time.process_time()
    vit = tiny.config(layers=many, image_size=(many, many), num_classes=many)
    hybrid = tiny.config(stem={"stage_depths": (many,) * 5}, patch_size=1, image_size=many)
    resnet = vit_tf.ResNetConfig(stage_depths=(many,) * 5, image_size=many, num_classes=many)
    axial = vit_tf.AxialResNetConfig(
        stage_depths=(many,) * 5, image_size=(many // 64) * 64, num_classes=many
    )
    others = [resnet.replace(spatial=spatial, squeeze_excite=True) for spatial in SPATIAL]
    for config in (vit, hybrid, resnet, axial, *others):
        assert min(cost.parameters(config), cost.arrays(config), cost.macs(config)) > many
        assert cost.activation_bytes(config, many) > many
    assert time.process_time() - start < 1


@pytest.mark.parametrize("name", VITS)
def test_macs_of_vits(name):
    for side, total, attention in zip((224, 384), VITS[name][:2], VITS[name][2:], strict=True):
        config = get_variant(name).replace(image_size=side)
        parts = cost.macs_by_part(config)
        assert cost.macs(config) / 1e9 == pytest.approx(total, rel=0.005)
        # The table has three decimals.
        assert parts["attention"] / 1e9 == pytest.approx(attention, rel=0.005, abs=0.0006)


@pytest.mark.parametrize("name", OTHER_GMACS)
def test_macs_of_hybrids_and_resnets(name):
    for side, total in zip((224, 384, 480), OTHER_GMACS[name], strict=False):
        config = get_variant(name).replace(image_size=side)
        assert cost.macs(config) / 1e9 == pytest.approx(total, rel=0.005)


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
    if size == (224, 224) and name in AXIAL_GMACS:
        assert cost.macs(config) / 1e9 == pytest.approx(AXIAL_GMACS[name], abs=0.0006)


@pytest.mark.parametrize("name", AXIAL_RESNET_GMACS)
def test_macs_of_axial_resnets(name):
    assert cost.macs(get_variant(name)) / 1e9 == pytest.approx(AXIAL_RESNET_GMACS[name], abs=0.0006)


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


@pytest.mark.parametrize("name, epochs, published", TABLE_6)
def test_exaflops_of_table_6(name, epochs, published):
    found = cost.exaflops(get_variant(name), epochs, 303_000_000)
    assert found == pytest.approx(published, rel=0.05)


def reachable(outputs):
    """Names of the operations that compute `outputs`."""
    names, todo = set(), [tensor.op for tensor in outputs]
    while todo:
        operation = todo.pop()
        if operation.name not in names:
            names.add(operation.name)
            todo += [tensor.op for tensor in operation.inputs]
    return names


def owner(tensor):
    """The tensor that owns the memory of this one."""
    while tensor.op.type in ALIASES:
        tensor = tensor.op.inputs[tensor.value_index]
    return tensor


def size_of(tensor):
    assert tensor.shape.is_fully_defined(), tensor
    return math.prod(tensor.shape) * tensor.dtype.size


def varying(operations, images):
    """Names of the tensors that depend on the images or on random draws."""
    names = {images.name}
    for operation in operations:
        if "Random" in operation.type or any(t.name in names for t in operation.inputs):
            names |= {tensor.name for tensor in operation.outputs}
    return names


def traced(model, batch, step):
    """The graph of `step(images)`, with all functions inlined."""
    spec = tf.TensorSpec((batch, *model.config.image_size, 3), model.compute_dtype)
    graph = tf.function(step).get_concrete_function(spec).graph
    kinds = {operation.type for operation in graph.get_operations()}
    assert not {kind for kind in kinds if "Call" in kind or kind in ("While", "If", "Case")}
    return graph


def macs_of(operation):
    """Multiply-accumulates of one operation of a graph."""
    shapes = [tensor.shape.as_list() for tensor in operation.inputs]
    results = math.prod(operation.outputs[0].shape) if operation.outputs else 0
    if operation.type == "Conv2D":
        return results * math.prod(shapes[1][:3])
    if operation.type == "MatMul":
        return results * shapes[0][0 if operation.get_attr("transpose_a") else 1]
    if operation.type == "BatchMatMulV2":
        return results * shapes[0][-2 if operation.get_attr("adj_x") else -1]
    if operation.type == "Einsum":
        labels = operation.get_attr("equation").decode().split("->")[0].split(",")
        sides = {}
        for names, shape in zip(labels, shapes, strict=True):
            sides |= dict(zip(names, shape, strict=True))
        return math.prod(sides.values())
    return 0


@pytest.mark.parametrize("name", FAMILIES | COMPARISONS)
def test_macs_are_those_of_the_graph(name):
    config = (FAMILIES | COMPARISONS)[name]
    model = vit_tf.create_model(config)
    with custom_ops.implementation("reference"):
        graph = traced(model, 1, model)
    used = reachable(graph.outputs)
    counted = [macs_of(operation) for operation in graph.get_operations() if operation.name in used]
    assert sum(counted) == cost.macs(config)


def kept_bytes(model, batch):
    """Bytes of the forward pass that the backward pass reads; each tensor counts once."""
    forward = set()

    def step(images):
        with tf.GradientTape() as tape:
            # The gradient of sin reads the output of the model, through a cosine.
            loss = tf.reduce_sum(tf.sin(model(images, training=True)))
        forward.update(o.name for o in tf.compat.v1.get_default_graph().get_operations())
        return tape.gradient(loss, [variable.value for variable in model.trainable_variables])

    graph = traced(model, batch, step)
    used, changing = reachable(graph.outputs), varying(graph.get_operations(), graph.inputs[0])
    kept = {}
    for operation in graph.get_operations():
        # Shape operations read no values.
        if operation.name in used - forward and operation.type not in ("Shape", "ShapeN"):
            for tensor in map(owner, operation.inputs):
                if tensor.op.name in forward and tensor.name in changing:
                    kept[tensor.name] = size_of(tensor)
    return sum(kept.values())


def live_bytes(model, batch):
    """Peak bytes if the operations run in order and tensors are freed after their last use."""
    graph = traced(model, batch, lambda images: model(images, training=False))
    used, changing = reachable(graph.outputs), varying(graph.get_operations(), graph.inputs[0])
    operations = [o for o in graph.get_operations() if o.name in used and o.type not in ALIASES]
    last = {owner(t).name: at for at, o in enumerate(operations) for t in o.inputs}
    last |= {owner(tensor).name: len(operations) for tensor in graph.outputs}
    live, most = {}, 0
    for at, operation in enumerate(operations):
        new = {t.name: size_of(t) for t in operation.outputs if t.name in changing}
        dying = [name for name in {owner(t).name for t in operation.inputs} if last[name] == at]
        if operation.type in IN_PLACE:
            over = [name for name in dying if name in live and live[name] in new.values()]
            for name in over[:1]:
                del live[name]
        live |= new
        most = max(most, sum(live.values()))
        for name in [*dying, *(name for name in new if name not in last)]:
            live.pop(name, None)
    return most


@pytest.mark.parametrize("name", MEMORIES)
def test_activations_are_those_of_the_graph(name):
    """Except for the few numbers that the rule ignores: in inference, and of BatchNorm."""
    config, dtype, fused = MEMORIES[name]
    model = vit_tf.create_model(config, dtype=dtype)
    with custom_ops.implementation("compiled" if fused else "reference"):
        kept, live = kept_bytes(model, batch=2), live_bytes(model, batch=2)
    found = cost.activation_bytes(config, 2, dtype, fused=fused)
    if config.uses_batch_statistics:
        assert 0.99 * kept <= found < kept
    else:
        assert found == kept
    found = cost.activation_bytes(config, 2, dtype, training=False, fused=fused)
    assert 0.97 * live <= found <= live


@pytest.mark.parametrize(
    ("name", "dtype"), [("token", "float32"), ("axial", "mixed_bfloat16"), ("hybrid", "float32")]
)
def test_recomputed_activations_are_those_of_the_graph(name, dtype):
    """The graph keeps the inputs of the blocks; the tensors of one block come on top."""
    config, macs = FAMILIES[name], {}
    for recompute in ("none", "blocks"):
        model = vit_tf.create_model(config.replace(recompute=recompute), dtype=dtype)
        macs[recompute] = training_graph_macs(model)
    kept = kept_bytes(model, batch=2)
    layer = [cost.activation_bytes(config.replace(layers=n), 2, dtype) for n in (1, 2)]
    one_block = (layer[1] - layer[0]) // (2 if config.axial else 1)
    found = cost.activation_bytes(model.config, 2, dtype)
    assert found == pytest.approx(kept + one_block, rel=0.02 if config.axial else 0)
    again = cost.training_macs(model.config) - cost.training_macs(config)
    assert again == macs["blocks"] - macs["none"] > 0


def training_graph_macs(model):
    """Multiply-accumulates of a training step of one image, except those of convolutions."""
    variables = [variable.value for variable in model.trainable_variables]

    def step(images):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.sin(model(images, training=True)))
        return tape.gradient(loss, variables)

    with custom_ops.implementation("reference"):
        graph = traced(model, 1, step)
    used = reachable(graph.outputs)
    products = [o for o in graph.get_operations() if o.name in used and "MatMul" in o.type]
    return sum(map(macs_of, products))


def test_only_stored_weights_grow_with_the_square_of_the_tokens():
    def bend(training=True, fused=True, dtype="float32", **fields):
        """Second difference over 100, 200 and 300 tokens: 0 for linear terms."""
        sizes = [
            cost.activation_bytes(
                tiny.config(image_size=(4 * rows, 40), classifier="gap", **fields),
                batch=1,
                dtype=dtype,
                training=training,
                fused=fused,
            )
            for rows in (10, 20, 30)
        ]
        return sizes[0] - 2 * sizes[1] + sizes[2]

    squares = (100**2 - 2 * 200**2 + 300**2) * 3  # for 3 heads
    assert bend() == bend(training=False) == bend(dropout=0.1) == bend(dtype="bfloat16") == 0
    assert bend(attention_dropout=0.1, training=False) == 0
    # Two layers in float32: the softmax, and the dropped weights with a mask of one byte.
    assert bend(fused=False) == 2 * 4 * squares
    assert bend(attention_dropout=0.1) == 2 * (4 + 4 + 1) * squares
    assert bend(fused=False, training=False) == 4 * squares


def test_activations_grow_with_the_batch():
    config = get_variant("ViT-B/16")
    assert cost.activation_bytes(config, 32) == 32 * cost.activation_bytes(config, 1)
    assert cost.activation_bytes(config, 2, "bfloat16") < cost.activation_bytes(config, 2)
    with pytest.raises(ValueError, match="float32, bfloat16, float16. Received: 'int8'"):
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
    with pytest.raises(ValueError, match="sgd, adamw. Received: 'lion'"):
        cost.training_bytes(config, "lion")
