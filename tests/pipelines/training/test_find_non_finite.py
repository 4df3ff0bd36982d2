"""Finds the layer where non-finite numbers begin, in any Keras model of layers."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipelines.training.find_non_finite import find_non_finite


class Stack(keras.Model):
    """A foreign model: it computes between its layers, keeps statistics and a list of layers."""

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


def sum_gradients(model, part, step):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(part["image"], training=True))
    return loss, tape.gradient(loss, model.trainable_variables)


def find(model, gradients=None, images=2.0):
    """`find_non_finite` for two micro-batches of four examples each."""

    def own_gradients(part, step):
        loss, values = sum_gradients(model, part, step)
        return gradients(loss, values) if gradients else (loss, values)

    parts = [
        {"image": tf.fill([4, 4], images), "id": tf.range(4 * index, 4 * index + 4)}
        for index in range(2)
    ]
    call, before = keras.layers.Layer.__call__, [value.numpy() for value in model.weights]
    finding = find_non_finite(model, own_gradients, parts, 5)
    assert keras.layers.Layer.__call__ is call
    layers = [model, *model.layers, *model.tail.layers]
    assert len(layers) == 5 and not any("call" in vars(layer) for layer in layers)
    for weight, value in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(weight.numpy(), value)
    return finding


def test_any_model_of_layers_is_searched():
    found = find(Stack())
    assert found.what == "nothing" and "faulty memory" in found.text
    # Overflow inside a layer: 3e38 times a sum of two or more ones.
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
        values[0] = tf.fill(values[0].shape, 2e38)  # the kernel of "first"
        return loss, values

    found = find(Stack(), large)
    assert (found.what, found.layer, found.variable) == ("sum", "first", "first/kernel")

    def long(loss, values):
        values[0] = tf.fill(values[0].shape, 9e18)  # finite numbers and sum, infinite norm
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


class Nested(keras.layers.Layer):
    """Holds layers in a list, in a dictionary and in another layer."""

    def __init__(self, depth):
        super().__init__(name=f"nested_{depth}")
        self.inside = Nested(depth - 1) if depth else keras.layers.Dense(4, name="inside")
        self.listed = [keras.layers.Dense(4, name="listed")]
        self.named = {"one": keras.layers.Dense(4, name="named")}

    def call(self, images):
        return self.named["one"](self.listed[0](self.inside(images)))


@pytest.mark.parametrize("name", ["inside", "listed", "named"])
def test_layers_inside_layers_are_searched(name):
    model = keras.Sequential([Nested(1)], name="model")
    model(tf.zeros([1, 4]))
    inner = model.layers[0].inside
    layer = {"inside": inner.inside, "listed": inner.listed[0], "named": inner.named["one"]}[name]
    layer.bias.assign(tf.fill([4], 3e38))
    layer.kernel.assign(tf.fill([4, 4], 3e38))
    if name != "inside":
        inner.inside.bias.assign(tf.ones([4]))
    if name == "named":
        inner.listed[0].bias.assign(tf.ones([4]))
    parts = [{"image": tf.ones([4, 4]), "id": tf.range(4)}]
    found = find_non_finite(model, functools.partial(sum_gradients, model), parts, 0)
    assert found.what == "layer" and found.layer == f"nested_1/nested_0/{name}"


def test_a_call_that_a_layer_brings_along_is_given_back():
    model = Stack()
    own = model.stages[0].call = functools.partial(keras.layers.Dense.call, model.stages[0])

    def fails(loss, values):
        raise RuntimeError("not an error of TensorFlow")

    with pytest.raises(RuntimeError, match="error of TensorFlow"):
        find(model, fails)
    assert vars(model.stages[0])["call"] is own
    assert "call" not in vars(model.statistics)
