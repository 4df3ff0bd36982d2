"""The reference runs where there are no kernels: XLA without its library, TPUs, GPUs."""

import numpy as np
import pytest
import tensorflow as tf

import custom_ops
from tests.custom_ops.compare import attend, compiled_ops, draw, embed, tables


@pytest.fixture(autouse=True)
def _auto(monkeypatch):
    """Unsets the choice of an implementation, as for most users."""
    monkeypatch.delenv("VIT_OPS", raising=False)
    assert custom_ops.is_compiled()


def under_xla(qkv, images, weights):
    out, taps = custom_ops.attention_with_taps(qkv, 3, ("entropy",))
    gradients = attend(None, qkv, 3, out)
    cotangent = tf.ones([2, 5, 10])
    tokens, d_weights, _ = embed(None, images, weights, {"scale": 0.1}, cotangent)
    return out, taps, gradients, tokens, d_weights, custom_ops.extract_patches(images, 4)


@pytest.mark.usefixtures("without_xla_library")
def test_xla_takes_the_reference():
    arguments = draw([2, 9, 36]), draw([2, 11, 8, 3]), tables([2, 11, 8, 3], 4, "float32")
    function = tf.function(under_xla, jit_compile=True)
    assert compiled_ops(function, *arguments) == set()
    expected = tf.nest.flatten(under_xla(*arguments))
    for actual, other in zip(tf.nest.flatten(function(*arguments)), expected, strict=True):
        np.testing.assert_allclose(actual, other, rtol=1e-4, atol=1e-4)
    # Outside of XLA the same function is traced again.
    assert "VitAttention" in compiled_ops(tf.function(under_xla), *arguments)


@pytest.mark.usefixtures("without_xla_library")
@pytest.mark.parametrize("jit", [True, False])
def test_xla_is_noticed_from_inside(jit):
    inner = tf.function(lambda x: custom_ops.attention(x, 3))

    def looped(qkv):
        (qkv,) = tf.while_loop(
            lambda x: tf.reduce_sum(x) > 1e9,
            lambda x: (tf.tile(inner(x), [1, 1, 3]),),
            (qkv,),
            maximum_iterations=2,
        )
        return tf.cond(tf.reduce_sum(qkv) > 0, lambda: inner(qkv), lambda: inner(-qkv))

    function = tf.function(looped, jit_compile=jit)
    assert compiled_ops(function, draw([2, 9, 36])) == (set() if jit else {"VitAttention"})
    assert function(draw([2, 9, 36])).shape == [2, 9, 12]


def test_nothing_is_left_in_the_graph_that_was_asked_about_xla():
    def nothing(x):
        custom_ops.attention(x, 3)
        return x

    graph = tf.function(nothing).get_concrete_function(draw([2, 9, 36])).graph
    assert {op.type for op in graph.get_operations()} <= {"Placeholder", "Identity", "VitAttention"}


@pytest.mark.usefixtures("without_xla_library")
@pytest.mark.parametrize("ask", ["argument", "context", "environment"])
def test_what_cannot_be_had_under_xla_is_refused(ask, monkeypatch):
    def call(qkv):
        if ask == "context":
            with custom_ops.implementation("compiled"):
                return custom_ops.attention(qkv, 3)
        return custom_ops.attention(
            qkv, 3, implementation="compiled" if ask == "argument" else None
        )

    if ask == "environment":
        monkeypatch.setenv("VIT_OPS", "compiled")
    with pytest.raises(ValueError, match="compiled.* no kernels for XLA .*Build it.*'reference'"):
        tf.function(call, jit_compile=True)(draw([2, 9, 36]))
    assert call(draw([2, 9, 36])).shape == [2, 9, 12]


def test_tpus_take_the_reference(monkeypatch):
    for kind in (tf.distribute.TPUStrategy, tf.distribute.experimental.TPUStrategy):
        strategy = object.__new__(kind)
        monkeypatch.setattr(tf.distribute, "get_strategy", lambda strategy=strategy: strategy)
        function = tf.function(lambda x: custom_ops.attention(x, 3))
        assert compiled_ops(function, draw([2, 9, 36])) == set()
        with pytest.raises(ValueError, match="no kernels for TPUs"):
            custom_ops.attention(draw([2, 9, 36]), 3, implementation="compiled")


def test_with_a_gpu_only_what_is_put_on_a_cpu_is_compiled(monkeypatch):
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: [kind])

    def on(device, implementation=None):
        def call(x):
            with tf.device(device):
                return custom_ops.attention(x, 3, implementation=implementation)

        return compiled_ops(tf.function(call), draw([2, 9, 36]))

    assert on(None) == on("GPU:0") == set()
    assert on("CPU:0") == on("/job:localhost/device:CPU:1") == {"VitAttention"}
    assert on(None, "compiled") == {"VitAttention"}
