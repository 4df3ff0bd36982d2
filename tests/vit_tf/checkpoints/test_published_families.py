"""Published layouts of hybrids and BiT, and big_vision's pooling and fixed positions."""

import math
import re

import numpy as np
import pytest

import vit_tf
from tests.tolerances import golden_excess
from tests.vit_tf import numpy_vit, tiny
from tests.vit_tf.checkpoints.npz_files import infer_config, linen, read, refused, saved, write
from vit_tf.weights import published_arrays, published_rules

POSITIONS = numpy_vit.POSITIONS
MODELS = {
    "hybrid": lambda seed=0: tiny.shared(
        seed, stem={"stage_depths": (1, 2), "width": 0.5}, patch_size=1, image_size=(32, 48)
    ),
    "root": lambda seed=0: tiny.shared(seed, stem=(), patch_size=2, image_size=(32, 48)),
    "BiT": lambda seed=0: bit(seed),
    "MAP": lambda seed=0: tiny.shared(
        seed, classifier="map", position_embedding="sincos_2d", image_size=(8, 12)
    ),
    "MAP, learned positions": lambda seed=0: tiny.shared(
        seed, classifier="map", image_size=(8, 12)
    ),
    "axial hybrid": lambda seed=0: tiny.shared(
        seed, stem=(), patch_size=2, image_size=(32, 48), **tiny.AXIAL
    ),
    "token, fixed positions": lambda seed=0: tiny.shared(
        seed, position_embedding="sincos_2d", image_size=(8, 12)
    ),
}
every_model = pytest.mark.parametrize("kind", MODELS)


def bit(seed=0, **fields):
    fields = {"stage_depths": (2, 1), "width": 0.5, "num_classes": 5} | fields
    return tiny.shared_of(vit_tf.ResNetConfig(**fields), seed)


@every_model
def test_round_trip_is_bitwise(kind, tmp_path):
    model, fresh = MODELS[kind](1), MODELS[kind](2)
    path, again = saved(model, tmp_path / "a.npz"), tmp_path / "b.npz"
    assert infer_config(path) == model.config
    named = sorted(rule.name for rule in published_rules(fresh))
    assert named == sorted({variable.path for variable in fresh.weights})
    report = vit_tf.load_npz(fresh, path, head="keep")
    assert (report.reset, report.dropped) == ([], [])
    for old, new in zip(model.get_weights(), fresh.get_weights(), strict=True):
        assert old.tobytes() == new.tobytes()
    vit_tf.save_npz(fresh, again)
    before, after = read(path), read(again)
    assert list(before) == list(after)
    for key, value in before.items():
        assert value.shape == after[key].shape and value.tobytes() == after[key].tobytes()


def shapes_of(name, **fields):
    with tiny.unallocated():
        table = published_rules(vit_tf.create_model(name, **fields))
    shapes = {key: tuple(shape) for rule in table for key, shape in rule.shapes.items()}
    assert len(shapes) == sum(len(rule.shapes) for rule in table)
    return shapes


def test_released_hybrid():
    """docs/paper.md B.3: names follow the rule, parameter counts are as published."""
    shapes = shapes_of("R26+ViT-S/32", num_classes=21843)
    assert len(shapes) == 287
    assert sum(math.prod(shape) for shape in shapes.values()) == 44_456_467
    residual = {key: shape for key, shape in shapes.items() if key.startswith("block")}
    expected = {}
    for stage in range(4):
        filters = 64 * 2**stage
        for index in range(2):
            unit = f"block{stage + 1}/unit{index + 1}"
            inputs = 4 * filters if index else max(2 * filters, 64) if stage else 64
            expected |= {
                f"{unit}/conv1/kernel": (1, 1, inputs, filters),
                f"{unit}/conv2/kernel": (3, 3, filters, filters),
                f"{unit}/conv3/kernel": (1, 1, filters, 4 * filters),
            }
            sizes = {"gn1": filters, "gn2": filters, "gn3": 4 * filters}
            if not index:
                expected[f"{unit}/conv_proj/kernel"] = (1, 1, inputs, 4 * filters)
                sizes["gn_proj"] = 4 * filters
            for norm, size in sizes.items():
                expected |= {f"{unit}/{norm}/{part}": (size,) for part in ("scale", "bias")}
    assert residual == expected
    assert shapes["conv_root/kernel"] == (7, 7, 3, 64) and shapes["gn_root/scale"] == (64,)
    assert shapes["embedding/kernel"] == (1, 1, 2048, 384)


def test_embedding_of_a_hybrid_without_units():
    assert shapes_of("R+ViT-Ti/16", layers=1)["embedding/kernel"] == (8, 8, 64, 192)


def test_names_of_bit_are_the_golden_files(golden):
    """`save_npz` writes the same names as the reference code."""
    prefix = "params/"
    names = {key[len(prefix) :] for key in golden("bit_tiny") if key.startswith(prefix)}
    config = vit_tf.ResNetConfig(stage_depths=(2, 2, 1), width=0.5, num_classes=7, image_size=64)
    assert set(dict(published_arrays(vit_tf.create_model(config)))) == names


def test_norms_of_hybrids_are_written_as_released(tmp_path):
    """Written with three leading axes of size 1; read with or without them."""
    model, fresh = MODELS["hybrid"](1), MODELS["hybrid"](2)
    path = saved(model, tmp_path / "a.npz")
    arrays = read(path)
    norms = [key for key in arrays if re.search(r"(^|/)gn", key)]
    assert len(norms) == 2 + 3 * 6 + 2 * 2
    assert all(arrays[key].shape[:3] == (1, 1, 1) for key in norms)
    squeezed = {key: value.squeeze() if key in norms else value for key, value in arrays.items()}
    write(path, squeezed)
    vit_tf.load_npz(fresh, path, head="keep")
    for old, new in zip(model.get_weights(), fresh.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize(
    "prefix, numbered", [("", True), ("opt/target/", False), ("params/", True)]
)
def test_numbered_layers_of_bit(prefix, numbered, tmp_path):
    model, fresh = bit(1), bit(2)
    arrays = {}
    for index, (key, value) in enumerate(published_arrays(model)):
        if numbered:
            key = re.sub(r"(standardized_conv2d|group_norm)(?=/)", rf"\1_{index}", key)
        arrays[prefix + key] = value
    path = write(tmp_path / "m.npz", arrays)
    assert infer_config(path) == model.config
    vit_tf.load_npz(fresh, path, head="keep")
    for old, new in zip(model.get_weights(), fresh.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize(
    "kind, scanned",
    [("MAP", True), ("MAP, learned positions", False), ("token, fixed positions", True)],
)
def test_big_vision_files(kind, scanned, tmp_path):
    """Linen names under params/, positions at the top, all blocks stacked in one array."""
    model, fresh = MODELS[kind](1), MODELS[kind](2)
    arrays = {}
    for key, value in published_arrays(model):
        if key.endswith("pos_embedding"):
            key = "pos_embedding"
        arrays["params/" + (linen(key) if key.startswith("Transformer") else key)] = value
    assert not any("MAPHead_0/MultiHeadDotProductAttention_1" in key for key in arrays)
    if scanned:
        for key in [key for key in arrays if "/encoderblock_0/" in key]:
            each = [arrays.pop(key.replace("_0/", f"_{i}/", 1)) for i in range(2)]
            arrays[key.replace("encoderblock_0/", "encoderblock/")] = np.stack(each)
    path = write(tmp_path / "m.npz", arrays, {"grid": [2, 3]})
    assert infer_config(path) == model.config
    vit_tf.load_npz(fresh, path, head="keep")
    for old, new in zip(model.get_weights(), fresh.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_fixed_positions_need_a_grid_from_elsewhere(tmp_path):
    path = saved(MODELS["MAP"](), tmp_path / "m.npz", sidecar=False)
    with pytest.raises(ValueError, match="images.*sidecar"):
        infer_config(path)


def without(key):
    return lambda arrays: arrays.pop(key)


def with_shape(key, shape):
    return lambda arrays: arrays.update({key: np.zeros(shape, np.float32)})


ROOT = "resnet/root_block/standardized_conv2d/kernel"
DAMAGE = {
    "a unit is missing": (
        "BiT",
        lambda arrays: [arrays.pop(key) for key in list(arrays) if "block1/unit01" in key],
        "of its units",
    ),
    "a stage is missing": (
        "hybrid",
        lambda arrays: [arrays.pop(key) for key in list(arrays) if key.startswith("block1/")],
        "of its units",
    ),
    "one array is missing": (
        "BiT",
        without("resnet/block2/unit01/b/group_norm/beta"),
        "has no array resnet/block2/unit01/b/group_norm/beta",
    ),
    "another root": ("BiT", with_shape(ROOT, (3, 3, 3, 32)), r"must be \(7, 7, 3, 64 w\)"),
    "an odd width": ("BiT", with_shape(ROOT, (7, 7, 3, 33)), "multiple of 0.5"),
    "a huge width": ("BiT", with_shape(ROOT, (7, 7, 3, 64)), "has shape"),
    "another kernel": (
        "hybrid",
        with_shape("block1/unit1/conv2/kernel", (5, 5, 32, 32)),
        "has shape",
    ),
    "another embedding": ("root", with_shape("embedding/kernel", (2, 2, 3, 12)), "must be"),
    "one more array": ("hybrid", with_shape("block1/unit1/conv9/kernel", (1,)), "no place for"),
    "stage 0": ("hybrid", with_shape("block0/unit1/conv1/kernel", (1,)), "of its units"),
    "stage 10^9": ("BiT", with_shape("resnet/block999999999/unit01/x", (1,)), "of its units"),
    "no probe": ("MAP", without("MAPHead_0/probe"), "no place for"),
    "a row block is missing": (
        "axial hybrid",
        lambda arrays: [arrays.pop(key) for key in list(arrays) if "block_row_1/" in key],
        "of its encoder blocks",
    ),
    "no rows": ("axial hybrid", without(f"{POSITIONS}_y"), "has no array .*pos_embedding_y"),
    "other rows": (
        "axial hybrid",
        with_shape(f"{POSITIONS}_y", (1, 5, 6)),
        "positions for 5 x 6 patches, but the grid is said to be 4 x 6",
    ),
    "many columns": (
        "axial hybrid",
        with_shape(f"{POSITIONS}_x", (1, 2**17, 6)),
        "are for 524288 patches. Expected 1 to",
    ),
}


@pytest.mark.parametrize("title", DAMAGE)
def test_damaged_files_are_refused(title, tmp_path):
    kind, damage, words = DAMAGE[title]
    model = MODELS[kind]()
    path = saved(model, tmp_path / "m.npz", sidecar=False)
    arrays = read(path)
    damage(arrays)
    grid = {"grid": list(model.grid)} if hasattr(model, "grid") else {}
    write(path, arrays, grid)
    with pytest.raises(ValueError) as inferred:
        vit_tf.load_npz(vit_tf.create_model(infer_config(path)), path, head="keep")
    assert re.search(words, str(inferred.value)), inferred.value
    assert str(path) in str(inferred.value) and len(str(inferred.value)) < 500
    with refused(model, path):
        vit_tf.load_npz(model, path, head="keep")


@pytest.mark.parametrize("head", ["reset", "auto", "reset_last"])
def test_heads_of_bit(head, tmp_path):
    model, other = bit(1), bit(2, num_classes=9)
    path = saved(model, tmp_path / "m.npz")
    report = vit_tf.load_npz(other, path, head=head)
    assert sorted(report.reset) == ["resnet/head/conv2d/bias", "resnet/head/conv2d/kernel"]
    assert not np.any(other.head.kernel) and not np.any(other.head.bias)
    with refused(other, path, "resnet/head/conv2d/kernel"):
        vit_tf.load_npz(other, path, head="keep")


MEANING = {
    "position_embedding": ("MAP", {"position_embedding": "none"}),
    "position_injection": (
        "token, fixed positions",
        {"position_injection": "every_layer_shared"},
    ),
    "activation": ("token, fixed positions", {"activation": "gelu_erf"}),
    "layer_norm_epsilon": ("MAP", {"layer_norm_epsilon": 1e-5}),
    "group_norm_epsilon": ("BiT", {"group_norm_epsilon": 1e-6}),
    "deviation_epsilon": (
        "hybrid",
        {"stem": {"stage_depths": (1, 2), "width": 0.5, "deviation_epsilon": 1e-3}},
    ),
}


@pytest.mark.parametrize("field", MEANING)
def test_weights_that_would_mean_something_else(field, tmp_path):
    """The shapes fit, but the sidecar says that the weights were trained with another formula."""
    kind, fields = MEANING[field]
    model = MODELS[kind]()
    path = saved(model, tmp_path / "m.npz")
    other = vit_tf.create_model(model.config.replace(**fields))
    place = "stem." if kind == "hybrid" and field not in model.config.to_dict() else ""
    with refused(other, path, f"trained with {field}=", f"the model with {place}{field}="):
        vit_tf.load_npz(other, path)
    grid = getattr(model, "grid", None)
    with refused(other, path, f"trained with {field}="):
        vit_tf.load_npz(other, path, source_grid=grid)
    saved(model, path, sidecar=False)
    vit_tf.load_npz(other, path, source_grid=grid)


def test_map_pooling_equals_numpy():
    model = MODELS["MAP"]()
    arrays = {key: value.astype(np.float64) for key, value in published_arrays(model)}
    rng = np.random.default_rng(0)
    tokens = rng.normal(size=(2, 7, 12))
    prefix = "MAPHead_0/MultiHeadDotProductAttention_0"

    def project(x, part):
        name = f"{prefix}/{part}"
        return np.einsum("...d,dhk->...hk", x, arrays[f"{name}/kernel"]) + arrays[f"{name}/bias"]

    query = project(arrays["MAPHead_0/probe"][0, 0], "query")
    logits = np.einsum("hk,bnhk->bhn", query, project(tokens, "key")) / np.sqrt(4)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    mixed = np.einsum("bhn,bnhk->bhk", weights, project(tokens, "value"))
    x = np.einsum("bhk,hkd->bd", mixed, arrays[f"{prefix}/out/kernel"])
    x += arrays[f"{prefix}/out/bias"]
    y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
    y = y * arrays["MAPHead_0/LayerNorm_0/scale"] + arrays["MAPHead_0/LayerNorm_0/bias"]
    mlp = "MAPHead_0/MlpBlock_0"
    y = y @ arrays[f"{mlp}/Dense_0/kernel"] + arrays[f"{mlp}/Dense_0/bias"]
    y = 0.5 * y * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))
    expected = x + y @ arrays[f"{mlp}/Dense_1/kernel"] + arrays[f"{mlp}/Dense_1/bias"]
    assert golden_excess(model.map_pooling(tokens.astype(np.float32)), expected) < 1


def test_fixed_positions_are_the_formula():
    """Computed token by token: sin(x w), cos(x w), sin(y w), cos(y w)."""
    model = MODELS["token, fixed positions"]()
    table = model.position_embedding.table
    assert table.shape == (7, 12) and not table[0].any()
    for row in range(2):
        for column in range(3):
            values = []
            for place, function in [
                (column, math.sin),
                (column, math.cos),
                (row, math.sin),
                (row, math.cos),
            ]:
                values += [function(place / 10_000 ** (i / 2)) for i in range(3)]
            np.testing.assert_allclose(table[1 + 3 * row + column], values, atol=1e-7)


def test_fixed_positions_fit_any_grid():
    model = tiny.shared(position_embedding="sincos_2d", classifier="gap")
    other = tiny.shared(position_embedding="sincos_2d", classifier="gap", image_size=(20, 8))
    images = tiny.images(2, (20, 8))
    patches = other.embed(images)
    features, _ = model.encode(patches, grid=(5, 2))
    expected, _ = other.encode(patches)
    np.testing.assert_allclose(features, expected, atol=1e-5)
