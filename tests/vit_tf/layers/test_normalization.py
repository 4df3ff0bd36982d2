"""BatchNorm: statistics over replicas and weighted examples, and its moving averages."""

import numpy as np
import pytest
import tensorflow as tf

from tests.pipelines.tiny import two_replicas
from tests.tolerances import assert_close
from vit_tf.layers import BatchNorm, BatchStatistics

EPSILON, MOMENTUM = 1e-3, 0.75
PARTS = ("gamma", "beta", "moving_mean", "moving_variance")


def make(axis=-1, channels=5, rank=4):
    layer = BatchNorm(EPSILON, momentum=MOMENTUM, axis=axis)
    shape = [None] * rank
    shape[axis] = channels
    layer.build(shape)
    rng = np.random.default_rng(1)
    for name in PARTS:
        getattr(layer, name).assign(rng.uniform(0.5, 1.5, channels))
    return layer


def draw(shape=(4, 3, 2, 5)):
    """On a mean that is large against the deviation, where E[x^2] - E[x]^2 would cancel."""
    return (100 + np.random.default_rng(0).normal(size=shape)).astype(np.float32)


def expected(layer, inputs):
    """`(outputs, mean, unbiased variance)` in float64, channels last."""
    x = inputs.astype(np.float64).reshape(-1, inputs.shape[-1])
    mean, variance = x.mean(axis=0), x.var(axis=0)
    gamma, beta = (np.asarray(getattr(layer, name), np.float64) for name in PARTS[:2])
    outputs = (inputs - mean) / np.sqrt(variance + EPSILON) * gamma + beta
    return outputs, mean, x.var(axis=0, ddof=1)


@pytest.mark.parametrize("axis", [-1, 2, 1])
def test_outputs_and_moving_averages_are_the_formulas(axis):
    layer, inputs = make(axis), draw()
    before = [np.array(getattr(layer, name)) for name in PARTS[2:]]
    outputs, *statistics = expected(layer, inputs)
    received = layer(np.moveaxis(inputs, -1, axis), training=True)
    np.testing.assert_allclose(np.moveaxis(received, axis, -1), outputs, atol=2e-4)
    for name, old, new in zip(PARTS[2:], before, statistics, strict=True):
        updated = MOMENTUM * old + (1 - MOMENTUM) * new
        np.testing.assert_allclose(getattr(layer, name), updated, rtol=1e-5)
    # Inference uses the moving averages, and changes nothing.
    gamma, beta, mean, variance = (np.array(getattr(layer, name), np.float64) for name in PARTS)
    outputs = (inputs - mean) / np.sqrt(variance + EPSILON) * gamma + beta
    received = layer(np.moveaxis(inputs, -1, axis))
    assert_close(tf.constant(np.moveaxis(received, axis, -1)), outputs, "float32", "model")
    np.testing.assert_array_equal(layer.moving_mean, mean.astype(np.float32))
    layer.trainable = False
    frozen = layer(np.moveaxis(inputs, -1, axis), training=True)
    np.testing.assert_array_equal(frozen, received)


def test_examples_without_weight_do_not_count():
    """Inside `BatchStatistics` the layer assigns nothing."""
    layer, inputs = make(), draw()
    inputs[1] = -1000
    counted = inputs[[0, 2, 3]]
    outputs, *statistics = expected(layer, counted)
    before = [np.array(getattr(layer, name)) for name in PARTS[2:]]
    with BatchStatistics(tf.constant([1.0, 0.0, 1.0, 1.0])) as batch:
        received = layer(inputs, training=True)
    np.testing.assert_allclose(received.numpy()[[0, 2, 3]], outputs, atol=2e-4)
    for name, old, new, (variable, update) in zip(
        PARTS[2:], before, statistics, batch.updates, strict=True
    ):
        assert variable is getattr(layer, name)
        np.testing.assert_array_equal(variable, old)
        np.testing.assert_allclose(update, MOMENTUM * old + (1 - MOMENTUM) * new, rtol=1e-5)


def test_a_batch_in_which_nothing_counts_changes_nothing():
    layer = make()
    with BatchStatistics(tf.zeros(4)) as batch:
        assert np.isfinite(layer(draw(), training=True)).all()
    for variable, update in batch.updates:
        np.testing.assert_array_equal(update, variable)


@pytest.mark.parametrize("weighted", [False, True])
def test_two_replicas_have_the_statistics_of_one(weighted):
    """Outputs, gradients and updates, also if the replicas have other weights."""
    inputs = draw((4, 3, 5))
    weights = np.array([1, 1, 0, 1], np.float32)
    cotangent = np.random.default_rng(2).normal(size=inputs.shape).astype(np.float32)

    def step(layer, x, w, c):
        with tf.GradientTape() as tape:
            tape.watch(x)
            if weighted:
                with BatchStatistics(w) as batch:
                    y = layer(x, training=True)
                updates = [value for _, value in batch.updates]
            else:
                y, updates = layer(x, training=True), []
            total = tf.reduce_sum(y * c * w[:, None, None])
        gradients = tape.gradient(total, [x, layer.gamma.value, layer.beta.value])
        return y, updates, gradients

    layer = make(rank=3)
    y, updates, (dx, *dv) = step(layer, tf.constant(inputs), tf.constant(weights), cotangent)
    moved = [np.array(variable) for variable in layer.weights]
    strategy = two_replicas()
    with strategy.scope():
        split = make(rank=3)

    def slices(array):
        parts = np.split(array, 2)
        return strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(parts[context.replica_id_in_sync_group])
        )

    @tf.function(autograph=False)
    def run(x, w, c):
        return strategy.run(lambda *values: step(split, *values), args=(x, w, c))

    y2, updates2, (dx2, *dv2) = run(slices(inputs), slices(weights), slices(cotangent))
    local = strategy.experimental_local_results
    np.testing.assert_allclose(np.concatenate(local(y2)), y, atol=1e-4)
    np.testing.assert_allclose(np.concatenate(local(dx2)), dx, atol=1e-4)
    for both, one in zip(dv2, dv, strict=True):
        np.testing.assert_allclose(sum(local(both)), one, atol=1e-4)
    for both, one in zip(updates2, updates, strict=True):
        for value in local(both):
            np.testing.assert_allclose(value, one, rtol=1e-6)
    for variable, value in zip(split.weights, moved, strict=True):
        for copy in local(variable.value):
            np.testing.assert_allclose(copy, value, rtol=1e-6)
