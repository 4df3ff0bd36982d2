"""The Vision Transformer's forward pass against the NumPy equations: call, stages, taps, errors."""

import itertools
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import vit_tf
from tests.custom_ops import oracle
from tests.tolerances import assert_close
from tests.vit_tf import numpy_vit, tiny

# One configuration below has a single patch, for which `create_model` warns.
pytestmark = pytest.mark.filterwarnings("ignore:An image is a single patch")

# Every value of every field that the equations know, alone or with one other.
FORMS = {
    "token": {},
    "gap": {"classifier": "gap"},
    "gap no head": {"classifier": "gap", "num_classes": 0},
    "unpooled no head": {"classifier": "unpooled", "num_classes": 0},
    "pre-logits": {"representation_size": 7},
    "pre-logits no head": {"representation_size": 7, "num_classes": 0},
    "unpooled pre-logits": {"classifier": "unpooled", "representation_size": 7},
    "gap no positions": {"classifier": "gap", "position_embedding": "none"},
    "2-D positions": {"position_embedding": "learned_2d"},
    "axial": tiny.AXIAL,
    "axial token": {"axial": True, "activation": "gelu_erf"},
    "relative": {"position_embedding": "relative"},
    "one token relative": {
        "classifier": "gap",
        "position_embedding": "relative",
        "image_size": (4, 7),
    },
    "every layer": {"position_injection": "every_layer", "layers": 3},
    "unpooled every layer shared": {
        "classifier": "unpooled",
        "position_injection": "every_layer_shared",
        "layers": 3,
    },
    "layer scale": {"layer_scale": 0.1},
    "registers": {"register_tokens": 2},
    "gap registers": {"classifier": "gap", "register_tokens": 3},
    "unpooled registers": {"classifier": "unpooled", "register_tokens": 1}
    | {"position_embedding": "sincos_2d"},
    "distilled": {"classifier": "token_distilled"},
    "distilled no head": {"classifier": "token_distilled", "num_classes": 0}
    | {"position_embedding": "learned_2d"},
    "distilled rotary": {"classifier": "token_distilled", "position_embedding": "rotary_2d"},
    "2-D registers": {"register_tokens": 4, "position_embedding": "learned_2d"},
    "registers no positions": {"register_tokens": 2, "position_embedding": "none"},
    "axial layer scale": tiny.AXIAL | {"layer_scale": 0.1},
    "rotary": {"position_embedding": "rotary_2d", "key_bias": False},
    "no qkv bias": {"key_bias": False, "qkv_bias": False, "qk_norm": True},
    "unpooled rotary": {
        "classifier": "unpooled",
        "position_embedding": "rotary_2d",
        "rotary_base": 9.0,
        "qk_norm": True,
    },
    "swiglu": {"activation": "swiglu", "layer_scale": 0.1},
    "axial swiglu": tiny.AXIAL | {"activation": "swiglu", "qk_norm": True, "key_bias": False},
    "relative qk norm": {"position_embedding": "relative", "qk_norm": True},
    "epsilon of one block": {"layer_norm_epsilon": 0.1, "layers": 1},
    "one pixel": {"patch_size": 1, "image_size": (2, 3)},
}
# Every second form reads bytes.
DTYPES = dict(zip(FORMS, itertools.cycle(("float32", "uint8"))))
# Every form in float32, and some under mixed precision, whose tolerance hides small mistakes.
POLICIES = [
    *((form, "float32") for form in FORMS),
    *((form, "mixed_bfloat16") for form in ("token", "gap", "pre-logits no head", "axial")),
    *((form, "mixed_bfloat16") for form in ("unpooled pre-logits", "relative", "every layer")),
    *((form, "mixed_bfloat16") for form in ("rotary", "unpooled rotary", "swiglu")),
    *((form, "mixed_bfloat16") for form in ("registers", "distilled")),
]


def expected_output(model, images):
    config = model.config
    return numpy_vit.forward(
        numpy_vit.published(model),
        images,
        config.heads,
        config.classifier,
        **numpy_vit.options_of(config),
    )


def encoded(model, images):
    params = numpy_vit.published(model)
    patches = numpy_vit.embed(params, images)
    return numpy_vit.encode(params, patches, model.config.heads, model.config.classifier)


@pytest.mark.parametrize("form, policy", POLICIES)
def test_model_and_stages_match_the_equations(form, policy):
    """embed, encode and classify compute the steps of the equations, and together the model."""
    keras.config.set_dtype_policy(policy)
    model = tiny.shared(**FORMS[form])
    config, precision = model.config, policy.removeprefix("mixed_")
    images = tiny.images(size=config.image_size, dtype=DTYPES[form])
    whole, expected = model(images), expected_output(model, images)
    assert whole.dtype == ("float32" if config.num_classes else precision)
    assert_close(whole, expected, precision, "model")

    patches = model.embed(images)
    assert patches.dtype == precision
    assert_close(patches, numpy_vit.embed(numpy_vit.published(model), images), precision, "model")
    features, taps = model.encode(patches)
    assert features.dtype == precision
    assert features.shape[1] == model.num_prefix_tokens + patches.shape[1]
    assert taps == [{}] * len(model.blocks)
    # Masked patches and stored features may be float32 under any policy.
    for stored in (features, tf.cast(features, tf.float32)):
        assert_close(model.classify(stored), expected, precision, "model")
    features, _ = model.encode(tf.cast(patches, tf.float32))
    assert features.dtype == precision
    assert_close(model.classify(features), expected, precision, "model")


@pytest.mark.parametrize("form", ["token", "unpooled no head", "pre-logits no head"])
def test_shapes_of_other_batches(form):
    """`[B, K]`, or without a head `[B, D or R]`; without pooling, an axis of patches too."""
    model = tiny.shared(**FORMS[form])
    shape = {"token": (5,), "unpooled no head": (6, 12), "pre-logits no head": (7,)}[form]
    for count in (0, 1):
        assert model(tiny.images(count)).shape == (count, *shape)
    assert model(keras.Input((11, 14, 3))).shape == (None, *shape)


@pytest.mark.parametrize("classifier", ["gap", "map", "unpooled"])
def test_registers_are_never_pooled(classifier):
    model = tiny.shared(classifier=classifier, register_tokens=2)
    features = np.array(model.encode(model.embed(tiny.images()))[0])
    expected = model.classify(features).numpy()
    features[:, :2] += 1
    np.testing.assert_array_equal(model.classify(features), expected)
    features[:, 2] += 1
    assert np.abs(model.classify(features) - expected).max() > 0.01


def test_registers_start_as_different_tokens():
    """Equal ones would get equal gradients."""
    tokens = vit_tf.create_model(tiny.config(register_tokens=3)).register_tokens.tokens.numpy()
    differences = np.abs(tokens[:, None] - tokens[None]).max(axis=-1)
    assert (differences[~np.eye(3, dtype=bool)] > 1e-3).all() and np.abs(tokens).max() < 0.2


@pytest.mark.parametrize("form", ["token", "gap"])
def test_features_match_the_equations(form):
    model = tiny.shared(**FORMS[form])
    images = tiny.images()
    features, _ = model.encode(model.embed(images))
    assert_close(features, encoded(model, images)[0], "float32", "model")


def test_stages_in_a_graph_with_unknown_batch():
    model = tiny.shared()
    images = tiny.images()

    @tf.function(input_signature=[tf.TensorSpec([None, 11, 14, 3])])
    def run(images):
        features, taps = model.encode(model.embed(images), taps=("class_row",))
        return model.classify(features), taps[1]["class_row"]

    logits, row = run(images)
    assert_close(logits, expected_output(model, images), "float32", "model")
    assert_close(row, encoded(model, images)[1][1][:, :, 0], "float32", "model")


@pytest.mark.parametrize("classifier, positions", [("token", "relative"), ("gap", "learned_1d")])
def test_taps_of_every_block(classifier, positions):
    model = tiny.shared(classifier=classifier, layers=3, position_embedding=positions)
    images = tiny.images()
    features, taps = model.encode(model.embed(images), taps=("class_row", "distance", "entropy"))
    expected_features, weights = encoded(model, images)
    assert_close(features, expected_features, "float32", "model")
    assert len(taps) == 3
    for block, expected in zip(taps, weights, strict=True):
        assert sorted(block) == ["class_row", "distance", "entropy"]
        assert block["class_row"].shape == (3, 3, model.num_prefix_tokens + 6)
        assert_close(block["class_row"], expected[:, :, 0], "float32", "model")
        assert_close(block["distance"], oracle.distance(expected, (2, 3)), "float32", "model")
        assert_close(block["entropy"], oracle.entropy(expected), "float32", "model")


def test_distance_uses_the_grid_that_is_passed():
    """Without positions any grid is allowed; distances in a 1 x 6 grid differ from a 2 x 3 grid."""
    model = tiny.shared(position_embedding="none")
    images = tiny.images()
    _, taps = model.encode(model.embed(images), grid=(1, 6), taps=("distance",))
    _, weights = encoded(model, images)
    expected = oracle.distance(weights[0], (1, 6))
    assert_close(taps[0]["distance"], expected, "float32", "model")
    assert np.abs(expected - oracle.distance(weights[0], (2, 3))).max() > 0.1


@pytest.mark.parametrize(
    "fields", [{}, {"axial": True}, {"position_embedding": "rotary_2d"}], ids=str
)
def test_another_grid_without_a_table(fields):
    model = tiny.shared(**{"position_embedding": "none"} | fields)
    larger = tiny.images(size=(16, 12))
    donor = vit_tf.create_model(model.config, image_size=(16, 12))
    donor.set_weights(model.get_weights())
    features, _ = model.encode(donor.embed(larger), grid=(4, 3))
    assert_close(model.classify(features), expected_output(donor, larger), "float32", "model")


def test_without_positions_the_order_of_patches_is_invisible():
    order = [4, 1, 5, 0, 3, 2]
    kinds = ("none", "learned_1d", "relative", "rotary_2d")
    for field, equal in zip(kinds, (True, False, False, False), strict=True):
        model = tiny.shared(position_embedding=field)
        patches = model.embed(tiny.images())
        outputs = [
            np.asarray(model.classify(model.encode(p)[0]))
            for p in (patches, tf.gather(patches, order, axis=1))
        ]
        assert np.allclose(*outputs, atol=1e-5) == equal


def test_leftover_pixels_are_unread():
    model = tiny.shared()
    images = tiny.images()
    changed = images.copy()
    changed[:, 8:] = 9.0
    changed[:, :, 12:] = -9.0
    np.testing.assert_array_equal(model(changed), model(images))
    changed[:, 7, 11] = 9.0
    assert np.abs(model(changed) - model(images)).max() > 1e-3


def test_uint8_is_mapped_to_the_models_range():
    model = tiny.shared()
    images = tiny.images(dtype="uint8")
    mapped = ((images.astype(np.float64) - 127.5) / 127.5).astype(np.float32)
    expected = np.asarray(model(mapped), np.float64)
    assert_close(model(images), expected, "float32", "model")
    assert_close(model(tf.constant(images)), expected, "float32", "model")


def test_grid_and_prefix():
    model = tiny.shared(image_size=(11, 14))
    assert (model.grid, model.num_prefix_tokens) == ((2, 3), 1)
    assert tiny.shared(classifier="gap").num_prefix_tokens == 0
    assert tiny.shared(axial=True).num_prefix_tokens == 0
    assert tiny.shared(classifier="unpooled").num_prefix_tokens == 0
    assert vit_tf.create_model(tiny.config(), image_size=9).grid == (2, 2)


@pytest.mark.parametrize(
    "count, grid, words",
    [
        (5, None, "6 patches.*: 5"),
        (6, (2, 2), "2 x 2 .*4 patches.*: 6"),
        (8, (2, 4), r"2 x 3.*grid=\(2, 4\)"),
        (6, (3, 2), r"2 x 3.*grid=\(3, 2\)"),
    ],
)
@pytest.mark.parametrize(
    "fields",
    [{}, {"position_embedding": "relative"}, {"position_injection": "every_layer"}],
    ids=str,
)
def test_encode_refuses_a_grid_that_does_not_fit(fields, count, grid, words):
    model = tiny.shared(**fields)
    with pytest.raises(ValueError, match=words):
        model.encode(tf.zeros([1, count, 12]), grid=grid)


def test_encode_refuses_an_unknown_tap():
    model = tiny.shared()
    with pytest.raises(ValueError, match="heads_of_state"):
        model.encode(tf.zeros([1, 6, 12]), taps=("heads_of_state",))


@pytest.mark.parametrize("shape", [(1, 14, 11, 3), (1, 22, 28, 3), (11, 14, 3), (1, 11, 14, 1)])
@pytest.mark.parametrize("stage", ["call", "embed"])
def test_images_of_another_size_are_refused(stage, shape):
    model = tiny.shared()
    run = model if stage == "call" else model.embed
    with pytest.raises(ValueError, match=re.escape(f"Received: shape {shape}")):
        run(tf.zeros(shape))


def test_taps_with_attention_dropout_need_inference():
    model = tiny.shared(attention_dropout=0.5)
    patches = model.embed(tiny.images())
    with pytest.raises(ValueError, match="training=False"):
        model.encode(patches, training=True, taps=("entropy",))
    _, taps = model.encode(patches, taps=("entropy",))
    assert len(taps) == 2


def test_create_model_takes_names_configs_and_fields():
    shrink = {"hidden_size": 8, "mlp_size": 8, "heads": 2, "layers": 1, "image_size": 32}
    by_name = vit_tf.create_model("ViT-B/16", num_classes=3, classifier=None, **shrink)
    by_file_name = vit_tf.create_model("ViT-B_16", num_classes=3, **shrink)
    assert by_name.config == by_file_name.config
    assert by_name.config.classifier == "token"
    assert by_name.config.patch_size == 16
    again = vit_tf.create_model(by_name.config, dtype="mixed_bfloat16")
    assert again.config == by_name.config
    assert again.dtype_policy.name == "mixed_bfloat16"
    assert again.blocks[0].attention.qkv.compute_dtype == "bfloat16"
    assert again.head.compute_dtype == "float32"


@pytest.mark.parametrize(
    "name, fields, words",
    [
        ("ViT-B/17", {}, "Unknown model 'ViT-B/17'. Did you mean .*ViT-B/1"),
        ("ViT-Ti/16", {"hiden_size": 8}, "'hiden_size'.*hidden_size"),
        ("ViT-Ti/16", {"heads": 5}, "192 .*heads=5"),
        (None, {}, r"Received: None \("),
        (5, {}, r"Received: 5 \("),
        ({"hidden_size": 8}, {}, r"Received: {'hidden_size': 8} \("),
    ],
)
def test_create_model_refuses(name, fields, words):
    with pytest.raises(ValueError, match=words):
        vit_tf.create_model(name, **fields)
