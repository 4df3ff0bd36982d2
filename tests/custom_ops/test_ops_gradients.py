"""Gradients of the ops: in strategies, only those asked for, no second ones."""

import numpy as np
import pytest
import tensorflow as tf

import custom_ops
from custom_ops import loader
from tests.custom_ops.compare import attend, compiled_ops, draw, draw_uint8, tables

TO_UNIT = {"scale": 2 / 255, "offset": -1.0}
pytestmark = pytest.mark.usefixtures("auto")


@pytest.mark.heavy("native")
def test_mirrored_gradients_are_those_of_the_whole_batch():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        bias = tf.Variable(draw([3, 9, 9]))
        weights = {name: tf.Variable(x) for name, x in tables([4, 12, 12, 3], 4, "float32").items()}
        weights["position"] = tf.Variable(draw([10, 10]))
    images = draw_uint8([4, 12, 12, 3])

    def gradients(images):
        with tf.GradientTape() as tape:
            tokens = custom_ops.patch_embed(images, **weights, **TO_UNIT)
            loss = tf.reduce_sum(custom_ops.attention(tokens[:, 1:, :9], 3, bias=bias) ** 2)
            loss += tf.reduce_sum(tokens**2)
        sources = [bias, *weights.values()]
        return tape.gradient(loss, sources)

    @tf.function
    def step(parts):
        per_replica = strategy.run(gradients, args=(parts,))
        return [strategy.reduce("SUM", gradient, axis=None) for gradient in per_replica]

    halves = strategy.experimental_distribute_values_from_function(
        lambda context: tf.split(images, 2)[context.replica_id_in_sync_group]
    )
    assert "VitAttentionBiasGrad" in compiled_ops(step, halves)
    for actual, expected in zip(step(halves), gradients(images), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


SECOND = {
    "VitAttentionGrad": lambda x: custom_ops.attention(x, 3),
    "VitAttentionBiasGrad": lambda x: custom_ops.attention(draw([2, 9, 36]), 3, bias=x[0, :, :9]),
    "VitPatchEmbedKernelGrad": lambda x: custom_ops.patch_embed(
        draw([2, 4, 4, 3]), tf.reshape(x[0, :2, :24], [2, 2, 3, 4]), tf.zeros([4])
    ),
    "VitPatchEmbedImagesGrad": lambda x: custom_ops.patch_embed(
        x[..., None], draw([2, 2, 1, 4]), tf.zeros([4])
    ),
}


@pytest.mark.parametrize(
    ("name", "in_graph"), [*((name, False) for name in SECOND), ("VitAttentionGrad", True)]
)
def test_second_derivatives_are_refused(name, in_graph):
    def second(x, implementation):
        with custom_ops.implementation(implementation), tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = SECOND[name](x) ** 2
            gradient = tape.gradient(y, x)
        return outer.gradient(gradient, x)

    second = tf.function(second) if in_graph else second
    with pytest.raises(NotImplementedError, match=f"derivatives: {name} .*VIT_OPS"):
        second(draw([2, 9, 36]), "auto")
    assert np.any(second(draw([2, 9, 36]), "reference"))


def test_forward_mode_is_refused():
    qkv = draw([2, 9, 36])

    def tangent(implementation):
        with tf.autodiff.ForwardAccumulator(qkv, tf.ones_like(qkv)) as forward:
            out = custom_ops.attention(qkv, 3, implementation=implementation)
        return forward.jvp(out)

    with pytest.raises(NotImplementedError, match="forward mode.*VIT_OPS=ref"):
        tangent("compiled")
    assert tangent("reference").shape == [2, 9, 12]


def test_a_persistent_tape_over_a_function():
    function = tf.function(lambda x: custom_ops.attention(x, 3))
    qkv = draw([2, 9, 36])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(qkv)
        out = function(qkv)
    for _ in range(2):
        gradient = tape.gradient(out, qkv, tf.ones_like(out))
        np.testing.assert_array_equal(gradient, attend(None, qkv, 3, tf.ones_like(out))[1])


def test_gradients_that_nobody_asks_for_are_not_computed(monkeypatch):
    def refuse(*arguments, **attributes):
        raise AssertionError("an unwanted gradient was computed")

    def only(*wanted):
        for name in (n for n in loader.OPS if n.endswith("_grad")):
            if name not in wanted:
                monkeypatch.setattr(custom_ops.load(), name, refuse)

    def gradient(call, x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = call(x)
        return tape.gradient(y, x)

    qkv, bias = draw([2, 9, 36]), draw([9, 9])
    images, weights = draw([2, 8, 8, 3]), tables([2, 8, 8, 3], 4, "float32")
    only("vit_attention_grad")
    assert gradient(lambda x: custom_ops.attention(x, 3, bias=bias), qkv) is not None
    monkeypatch.undo()
    only("vit_attention_bias_grad")
    assert gradient(lambda x: custom_ops.attention(qkv, 3, bias=x), bias) is not None
    monkeypatch.undo()
    only("vit_patch_embed_tables_grad")
    others = {name: x for name, x in weights.items() if name != "position"}
    call = lambda x: custom_ops.patch_embed(images, **others, position=x)  # noqa: E731
    assert gradient(call, weights["position"]) is not None
