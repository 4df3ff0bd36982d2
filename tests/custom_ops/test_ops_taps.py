"""The taps of attention: against the oracle and closed forms. They have no gradient."""

import math

import numpy as np
import pytest
import tensorflow as tf

import custom_ops
from custom_ops.attention import TAPS
from tests.custom_ops import oracle
from tests.tolerances import EPSILON, assert_close

pytestmark = pytest.mark.usefixtures("each_implementation")


def draw(shape, dtype="float64"):
    return tf.cast(tf.constant(np.random.default_rng(0).normal(size=shape)), dtype)


def exact(tensor):
    return tensor.numpy().astype(np.float64)


def uniform(count, taps, grid=None):
    """Taps of attention in which every token has the same weight."""
    return custom_ops.attention_with_taps(tf.zeros([1, count, 3], "float64"), 1, taps, grid=grid)[1]


@pytest.mark.parametrize("dtype", tuple(EPSILON))
@pytest.mark.parametrize(
    ("count", "grid"), [(1, (1, 1)), (3, (1, 2)), (13, (3, 4)), (12, (4, 3)), (50, (7, 7))]
)
@pytest.mark.parametrize("with_bias", [False, True])
def test_match_the_equations(count, grid, dtype, with_bias):
    qkv = draw([2, count, 3 * 12], dtype)
    bias = draw([3, count, count], dtype) if with_bias else None
    out, taps = custom_ops.attention_with_taps(qkv, 3, TAPS, bias=bias, grid=grid)
    expected, weights, _ = oracle.attention(exact(qkv), 3, exact(bias) if with_bias else None)
    assert list(taps) == list(TAPS)
    assert {tap.dtype.name for tap in taps.values()} == {
        "float64" if dtype == "float64" else "float32"
    }
    assert_close(out, expected, dtype, "attention")
    assert_close(taps["class_row"], weights[:, :, 0], dtype, "taps")
    assert_close(taps["distance"], oracle.distance(weights, grid), dtype, "taps")
    if count > 1:
        assert_close(taps["entropy"], oracle.entropy(weights), dtype, "taps")


def test_taps_do_not_change_the_output():
    qkv = draw([2, 13, 36], "float32")
    out, _ = custom_ops.attention_with_taps(qkv, 3, TAPS, grid=(3, 4))
    np.testing.assert_array_equal(out, custom_ops.attention(qkv, 3))


# Values in pixels from docs/paper.md J.3, to four decimals.
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


def test_distance_and_entropy_of_identity_attention_are_zero():
    bias = tf.constant(np.where(np.eye(13), 0, -np.inf))
    qkv = draw([2, 13, 36])
    _, taps = custom_ops.attention_with_taps(
        qkv, 3, ("distance", "entropy"), bias=bias, grid=(3, 4)
    )
    assert not np.any(taps["distance"])
    np.testing.assert_allclose(taps["entropy"], 0, atol=EPSILON["float64"])


def test_distance_counts_rows_then_columns():
    # Every query attends only to the last patch of a 2 x 3 grid.
    bias = tf.constant([-np.inf] * 5 + [0.0])
    qkv = tf.zeros([1, 6, 3], "float64")
    _, taps = custom_ops.attention_with_taps(qkv, 1, ("distance",), bias=bias, grid=(2, 3))
    expected = (math.sqrt(5) + math.sqrt(2) + 1 + 2 + 1 + 0) / 6
    assert taps["distance"].numpy().item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("count", [1, 2, 17, 197])
def test_entropy_of_uniform_attention_is_log_n(count):
    entropy = uniform(count, ("entropy",))["entropy"]
    assert entropy.numpy().item() == pytest.approx(math.log(count), rel=1e-12, abs=1e-12)


def test_no_tokens():
    taps = uniform(0, ("class_row", "entropy"))
    assert taps["class_row"].shape == [1, 1, 0]
    assert taps["entropy"].numpy().item() == 0


def test_empty_batch():
    _, taps = custom_ops.attention_with_taps(tf.zeros([0, 13, 36]), 3, TAPS, grid=(3, 4))
    assert [tap.shape.as_list() for tap in taps.values()] == [[0, 3, 13], [0, 3], [0, 3]]


@pytest.mark.parametrize("dtype", tuple(EPSILON))
def test_masked_rows_have_zero_taps(dtype):
    qkv = draw([1, 6, 12], dtype)
    bias = np.zeros([2, 6, 6])
    bias[0] = bias[1, 0] = bias[1, 3] = -np.inf
    _, taps = custom_ops.attention_with_taps(qkv, 2, TAPS, bias=tf.constant(bias), grid=(2, 3))
    assert not np.any(taps["class_row"])
    assert taps["distance"][0, 0] == taps["entropy"][0, 0] == 0
    _, weights, _ = oracle.attention(exact(qkv), 2, bias)
    assert_close(taps["distance"], oracle.distance(weights, (2, 3)), dtype, "taps")
    assert_close(taps["entropy"], oracle.entropy(weights), dtype, "taps")


def test_no_gradient_flows_through_taps():
    qkv = draw([2, 13, 36])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(qkv)
        out, taps = custom_ops.attention_with_taps(qkv, 3, TAPS, grid=(3, 4))
        loss = tf.reduce_sum(out) + sum(tf.reduce_sum(tap) for tap in taps.values())
        plain = tf.reduce_sum(custom_ops.attention(qkv, 3))
    assert all(tape.gradient(tap, qkv) is None for tap in taps.values())
    np.testing.assert_array_equal(tape.gradient(loss, qkv), tape.gradient(plain, qkv))


def test_graph_with_unknown_sizes_equals_eager():
    @tf.function(input_signature=[tf.TensorSpec([None, None, 36], "float64")])
    def graph(qkv):
        return custom_ops.attention_with_taps(qkv, 3, TAPS, grid=(3, 4))[1]

    for count in (12, 13, 15):
        qkv = draw([2, count, 36])
        expected = custom_ops.attention_with_taps(qkv, 3, TAPS, grid=(3, 4))[1]
        for name, tap in graph(qkv).items():
            assert_close(tap, exact(expected[name]), "float64", "taps")
    with pytest.raises(tf.errors.InvalidArgumentError):
        graph(draw([2, 11, 36]))
