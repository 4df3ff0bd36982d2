"""Position-sensitive axial attention against the public implementation and float64 NumPy."""

import json

import numpy as np
import pytest
import tensorflow as tf

from tests.tolerances import assert_golden
from tests.vit_tf import numpy_axial_resnet
from vit_tf.layers.axial_resnet import PositionSensitiveAttention

CASES = ("height_s1", "height_s2", "width_s1", "width_s2")
# Name in a state_dict -> attributes of our layer.
NAMES = {
    "qkv_transform.weight": ("qkv", "kernel"),
    "relative": ("relative",),
} | {
    f"bn_{theirs}.{part}": (f"norm_{ours}", variable)
    for theirs, ours in (("qkv", "qkv"), ("similarity", "logits"), ("output", "values"))
    for part, variable in (
        ("weight", "gamma"),
        ("bias", "beta"),
        ("running_mean", "moving_mean"),
        ("running_var", "moving_variance"),
    )
}


def variable_of(layer, name):
    for attribute in NAMES[name]:
        layer = getattr(layer, attribute)
    return layer


def as_stored(name, value):
    """A tensor of a state_dict in the shape of our variable, or a gradient of it."""
    return value[:, :, 0].T if name == "qkv_transform.weight" else value


def load(layer, state):
    for name in NAMES:
        variable_of(layer, name).assign(as_stored(name, state[name]))


@pytest.fixture
def case(golden):
    """`case(name)`: arrays of a case of the golden file, and a layer with its weights."""

    def read(name):
        file = golden("axial_attention")
        described = json.loads(str(file["description"]))
        prefix = f"{name}/"
        arrays = {key[len(prefix) :]: file[key] for key in file if key.startswith(prefix)}
        state = {k.removeprefix("state/"): v for k, v in arrays.items() if k.startswith("state/")}
        layer = PositionSensitiveAttention(
            described["out_planes"],
            described["groups"],
            axis=2 if described["cases"][name]["width"] else 1,
            strides=described["cases"][name]["stride"],
            epsilon=described["batch_norm_eps"],
        )
        layer.build(arrays["input"].shape)
        load(layer, state)
        return layer, arrays, state

    return read


@pytest.mark.parametrize("name", CASES)
def test_golden_values(case, name):
    layer, arrays, state = case(name)
    inputs = tf.constant(arrays["input"])
    wanted = ["relative", "qkv_transform.weight"]
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = layer(inputs)
        total = tf.reduce_sum(outputs * arrays["cotangent"])
    sources = [inputs, *(variable_of(layer, x).value for x in wanted)]
    assert_golden(outputs, arrays["output"])
    largest = max(np.abs(v).max() for k, v in arrays.items() if k.startswith("grads/"))
    for x, gradient in zip(["input", *wanted], tape.gradient(total, sources), strict=True):
        assert_golden(gradient, as_stored(x, arrays[f"grads/{x}"]), largest, x)
    # The NumPy version of the other tests has the same result, to the rounding of the file.
    axis, groups, stride = layer.axis, layer.heads, layer.strides
    ours = numpy_axial_resnet.attention(state, "", arrays["input"], groups, axis, stride)
    assert_golden(ours, arrays["output"])


def drawn(axis, strides=1):
    """A tiny layer, its state in float64 and its input `[2, 4, 6, 4]`."""
    layer = PositionSensitiveAttention(8, heads=2, axis=axis, strides=strides, dtype="float64")
    layer.build((None, 4, 6, 4))
    shapes = numpy_axial_resnet.attention_shapes("x", 4, 8, 2, (4, 6)[axis - 1])
    state = numpy_axial_resnet.draw_state(shapes)
    state = {name[2:]: value.astype(np.float64) for name, value in state.items()}
    load(layer, state)
    return layer, state, np.random.default_rng(1).normal(size=(2, 4, 6, 4))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("axis, strides", [(1, 1), (2, 2)])
def test_forward_and_gradient_equal_numpy(axis, strides, training):
    """Gradients against central differences of the NumPy version, in random directions.

    In training also through the statistics of the batch.
    """
    layer, state, inputs = drawn(axis, strides)
    rng = np.random.default_rng(2)

    def numpy_total(state, inputs):
        outputs = numpy_axial_resnet.attention(state, "", inputs, 2, axis, strides, training)
        return outputs, (outputs * cotangent).sum()

    cotangent = rng.normal(size=(2, 4 // strides, 6 // strides, 8))
    trained = [name for name in NAMES if "running" not in name]
    x = tf.constant(inputs)
    with tf.GradientTape() as tape:
        tape.watch(x)
        outputs = layer(x, training=training)
        total = tf.reduce_sum(outputs * cotangent)
    assert_golden(outputs, numpy_total(state, inputs)[0])
    sources = [variable_of(layer, name).value for name in trained]
    gradients = dict(zip(["x", *trained], tape.gradient(total, [x, *sources]), strict=True))
    step = 1e-4
    for name, gradient in gradients.items():
        value = inputs if name == "x" else state[name]
        direction = rng.normal(size=value.shape)
        ends = []
        for sign in (1, -1):
            moved = value + sign * step * direction
            changed = (state, moved) if name == "x" else (state | {name: moved}, inputs)
            ends.append(numpy_total(*changed)[1])
        expected = (ends[0] - ends[1]) / (2 * step)
        ours = (gradient.numpy() * as_stored(name, direction)).sum()
        magnitude = np.abs(gradient.numpy() * as_stored(name, direction)).sum()
        # The softmax cancels `norm_logits/beta`, whose gradient is only rounding.
        assert abs(ours - expected) <= 1e-4 * magnitude + 1e-5, name


def test_axes_are_transposes_of_each_other():
    """Attention along the height of an image is attention along the width of its transpose."""
    layer, state, inputs = drawn(axis=1)
    other = PositionSensitiveAttention(8, heads=2, axis=2, dtype="float64")
    other.build((None, 6, 4, 4))
    load(other, state)
    transposed = np.transpose(other(inputs.transpose(0, 2, 1, 3)), [0, 2, 1, 3])
    np.testing.assert_allclose(layer(inputs), transposed, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_group_norm_normalizes_each_image_alone(norm):
    layer = PositionSensitiveAttention(8, heads=2, axis=2, norm=norm)
    inputs = np.random.default_rng(0).normal(size=(4, 4, 6, 4)).astype(np.float32)
    whole, part = layer(inputs, training=True), layer(inputs[:2], training=True)
    equal = np.allclose(whole[:2], part, atol=1e-5)
    assert equal == (norm == "group")


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"axis": 0}, "axis .*height.*: 0"),
        ({"filters": 10}, "filters=10 .* 4"),
    ],
)
def test_illegal_arguments(fields, words):
    with pytest.raises(ValueError, match=words):
        PositionSensitiveAttention(**({"filters": 8, "heads": 2, "axis": 1} | fields))


def test_an_unknown_side_is_refused():
    with pytest.raises(ValueError, match="axis 2 .*known"):
        PositionSensitiveAttention(8, heads=2, axis=2).build((None, 4, None, 4))
