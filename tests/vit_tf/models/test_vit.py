"""The Vision Transformer's forward pass against the NumPy equations: call, stages, taps, errors."""

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

FORMS = {
    "token": {},
    "gap": {"classifier": "gap"},
    "unpooled": {"classifier": "unpooled"},
    "no head": {"num_classes": 0},
    "gap no head": {"classifier": "gap", "num_classes": 0},
    "unpooled no head": {"classifier": "unpooled", "num_classes": 0},
    "pre-logits": {"representation_size": 7},
    "pre-logits no head": {"representation_size": 7, "num_classes": 0},
    "unpooled pre-logits": {"classifier": "unpooled", "representation_size": 7},
    "no positions": {"position_embedding": "none"},
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
    "erf": {"activation": "gelu_erf"},
    "epsilon": {"layer_norm_epsilon": 0.1},
    "one block": {"layers": 1},
    "one patch": {"image_size": (4, 7)},
    "one pixel": {"patch_size": 1, "image_size": (2, 3)},
    "square": {"image_size": 8},
}
POLICIES = ("float32", "mixed_bfloat16")


def expected_output(model, images):
    config = model.config
    return numpy_vit.forward(
        numpy_vit.published(model),
        images,
        config.heads,
        config.classifier,
        epsilon=config.layer_norm_epsilon,
        gelu={"gelu_tanh": numpy_vit.gelu_tanh, "gelu_erf": numpy_vit.gelu_erf}[config.activation],
        injection=config.position_injection,
    )


def encoded(model, images):
    params = numpy_vit.published(model)
    patches = numpy_vit.embed(params, images)
    return numpy_vit.encode(params, patches, model.config.heads, model.config.classifier)


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
@pytest.mark.parametrize("form", FORMS)
def test_output_matches_the_equations(form, dtype):
    model = tiny.model(**FORMS[form])
    images = tiny.images(size=model.config.image_size, dtype=dtype)
    assert_close(model(images), expected_output(model, images), "float32", "model")


@pytest.mark.parametrize("form", FORMS)
def test_shapes(form):
    """`[B, K]`, or without a head `[B, D or R]`; without pooling, an axis of patches too."""
    model = tiny.model(**FORMS[form])
    config = model.config
    last = config.num_classes or config.representation_size or config.hidden_size
    patches = config.grid[0] * config.grid[1]
    middle = (patches,) if config.classifier == "unpooled" else ()
    for count in (0, 1, 3):
        output = model(tiny.images(count, config.image_size))
        assert output.shape == (count, *middle, last)
        assert output.dtype == tf.float32
    symbolic = model(keras.Input((*config.image_size, 3)))
    assert symbolic.shape == (None, *middle, last)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "form, dtype", [*((form, "float32") for form in FORMS), ("token", "uint8"), ("gap", "uint8")]
)
def test_stages_called_directly(form, dtype, policy):
    """embed, encode and classify compute the steps of the equations, and together the model."""
    keras.config.set_dtype_policy(policy)
    model = tiny.model(**FORMS[form])
    config, precision = model.config, policy.removeprefix("mixed_")
    images = tiny.images(size=config.image_size, dtype=dtype)
    params = numpy_vit.published(model)

    patches = model.embed(images)
    assert patches.dtype == precision
    assert_close(patches, numpy_vit.embed(params, images), precision, "model")

    features, taps = model.encode(patches)
    assert features.dtype == precision
    assert features.shape[1] == model.num_prefix_tokens + patches.shape[1]
    assert taps == [{}] * len(model.blocks)

    output = model.classify(features)
    assert output.dtype == ("float32" if config.num_classes else precision)
    assert_close(output, expected_output(model, images), precision, "model")
    whole = model(images)
    assert_close(output, np.asarray(whole, np.float64), precision, "model")


@pytest.mark.parametrize("form", ["token", "gap", "unpooled"])
def test_features_match_the_equations(form):
    model = tiny.model(**FORMS[form])
    images = tiny.images()
    features, _ = model.encode(model.embed(images))
    assert_close(features, encoded(model, images)[0], "float32", "model")


@pytest.mark.parametrize("policy", POLICIES)
def test_stages_accept_float32_between_them(policy):
    """Masked patches and stored features may be float32 under any policy."""
    model = tiny.model(dtype=policy)
    images = tiny.images()
    patches = tf.cast(model.embed(images), tf.float32)
    features, _ = model.encode(patches)
    output = model.classify(tf.cast(features, tf.float32))
    precision = policy.removeprefix("mixed_")
    assert features.dtype == precision
    assert_close(output, expected_output(model, images), precision, "model")


def test_stages_in_a_graph_with_unknown_batch():
    model = tiny.model()
    images = tiny.images()

    @tf.function(input_signature=[tf.TensorSpec([None, 11, 14, 3])])
    def run(images):
        features, taps = model.encode(model.embed(images), taps=("class_row",))
        return model.classify(features), taps[1]["class_row"]

    logits, row = run(images)
    assert_close(logits, expected_output(model, images), "float32", "model")
    assert_close(row, encoded(model, images)[1][1][:, :, 0], "float32", "model")


@pytest.mark.parametrize("positions", ["learned_1d", "relative"])
@pytest.mark.parametrize("classifier", ["token", "gap"])
def test_taps_of_every_block(classifier, positions):
    model = tiny.model(classifier=classifier, layers=3, position_embedding=positions)
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
    model = tiny.model(position_embedding="none")
    images = tiny.images()
    _, taps = model.encode(model.embed(images), grid=(1, 6), taps=("distance",))
    _, weights = encoded(model, images)
    expected = oracle.distance(weights[0], (1, 6))
    assert_close(taps[0]["distance"], expected, "float32", "model")
    assert np.abs(expected - oracle.distance(weights[0], (2, 3))).max() > 0.1


@pytest.mark.parametrize("fields", [{}, {"axial": True}], ids=["full", "axial"])
def test_another_grid_without_positions(fields):
    model = tiny.model(position_embedding="none", **fields)
    larger = tiny.images(size=(16, 12))
    donor = vit_tf.create_model(model.config, image_size=(16, 12))
    donor.set_weights(model.get_weights())
    features, _ = model.encode(donor.embed(larger), grid=(4, 3))
    assert_close(model.classify(features), expected_output(donor, larger), "float32", "model")


def test_without_positions_the_order_of_patches_is_invisible():
    order = [3, 1, 5, 0, 4, 2]
    for field, equal in (("none", True), ("learned_1d", False), ("relative", False)):
        model = tiny.model(position_embedding=field)
        patches = model.embed(tiny.images())
        outputs = [
            np.asarray(model.classify(model.encode(p)[0]))
            for p in (patches, tf.gather(patches, order, axis=1))
        ]
        assert np.allclose(*outputs, atol=1e-5) == equal


def test_leftover_pixels_are_unread():
    model = tiny.model()
    images = tiny.images()
    changed = images.copy()
    changed[:, 8:] = 9.0
    changed[:, :, 12:] = -9.0
    np.testing.assert_array_equal(model(changed), model(images))
    changed[:, 7, 11] = 9.0
    assert np.abs(model(changed) - model(images)).max() > 1e-3


def test_uint8_is_mapped_to_the_models_range():
    model = tiny.model()
    images = tiny.images(dtype="uint8")
    mapped = ((images.astype(np.float64) - 127.5) / 127.5).astype(np.float32)
    expected = np.asarray(model(mapped), np.float64)
    assert_close(model(images), expected, "float32", "model")
    assert_close(model(tf.constant(images)), expected, "float32", "model")


def test_grid_and_prefix():
    model = tiny.model(image_size=(11, 14))
    assert (model.grid, model.num_prefix_tokens) == ((2, 3), 1)
    assert tiny.model(classifier="gap").num_prefix_tokens == 0
    assert tiny.model(axial=True).num_prefix_tokens == 0
    assert tiny.model(classifier="unpooled").num_prefix_tokens == 0
    assert vit_tf.create_model(tiny.config(), image_size=9).grid == (2, 2)


@pytest.mark.parametrize(
    "count, grid, words",
    [
        (5, None, "2 x 3 has 6 patches. Received: 5"),
        (6, (2, 2), "2 x 2 has 4 patches. Received: 6"),
        (8, (2, 4), r"grid of 2 x 3. Received: grid=\(2, 4\)"),
        (6, (3, 2), r"grid of 2 x 3. Received: grid=\(3, 2\)"),
    ],
)
@pytest.mark.parametrize(
    "fields",
    [{}, {"position_embedding": "relative"}, {"position_injection": "every_layer"}],
    ids=str,
)
def test_encode_refuses_a_grid_that_does_not_fit(fields, count, grid, words):
    model = tiny.model(**fields)
    with pytest.raises(ValueError, match=words):
        model.encode(tf.zeros([1, count, 12]), grid=grid)


def test_encode_refuses_an_unknown_tap():
    model = tiny.model()
    with pytest.raises(ValueError, match="heads_of_state"):
        model.encode(tf.zeros([1, 6, 12]), taps=("heads_of_state",))


@pytest.mark.parametrize("shape", [(1, 14, 11, 3), (1, 22, 28, 3), (11, 14, 3), (1, 11, 14, 1)])
@pytest.mark.parametrize("stage", ["call", "embed"])
def test_images_of_another_size_are_refused(stage, shape):
    model = tiny.model()
    run = model if stage == "call" else model.embed
    with pytest.raises(ValueError, match=re.escape(f"Received: shape {shape}")):
        run(tf.zeros(shape))


def test_taps_with_attention_dropout_need_inference():
    model = tiny.model(attention_dropout=0.5)
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
        ("ViT-Ti/16", {"hiden_size": 8}, "Unknown model field 'hiden_size'.*hidden_size"),
        ("ViT-Ti/16", {"heads": 5}, "hidden_size=192 is not a multiple of heads=5"),
    ],
)
def test_create_model_refuses(name, fields, words):
    with pytest.raises(ValueError, match=words):
        vit_tf.create_model(name, **fields)


@pytest.mark.parametrize("name", [None, 5, {"hidden_size": 8}])
def test_create_model_refuses_what_is_no_name(name):
    with pytest.raises((TypeError, ValueError), match="(?i)name|ViTConfig|model"):
        vit_tf.create_model(name)
