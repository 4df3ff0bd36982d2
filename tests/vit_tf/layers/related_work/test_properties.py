"""Symmetries, memory, graphs and refused arguments of the comparison layers."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tests.custom_ops.compare import compiled_ops
from tests.tolerances import golden_excess
from tests.vit_tf import tiny
from vit_tf.layers import related_work

AUGMENTED = {
    "filters": 12,
    "heads": 2,
    "key_fraction": 0.2,
    "value_fraction": 0.5,
    "variance_epsilon": 1e-6,
    "deviation_epsilon": 1e-4,
}
# name -> (function that makes the layer, whether it takes maps of any size).
LAYERS = {
    "local 1d": (lambda: related_work.LocalAttention1D(2, 6), True),
    "local 2d": (lambda: related_work.LocalAttention2D(2, (3, 4), (1, 2)), True),
    "stand-alone": (lambda: related_work.StandAloneAttention(2, 3), True),
    "sparse": (lambda: related_work.SparseAttention(2, 6), True),
    "squeeze-and-excitation": (lambda: related_work.SqueezeExcite(2), True),
    "full": (lambda: related_work.FullAttention(2), False),
    "augmented": (lambda: related_work.AugmentedConvolution(**AUGMENTED), False),
}


def draw(height, width, channels=8):
    values = np.random.default_rng([height, width]).normal(size=(2, height, width, channels))
    return tf.constant(values, tf.float32)


def made(name, height=5, width=7):
    layer = LAYERS[name][0]()
    layer(draw(height, width))
    tiny.randomize(layer)
    return layer


@pytest.mark.parametrize("name", LAYERS)
def test_graphs_give_the_eager_result(name):
    layer, inputs = made(name), draw(5, 7)
    expected = layer(inputs)
    jit = tf.function(lambda x: layer(x), jit_compile=True, autograph=False)
    assert golden_excess(jit(inputs), expected) < 1
    if LAYERS[name][1]:
        unknown = tf.function(lambda x: layer(x), autograph=False).get_concrete_function(
            tf.TensorSpec([None, None, None, 8])
        )
        for sides in ((5, 7), (1, 1), (4, 9)):
            assert golden_excess(unknown(draw(*sides)), layer(draw(*sides))) < 1


@pytest.mark.parametrize("name", ["sparse", "full", "augmented"])
def test_attention_of_all_pixels_of_a_line_is_compiled(name, monkeypatch):
    monkeypatch.delenv("VIT_OPS", raising=False)
    layer = made(name)
    assert compiled_ops(tf.function(lambda x: layer(x)), draw(5, 7)) == {"VitAttention"}


def test_stand_alone_attention_moves_with_the_image():
    """Away from the borders, by numbers of pixels that are no multiples of the blocks."""
    layer, inputs = made("stand-alone"), draw(11, 12)
    down, right = 2, 4
    moved = layer(tf.roll(inputs, [down, right], axis=[1, 2]))
    expected = tf.roll(layer(inputs), [down, right], axis=[1, 2])
    inner = (slice(None), slice(down + 1, -1), slice(right + 1, -1))
    assert golden_excess(moved[inner], expected[inner]) < 1
    assert golden_excess(moved[:, down], expected[:, down]) > 100


def test_gradients_of_stand_alone_attention_have_the_same_bits_every_time():
    """A resumed run is bitwise equal only if sums of many terms keep their order."""
    layer = related_work.StandAloneAttention(8, 7)
    inputs = tf.random.stateless_normal([16, 4, 4, 32], [1, 2])
    layer(inputs)
    step = tf.function(lambda x: gradients_of(layer, x), autograph=False)
    first = step(inputs)
    for _ in range(30):
        for again, gradient in zip(step(inputs), first, strict=True):
            np.testing.assert_array_equal(again, gradient)


def gradients_of(layer, inputs):
    """Gradients of the inputs and of all weights."""
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        total = tf.reduce_sum(tf.square(layer(inputs)))
    return tape.gradient(total, [inputs, *(v.value for v in layer.trainable_variables)])


def largest_tensor(layer, height, width):
    """Numbers of the largest tensor in the graph of a result and its gradients, per pixel."""
    layer(tf.zeros((1, height, width, 16)))
    spec = tf.TensorSpec((1, height, width, 16))
    step = tf.function(lambda x: gradients_of(layer, x), autograph=False)
    graph = step.get_concrete_function(spec).graph
    tensors = [tensor for operation in graph.get_operations() for tensor in operation.outputs]
    sizes = [math.prod(x.shape) for x in tensors if x.shape.is_fully_defined()]
    return max(sizes) / (height * width)


@pytest.mark.parametrize(
    "make, copies",
    [
        (lambda: related_work.StandAloneAttention(2, 7), 4),
        (lambda: related_work.LocalAttention1D(2, 14), 4),
        (lambda: related_work.LocalAttention2D(2, (7, 7), (3, 3)), 22),
        (lambda: related_work.SparseAttention(2, 14), 4),
    ],
    ids=["stand-alone", "local 1d", "local 2d", "sparse"],
)
def test_the_largest_tensor_is_linear_in_the_pixels(make, copies):
    """At most so many copies of the inputs; neighborhoods of 7 x 7 pixels would be 49."""
    small, large = (largest_tensor(make(), side, side) for side in (14, 42))
    assert large <= small <= copies * 16


def test_the_largest_tensor_of_full_attention_is_not():
    small, large = (largest_tensor(related_work.FullAttention(2), side, 14) for side in (14, 28))
    assert large == 2 * small == 2 * 28 * 14


@pytest.mark.parametrize(
    "create, words",
    [
        (lambda: related_work.StandAloneAttention(2, 4), "kernel_size.*: 4"),
        (lambda: related_work.LocalAttention2D(2, (4, 4), (1, 3)), r"reach=\(1, 3\)"),
        (lambda: related_work.SparseAttention(3, 6), "heads.*even.*: 3"),
        (lambda: built(related_work.SparseAttention(6, 6)), "8 channels.*heads=6"),
        (lambda: built(related_work.LocalAttention1D(3, 6)), "8 channels.*heads=3"),
        (lambda: built(related_work.StandAloneAttention(8, 3)), "8 channels.*heads=16"),
        (lambda: built(related_work.SqueezeExcite(16)), "8 channels.*reduction=16"),
        (lambda: built(related_work.FullAttention(2), None), r"one size.*\(None, None\)"),
        (
            lambda: built(related_work.AugmentedConvolution(**AUGMENTED | {"value_fraction": 1.0})),
            "no filters.*12 of 12",
        ),
    ],
)
def test_illegal_arguments(create, words):
    with pytest.raises(ValueError, match=words):
        create()


def built(layer, side=5):
    layer.build((None, side, side, 8))
