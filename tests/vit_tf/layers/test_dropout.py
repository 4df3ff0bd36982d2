"""Random layers: their statistics; the split of a batch does not change their draws."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.tolerances import assert_close
from tests.vit_tf import tiny
from vit_tf.layers import Dropout, RandomContext, StochasticDepth
from vit_tf.layers.dropout import _mix, _mixed, uniform_per_example

RANDOM = {"dropout": 0.3, "attention_dropout": 0.4, "stochastic_depth": 0.5}


def mask(layer, shape, seed=0, step=0, first=0):
    """The factors that the layer applies to its input in training."""
    with RandomContext(seed, step, tf.range(first, first + shape[0])):
        return np.asarray(layer(tf.ones(shape), training=True))


def slices(sizes):
    """`(first, size)` of consecutive slices."""
    firsts = np.cumsum([0, *sizes[:-1]])
    return zip(firsts.tolist(), sizes, strict=True)


@pytest.mark.parametrize("sizes", [(4, 4), (1, 7), (1,) * 8])
@pytest.mark.parametrize("shape", [(), (3,), (4, 4), (2, 3, 3)])
def test_draws_of_slices_are_those_of_the_whole(shape, sizes):
    """This includes examples whose number of values is not a multiple of Philox's four."""
    step, offset = tf.constant(7, tf.int64), 1000

    def draw(first, count):
        first = tf.constant(offset + first, tf.int64)
        return np.asarray(uniform_per_example((count, *shape), 3, 11, step, first))

    whole = draw(0, 8)
    parts = [draw(first, size) for first, size in slices(sizes)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert len(np.unique(whole)) == whole.size


@pytest.mark.parametrize(
    "layer, sizes, graph",
    [
        (Dropout, (1, 7), False),
        (Dropout, (3, 1, 4), True),
        (StochasticDepth, (4, 4), False),
        (StochasticDepth, (1,) * 8, True),
    ],
)
def test_masks_of_slices_are_those_of_the_whole(layer, sizes, graph):
    layer = layer(0.5, stream=2)

    def run(inputs, step, slots):
        with RandomContext(5, step, slots):
            return layer(inputs, training=True)

    if graph:
        signature = [tf.TensorSpec([None, 5, 3]), tf.TensorSpec([], tf.int64)]
        run = tf.function(run, input_signature=[*signature, tf.TensorSpec([None], tf.int32)])
    inputs, step = tf.ones([8, 5, 3]), tf.constant(9, tf.int64)
    whole = run(inputs, step, tf.range(8))
    parts = [run(inputs[:n], step, tf.range(first, first + n)) for first, n in slices(sizes)]
    np.testing.assert_array_equal(tf.concat(parts, axis=0), whole)
    np.testing.assert_array_equal(whole, mask(layer, (8, 5, 3), seed=5, step=9))


@pytest.mark.parametrize("layer", [Dropout, StochasticDepth])
def test_two_replicas_draw_what_one_device_draws(layer):
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        layer = layer(0.5, stream=2)

    @tf.function
    def step(number):
        def replica():
            index = tf.distribute.get_replica_context().replica_id_in_sync_group
            with RandomContext(5, number, 4 * index + tf.range(4)):
                return layer(tf.ones([4, 5, 3]), training=True)

        return strategy.experimental_local_results(strategy.run(replica))

    for number in (0, 1):
        first, second = step(tf.constant(number))
        assert np.abs(first - second).max() > 0
        whole = mask(layer, (8, 5, 3), seed=5, step=number)
        np.testing.assert_array_equal(np.concatenate([first, second]), whole)


def test_a_model_sees_the_same_masks_in_slices():
    sizes = (1, 5, 2)
    model = tiny.shared(**RANDOM)
    images = tiny.images(8)

    def run(first, count):
        with RandomContext(3, 2, tf.range(first, first + count)):
            return model(images[first : first + count], training=True)

    whole = np.asarray(run(0, 8), np.float64)
    parts = tf.concat([run(first, size) for first, size in slices(sizes)], axis=0)
    assert_close(parts, whole, "float32", "model")
    assert np.abs(whole - model(images)).max() > 0.1


@pytest.mark.parametrize("layer", [Dropout, StochasticDepth])
@pytest.mark.parametrize(
    "other", [{"seed": 1}, {"seed": 2**40}, {"step": 1}, {"step": 2**40}, {"first": 64}, "stream"]
)
def test_another_place_in_training_draws_independently(layer, other):
    """Two independent masks at rate 1/2 agree in half their entries."""
    base = mask(layer(0.5, stream=6), (4096, 1))
    if other == "stream":
        drawn = mask(layer(0.5, stream=7), (4096, 1))
    else:
        drawn = mask(layer(0.5, stream=6), (4096, 1), **other)
    # With first=64 all rows except 64 are the same, shifted by 64.
    if other == {"first": 64}:
        np.testing.assert_array_equal(drawn[:-64], base[64:])
    assert np.mean(base == drawn) == pytest.approx(0.5, abs=0.04)


def test_seed_and_stream_are_not_interchangeable():
    drawn = {
        mask(Dropout(0.5, stream=stream), (8, 8), seed=seed, step=step).tobytes()
        for seed in range(4)
        for stream in range(4)
        for step in range(4)
    }
    assert len(drawn) == 4**3


@pytest.mark.parametrize("jit", [False, True])
def test_a_seed_in_a_variable_draws_as_its_number(jit):
    """One graph for all seeds, up to the largest ones."""
    variable = tf.Variable(0, dtype=tf.int64)

    @tf.function(jit_compile=jit)
    def keys(streams):
        return tf.stack([_mixed(variable, stream) for stream in streams])

    streams = (0, 1, 2, 1000, 2**31 - 1)
    random = np.random.default_rng(0)
    for seed in (0, 1, 2, 2**31 - 1, 2**32 + 5, 2**63 - 1, *random.integers(2**63, size=200)):
        variable.assign(seed)
        expected = [_mix(int(seed), stream) for stream in streams]
        assert keys(streams).numpy().tolist() == expected
    assert keys.experimental_get_tracing_count() == 1
    layer = Dropout(0.5, stream=3)
    variable.assign(7)
    np.testing.assert_array_equal(mask(layer, (4, 9), variable), mask(layer, (4, 9), 7))


def test_uniform_draws_are_uniform():
    zero = tf.constant(0, tf.int64)
    draws = np.asarray(uniform_per_example((1000, 101), 0, 0, zero, zero), np.float64)
    assert draws.shape == (1000, 101)
    assert draws.min() >= 0 and draws.max() < 1
    counts, _ = np.histogram(draws, bins=20, range=(0, 1))
    # 99.99 % of the chi-square distribution with 19 degrees of freedom.
    assert ((counts - 5050) ** 2 / 5050).sum() < 51
    pairs = np.corrcoef(draws[:-1].ravel(), draws[1:].ravel())[0, 1]
    assert abs(pairs) < 0.015


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("layer, per_example", [(Dropout, 40), (StochasticDepth, 1)])
def test_keep_rate_and_scale(layer, per_example, rate):
    drawn = mask(layer(rate), (2000, 8, 5))
    kept = drawn != 0
    np.testing.assert_allclose(drawn[kept], 1 / (1 - rate), rtol=1e-6)
    sigma = np.sqrt(rate * (1 - rate) / (2000 * per_example))
    assert abs(kept.mean() - (1 - rate)) < 4.5 * sigma
    whole = kept.reshape(2000, -1)
    one_draw_for_all = np.all(whole == whole[:, :1], axis=1).all()
    assert one_draw_for_all == (layer is StochasticDepth)


@pytest.mark.parametrize("layer", [Dropout, StochasticDepth])
def test_gradient_passes_where_values_were_kept(layer):
    layer = layer(0.4)
    inputs = tf.constant(np.random.default_rng(0).normal(size=(64, 3, 2)), tf.float32)
    with tf.GradientTape() as tape, RandomContext(0, 0, tf.range(64)):
        tape.watch(inputs)
        outputs = layer(inputs, training=True)
    expected = mask(layer, (64, 3, 2))
    np.testing.assert_allclose(tape.gradient(outputs, inputs), expected, rtol=1e-6)
    np.testing.assert_allclose(outputs, expected * inputs.numpy(), rtol=1e-6)


@pytest.mark.parametrize("layer", [Dropout, StochasticDepth])
def test_dropped_infinities_leave_no_trace(layer):
    layer = layer(0.5)
    drawn = mask(layer, (64, 3, 2))
    with RandomContext(0, 0, tf.range(64)):
        outputs = np.asarray(layer(tf.fill([64, 3, 2], np.inf), training=True))
    assert (outputs[drawn == 0] == 0).all()
    assert (outputs[drawn != 0] == np.inf).all()


@pytest.mark.parametrize("layer", [Dropout, StochasticDepth])
def test_inference_and_rate_zero_change_nothing(layer):
    inputs = tf.random.stateless_normal([4, 3, 2], seed=[0, 0])
    np.testing.assert_array_equal(layer(0.9)(inputs), inputs)
    np.testing.assert_array_equal(layer(0.9)(inputs, training=False), inputs)
    np.testing.assert_array_equal(layer(0.0)(inputs, training=True), inputs)
    assert layer(0.0).variables == []


@pytest.mark.parametrize("layer", [Dropout, StochasticDepth])
def test_without_a_context_every_call_draws_anew(layer):
    """Plain Keras: masks come from a SeedGenerator, which `set_random_seed` controls."""
    inputs = tf.ones([64, 4, 4])

    def three_masks():
        keras.utils.set_random_seed(3)
        created = layer(0.5)
        compiled = tf.function(lambda: created(inputs, training=True))
        return [np.asarray(created(inputs, training=True)) for _ in range(2)] + [
            compiled().numpy() for _ in range(2)
        ]

    first, second = three_masks(), three_masks()
    np.testing.assert_array_equal(first, second)
    assert len({drawn.tobytes() for drawn in first}) == 4
    two_layers = [layer(0.5)(inputs, training=True) for _ in range(2)]
    assert np.abs(two_layers[0] - two_layers[1]).max() > 0


def test_a_context_ends_with_its_block():
    layer = Dropout(0.5)
    inputs = tf.ones([8, 8])
    with RandomContext(0, 0, tf.range(8)):
        outer = layer(inputs, training=True)
        with RandomContext(1, 0, tf.range(8)):
            inner = layer(inputs, training=True)
        again = layer(inputs, training=True)
    with pytest.raises(RuntimeError), RandomContext(0, 0, tf.range(8)):
        raise RuntimeError
    after = layer(inputs, training=True)
    np.testing.assert_array_equal(outer, again)
    assert np.abs(outer - inner).max() > 0
    assert np.abs(outer - after).max() > 0
