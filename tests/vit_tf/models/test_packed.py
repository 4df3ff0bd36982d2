"""Packed weights give the results of the equations and of the model, and keep no layer of it."""

import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf

import custom_ops
import vit_tf
from custom_ops import model as model_op
from pipelines.data.builtin import digits
from pipelines.stored_models import model_source
from tests.vit_tf import numpy_vit, tiny
from vit_tf.analysis.attention_maps import attention_maps
from vit_tf.images.decoding import decode_image
from vit_tf.models import MaskedPatchModel

FORMS = {
    "token": {},
    "gap": {"classifier": "gap", "activation": "gelu_erf", "layer_norm_epsilon": 1e-5},
    "unpooled": {"classifier": "unpooled", "position_embedding": "none"},
    "no head": {"representation_size": 7, "num_classes": 0, "position_embedding": "learned_2d"},
    "every layer": {"position_injection": "every_layer", "layers": 3, "classifier": "gap"},
    "every layer, one block": {"position_injection": "every_layer", "layers": 1},
    "every layer shared": {"position_injection": "every_layer_shared"},
    "layer scale": {"layer_scale": 0.1},
    "swiglu": {"activation": "swiglu", "qk_norm": True, "position_injection": "every_layer"},
    "rotary": {"position_embedding": "rotary_2d", "key_bias": False, "register_tokens": 2}
    | {"activation": "swiglu", "layer_scale": 0.1, "qk_norm": True},
    "no qkv bias": {"key_bias": False, "qkv_bias": False},
    "registers": {"register_tokens": 2},
    "distilled": {"classifier": "token_distilled"},
    "distilled no head": {"classifier": "token_distilled", "num_classes": 0},
    "registers gap": {"register_tokens": 3, "classifier": "gap", "representation_size": 7},
    "registers unpooled": {"register_tokens": 1, "classifier": "unpooled"},
}
HYBRID = {
    "stem": {"width": 0.5, "stage_depths": (1,)},
    "image_size": 32,
    "patch_size": 2,
    "classifier": "map",
}


def difference(actual, expected):
    """The largest difference, as a part of the largest expected value."""
    return np.abs(np.float64(actual) - expected).max() / np.abs(expected).max()


@pytest.mark.parametrize("implementation", ["compiled", "reference"])
@pytest.mark.parametrize("form", FORMS)
def test_packed_models_match_the_equations(form, implementation):
    with custom_ops.implementation(implementation):
        check_equations(form)


def check_equations(form):
    model = tiny.shared(**FORMS[form])
    config, images = model.config, tiny.images(dtype="uint8")
    expected = numpy_vit.forward(
        numpy_vit.published(model),
        images,
        config.heads,
        config.classifier,
        **numpy_vit.options_of(config),
    )
    as_floats = np.float32(images) / 127.5 - 1
    for precision, tolerance in (("float32", 1e-5), ("bfloat16", 5e-2)):
        packed = vit_tf.pack_model(model, precision)
        for read in (images, as_floats):
            output = packed(tf.constant(read))
            assert output.dtype == tf.float32
            assert difference(output, expected) < tolerance
    assert difference(packed(images), expected) > 1e-5  # bfloat16 is really used
    assert packed(images[:0]).shape == (0, *expected.shape[1:])


@pytest.mark.parametrize("registers", [0, 2])
def test_a_hybrid_with_attention_pooling(registers):
    for policy, tolerance in (("float32", 1e-5), ("mixed_bfloat16", 5e-2)):
        model = tiny.shared(dtype=policy, register_tokens=registers, **HYBRID)
        packed, images = vit_tf.pack_model(model), tf.constant(tiny.images(size=(32, 32)))
        for stage in ("__call__", "features"):
            expected = np.float64(getattr(model, stage)(images))
            assert difference(getattr(packed, stage)(images), expected) < tolerance
        assert packed.describe().endswith(f"before them a stem in {packed.compute_dtype}")


@pytest.mark.parametrize("form", ["token", "every layer", "registers gap"])
def test_attention_maps_of_packed_models(form):
    model, images = tiny.shared(**FORMS[form]), tf.constant(tiny.images())
    expected = np.float64(attention_maps(model, images))
    for precision, tolerance in (("float32", 1e-5), ("bfloat16", 5e-2)):
        packed = vit_tf.pack_model(model, precision)
        assert difference(attention_maps(packed, images), expected) < tolerance


def test_description_names_blocks_ops_and_precision():
    def described(fields, precision=None):
        return vit_tf.pack_model(tiny.shared(**fields), precision).describe()

    one = "2 of 2 blocks in one op, bfloat16, the last for the class token alone"
    assert described({}, "bfloat16") == described({"dtype": "mixed_bfloat16"}) == one
    several = "3 of 3 blocks in 3 ops (positions in every layer), float32"
    assert described(FORMS["every layer"]) == several


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (tiny.AXIAL, "axial attention"),
        ({"position_embedding": "relative"}, "relative positions"),
        ({"dtype": "mixed_float16"}, "float16.*float32 and bf"),
    ],
)
def test_what_cannot_be_packed_is_refused_with_its_reason(fields, reason):
    with pytest.raises(ValueError, match=f"cannot be packed: {reason}"):
        vit_tf.pack_model(tiny.shared(**fields))


def test_other_models_are_refused():
    vit, headless = tiny.model(), tiny.config(num_classes=0)
    resnet = vit_tf.ResNetConfig(stage_depths=(1,), width=0.5, image_size=16, num_classes=5)
    for model, name in (
        (vit_tf.create_model(resnet), "ResNet"),
        (MaskedPatchModel(headless, outputs=3), "MaskedPatchModel"),
        (vit_tf.feature_model(vit, ["norm"]), "Functional"),
        (vit_tf.pack_model(vit), "PackedModel"),
    ):
        with pytest.raises(ValueError, match=f"packed: .*class is {name}"):
            vit_tf.pack_model(model)


def test_the_op_of_a_model_needs_the_library():
    plan = vit_tf.pack_model(tiny.shared())._model_plan
    images = tf.constant(tiny.images(dtype="uint8"))
    with custom_ops.implementation("reference"):
        assert not model_op.is_compiled()
        with pytest.raises(ValueError, match="compiled library.*is_comp"):
            model_op.model(images, 1, 0, plan, pooling="token", has_head=True)


def test_training_is_refused():
    with pytest.raises(ValueError, match="training=True: packed"):
        vit_tf.pack_model(tiny.shared())(tf.constant(tiny.images()), training=True)


def test_the_model_can_be_freed():
    model = tiny.model(**HYBRID)
    packed = vit_tf.pack_model(model)
    kernel = weakref.ref(model.blocks[0].mlp.dense_0)
    del model
    gc.collect()
    assert kernel() is None and packed.layers


@pytest.fixture(scope="module")
def trained():
    """The shipped model, all images of the test split, and its logits for them, float32."""
    model, preprocessing, _ = model_source.find(model_source.SHIPPED).open_model()
    files = [digits.png_image(index)[0] for index in digits.split_indices("test")]
    decoded = tf.data.Dataset.from_tensor_slices(files).map(
        lambda x: preprocessing(decode_image(x))
    )
    inputs = tf.stack(list(decoded))
    with custom_ops.implementation("reference"):
        return model, inputs, model(inputs).numpy()


def test_trained_model_in_float32(trained):
    model, inputs, expected = trained
    assert difference(vit_tf.pack_model(model, "float32")(inputs), expected) < 1e-4


def test_trained_model_in_bfloat16(trained):
    """Where the best two classes are further apart than twice 0.5 %, none changes places."""
    model, inputs, expected = trained
    logits = vit_tf.pack_model(model, "bfloat16")(inputs).numpy()
    second, first = np.sort(expected, axis=1)[:, -2:].T
    agrees = logits.argmax(axis=1) == expected.argmax(axis=1)
    assert 1e-5 < difference(logits, expected) < 5e-2
    low_margin = first - second < 2 * 0.005 * np.abs(expected).max()
    assert agrees[~low_margin].all() and low_margin.mean() < 0.05
    assert agrees.mean() >= 0.995
