"""Moving averages of the weights, on one device and on two replicas."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipelines.optimization.ema import ExponentialMovingAverage
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
        strategy.run(averages.update, args=(condition,))

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
