"""Where a step that is not finite begins, in any Keras model made of layers."""

import types

import keras
import numpy as np
import tensorflow as tf

from pipelines.training import non_finite


class Stack(keras.Model):
    """Not one of ours: computes between its layers, keeps statistics and a layer in a list."""

    def __init__(self, between=tf.identity):
        super().__init__(name="stack")
        self.between = between
        self.stages = [keras.layers.Dense(3, name="first")]
        self.statistics = keras.layers.BatchNormalization(name="statistics")
        self.tail = keras.Sequential([keras.layers.Dense(2, name="second")], name="tail")
        self(tf.zeros([1, 4]))

    def call(self, images, training=False):
        hidden = self.statistics(self.stages[0](images), training=training)
        return self.tail(self.between(hidden))


def find(model, gradients=None, images=2.0):
    """`non_finite.find` for two parts of four examples each."""

    def own_gradients(part, step):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(part["image"], training=True))
        values = tape.gradient(loss, model.trainable_variables)
        return gradients(loss, values) if gradients else (loss, values)

    parts = [
        {"image": tf.fill([4, 4], images), "id": tf.range(4 * index, 4 * index + 4)}
        for index in range(2)
    ]
    trainer = types.SimpleNamespace(model=model, gradients=own_gradients)
    call, before = keras.layers.Layer.__call__, [value.numpy() for value in model.weights]
    finding = non_finite.find(trainer, parts, 5)
    assert keras.layers.Layer.__call__ is call
    for weight, value in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(weight.numpy(), value)
    return finding


def test_any_model_of_layers_is_searched():
    found = find(Stack())
    assert found.what == "nothing" and "faulty memory" in found.text
    # Overflow inside a layer: 3e38 times two ones and more.
    model = Stack()
    model.stages[0].kernel.assign(tf.ones([4, 3]))
    found = find(model, images=3e38)
    assert (found.what, found.layer, found.ids) == ("layer", "first", (0, 1, 2, 3))


def test_a_value_computed_between_layers_is_its_callers():
    only_third = tf.constant([[0.0], [0.0], [np.nan], [0.0]])
    found = find(Stack(between=lambda x: x + only_third if x.shape[0] == 4 else x))
    assert (found.what, found.layer, found.ids) == ("layer", "stack", (2,))
    # The loss is the sum of the outputs, so that the gradient of the last bias is 1.
    assert found.variable == "tail/second/kernel"


def test_weights_come_before_everything():
    model = Stack()
    model.statistics.moving_variance.assign([1.0, np.inf, 1.0])
    found = find(model, images=np.nan)
    assert (found.what, found.layer) == ("weight", "statistics")
    assert found.variable == "statistics/moving_variance"


def test_only_the_sum_is_not_finite():
    def large(loss, values):
        values[0] = tf.fill(values[0].shape, 2e38)  # The kernel of "first".
        return loss, values

    found = find(Stack(), large)
    assert (found.what, found.layer, found.variable) == ("sum", "first", "first/kernel")

    def long(loss, values):
        values[0] = tf.fill(values[0].shape, 9e18)  # Each finite, and their sum, but not its norm.
        return loss, values

    found = find(Stack(), long)
    assert (found.what, found.variable) == ("sum", "first/kernel")
    found = find(Stack(), lambda loss, values: (tf.constant(2e38), values))
    assert found.what == "sum" and "losses" in found.text


def test_a_step_that_cannot_be_repeated():
    def fails(loss, values):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating")

    found = find(Stack(), fails)
    assert found.what == "error" and "OOM when allocating" in found.text
