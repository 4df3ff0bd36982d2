"""Published checkpoints: round trips, names and shapes, heads, grids, other layouts."""

import itertools
import json
import math

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import vit_tf
from tests.tolerances import assert_close
from tests.vit_tf import numpy_vit, tiny
from tests.vit_tf.checkpoints.npz_files import (
    assert_same_values,
    infer_config,
    linen,
    params_of,
    read,
    saved,
    write,
)
from vit_tf.checkpoints.sidecar import read_sidecar
from vit_tf.weights import published_rules

FORMS = {
    "token": {},
    "gap no head": {"classifier": "gap", "num_classes": 0},
    "unpooled": {"classifier": "unpooled"},
    "pre-logits": {"representation_size": 7},
    "pre-logits no head": {"representation_size": 7, "num_classes": 0},
    "no positions": {"position_embedding": "none"},
    "2-D positions": {"position_embedding": "learned_2d"},
    "axial": tiny.AXIAL,
    "relative": {"position_embedding": "relative"},
    "every layer": {"position_injection": "every_layer"},
    "every layer, 2-D": {"position_embedding": "learned_2d", "position_injection": "every_layer"},
    "shared positions": {"position_injection": "every_layer_shared"},
    "layer scale": {"layer_scale": 1.0},
    "axial layer scale": tiny.AXIAL | {"layer_scale": 1.0},
    "rotary positions": {"position_embedding": "rotary_2d", "key_bias": False},
    "no qkv bias": {"key_bias": False, "qkv_bias": False},
    "swiglu": {"activation": "swiglu", "qk_norm": True},
    "registers": {"register_tokens": 3},
    "distilled": {"classifier": "token_distilled"},
    "distilled no head": {"classifier": "token_distilled", "num_classes": 0},
    "registers gap": {"register_tokens": 1, "classifier": "gap"},
    "square": {"image_size": 12},
    "eleven blocks": {"layers": 11},
}
POSITIONS = numpy_vit.POSITIONS


@pytest.mark.parametrize("form", FORMS)
def test_files_hold_the_published_arrays_and_load_bitwise(form, tmp_path):
    """Every array equals a conversion by hand: names, shapes, and unpacked q | k | v."""
    model, fresh = tiny.shared(seed=1, **FORMS[form]), tiny.shared(seed=2, **FORMS[form])
    first, second = tmp_path / "first.npz", tmp_path / "second.npz"
    vit_tf.save_npz(model, first)
    report = vit_tf.load_npz(fresh, first, head="keep")
    vit_tf.save_npz(fresh, second)
    before, after, expected = read(first), read(second), params_of(model)
    assert list(before) == list(after) == report.loaded
    assert before.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_array_equal(before[key], value, err_msg=key)
    for key in before:
        assert before[key].dtype == np.float32
        assert before[key].tobytes() == after[key].tobytes(), key
    sidecars = [(tmp_path / f"{name}.npz.json").read_bytes() for name in ("first", "second")]
    assert sidecars[0] == sidecars[1]
    assert (report.reset, report.dropped, report.resized) == ([], [], None)
    for old, new in zip(model.get_weights(), fresh.get_weights(), strict=True):
        assert old.tobytes() == new.tobytes()


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "bfloat16"])
def test_round_trip_under_other_policies(dtype, tmp_path):
    model, fresh = tiny.shared(seed=1, dtype=dtype), tiny.shared(seed=2, dtype=dtype)
    path = saved(model, tmp_path / "model.npz")
    assert {array.dtype for array in read(path).values()} == {np.dtype(np.float32)}
    vit_tf.load_npz(fresh, path, head="keep")
    np.testing.assert_array_equal(fresh(tiny.images()), model(tiny.images()))


def published_shapes():
    """The shapes of ViT-B/16 with pre-logits and 21843 classes, as in the released file."""
    shapes = {
        "cls": (1, 1, 768),
        "embedding/kernel": (16, 16, 3, 768),
        "embedding/bias": (768,),
        "Transformer/posembed_input/pos_embedding": (1, 197, 768),
        "Transformer/encoder_norm/scale": (768,),
        "Transformer/encoder_norm/bias": (768,),
        "pre_logits/kernel": (768, 768),
        "pre_logits/bias": (768,),
        "head/kernel": (768, 21843),
        "head/bias": (21843,),
    }
    for index in range(12):
        block = f"Transformer/encoderblock_{index}"
        attention = f"{block}/MultiHeadDotProductAttention_1"
        for norm in ("LayerNorm_0", "LayerNorm_2"):
            shapes |= {f"{block}/{norm}/scale": (768,), f"{block}/{norm}/bias": (768,)}
        for part in ("query", "key", "value"):
            shapes[f"{attention}/{part}/kernel"] = (768, 12, 64)
            shapes[f"{attention}/{part}/bias"] = (12, 64)
        shapes |= {f"{attention}/out/kernel": (12, 64, 768), f"{attention}/out/bias": (768,)}
        shapes[f"{block}/MlpBlock_3/Dense_0/kernel"] = (768, 3072)
        shapes[f"{block}/MlpBlock_3/Dense_0/bias"] = (3072,)
        shapes[f"{block}/MlpBlock_3/Dense_1/kernel"] = (3072, 768)
        shapes[f"{block}/MlpBlock_3/Dense_1/bias"] = (768,)
    return shapes


def test_names_and_shapes_of_the_released_base_16():
    with tiny.unallocated():
        model = vit_tf.create_model("ViT-B/16", num_classes=21843, representation_size=768)
        table = published_rules(model)
    shapes = {key: tuple(shape) for rule in table for key, shape in rule.shapes.items()}
    assert shapes == published_shapes()
    assert len(shapes) == sum(len(rule.shapes) for rule in table) == 202
    assert sum(math.prod(shape) for shape in shapes.values()) == 103_186_515


@pytest.mark.parametrize(
    "prefix, rename",
    [
        ("", linen),
        ("opt/target/", str),
        ("params/", linen),
        ("params/img/", linen),
        ("module/", str),
        ("ema/target/", linen),
        ("model.", str),
    ],
)
def test_other_names_load_by_value(prefix, rename, tmp_path):
    donor, model = tiny.shared(seed=1), tiny.shared(seed=2)
    arrays = {prefix + rename(key): value for key, value in params_of(donor).items()}
    assert len(arrays) == len(params_of(donor))
    path = write(tmp_path / "model.npz", arrays)
    report = vit_tf.load_npz(model, path, head="keep", source_grid=(2, 3))
    assert_same_values(model, params_of(donor))
    assert sorted(report.loaded) == sorted(params_of(donor))
    assert (repr(prefix) in str(report)) == (prefix in ("module/", "ema/target/", "model."))


@pytest.mark.parametrize("prefix", ["opt/target/", "params/", "params/img/"])
def test_the_rest_of_a_training_state_is_ignored(prefix, tmp_path):
    """Step counters are integers; the text model of a contrastive model is not supported."""
    donor, model = tiny.shared(seed=1), tiny.shared(seed=2)
    arrays = {prefix + key: value for key, value in params_of(donor).items()}
    arrays["opt/state/step"] = np.int32(7)
    arrays["opt/0/mu/embedding/kernel"] = np.zeros((4, 4, 3, 12), np.float32)
    arrays["extra/accum_train_time"] = np.float64(3.0)
    if prefix == "params/img/":
        arrays["params/txt/pos_embedding"] = np.zeros((1, 16, 12), np.float32)
        arrays["params/t"] = np.zeros((1,), np.float32)
    path = write(tmp_path / "model.npz", arrays)
    vit_tf.load_npz(model, path, head="keep", source_grid=(2, 3))
    assert_same_values(model, params_of(donor))


def big_vision(model, scanned):
    """The layout of google-research/big_vision: positions at the top, without a class slot."""
    arrays = {linen(key): value for key, value in params_of(model).items()}
    positions = arrays.pop(POSITIONS)
    if "cls" in arrays:
        arrays["cls"] = arrays["cls"] + positions[:, :1]
    arrays["pos_embedding"] = positions[:, model.num_prefix_tokens :]
    if scanned:
        blocks = {key for key in arrays if "/encoderblock_0/" in key}
        for key in sorted(blocks):
            each = [arrays.pop(key.replace("_0/", f"_{i}/", 1)) for i in range(len(model.blocks))]
            arrays[key.replace("encoderblock_0/", "encoderblock/")] = np.stack(each)
    return arrays


@pytest.mark.parametrize("scanned", [False, True], ids=["blocks", "scanned"])
@pytest.mark.parametrize("classifier", ["token", "gap"])
def test_big_vision_files_load_by_value(classifier, scanned, tmp_path):
    """big_vision adds the position to the stored class token; the model output is the same."""
    donor = tiny.shared(seed=1, classifier=classifier)
    model = tiny.shared(seed=2, classifier=classifier)
    arrays = {f"params/{key}": value for key, value in big_vision(donor, scanned).items()}
    path = write(tmp_path / "model.npz", arrays)
    vit_tf.load_npz(model, path, head="keep", source_grid=(2, 3))
    expected = np.asarray(donor(tiny.images()), np.float64)
    assert_close(model(tiny.images()), expected, "float32", "model")


@pytest.mark.parametrize("dtype", ["float16", "float64", "bfloat16", "fortran", "compressed"])
def test_other_encodings_load_by_value(dtype, tmp_path):
    donor, model = tiny.shared(seed=1), tiny.shared(seed=2)
    arrays = params_of(donor)
    path = tmp_path / "model.npz"
    if dtype == "fortran":
        write(path, {key: np.asfortranarray(value) for key, value in arrays.items()})
    elif dtype == "compressed":
        np.savez_compressed(path, **arrays)
    else:
        arrays = {
            key: value.astype(getattr(ml_dtypes, dtype, dtype)) for key, value in arrays.items()
        }
        write(path, arrays)
    report = vit_tf.load_npz(model, path, head="keep", source_grid=(2, 3))
    assert ("bfloat16" in str(report)) == (dtype == "bfloat16")
    assert_same_values(model, {key: value.astype(np.float32) for key, value in arrays.items()})


def test_report_text(tmp_path):
    donor = tiny.shared(seed=1, representation_size=7, num_classes=9)
    path = saved(donor, tmp_path / "model.npz")
    report = vit_tf.load_npz(tiny.shared(image_size=(20, 24)), path)
    assert str(report).splitlines() == [
        f"loaded 38 arrays from {path}",
        "resized positions from 2 x 3 to 5 x 6",
        "fresh initial values: head/kernel, head/bias",
        "dropped: head/bias, head/kernel, pre_logits/bias, pre_logits/kernel",
    ]
    again = vit_tf.load_npz(tiny.shared(representation_size=7, num_classes=9), path)
    assert str(again) == f"loaded 42 arrays from {path}"


@pytest.mark.parametrize(
    "form, rename",
    [
        (form, rename)
        for form, rename in zip(FORMS, itertools.cycle([str, linen]))
        if "positions" not in form and form != "eleven blocks"
    ],
)
def test_config_is_read_off_the_arrays(form, rename, tmp_path):
    """Everything except pooling and values that shapes do not show, such as left-over pixels."""
    model = tiny.shared(**FORMS[form])
    arrays = {rename(key): value for key, value in params_of(model).items()}
    path = write(tmp_path / "model.npz", arrays, {"grid": list(model.grid)})
    config = model.config
    size = (4 * model.grid[0], 4 * model.grid[1])
    classifier = config.classifier if config.has_class_token else "gap"
    assert infer_config(path) == config.replace(image_size=size, classifier=classifier)
    fresh = tiny.shared_of(infer_config(path), seed=2)
    vit_tf.load_npz(fresh, path, head="keep")
    assert fresh.count_params() == model.count_params()


def test_square_config_without_sidecar(tmp_path):
    model = tiny.shared(image_size=12)
    path = saved(model, tmp_path / "model.npz", sidecar=False)
    assert infer_config(path) == model.config
    path = saved(tiny.shared(), tmp_path / "other.npz", sidecar=False)
    with pytest.raises(ValueError, match="6 patch.*sidecar"):
        infer_config(path)


def test_sidecar_holds_what_the_layout_has_no_place_for(tmp_path):
    model = tiny.shared(dropout=0.1, implementation="reference")
    preprocessing = vit_tf.Preprocessing(image_size=(11, 14))
    classes = vit_tf.Classes(labels=("a", "b", "c", "d", "é"), activation="sigmoid")
    path = tmp_path / "model.npz"
    vit_tf.save_npz(model, path, preprocessing, classes)
    sidecar = json.loads((tmp_path / "model.npz.json").read_text())
    assert sidecar["grid"] == [2, 3]
    assert vit_tf.ViTConfig.from_dict(sidecar["config"]) == model.config.replace(
        implementation="auto"
    )
    assert sidecar["preprocessing"] == {
        "image_size": [11, 14],
        "resize": "direct",
        "resize_to": None,
        "labels": ["a", "b", "c", "d", "é"],
        "probabilities": "sigmoid",
    }
    stored = read_sidecar(path)
    assert (stored.preprocessing, stored.classes) == (preprocessing, classes)
    assert sorted(tmp_path.iterdir()) == [path, tmp_path / "model.npz.json"]


def test_mirrored_model_round_trip(tmp_path):
    """Variables of a strategy have one value per replica; the file has one value."""
    donor = tiny.shared(seed=1, layers=1)
    path = saved(donor, tmp_path / "one.npz")
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = tiny.model(seed=2, layers=1)
    vit_tf.load_npz(model, path, head="keep")
    again = saved(model, tmp_path / "two.npz")
    for (key, old), new in zip(read(path).items(), read(again).values(), strict=True):
        assert old.tobytes() == new.tobytes(), key
    replicas = strategy.run(lambda: model(tf.constant(tiny.images())))
    for logits in strategy.experimental_local_results(replicas):
        np.testing.assert_allclose(logits, donor(tiny.images()), atol=1e-5)
