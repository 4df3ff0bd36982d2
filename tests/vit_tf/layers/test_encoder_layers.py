"""The results of the layers of an encoder, and arguments that layers refuse."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from custom_ops.reference import gelu_erf, gelu_tanh
from tests.tolerances import EPSILON, assert_close
from tests.vit_tf import numpy_vit, tiny
from vit_tf import layers
from vit_tf.layers.dense import Dense
from vit_tf.layers.embeddings import PATCH_FORMS
from vit_tf.layers.normalization import ResidualNorm


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_convolution_equals_flatten_and_dense(dtype):
    """The reference's strided convolution is the paper's linear map of flattened patches."""
    prefix = np.random.default_rng(2).normal(size=(1, 12)).astype(np.float32)
    position = np.random.default_rng(3).normal(size=(7, 12)).astype(np.float32)
    images = tiny.images(dtype=dtype)
    forms = [layers.PatchEmbedding(4, 12, form=form) for form in PATCH_FORMS]
    assert sorted(PATCH_FORMS) == ["convolution", "dense"]
    outputs = []
    for form in forms:
        form(images)
        tiny.randomize(form)
        outputs.append((form(images), form(images, prefix=prefix, position=position)))
    kernel, bias = (np.asarray(v.value, np.float64) for v in forms[0].trainable_variables)
    expected = numpy_vit.embed({"embedding/kernel": kernel, "embedding/bias": bias}, images)
    rows = np.broadcast_to(prefix, (3, 1, 12)).astype(np.float64)
    expected_whole = np.concatenate([rows, expected], axis=1) + position
    for alone, whole in outputs:
        assert_close(alone, expected, "float32", "patch_embed")
        assert_close(whole, expected_whole, "float32", "patch_embed")


@pytest.mark.parametrize(
    "function, oracle, vectors",
    [
        (
            gelu_tanh,
            numpy_vit.gelu_tanh,
            [-0.0036374, -0.1588080, 0.3457140, 0.8411920, 1.9545977, 2.9963626],
        ),
        (
            gelu_erf,
            numpy_vit.gelu_erf,
            [-0.0040497, -0.1586553, 0.3457312, 0.8413447, 1.9544997, 2.9959503],
        ),
    ],
)
def test_gelu_vectors(function, oracle, vectors):
    points = tf.constant([-3.0, -1.0, 0.5, 1.0, 2.0, 3.0])
    np.testing.assert_allclose(function(points), vectors, atol=1.2e-7)
    dense = tf.linspace(tf.constant(-8.0, tf.float64), 8.0, 1001)
    np.testing.assert_allclose(function(dense), oracle(dense.numpy()), atol=1e-8)


@pytest.mark.parametrize("function", [gelu_tanh, gelu_erf])
def test_gelu_of_large_numbers_in_float16(function):
    x = tf.constant([-1000.0, -300.0, -20.0, 20.0, 300.0, 1000.0], tf.float16)
    with tf.GradientTape() as tape:
        tape.watch(x)
        out = function(x)
    np.testing.assert_array_equal(out, tf.nn.relu(x))
    np.testing.assert_array_equal(tape.gradient(out, x), [0, 0, 0, 1, 1, 1])


def test_gelu_forms_differ_as_the_paper_sheet_says():
    x = tf.linspace(tf.constant(-5.0, tf.float64), 5.0, 10001)
    difference = np.abs(gelu_tanh(x) - gelu_erf(x))
    assert difference.max() == pytest.approx(4.73e-4, abs=1e-6)
    assert abs(x.numpy()[difference.argmax()]) == pytest.approx(2.70, abs=0.01)


@pytest.mark.parametrize(
    "create, words",
    [
        (lambda: layers.Dropout(1.0), "rate=1.0"),
        (lambda: layers.StochasticDepth(-0.1), "rate=-0.1"),
        (lambda: layers.PatchEmbedding(4, 12, form="linear"), "form must be .*'linear'"),
        (lambda: layers.MlpBlock(20, activation="relu"), "gelu_erf.*'relu'"),
        (lambda: layers.MultiHeadAttention(5).build((None, 6, 12)), "12 is not .*heads=5"),
        (
            lambda: layers.MultiHeadAttention(3, axis=2, relative_positions=True),
            "relative_pos.*axis=2",
        ),
        (lambda: layers.MultiHeadAttention(3, axis=0), "None, 1 or 2. Received: 0"),
        (
            lambda: layers.MultiHeadAttention(3, axis=1)(
                np.zeros((1, 2, 3, 12)), taps=("entropy",)
            ),
            "'entropy'.*axis=1",
        ),
    ],
)
def test_illegal_arguments(create, words):
    with pytest.raises(ValueError, match=words):
        create()


@pytest.mark.parametrize("fields", [{}, {"relative_positions": True}, {"axis": 1}, {"axis": 2}])
def test_attention_with_dropout_has_bias_axis_and_scale(fields):
    """It computes the weights itself. They equal the op's, since none is dropped here."""
    layer = layers.MultiHeadAttention(heads=3, dropout=0.5, **fields)
    shape = (2, 3, 4, 12) if "axis" in fields else (2, 7, 12)
    tokens = np.random.normal(size=shape).astype("float32")
    layer.build(tokens.shape)
    if "relative_positions" in fields:
        layer.relative.table.assign(np.random.normal(size=layer.relative.table.shape))
    layer.weights_dropout.rate = 0.0
    expected, _ = layer(tokens, training=False)
    attended, _ = layer(tokens, training=True)
    bound = 20 * EPSILON["float32"] * np.abs(expected).max()
    np.testing.assert_allclose(attended, expected, rtol=0, atol=bound)
    # The values differ between tokens, so that the weights matter.
    assert np.ptp(expected, axis=1).max() > 1e3 * bound


def test_a_norm_with_a_branch_is_a_layer_of_a_functional_model():
    tokens, branch = keras.Input((3, 4)), keras.Input((3, 4))
    model = keras.Model([tokens, branch], ResidualNorm()(tokens, branch))
    given = [np.random.default_rng(seed).normal(size=(2, 3, 4)).astype("f") for seed in (0, 1)]
    total, normalized = model(given)
    np.testing.assert_allclose(total, given[0] + given[1], rtol=1e-6)
    np.testing.assert_allclose(np.std(normalized, axis=-1), np.ones((2, 3)), rtol=0.05)


@pytest.mark.parametrize("use_bias", [True, False])
def test_a_dense_layer_with_gelu_is_made_again_from_its_configuration(use_bias):
    layer = Dense(3, gelu_erf, use_bias=use_bias)
    again = Dense.from_config(layer.get_config())
    assert again.activation is gelu_erf
    x = np.random.default_rng(0).normal(size=(2, 5)).astype("f")
    for one in (layer, again):
        one.build(x.shape)
        tiny.randomize(one)
    product = x.astype("d") @ np.asarray(layer.kernel) + (layer.bias.numpy() if use_bias else 0)
    assert_close(layer(x), numpy_vit.gelu_erf(product), "float32", "model")
    np.testing.assert_array_equal(layer(x), again(x))
