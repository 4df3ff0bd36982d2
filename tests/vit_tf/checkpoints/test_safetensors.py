"""Layouts of other projects: names, values in both directions, and metadata of the files."""

import contextlib
import types

import numpy as np
import pytest

import vit_tf
from tests.vit_tf import tiny
from tests.vit_tf.checkpoints import safetensors_models
from tests.vit_tf.checkpoints.safetensors_models import (
    BIT,
    DINOV2,
    DINOV3,
    GATED,
    HUGGINGFACE,
    SIGLIP,
    TIMM,
)
from vit_tf.checkpoints.loading import for_range
from vit_tf.checkpoints.safetensors.rules import convolution, linear
from vit_tf.checkpoints.safetensors.safetensors_file import SafetensorsFile
from vit_tf.checkpoints.safetensors.timm.residual import EPSILONS, rescaled
from vit_tf.weights import open_checkpoint

# The models that a layout can store: the layout and the fields of a model.
EXPRESSIBLE = {
    "hf token": ("huggingface", tiny.config(**HUGGINGFACE)),
    "hf tanh": ("huggingface", tiny.config(layer_norm_epsilon=1e-3)),
    "hf pooler": ("huggingface", tiny.config(num_classes=0, representation_size=7)),
    "hf features": ("huggingface", tiny.config(num_classes=0)),
    "deit": ("deit", tiny.config(**HUGGINGFACE, classifier="token_distilled")),
    "deit one head": ("deit", tiny.config(register_tokens=1)),
    "deit pooler": (
        "deit",
        tiny.config(register_tokens=1, num_classes=0, representation_size=7),
    ),
    "dinov2": ("dinov2", tiny.config(**DINOV2)),
    "dinov2 tanh": ("dinov2", tiny.config(**DINOV2 | {"activation": "gelu_tanh"})),
    "dinov2 registers": ("dinov2_with_registers", tiny.config(**DINOV2, register_tokens=3)),
    "dinov2 gated": ("dinov2", tiny.config(**GATED)),
    "dinov3": ("dinov3", tiny.config(**DINOV3, rotary_base=50.0)),
    "dinov3 gated": (
        "dinov3",
        tiny.config(**DINOV3 | {"activation": "swiglu", "mlp_size": 20}, register_tokens=2),
    ),
    "dinov3 no qkv bias": ("dinov3", tiny.config(**DINOV3, qkv_bias=False)),
    "siglip": ("siglip", tiny.config(**SIGLIP)),
    "siglip erf": ("siglip", tiny.config(**SIGLIP, **HUGGINGFACE)),
    "timm token": ("timm", tiny.config(**TIMM)),
    "timm layer scale": ("timm", tiny.config(layer_scale=1e-5)),
    "timm tanh": ("timm", tiny.config()),
    "timm features": ("timm", tiny.config(num_classes=0)),
    "timm no positions": ("timm", tiny.config(position_embedding="none")),
    "timm gap": ("timm", tiny.config(classifier="gap")),
    "timm map": ("timm", tiny.config(classifier="map")),
    "timm registers": ("timm", tiny.config(register_tokens=2)),
    "timm registers gap": ("timm", tiny.config(classifier="gap", register_tokens=2)),
    "timm registers map": ("timm", tiny.config(classifier="map", register_tokens=1)),
    "timm registers no positions": (
        "timm",
        tiny.config(register_tokens=2, position_embedding="none"),
    ),
    "timm map no qkv bias": (
        "timm",
        tiny.config(classifier="map", key_bias=False, qkv_bias=False),
    ),
    "timm distilled": ("timm", tiny.config(classifier="token_distilled")),
    "timm unpooled": ("timm", tiny.config(classifier="unpooled")),
    "timm root": (
        "timm",
        tiny.config(stem={"stage_depths": (), **EPSILONS}, image_size=(32, 17), patch_size=1),
    ),
    "timm hybrid": (
        "timm",
        tiny.config(
            stem={"stage_depths": (1, 2), "width": 0.5, **EPSILONS},
            image_size=(40, 33),
            patch_size=1,
        ),
    ),
    "timm bit": ("timm", BIT),
    "timm bit features": ("timm", BIT.replace(num_classes=0)),
}


@pytest.mark.parametrize("image_size", [(11, 14), (8, 32)])
@pytest.mark.parametrize(("layout", "fields"), [("huggingface", HUGGINGFACE), ("timm", TIMM)])
def test_without_a_stated_size_the_models_own_grid_is_tried_first(
    layout, fields, image_size, tmp_path
):
    """Tables of 2 x 3 positions, which form no square, and of 2 x 8, which could be 4 x 4."""
    donor = tiny.shared(seed=1, heads=1, image_size=image_size, **fields)
    model = tiny.shared(seed=2, heads=1, image_size=image_size, **fields)
    safetensors_models.save(donor, tmp_path, layout)
    for path in tmp_path.glob("*.json"):
        path.unlink()
    report = vit_tf.load_safetensors(model, tmp_path, head="keep")
    assert report.resized is None
    for ours, theirs in zip(tiny.values(model), tiny.values(donor), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("name", EXPRESSIBLE)
def test_round_trip_is_bitwise(tmp_path, name):
    layout, config = EXPRESSIBLE[name]
    model = tiny.shared_of(config)
    preprocessing = vit_tf.Preprocessing(
        image_size=config.image_size,
        antialias=True,
    )
    classes = vit_tf.Classes(labels=[f"class {k}" for k in range(config.num_classes)])
    safetensors_models.save(model, tmp_path, layout, preprocessing, classes)
    again, checkpoint = safetensors_models.load(tmp_path)
    assert checkpoint.layout == layout
    assert checkpoint.config == config
    assert (checkpoint.preprocessing, checkpoint.classes) == (preprocessing, classes)
    for ours, theirs in zip(tiny.values(model), tiny.values(again), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    # Writes the loaded model again: the same bytes.
    safetensors_models.save(again, tmp_path / "again", layout, preprocessing, classes)
    for file in ("model.safetensors", "config.json"):
        assert (tmp_path / file).read_bytes() == (tmp_path / "again" / file).read_bytes()


NORM = {"weight": (12,), "bias": (12,)}
SQUARE = {"weight": (12, 12), "bias": (12,)}
# hidden 12, MLP 20, 2 x 3 patches of 4 x 4, 5 classes.
HF_NAMES = {
    "vit.embeddings.cls_token": (1, 1, 12),
    "vit.embeddings.position_embeddings": (1, 7, 12),
    "vit.embeddings.patch_embeddings.projection": {"weight": (12, 3, 4, 4), "bias": (12,)},
    "vit.encoder.layer.0.layernorm_before": NORM,
    "vit.encoder.layer.0.attention.attention.query": SQUARE,
    "vit.encoder.layer.0.attention.attention.key": SQUARE,
    "vit.encoder.layer.0.attention.attention.value": SQUARE,
    "vit.encoder.layer.0.attention.output.dense": SQUARE,
    "vit.encoder.layer.0.layernorm_after": NORM,
    "vit.encoder.layer.0.intermediate.dense": {"weight": (20, 12), "bias": (20,)},
    "vit.encoder.layer.0.output.dense": {"weight": (12, 20), "bias": (12,)},
    "vit.layernorm": NORM,
    "classifier": {"weight": (5, 12), "bias": (5,)},
}
DEIT_NAMES = {
    name.replace("vit.", "deit."): shape for name, shape in HF_NAMES.items() if name != "classifier"
} | {
    "deit.embeddings.distillation_token": (1, 1, 12),
    "deit.embeddings.position_embeddings": (1, 8, 12),
    "cls_classifier": {"weight": (5, 12), "bias": (5,)},
    "distillation_classifier": {"weight": (5, 12), "bias": (5,)},
}
DINOV2_NAMES = {
    name.removeprefix("vit.")
    .replace("layernorm_before", "norm1")
    .replace("layernorm_after", "norm2")
    .replace("intermediate.dense", "mlp.fc1"): shape
    for name, shape in HF_NAMES.items()
    if not name.startswith(("classifier", "vit.encoder.layer.0.output"))
} | {
    "embeddings.position_embeddings": (1, 10, 12),
    "encoder.layer.0.mlp.fc1": {"weight": (24, 12), "bias": (24,)},
    "encoder.layer.0.mlp.fc2": {"weight": (12, 24), "bias": (12,)},
    "encoder.layer.0.layer_scale1.lambda1": (12,),
    "encoder.layer.0.layer_scale2.lambda1": (12,),
}
REGISTERS_NAMES = DINOV2_NAMES | {
    "embeddings.register_tokens": (1, 3, 12),
    "embeddings.mask_token": (1, 12),
}
GATED_NAMES = {name: shape for name, shape in DINOV2_NAMES.items() if ".mlp." not in name} | {
    "encoder.layer.0.mlp.weights_in": {"weight": (64, 12), "bias": (64,)},
    "encoder.layer.0.mlp.weights_out": {"weight": (12, 32), "bias": (12,)},
}
DINOV3_NAMES = {
    "embeddings.cls_token": (1, 1, 12),
    "embeddings.mask_token": (1, 1, 12),
    "embeddings.register_tokens": (1, 2, 12),
    "embeddings.patch_embeddings": {"weight": (12, 3, 4, 4), "bias": (12,)},
    "layer.0.norm1": NORM,
    "layer.0.attention.q_proj": SQUARE,
    "layer.0.attention.k_proj.weight": (12, 12),
    "layer.0.attention.v_proj": SQUARE,
    "layer.0.attention.o_proj": SQUARE,
    "layer.0.layer_scale1.lambda1": (12,),
    "layer.0.norm2": NORM,
    "layer.0.mlp.gate_proj": {"weight": (32, 12), "bias": (32,)},
    "layer.0.mlp.up_proj": {"weight": (32, 12), "bias": (32,)},
    "layer.0.mlp.down_proj": {"weight": (12, 32), "bias": (12,)},
    "layer.0.layer_scale2.lambda1": (12,),
    "norm": NORM,
}
SIGLIP_NAMES = {
    "embeddings.patch_embedding": {"weight": (12, 3, 4, 4), "bias": (12,)},
    "embeddings.position_embedding.weight": (9, 12),
    "encoder.layers.0.layer_norm1": NORM,
    "encoder.layers.0.self_attn.q_proj": SQUARE,
    "encoder.layers.0.self_attn.k_proj": SQUARE,
    "encoder.layers.0.self_attn.v_proj": SQUARE,
    "encoder.layers.0.self_attn.out_proj": SQUARE,
    "encoder.layers.0.layer_norm2": NORM,
    "encoder.layers.0.mlp.fc1": {"weight": (20, 12), "bias": (20,)},
    "encoder.layers.0.mlp.fc2": {"weight": (12, 20), "bias": (12,)},
    "post_layernorm": NORM,
    "head.probe": (1, 1, 12),
    "head.attention.in_proj_weight": (36, 12),
    "head.attention.in_proj_bias": (36,),
    "head.attention.out_proj": SQUARE,
    "head.layernorm": NORM,
    "head.mlp.fc1": {"weight": (20, 12), "bias": (20,)},
    "head.mlp.fc2": {"weight": (12, 20), "bias": (12,)},
}
TIMM_NAMES = {
    "cls_token": (1, 1, 12),
    "pos_embed": (1, 7, 12),
    "patch_embed.proj": {"weight": (12, 3, 4, 4), "bias": (12,)},
    "blocks.0.norm1": NORM,
    "blocks.0.attn.qkv": {"weight": (36, 12), "bias": (36,)},
    "blocks.0.attn.proj": SQUARE,
    "blocks.0.norm2": NORM,
    "blocks.0.mlp.fc1": {"weight": (20, 12), "bias": (20,)},
    "blocks.0.mlp.fc2": {"weight": (12, 20), "bias": (12,)},
    "norm": NORM,
    "head": {"weight": (5, 12), "bias": (5,)},
}
NORM32, NORM128 = ({"weight": (size,), "bias": (size,)} for size in (32, 128))
STEM = "patch_embed.backbone."
HYBRID_NAMES = {name: shape for name, shape in TIMM_NAMES.items() if name != "patch_embed.proj"} | {
    "patch_embed.proj": {"weight": (12, 128, 1, 1), "bias": (12,)},
    f"{STEM}stem.conv.weight": (32, 3, 7, 7),
    f"{STEM}stem.norm": NORM32,
    f"{STEM}stages.0.blocks.0.conv1.weight": (32, 32, 1, 1),
    f"{STEM}stages.0.blocks.0.norm1": NORM32,
    f"{STEM}stages.0.blocks.0.conv2.weight": (32, 32, 3, 3),
    f"{STEM}stages.0.blocks.0.norm2": NORM32,
    f"{STEM}stages.0.blocks.0.conv3.weight": (128, 32, 1, 1),
    f"{STEM}stages.0.blocks.0.norm3": NORM128,
    f"{STEM}stages.0.blocks.0.downsample.conv.weight": (128, 32, 1, 1),
    f"{STEM}stages.0.blocks.0.downsample.norm": NORM128,
}
BIT_NAMES = {
    "stem.conv.weight": (32, 3, 7, 7),
    "stages.0.blocks.0.norm1": NORM32,
    "stages.0.blocks.0.conv1.weight": (32, 32, 1, 1),
    "stages.0.blocks.0.norm2": NORM32,
    "stages.0.blocks.0.conv2.weight": (32, 32, 3, 3),
    "stages.0.blocks.0.norm3": NORM32,
    "stages.0.blocks.0.conv3.weight": (128, 32, 1, 1),
    "stages.0.blocks.0.downsample.conv.weight": (128, 32, 1, 1),
    "norm": NORM128,
    "head.fc": {"weight": (5, 128, 1, 1), "bias": (5,)},
}
DISTILLED_HEAD = {"head_dist": {"weight": (5, 12), "bias": (5,)}}
HALF_STEM = {"stage_depths": (1,), "width": 0.5, **EPSILONS}


@pytest.mark.parametrize(
    ("layout", "config", "names"),
    [
        ("huggingface", tiny.config(layers=1), HF_NAMES),
        ("deit", tiny.config(layers=1, classifier="token_distilled"), DEIT_NAMES),
        ("dinov2", tiny.config(**DINOV2, layers=1), DINOV2_NAMES),
        (
            "dinov2_with_registers",
            tiny.config(**DINOV2, layers=1, register_tokens=3),
            REGISTERS_NAMES,
        ),
        ("dinov2", tiny.config(**GATED, layers=1), GATED_NAMES),
        (
            "dinov3",
            tiny.config(**DINOV3 | GATED, layers=1, register_tokens=2),
            DINOV3_NAMES,
        ),
        ("siglip", tiny.config(**SIGLIP, layers=1), SIGLIP_NAMES),
        ("timm", tiny.config(layers=1), TIMM_NAMES),
        (
            "timm",
            tiny.config(layers=1, register_tokens=2),
            TIMM_NAMES | {"reg_token": (1, 2, 12), "pos_embed": (1, 9, 12)},
        ),
        (
            "timm",
            tiny.config(layers=1, classifier="token_distilled"),
            TIMM_NAMES | {"dist_token": (1, 1, 12), "pos_embed": (1, 8, 12)} | DISTILLED_HEAD,
        ),
        (
            "timm",
            tiny.config(layers=1, stem=HALF_STEM, image_size=(8, 12), patch_size=1),
            HYBRID_NAMES,
        ),
        ("timm", BIT.replace(stage_depths=(1,)), BIT_NAMES),
    ],
)
def test_names_and_shapes(tmp_path, layout, config, names):
    """Compares with names that were copied from transformers 5.23.0 and timm 1.0.31."""
    safetensors_models.save(tiny.shared_of(config), tmp_path, layout)
    expected = {}
    for name, shape in names.items():
        parts = (
            {f"{name}.{part}": size for part, size in shape.items()}
            if (isinstance(shape, dict))
            else {name: shape}
        )
        expected |= parts
    with contextlib.closing(SafetensorsFile(tmp_path / "model.safetensors")) as file:
        assert file.shapes == expected
        assert set(file.dtypes.values()) == {"F32"}


def test_convolution_by_hand():
    rule = convolution("a.weight", "a/kernel", (1, 2, 2, 3))
    ours = np.arange(12.0).reshape(1, 2, 2, 3)
    theirs = rule.to_tensor([ours])
    assert rule.name == "a.weight" and rule.tensor_shape == theirs.shape == (3, 2, 1, 2)
    # Output 1, input 0, row 0, column 1 is kernel[0, 1, 0, 1] of this project.
    assert theirs[1, 0, 0, 1] == 7.0
    np.testing.assert_array_equal(rule.to_arrays(theirs)[0], ours)


def test_joint_projections_by_hand():
    """Two inputs, two heads of one channel: rows of the joint weight are q0, q1, k0, k1."""
    kernel, bias = linear("qk", ["query", "key"], (2,), (2, 1))
    weight = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]])
    query, key = kernel.to_arrays(weight)
    assert query.shape == key.shape == (2, 2, 1)
    np.testing.assert_array_equal(query[:, :, 0], [[1, 3], [2, 4]])
    np.testing.assert_array_equal(key[:, :, 0], [[5, 7], [6, 8]])
    np.testing.assert_array_equal(kernel.to_tensor([query, key]), weight)
    np.testing.assert_array_equal(bias.to_arrays(np.arange(4.0))[1], [[2], [3]])


def test_heads_to_width_by_hand():
    """The projection after attention: weight rows are output channels, columns are heads."""
    kernel, bias = linear("out", "out", (2, 1), (2,))
    ours = kernel.to_arrays(np.array([[1.0, 2.0], [3.0, 4.0]]))[0]
    np.testing.assert_array_equal(ours, [[[1, 3]], [[2, 4]]])
    assert bias.shapes == {"out/bias": (2,)}


def test_half_precision_is_read_exactly(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    safetensors = pytest.importorskip("safetensors.numpy")
    values = np.array([[1.0, -2.5, 3e-5], [65504.0, 0.1, -0.0]], np.float32)
    arrays = {
        "half": values.astype(np.float16),
        "single": values,
        "double": values.astype(np.float64),
        "brain": values.astype(ml_dtypes.bfloat16),
    }
    safetensors.save_file(arrays, tmp_path / "a.safetensors")
    with contextlib.closing(SafetensorsFile(tmp_path / "a.safetensors")) as file:
        for name, array in arrays.items():
            received = file.read(name)
            assert received.dtype == np.float32
            np.testing.assert_array_equal(received, array.astype(np.float32))


def test_the_library_reads_what_is_written(tmp_path):
    safetensors = pytest.importorskip("safetensors")
    model = tiny.shared()
    safetensors_models.save(model, tmp_path, "timm")
    with safetensors.safe_open(tmp_path / "model.safetensors", framework="np") as file:
        assert file.metadata() == {"format": "pt"}
        np.testing.assert_array_equal(
            file.get_tensor("head.weight"), np.array(model.head.kernel.value).T
        )
        with contextlib.closing(SafetensorsFile(tmp_path / "model.safetensors")) as ours:
            assert set(file.keys()) == set(ours.shapes)
            for name in file.keys():  # noqa: SIM118 - not a dictionary
                np.testing.assert_array_equal(file.get_tensor(name), ours.read(name))


IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


@pytest.mark.parametrize("wanted", [None, {"mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6)}])
def test_pixel_range_is_converted_exactly(wanted):
    """Compares with the source's first convolution on its own pixels, in float64."""
    rng = np.random.default_rng(0)
    kernel, bias = rng.normal(size=(2, 3, 3, 4)).astype("f4"), rng.normal(size=4).astype("f4")
    arrays = {"embedding/kernel": kernel, "embedding/bias": bias}
    size = {"image_size": (2, 3)}
    source = types.SimpleNamespace(
        path="a.npz",
        shapes={key: array.shape for key, array in arrays.items()},
        read=arrays.get,
        preprocessing=vit_tf.Preprocessing(**size, **IMAGENET),
    )
    pixels = rng.uniform(0, 1, (2, 3, 3))
    mean, std = IMAGENET.values()
    expected = np.einsum("ijc,ijcd->d", (pixels - mean) / std, kernel.astype("f8")) + bias

    converted = for_range(source, wanted and vit_tf.Preprocessing(**size, **wanted))
    mean, std = (wanted or {"mean": 0.5, "std": 0.5}).values()
    ours = converted.read("embedding/kernel").astype("f8")
    received = np.einsum("ijc,ijcd->d", (pixels - mean) / std, ours)
    np.testing.assert_allclose(received + converted.read("embedding/bias"), expected, rtol=1e-6)
    assert for_range(source, source.preprocessing) is source


@pytest.mark.parametrize("rescale", [1 / 127.5, 0.00392156862745])
def test_pixel_range_of_a_file(tmp_path, rescale):
    """The checkpoint has the source's model and pixels; a model for [-1, 1] gives its logits."""
    source = tiny.shared(**HUGGINGFACE)
    safetensors_models.save(source, tmp_path, "huggingface")
    mean, std = [0.1, 0.2, 0.3], [0.4, 0.5, 0.6]
    safetensors_models.change(
        tmp_path / "preprocessor_config.json",
        rescale_factor=rescale,
        image_mean=mean,
        image_std=std,
    )
    same, checkpoint = safetensors_models.load(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 256, (3, 11, 14, 3), np.uint8)
    given = (pixels * rescale - mean) / std
    np.testing.assert_allclose(
        checkpoint.preprocessing.normalized(pixels), given, rtol=1e-5, atol=1e-6
    )
    expected = source(given.astype("f4")).numpy()
    np.testing.assert_array_equal(same(given.astype("f4")), expected)

    model = tiny.shared(seed=1, **HUGGINGFACE)
    report = vit_tf.load_safetensors(model, tmp_path, head="keep")
    assert "converted the patch embedding" in str(report)
    for images in (pixels, (pixels / 127.5 - 1).astype("f4")):
        np.testing.assert_allclose(model(images), expected, rtol=1e-4, atol=1e-5)
    # The same weights from our own file, for a model that reads the source's pixels.
    vit_tf.save_npz(same, tmp_path / "a.npz", checkpoint.preprocessing)
    report = vit_tf.load_npz(
        model, tmp_path / "a.npz", "keep", preprocessing=checkpoint.preprocessing
    )
    assert not report.converted
    np.testing.assert_array_equal(model(given.astype("f4")), expected)


def test_padded_convolutions_cannot_be_converted(tmp_path):
    model = tiny.shared_of(BIT)
    preprocessing = vit_tf.Preprocessing(image_size=BIT.image_size, antialias=True, **IMAGENET)
    safetensors_models.save(model, tmp_path, "timm", preprocessing)
    assert safetensors_models.load(tmp_path)[1].preprocessing == preprocessing
    with pytest.raises(ValueError, match="padded convolutions") as caught:
        vit_tf.load_safetensors(model, tmp_path)
    advice = "--set data.mean=0.485,0.456,0.406 --set data.std=0.229,0.224,0.225."
    assert str(caught.value).endswith(advice)
    # The other advice of the message.
    report = vit_tf.load_safetensors(model, tmp_path, preprocessing=preprocessing)
    assert not report.converted


@pytest.mark.parametrize(("a", "b"), [(0.0, 1e-5), (1e-10, 0.0), (1e-5, 1e-3)])
def test_rescaled_kernels_standardize_alike(a, b):
    kernel = np.random.default_rng(0).normal(0.003, 0.01, (3, 3, 4, 5))
    kernel[..., 1] *= 1e-3
    kernel[..., 2] = 0.5  # a filter without variance

    def centered(array):
        return array - array.mean(axis=(0, 1, 2)), array.var(axis=(0, 1, 2))

    rest, variance = centered(kernel)
    expected = rest / (np.sqrt(variance + a) + b)
    rest, variance = centered(rescaled(kernel, a, b).astype("f8"))
    np.testing.assert_allclose(rest / np.sqrt(variance + 1e-8), expected, atol=1e-6, rtol=1e-5)


def test_published_epsilons_of_bit_are_rescaled(tmp_path):
    """BiT adds 1e-10 and timm 1e-8, so the kernels become ten times as large."""
    model = tiny.shared_of(BIT.replace(variance_epsilon=1e-10))
    safetensors_models.save(model, tmp_path, "timm")
    again, checkpoint = safetensors_models.load(tmp_path)
    assert checkpoint.config == BIT
    np.testing.assert_allclose(again.root.kernel, 10 * np.array(model.root.kernel), rtol=1e-6)
    images = tiny.images(size=BIT.image_size)
    np.testing.assert_allclose(again(images), model(images), rtol=1e-4, atol=1e-4)


def test_computed_positions_become_a_table(tmp_path):
    for layout in ("huggingface", "timm"):
        model = tiny.shared(position_embedding="sincos_2d")
        notes = safetensors_models.save(model, tmp_path / layout, layout)
        assert any("sincos_2d" in note for note in notes)
        again, checkpoint = safetensors_models.load(tmp_path / layout)
        assert checkpoint.config.position_embedding == "learned_1d"
        images = tiny.images()
        np.testing.assert_allclose(again(images), model(images), rtol=1e-5, atol=1e-6)


def test_memory_order_and_dtype_of_what_is_read(tmp_path):
    safetensors_models.save(tiny.shared(), tmp_path, "timm")
    with open_checkpoint(tmp_path / "model.safetensors") as checkpoint:
        for key, shape in checkpoint.shapes.items():
            array = checkpoint.read(key)
            assert array.shape == shape
            assert array.dtype == np.float32 and array.flags.c_contiguous
