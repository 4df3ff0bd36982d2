"""Every comparison layer against float64 NumPy: results, and gradients by central differences."""

import numpy as np
import pytest
import tensorflow as tf

from tests.vit_tf import tiny
from tests.vit_tf.layers.related_work import numpy_layers
from vit_tf.layers import related_work

# Sides that are no multiples of the blocks, and maps that are smaller than a block.
SIDES = [(5, 7), (2, 3)]


def augmented(value_fraction, **kwargs):
    """The keys of a head have 20 channels, its values 10 or 22."""
    filters = {0.6: 33, 0.9: 49}[value_fraction]
    return related_work.AugmentedConvolution(
        filters, 2, 0.2, value_fraction, variance_epsilon=1e-3, deviation_epsilon=1e-2, **kwargs
    )


# name -> (function that makes the layer, oracle).
LAYERS = {
    "local 1d": (
        lambda **k: related_work.LocalAttention1D(heads=2, block=6, **k),
        numpy_layers.local_1d,
    ),
    "local 2d": (
        lambda **k: related_work.LocalAttention2D(heads=2, block=(3, 4), reach=(1, 2), **k),
        numpy_layers.local_2d,
    ),
    "stand-alone 3": (
        lambda **k: related_work.StandAloneAttention(heads=2, kernel_size=3, **k),
        numpy_layers.stand_alone,
    ),
    "stand-alone 5": (
        lambda **k: related_work.StandAloneAttention(heads=1, kernel_size=5, **k),
        numpy_layers.stand_alone,
    ),
    "sparse": (
        lambda **k: related_work.SparseAttention(heads=4, block=6, **k),
        numpy_layers.sparse,
    ),
    "full": (lambda **k: related_work.FullAttention(heads=2, **k), numpy_layers.full),
    "augmented": (lambda **k: augmented(0.6, **k), numpy_layers.augmented),
    "augmented, large values": (lambda **k: augmented(0.9, **k), numpy_layers.augmented),
    "squeeze-and-excitation": (
        lambda **k: related_work.SqueezeExcite(reduction=2, **k),
        numpy_layers.squeeze_excite,
    ),
}
every_layer = pytest.mark.parametrize("name", LAYERS)
every_size = pytest.mark.parametrize("sides", SIDES)


def made(name, sides, **kwargs):
    """A layer in float64 with random weights, and inputs."""
    layer = LAYERS[name][0](dtype="float64", **kwargs)
    inputs = np.random.default_rng(1).normal(size=(2, *sides, 8))
    layer(inputs)
    tiny.randomize(layer)
    return layer, inputs


@every_layer
@every_size
def test_results_equal_numpy(name, sides):
    layer, inputs = made(name, sides)
    expected = LAYERS[name][1](layer, numpy_layers.weights_of(layer), inputs)
    # Kernels are standardized in float32 under every policy.
    error = 1e-5 if "augmented" in name else 1e-12
    np.testing.assert_allclose(layer(inputs), expected, rtol=0, atol=error * np.abs(expected).max())


@every_layer
def test_gradients_equal_central_differences(name):
    """Along random directions of the inputs and of every weight."""
    layer, inputs = made(name, (5, 7))
    values = {"inputs": inputs} | numpy_layers.weights_of(layer)
    rng, step, oracle = np.random.default_rng(2), 1e-5, LAYERS[name][1]
    upstream = rng.normal(size=layer(inputs).shape)

    def loss(**changed):
        arrays = values | changed
        return np.sum(upstream * oracle(layer, arrays, arrays["inputs"]))

    watched = tf.constant(inputs)
    with tf.GradientTape() as tape:
        tape.watch(watched)
        total = tf.reduce_sum(upstream * layer(watched))
    sources = [watched, *(variable.value for variable in layer.variables)]
    gradients = tape.gradient(total, sources)
    largest = max(np.abs(gradient).max() for gradient in gradients)
    for (key, value), gradient in zip(values.items(), gradients, strict=True):
        for _ in range(3):
            move = rng.normal(size=value.shape)
            rise = loss(**{key: value + step * move}) - loss(**{key: value - step * move})
            found = np.sum(gradient * move)
            assert found == pytest.approx(rise / (2 * step), rel=1e-6, abs=1e-6 * largest), key
