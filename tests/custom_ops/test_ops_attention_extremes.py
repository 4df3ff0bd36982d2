"""Attention for numbers that amplify rounding, and for NaN and infinity.

Here plain TensorFlow has large errors too, so the bounds of the table do not apply.
"""

import numpy as np
import pytest
import tensorflow as tf

import custom_ops
from tests.custom_ops.compare import (
    attend,
    check_attention,
    draw,
    each_isa,
    exact,
)
from tests.pairwise import pairwise
from tests.tolerances import EPSILON

pytestmark = pytest.mark.each_device

DTYPES = tuple(EPSILON)


def draw_coarse(shape, scale, dtype):
    """Multiples of an eighth times a power of two: their products are summed without rounding.

    If rounding of a logit decides between two keys, errors depend on chance. With these numbers
    only the computation after the logits has an error.
    """
    eighths = np.rint(8 * np.clip(exact(draw(shape, "float64")), -4, 4)) / 8
    return tf.cast(tf.constant(scale * eighths), dtype)


@pytest.mark.parametrize(
    ("scale", "dtype"),
    [
        (2.0, "bfloat16"),
        (8.0, "float32"),
        (32.0, "float64"),
        (128.0, "bfloat16"),
        (2.0**10, "float32"),
        (2.0**20, "float64"),
        (2.0**40, "bfloat16"),
        (2.0**40, "float32"),
    ],
)
def test_large_logits(scale, dtype):
    """Logits up to 1e25: most rows have one key or a tie. Rounding does not scale the weights."""
    qkv = draw_coarse([4, 33, 36], scale, dtype)
    check_attention(qkv, 3, magnitude=scale, bounded=False)


@pytest.mark.parametrize(
    ("scale", "dtype"),
    [(2.0, "float16"), (8.0, "bfloat16"), (8.0, "float16"), (16.0, "float16")],
)
def test_large_logits_of_half_width(scale, dtype):
    qkv = draw_coarse([2, 33, 3 * 64], scale, dtype)
    check_attention(qkv, 1, magnitude=scale, bounded=False)


def large_bias(value, dtype="float32"):
    """Large values in two whole rows, in some keys of another row, and in one key of all rows."""
    bias = np.zeros([37, 37])
    bias[0] = bias[3] = bias[5, ::3] = bias[:, 7] = value
    return tf.constant(bias, dtype)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (-1e4, "bfloat16"),
        (-1e9, "float32"),
        (1e9, "bfloat16"),
        (-3e38, "float32"),
        (3e38, "bfloat16"),
        (tf.float32.min, "float32"),
        (tf.float32.min, "bfloat16"),
        (tf.float32.max, "float32"),
        (tf.bfloat16.min, "bfloat16"),
    ],
)
def test_large_bias(value, dtype):
    """Only -inf closes a key: a row of the lowest number has equal weights."""
    qkv = draw([1, 37, 48], dtype)
    check_attention(qkv, 2, large_bias(value), bounded=False)


@pytest.mark.parametrize("value", [-1e9, tf.float32.min, tf.float64.min, tf.float64.max])
def test_large_bias_in_float64(value):
    qkv, bias = draw([1, 37, 48], "float64"), large_bias(value, "float64")
    check_attention(qkv, 2, bias, bounded=False)


@pytest.mark.parametrize(
    ("value", "scale", "dtype"),
    pairwise(
        [-1e9, 1e9, tf.float32.min, tf.float32.max],
        [1.0, 100.0, 1e4],
        ["float64", "float32", "bfloat16"],
    ),
)
def test_weights_of_a_row_add_up_to_one(value, scale, dtype):
    """Rounding of large numbers affects all weights of a row equally."""
    qkv = tf.cast(scale * draw([2, 37, 48], dtype), dtype)
    names = ("class_row", "entropy")
    bias = large_bias(value)
    for _ in each_isa():
        _, taps = custom_ops.attention_with_taps(
            qkv, 2, names, bias=bias, implementation="compiled"
        )
        sums = exact(taps["class_row"]).sum(-1)
        np.testing.assert_allclose(sums, 1, rtol=0, atol=4 * EPSILON["float32"])
        assert (exact(taps["entropy"]) <= np.log(37)).all()


def check_not_finite(qkv, bias=None, cotangent=None):
    """Checks every set: NaN is exactly where the reference has NaN, and other values are right.

    The reference runs in float64: in float32 TensorFlow's softmax leaves some weights of a row with
    a NaN unchanged, unlike the equation.

    Returns:
        The results of the compiled op, with the last set.
    """
    dtype = qkv.dtype.name
    if cotangent is None:
        cotangent = draw([*qkv.shape[:-1], qkv.shape[-1] // 3], dtype, seed=1)
    wide = [None if x is None else tf.cast(x, "float64") for x in (qkv, bias, cotangent)]
    expected = attend("reference", wide[0], 2, wide[2], wide[1])
    for _ in each_isa():
        results = attend("compiled", qkv, 2, cotangent, bias)
        for one, other in zip(results, expected, strict=True):
            np.testing.assert_allclose(
                exact(one), exact(other), rtol=0, atol=30 * EPSILON[dtype], equal_nan=True
            )
    return results


@pytest.mark.parametrize(
    ("value", "part", "dtype"), pairwise([np.nan, np.inf, -np.inf], [0, 1, 2], DTYPES)
)
def test_nan_and_inf_spread_as_in_the_reference(value, part, dtype):
    qkv = exact(draw([2, 19, 3, 2, 8], dtype))
    qkv[1, 4, part, 1, 3] = value
    check_not_finite(tf.cast(tf.constant(qkv.reshape(2, 19, 48)), dtype))


@pytest.mark.parametrize(("count", "sign", "dtype"), pairwise([4, 5, 17, 18], [-1, 1], DTYPES))
def test_an_infinite_key(count, sign, dtype):
    """For q of the other sign its weight is 0, even if a vector or a pair is partly empty."""
    qkv = exact(draw([2, count, 3, 2, 8], dtype))
    qkv[:, :, 0, :, 3] = sign * (1 + np.abs(qkv[:, :, 0, :, 3]))
    qkv[1, 2, 1, 1, 3] = np.inf
    check_not_finite(tf.cast(tf.constant(qkv.reshape(2, count, 48)), dtype))


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(np.nan, "float64"), (np.inf, "float32"), (np.nan, "float16"), (np.inf, "bfloat16")],
)
def test_nan_and_inf_in_the_gradient_of_masked_rows(value, dtype):
    """They have no effect, because the output of these rows is constant."""
    bias = np.zeros([19, 19])
    bias[[2, 5, 18]] = -np.inf
    cotangent = exact(draw([2, 19, 16], dtype, seed=1))
    cotangent[:, [2, 18]] = value
    cotangent[1, 5, 3] = value
    qkv, bias = draw([2, 19, 48], dtype), tf.cast(tf.constant(bias), dtype)
    _, d_qkv, _ = check_not_finite(qkv, bias, tf.cast(tf.constant(cotangent), dtype))
    assert np.isfinite(exact(d_qkv)).all()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_and_inf_in_the_bias(value):
    bias = np.zeros([2, 19, 19], np.float32)
    bias[1, 4, 7] = value
    check_not_finite(draw([2, 19, 48]), tf.constant(bias))
