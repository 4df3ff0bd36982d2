"""The taps of attention: against the oracle and closed forms. They have no gradient.

The C++ tests (tests/cc) have the taps of every size, dtype and instruction set.
"""

import math

import numpy as np
import pytest
import tensorflow as tf

import custom_ops
from custom_ops.attention import TAPS
from tests.custom_ops import oracle
from tests.custom_ops.compare import draw, exact
from tests.tolerances import EPSILON, assert_as_good, assert_close

pytestmark = pytest.mark.each_device

DTYPES = tuple(EPSILON)
BOTH = ("compiled", "reference")


def tap(qkv, num_heads, taps=TAPS, **arguments):
    return custom_ops.attention_with_taps(qkv, num_heads, taps, **arguments)


def expected_taps(weights, grid):
    return {
        "class_row": weights[:, :, 0],
        "distance": oracle.distance(weights, grid),
        "entropy": oracle.entropy(weights),
    }


def check(qkv, num_heads, grid, bias=None, scale=None):
    """Compares the output and all taps of both implementations with the oracle."""
    dtype = qkv.dtype.name
    exact_bias = None if bias is None else exact(bias)
    out, weights, _ = oracle.attention(exact(qkv), num_heads, exact_bias, scale)
    expected = expected_taps(weights, grid)
    arguments = {"bias": bias, "scale": scale, "grid": grid}
    plain, plain_taps = tap(qkv, num_heads, **arguments, implementation="reference")
    actual, taps = tap(qkv, num_heads, **arguments, implementation="compiled")
    assert_as_good(actual, plain, out, dtype)
    for found in (taps, plain_taps):
        assert list(found) == list(TAPS)
        for name, tensor in found.items():
            assert tensor.dtype == ("float64" if dtype == "float64" else "float32")
            assert_close(tensor, expected[name], dtype, "taps")


# Grids with and without tokens before the patches.
@pytest.mark.parametrize(
    ("count", "grid", "dtype"),
    [
        (1, (1, 1), "float32"),
        (3, (1, 2), "bfloat16"),
        (12, (4, 3), "float64"),
        (13, (3, 4), "float16"),
        (18, (4, 4), "float32"),
        (50, (7, 7), "bfloat16"),
        (70, (2, 34), "float64"),
    ],
)
def test_match_the_equations(count, grid, dtype):
    for bias in (None, draw([3, count, count], dtype)):
        check(draw([2, count, 3 * 24], dtype), 3, grid, bias)


@pytest.mark.parametrize(
    ("size", "scale", "dtype"),
    [(16, 0.1, "float32"), (20, 1.0, "bfloat16"), (5, 0.37, "float64"), (5, 0.37, "float16")],
)
def test_follow_the_scale(size, scale, dtype):
    check(draw([2, 18, 3 * 3 * size], dtype), 3, (4, 4), scale=scale)


@pytest.mark.parametrize("dtype", DTYPES)
def test_masked_rows_have_zero_taps(dtype):
    qkv = draw([1, 6, 24], dtype)
    bias = np.zeros([2, 6, 6])
    bias[0] = bias[1, 0] = bias[1, 3] = -np.inf
    check(qkv, 2, (2, 3), tf.cast(tf.constant(bias), dtype))
    for implementation in BOTH:
        _, taps = tap(qkv, 2, bias=tf.constant(bias), grid=(2, 3), implementation=implementation)
        assert not np.any(taps["class_row"])
        assert taps["distance"][0, 0] == taps["entropy"][0, 0] == 0 < taps["entropy"][0, 1]


@pytest.mark.parametrize("implementation", BOTH)
@pytest.mark.parametrize("names", [("entropy",), ("distance", "class_row"), ("class_row",), ()])
def test_only_the_taps_asked_for(names, implementation):
    arguments = {"grid": (3, 4), "implementation": implementation}
    qkv = draw([2, 13, 36])
    out, every = tap(qkv, 3, **arguments)
    same, some = tap(qkv, 3, names, **arguments)
    assert list(some) == list(names)
    for name in names:
        np.testing.assert_array_equal(some[name], every[name])
    np.testing.assert_array_equal(same, out)
    np.testing.assert_array_equal(custom_ops.attention(qkv, 3, implementation=implementation), out)


@pytest.mark.parametrize("implementation", BOTH)
def test_no_tokens_or_images_have_taps_of_zero(implementation):
    names = ("class_row", "entropy")
    _, taps = tap(tf.zeros([2, 0, 36]), 3, names, implementation=implementation)
    assert taps["class_row"].shape == [2, 3, 0]
    np.testing.assert_array_equal(taps["entropy"], np.zeros([2, 3]))
    _, taps = tap(tf.zeros([0, 13, 36]), 3, grid=(3, 4), implementation=implementation)
    assert [tensor.shape.as_list() for tensor in taps.values()] == [[0, 3, 13], [0, 3], [0, 3]]


def uniform(count, taps, grid=None):
    """Taps of attention in which every token has the same weight."""
    return tap(tf.zeros([1, count, 3], "float64"), 1, taps, grid=grid)[1]


# Values in pixels from docs/paper.md J.3, to four decimals.
@pytest.mark.usefixtures("each_implementation")
@pytest.mark.parametrize(
    ("grid", "patch_size", "over_patches", "with_class_token"),
    [
        ((14, 14), 16, 116.4922, 115.9009),
        ((7, 7), 32, 115.5029, 113.1928),
        ((16, 16), 14, 116.5651, 116.1115),
        ((24, 24), 16, 200.0480, 199.7013),
    ],
)
def test_distance_of_uniform_attention(grid, patch_size, over_patches, with_class_token):
    count = grid[0] * grid[1]
    for tokens, pixels in ((count, over_patches), (count + 1, with_class_token)):
        distance = uniform(tokens, ("distance",), grid)["distance"]
        assert distance.numpy().item() * patch_size == pytest.approx(pixels, abs=6e-5)


@pytest.mark.usefixtures("each_implementation")
def test_distance_and_entropy_of_identity_attention_are_zero():
    bias = tf.constant(np.where(np.eye(13), 0, -np.inf))
    qkv = draw([2, 13, 36], "float64")
    _, taps = tap(qkv, 3, ("distance", "entropy"), bias=bias, grid=(3, 4))
    assert not np.any(taps["distance"])
    np.testing.assert_allclose(taps["entropy"], 0, atol=EPSILON["float64"])


@pytest.mark.usefixtures("each_implementation")
def test_distance_counts_rows_then_columns():
    # Every query attends only to the last patch of a 2 x 3 grid.
    bias = tf.constant([-np.inf] * 5 + [0.0])
    qkv = tf.zeros([1, 6, 3], "float64")
    _, taps = tap(qkv, 1, ("distance",), bias=bias, grid=(2, 3))
    expected = (math.sqrt(5) + math.sqrt(2) + 1 + 2 + 1 + 0) / 6
    assert taps["distance"].numpy().item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.usefixtures("each_implementation")
@pytest.mark.parametrize("count", [1, 2, 17, 197])
def test_entropy_of_uniform_attention_is_log_n(count):
    entropy = uniform(count, ("entropy",))["entropy"]
    assert entropy.numpy().item() == pytest.approx(math.log(count), rel=1e-12, abs=1e-12)


@pytest.mark.usefixtures("each_implementation")
def test_no_gradient_flows_through_taps():
    qkv = draw([2, 13, 36], "float64")
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(qkv)
        out, taps = tap(qkv, 3, grid=(3, 4))
        loss = tf.reduce_sum(out) + sum(tf.reduce_sum(tensor) for tensor in taps.values())
        plain = tf.reduce_sum(custom_ops.attention(qkv, 3))
    assert all(tape.gradient(tensor, qkv) is None for tensor in taps.values())
    np.testing.assert_array_equal(tape.gradient(loss, qkv), tape.gradient(plain, qkv))


@pytest.mark.usefixtures("each_implementation")
def test_graph_with_unknown_sizes_equals_eager():
    @tf.function(input_signature=[tf.TensorSpec([None, None, 36], "float64")])
    def graph(qkv):
        return tap(qkv, 3, grid=(3, 4))[1]

    for count in (12, 13, 15):
        qkv = draw([2, count, 36], "float64")
        expected = tap(qkv, 3, grid=(3, 4))[1]
        for name, tensor in graph(qkv).items():
            assert_close(tensor, exact(expected[name]), "float64", "taps")
    with pytest.raises(tf.errors.InvalidArgumentError, match="more patches|Paddings"):
        graph(draw([2, 11, 36], "float64"))
