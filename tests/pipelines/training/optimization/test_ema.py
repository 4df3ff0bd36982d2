"""Moving averages of the weights, on one device and on two replicas."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipelines.training.optimization.ema import ExponentialMovingAverage, initial_share
from tests.pipelines.tiny import one_device, two_replicas

DECAY = 0.75


@pytest.mark.parametrize("devices", [one_device, two_replicas])
def test_averages_move_only_under_the_condition(devices):
    """By a fourth of the difference; a step that is not finite leaves them."""
    strategy = devices()
    with strategy.scope():
        layer = keras.layers.Dense(2, name="dense")
        layer.build((None, 3))
        averages = ExponentialMovingAverage(layer.variables, DECAY)
    kernel, average = layer.kernel, averages.state.by_path[layer.kernel.path]
    kernel.assign(np.full((3, 2), 8.0))
    averages.initialize()
    np.testing.assert_array_equal(average, np.full((3, 2), 8.0))

    @tf.function
    def update(condition):
        strategy.run(averages.update, args=(tf.constant(0, tf.int64), condition))

    kernel.assign(np.full((3, 2), 16.0))
    update(tf.constant(False))
    np.testing.assert_array_equal(average, np.full((3, 2), 8.0))
    update(tf.constant(True))
    np.testing.assert_array_equal(average, np.full((3, 2), 10.0))
    update(tf.constant(True))
    np.testing.assert_array_equal(average, np.full((3, 2), 11.5))

    with averages.swapped_in():
        np.testing.assert_array_equal(kernel, np.full((3, 2), 11.5))
    np.testing.assert_array_equal(kernel, np.full((3, 2), 16.0))


@pytest.mark.parametrize("devices", [one_device, two_replicas])
@pytest.mark.parametrize("decay", [0.05, 0.4, 0.9999])
def test_the_warm_up_is_the_recursion_in_float64(devices, decay):
    """Also from a step in the middle, where a resumed run goes on."""
    strategy = devices()
    with strategy.scope():
        weight = keras.Variable(np.zeros(4, np.float32), name="weight")
        averages = ExponentialMovingAverage([weight], decay, warmup=True)
    average = averages.state.by_path[weight.path]

    @tf.function
    def update(step):
        strategy.run(averages.update, args=(step, True))

    random = np.random.default_rng(0)
    for first in (0, 5_000):
        weight.assign(np.ones(4))
        averages.initialize()
        expected, share = np.ones(4), 1.0
        for step in range(first, first + 12):
            effective = min(decay, (1 + step) / (10 + step))
            weight.assign(random.normal(size=4))
            update(tf.constant(step, tf.int64))
            expected = effective * expected + (1 - effective) * weight.numpy().astype(np.float64)
            share *= effective
        np.testing.assert_allclose(average, expected, rtol=0, atol=1e-6)
        if first == 0:
            assert initial_share(decay, True, 12) == pytest.approx(share)
    if decay == 0.9999:  # Of the first 12 decays the last is 12/21.
        assert initial_share(decay, True, 12) < 1e-5


def test_the_share_of_the_initial_weights():
    """The product of the decays: 95 % after 500 steps without the warm-up."""
    assert initial_share(0.9999, False, 500) == pytest.approx(0.9512, abs=1e-4)
    assert initial_share(0.9999, True, 1) == pytest.approx(0.1)
    steps = np.arange(20_000)  # The warm-up with a decay of 0.999 ends at step 8,990.
    decays = np.minimum(0.999, (1 + steps) / (10 + steps))
    assert initial_share(0.999, True, 20_000) == pytest.approx(np.prod(decays), rel=1e-9)
    assert initial_share(0.0, True, 3) == initial_share(0.0, False, 3) == 0
    assert 0 <= initial_share(1 - 2**-53, True, 2**40) < 1e-90
