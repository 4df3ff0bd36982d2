"""The steps of attention in plain TensorFlow, and models that run with it."""

import math

import numpy as np
import pytest
import tensorflow as tf

import custom_ops
import vit_tf
from custom_ops import reference
from tests.custom_ops import oracle
from tests.custom_ops.compare import call_attention, draw, exact
from tests.tolerances import EPSILON, assert_close, assert_golden
from tests.vit_tf.checkpoints.npz_files import infer_config


def masked_bias(dtype):
    """`[2, 3, 6, 6]`: some rows are all -inf, some partly, and one head has no -inf."""
    bias = exact(draw([2, 3, 6, 6], dtype))
    bias[0, 0, 2] = bias[1, 2, 0] = bias[1, 2, 5] = -np.inf
    bias[:, 1] = -np.inf
    bias[0, 0, 3, 1:] = bias[1, 0, :, 4] = -np.inf
    return tf.cast(tf.constant(bias), dtype)


@pytest.mark.parametrize("dtype", tuple(EPSILON))
def test_weights_match_the_equations(dtype):
    qkv, bias = draw([2, 6, 36], dtype), masked_bias(dtype)
    weights = reference.attention_weights(qkv, 3, bias)
    _, expected, _ = oracle.attention(exact(qkv), 3, exact(bias))
    assert weights.dtype == qkv.dtype
    assert_close(weights, expected, dtype, "attention")


def test_the_softmax_of_half_width_inputs_is_in_float32():
    """In float16 the two logits would be equal."""
    bias = tf.constant([2048.0, 2049.0])
    weights = reference.attention_weights(tf.zeros([1, 2, 3], "float16"), 1, bias)
    expected = [1 / (1 + math.e), math.e / (1 + math.e)]
    np.testing.assert_allclose(exact(weights), [[[expected] * 2]], rtol=EPSILON["float16"])


def test_rows_whose_bias_is_minus_infinity_have_zero_taps():
    bias = np.zeros([6, 6], "float32")
    bias[0] = -np.inf
    _, taps = reference.attention_with_taps(draw([1, 6, 36]), 3, ("class_row",), tf.constant(bias))
    np.testing.assert_array_equal(taps["class_row"], np.zeros([1, 3, 6]))


def test_gradient_of_the_weights_is_finite_where_rows_are_masked():
    qkv, bias = draw([2, 6, 36], "float64"), masked_bias("float64")
    with tf.GradientTape() as tape:
        tape.watch([qkv, bias])
        loss = tf.reduce_sum(reference.attention_weights(qkv, 3, bias) ** 2)
    for gradient in tape.gradient(loss, [qkv, bias]):
        assert np.isfinite(gradient).all() and np.any(gradient)


def test_split_weigh_apply_and_merge_are_attention():
    for axis, shape in ((None, [2, 5, 36]), (1, [2, 5, 4, 36]), (2, [2, 5, 4, 36])):
        qkv = draw(shape, "float32")
        weights = reference.attention_weights(qkv, 3, axis=axis)
        value = reference.split_heads(qkv, 3, axis)[2]
        np.testing.assert_array_equal(
            reference.apply_weights(weights, value, axis),
            call_attention(qkv, 3, axis, implementation="reference"),
        )
        np.testing.assert_array_equal(
            tf.concat(
                [reference.merge_heads(t, axis) for t in reference.split_heads(qkv, 3, axis)], -1
            ),
            qkv,
        )


def test_static_shape_of_the_weights():
    @tf.function
    def trace(qkv):
        assert reference.attention_weights(qkv, 3).shape.as_list() == [None, 3, 197, 197]
        return True

    trace.get_concrete_function(tf.TensorSpec([None, 197, 36]))


@pytest.mark.parametrize("name", ["vit_token", "hybrid_two_stages"])
def test_models_give_the_golden_values(name, golden, tmp_path):
    """Logits and gradients of the published code, with plain TensorFlow in place of the ops."""
    file = golden(name)
    size = file["images"].shape[1:3]
    model = model_with(file, "params/", size, tmp_path)
    # The gradients have the names and shapes of the weights: a second model holds them.
    expected = model_with(file, "grads/", size, tmp_path).trainable_variables
    with custom_ops.implementation("reference"), tf.GradientTape() as tape:
        logits = model(file["images"], training=True)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(file["labels"], logits)
        loss = tf.reduce_mean(losses)
    assert_golden(logits, file["logits"])
    assert_golden(loss, file["loss"])
    largest = max(np.abs(variable).max() for variable in expected)
    variables = [variable.value for variable in model.trainable_variables]
    for gradient, other in zip(tape.gradient(loss, variables), expected, strict=True):
        assert_golden(gradient, other, largest, other.path)


def model_with(file, prefix, image_size, folder):
    """A model whose weights are the arrays of a golden file under the prefix."""
    arrays = {key.removeprefix(prefix): file[key] for key in file if key.startswith(prefix)}
    np.savez(folder / "model.npz", **arrays)
    config = infer_config(folder / "model.npz").replace(image_size=image_size)
    model = vit_tf.create_model(config)
    vit_tf.load_npz(model, folder / "model.npz", head="keep")
    return model
