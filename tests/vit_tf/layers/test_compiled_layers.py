"""Models use the compiled ops where possible, with the same results as plain TensorFlow."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import custom_ops
from tests.custom_ops.compare import compiled_ops
from tests.tolerances import assert_close
from tests.vit_tf import tiny
from vit_tf.layers import (
    AugmentedConvolution,
    FullAttention,
    PatchEmbedding,
    SparseAttention,
)

INFERENCE = {"VitAttention", "VitPatchEmbed", "VitBiasGelu", "VitResidualNorm"}
TRAINING = INFERENCE | {
    *("VitAttentionGrad", "VitPatchEmbedKernelGrad", "VitPatchEmbedTablesGrad"),
    *("VitBiasGeluGrad", "VitResidualNormGrad"),
}


@pytest.fixture(autouse=True)
def _compiled(auto_ops):
    assert custom_ops.is_compiled()


def train(model, images):
    """The loss of a batch and its gradients."""
    with tf.GradientTape() as tape:
        logits = tf.cast(model(images, training=True), tf.float32)
        loss = tf.reduce_mean(tf.nn.log_softmax(logits)[:, 1])
    return loss, tape.gradient(loss, [variable.value for variable in model.trainable_variables])


@pytest.mark.parametrize("classifier, dtype", [("token", "uint8"), ("gap", "float32")])
def test_every_model_uses_them(classifier, dtype):
    model = tiny.model(classifier=classifier, layers=1)
    images = tf.constant(tiny.images(dtype=dtype))
    assert compiled_ops(tf.function(lambda x: model(x)), images) == INFERENCE
    assert compiled_ops(tf.function(lambda x: train(model, x)), images) == TRAINING
    with custom_ops.implementation("reference"):
        assert compiled_ops(tf.function(lambda x: train(model, x)), images) == set()
    for pooling in (classifier, "map"):
        plain = tiny.model(implementation="reference", layers=1, classifier=pooling)
        step = tf.function(functools.partial(train, plain))
        assert compiled_ops(step, images) == set()


def test_axial_models_use_them_under_xla():
    model = tiny.shared(layers=1, **tiny.AXIAL)
    images = tf.constant(tiny.images())
    with custom_ops.implementation("reference"):
        expected_loss, expected = train(model, images)
    largest = max(np.abs(gradient).max() for gradient in expected)
    step = tf.function(lambda x: train(model, x), jit_compile=True)
    assert compiled_ops(step, images) == TRAINING
    loss, gradients = step(images)
    assert_close(loss, exact(expected_loss), "float32", "model")
    for actual, other in zip(gradients, expected, strict=True):
        assert_close(actual, exact(other), "float32", "model", magnitude=largest)


@pytest.mark.parametrize(
    "policy, dtype",
    [
        ("float32", "float32"),
        ("mixed_bfloat16", "uint8"),
        ("mixed_float16", "float32"),
        ("float64", "uint8"),
    ],
)
def test_training_gives_what_the_reference_gives(policy, dtype):
    model = tiny.shared(dtype=policy)
    images = tf.constant(tiny.images(dtype=dtype))
    loss, gradients = tf.function(train)(model, images)
    with custom_ops.implementation("reference"):
        expected_loss, expected = train(model, images)
    name = policy.removeprefix("mixed_")
    name = "float32" if name == "float64" else name  # the dtype of the loss and its gradient
    assert_close(loss, expected_loss.numpy().astype(np.float64), name, "model")
    largest = max(np.abs(gradient).max() for gradient in expected)
    for variable, actual, other in zip(model.trainable_variables, gradients, expected, strict=True):
        assert actual.dtype == other.dtype, variable.path
        assert_close(actual, other.numpy().astype(np.float64), name, "model", magnitude=largest)


@pytest.mark.parametrize(
    ("policy", "jit", "implementation", "ops"),
    [
        ("mixed_bfloat16", False, "compiled", TRAINING | {"VitAttentionBiasGrad"}),
        ("float32", True, "compiled", TRAINING | {"VitAttentionBiasGrad"}),
        ("float32", True, "reference", set()),
    ],
    ids=["compiled", "compiled under XLA", "reference under XLA"],
)
def test_relative_positions_are_a_bias_of_the_op(policy, jit, implementation, ops):
    """XLA compiles the op if there is a library for it, and plain TensorFlow in any case."""
    model = tiny.shared(dtype=policy, position_embedding="relative", layers=1)
    images = tf.constant(tiny.images())
    with custom_ops.implementation("reference"):
        expected_loss, expected = train(model, images)
    largest = max(np.abs(gradient).max() for gradient in expected)
    with custom_ops.implementation(implementation):
        step = tf.function(lambda x: train(model, x), jit_compile=jit)
        assert compiled_ops(step, images) == ops
        loss, gradients = step(images)
    name = policy.removeprefix("mixed_")
    assert_close(loss, exact(expected_loss), name, "model")
    for actual, other in zip(gradients, expected, strict=True):
        assert_close(actual, exact(other), name, "model", magnitude=largest)


def test_uint8_images_are_mapped_in_the_op():
    model = tiny.model()
    images = tiny.images(dtype="uint8")
    expected = model(images.astype(np.float32) / 127.5 - 1)
    np.testing.assert_allclose(model(images), expected, rtol=1e-4, atol=1e-5)
    function = tf.function(lambda x: model(x)).get_concrete_function(tf.constant(images))
    casts = [op for op in function.graph.get_operations() if op.type == "Cast"]
    assert not any(op.inputs[0].dtype == tf.uint8 for op in casts)


def test_what_takes_the_reference():
    """Dropout of attention weights in training, and a stem of convolutions."""
    model = tiny.model(attention_dropout=0.1, layers=1)
    images = tf.constant(tiny.images())
    assert compiled_ops(tf.function(lambda x: model(x)), images) == INFERENCE
    found = compiled_ops(tf.function(lambda x: train(model, x)), images)
    assert found and not any(name.startswith("VitAttention") for name in found)
    layer = patch_layer("convolution")
    assert compiled_ops(tf.function(lambda x: layer(x)), images) == set()


def patch_layer(form, implementation="auto"):
    return PatchEmbedding(4, 12, form=form, implementation=implementation)


def test_sizes_unknown_when_traced():
    model = tiny.model(dtype="mixed_bfloat16", layers=1)
    function = tf.function(
        lambda x: train(model, x)[0], input_signature=[tf.TensorSpec([None, 11, 14, 3], "uint8")]
    )
    assert compiled_ops(function) == TRAINING
    for count in (1, 4):
        images = tf.constant(tiny.images(count, dtype="uint8"))
        with custom_ops.implementation("reference"):
            expected = train(model, images)[0]
        assert_close(function(images), exact(expected), "bfloat16", "model")


def exact(tensor):
    return tensor.numpy().astype(np.float64)


@pytest.mark.usefixtures("without_xla_library")
def test_jit_is_supported_unless_ops_are_demanded_that_xla_cannot_compile(monkeypatch):
    def supports(**fields):
        model = tiny.model(layers=1, **fields)
        return all(layer.supports_jit for layer in tiny.all_layers(model))

    assert supports() and supports(implementation="reference")
    assert not supports(implementation="compiled")
    assert patch_layer("convolution", "compiled").supports_jit
    monkeypatch.setenv("VIT_OPS", "compiled")
    assert not supports() and supports(implementation="reference")
    augmented = AugmentedConvolution(
        8, 2, key_fraction=0.5, value_fraction=0.5, variance_epsilon=0.0, deviation_epsilon=0.0
    )
    for layer in (SparseAttention(2, block=4), FullAttention(2), augmented):
        assert not layer.supports_jit
    model = tiny.model(layers=1)
    with pytest.warns(UserWarning, match="`jit_compile=True`"):
        model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=True)
    model.fit(tiny.images(4), np.eye(5)[:4], batch_size=4, verbose=0)  # runs without XLA


def test_keras_fit_under_xla():
    model = tiny.model(layers=1)
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=True)  # Warnings are errors.
    assert model.jit_compile is True
    model.fit(tiny.images(4), np.eye(5)[:4], batch_size=4, verbose=0)
    step = tf.function(lambda x: model(x), jit_compile=True)
    assert compiled_ops(step, tf.constant(tiny.images(4))) == INFERENCE
