"""The steps of attention in plain TensorFlow, and models that run with it."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from custom_ops import reference
from tests.checkout import ROOT
from tests.custom_ops import oracle
from tests.custom_ops.compare import call_attention, draw, exact
from tests.tolerances import EPSILON, assert_close


def masked_bias(dtype):
    """`[2, 3, 6, 6]`: some rows are all -inf, some partly, and one head has no -inf."""
    bias = exact(draw([2, 3, 6, 6], dtype))
    bias[0, 0, 2] = bias[1, 2, 0] = bias[1, 2, 5] = -np.inf
    bias[:, 1] = -np.inf
    bias[0, 0, 3, 1:] = bias[1, 0, :, 4] = -np.inf
    return tf.cast(tf.constant(bias), dtype)


@pytest.mark.parametrize("dtype", tuple(EPSILON))
def test_weights(dtype):
    qkv, bias = draw([2, 6, 36], dtype), masked_bias(dtype)
    weights = reference.attention_weights(qkv, 3, bias)
    _, expected, _ = oracle.attention(exact(qkv), 3, exact(bias))
    assert weights.dtype == qkv.dtype
    assert_close(weights, expected, dtype, "attention")


def test_gradient_of_the_weights_is_finite_where_rows_are_masked():
    qkv, bias = draw([2, 6, 36], "float64"), masked_bias("float64")
    with tf.GradientTape() as tape:
        tape.watch([qkv, bias])
        loss = tf.reduce_sum(reference.attention_weights(qkv, 3, bias) ** 2)
    for gradient in tape.gradient(loss, [qkv, bias]):
        assert np.isfinite(gradient).all() and np.any(gradient)


def test_the_steps_are_the_whole():
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


# The tests that compare models with other code, and those of symbolic and traced calls.
MODELS = (
    "models/test_golden.py::test_logits_and_loss",
    "models/test_golden.py::test_gradients",
    "models/test_golden_residual.py::test_configuration_count_logits_and_loss",
    "models/test_golden_residual.py::test_gradients_of_hybrids",
    "models/test_vit.py::test_output_matches_the_equations",
    "models/test_vit.py::test_stages_in_a_graph_with_unknown_batch",
    "models/test_vit.py::test_taps_of_every_block",
    "models/test_keras_model.py::test_every_variable_gets_a_gradient",
    "models/test_keras_model.py::test_inside_a_functional_model",
    "layers/test_layers.py::test_symbolic_call_with_unknown_batch",
)


@pytest.mark.process
def test_models_pass_with_the_reference():
    """Repeats tests of models with plain TensorFlow in place of the compiled ops."""
    tests = [f"tests/vit_tf/{name}" for name in MODELS]
    # The variables of a pytest-xdist worker apply only to that worker.
    environment = {name: x for name, x in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests],
        cwd=ROOT,
        env=environment | {"VIT_OPS": "reference"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    [passed] = re.findall(r"(\d+) passed", done.stdout)
    assert int(passed) > 50
