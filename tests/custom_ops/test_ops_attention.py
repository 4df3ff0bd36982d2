"""Outputs and gradients of attention: both implementations against the float64 oracle.

The compiled one must also be about as accurate as plain TensorFlow. The C++ tests (tests/cc) have
every size and bias with every dtype and instruction set; here each value occurs at least once.
"""

import itertools

import numpy as np
import pytest
import tensorflow as tf

import custom_ops
from tests.custom_ops import oracle
from tests.custom_ops.compare import (
    attend,
    call_attention,
    check_attention,
    draw,
    each_isa,
    exact,
)
from tests.pairwise import pairwise
from tests.tolerances import EPSILON, assert_close

pytestmark = pytest.mark.each_device

DTYPES = tuple(EPSILON)
IMPLEMENTATIONS = ("compiled", "reference")


def with_dtypes(values):
    """Each value with one dtype."""
    return list(zip(values, itertools.cycle(DTYPES), strict=False))


# Around the widths of vectors and blocks.
@pytest.mark.parametrize(
    ("count", "heads", "size", "dtype"),
    [
        (0, 2, 16, "float32"),
        (1, 1, 1, "bfloat16"),
        (3, 3, 5, "float64"),
        (7, 5, 3, "float16"),
        (15, 2, 7, "float32"),
        (16, 2, 64, "bfloat16"),
        (17, 3, 20, "float16"),
        (31, 3, 1, "float64"),
        (33, 3, 80, "float32"),
        (50, 3, 33, "bfloat16"),
        (97, 2, 20, "float32"),
    ],
)
def test_sizes(count, heads, size, dtype):
    qkv = draw([2, count, 3 * heads * size], dtype)
    check_attention(qkv, heads)
    check_attention(qkv, heads, draw([heads, count, count], dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_instruction_set(dtype):
    """The wiring of each set; tests/cc has the sizes."""
    qkv, bias = draw([2, 33, 3 * 2 * 20], dtype), draw([2, 1, 33, 33], dtype)
    check_attention(qkv, 2, bias, isas=each_isa())


@pytest.mark.parametrize(
    ("count", "size", "dtype", "bias_shape"),
    [(577, 16, "bfloat16", [577, 1]), (1030, 4, "float32", [1])],
)
def test_long_sequences(count, size, dtype, bias_shape):
    """Several blocks of keys and queries, and a smaller last block."""
    bias = draw(bias_shape, dtype)
    check_attention(draw([1, count, 3 * size], dtype), 1, bias, bounded=False)


@pytest.mark.parametrize("batch", [0, 1, 3])
def test_batches(batch):
    check_attention(draw([batch, 9, 36]), 3, draw([3, 1, 9]))


@pytest.mark.parametrize(
    ("shape", "dtype"),
    with_dtypes(
        [[2, 3, 9, 9], [1, 3, 9, 9], [2, 1, 9, 9], [2, 3, 1, 9], [2, 3, 9, 1], [2, 1, 1, 1]]
        + [[3, 9, 9], [3, 1, 9], [3, 9, 1], [9, 9], [1, 9], [9, 1], [9], [1], []]
    ),
)
def test_bias_broadcasts(shape, dtype):
    check_attention(draw([2, 9, 36], dtype), 3, draw(shape, dtype))


@pytest.mark.parametrize(
    ("dtype", "bias_dtype"),
    [
        ("float64", "float32"),
        ("float64", "bfloat16"),
        ("float32", "float64"),
        ("float32", "float16"),
        ("bfloat16", "float64"),
        ("bfloat16", "float32"),
    ],
)
def test_bias_of_another_dtype(dtype, bias_dtype):
    # Values that every dtype represents: only the dtype may differ.
    bias = tf.cast(tf.cast(draw([3, 9, 9], "bfloat16"), "float16"), bias_dtype)
    check_attention(draw([2, 9, 36], dtype), 3, bias)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_bias_keeps_its_precision_beside_half_width(dtype, implementation):
    # 1000 and 1000.25 are the same value in 16 bits. The values v are 1 and 0: the output is a
    # weight.
    qkv = tf.constant([[[0, 0, 1], [0, 0, 0]]], dtype)
    bias = tf.constant([1000.25, 1000.0])
    out = custom_ops.attention(qkv, 1, bias=bias, implementation=implementation)
    np.testing.assert_allclose(exact(out), 1 / (1 + np.exp(-0.25)), rtol=EPSILON[dtype])


# (batch, rows, columns)
GRIDS = [(2, 1, 1), (2, 5, 18), (3, 17, 4), (0, 9, 7), (2, 0, 3)]


@pytest.mark.parametrize(("axis", "grid", "dtype"), pairwise([1, 2], GRIDS, DTYPES))
def test_axis(axis, grid, dtype):
    check_attention(draw([*grid, 3 * 24], dtype), 3, axis=axis)


FORMS = ("full", "batch", "lines", "keys of lines", "heads", "row", "one")


@pytest.mark.parametrize(
    ("axis", "form", "dtype"), pairwise([1, 2], FORMS, ["float64", "bfloat16"])
)
def test_axis_bias_broadcasts(axis, form, dtype):
    count, lines = (5, 6) if axis == 1 else (6, 5)
    shape = {
        "full": [2, lines, 3, count, count],
        "batch": [2, 1, 1, count, 1],
        "lines": [lines, 1, count, count],
        "keys of lines": [lines, 1, 1, count],
        "heads": [3, count, count],
        "row": [count],
        "one": [],
    }[form]
    check_attention(draw([2, 5, 6, 36], dtype), 3, draw(shape, dtype), axis)


@pytest.mark.parametrize("dtype", DTYPES)
def test_masked_rows(dtype):
    """Rows that are all -inf give exact zeros; rows that are partly -inf use the other keys."""
    bias = exact(draw([2, 3, 20, 20], dtype))
    bias[0, 0, 2] = bias[1, 2, 0] = bias[1, 2, 19] = -np.inf
    bias[:, 1] = -np.inf
    bias[0, 0, 3, 1:] = bias[1, 0, :, 4] = bias[0, 2, :, :17] = -np.inf
    bias = tf.cast(tf.constant(bias), dtype)
    qkv, cotangent = draw([2, 20, 36], dtype), tf.ones([2, 20, 12], dtype)
    check_attention(qkv, 3, bias)
    for implementation in IMPLEMENTATIONS:
        out, d_qkv, d_bias = attend(implementation, qkv, 3, cotangent, bias)
        heads = exact(out).reshape(2, 20, 3, 4)
        assert not heads[0, 2, 0].any() and not heads[1, 0, 2].any() and not heads[:, :, 1].any()
        assert not exact(d_bias)[np.isneginf(exact(bias))].any()
        # A query whose row is all -inf has no gradient; the key and value of its token do.
        by_part = exact(d_qkv).reshape(2, 20, 3, 3, 4)
        assert not by_part[0, 2, 0, 0].any() and not by_part[:, :, :, 1].any()
        assert by_part[0, 2, 2, 0].any()


@pytest.mark.parametrize(
    ("shape", "axis"), [([9, 9], None), ([9, 9], 1), ([9, 1], 1), ([1], None), ([], 1)]
)
def test_masked_rows_of_a_broadcast_bias(shape, axis):
    bias = np.zeros(shape)
    bias[(2,) if len(shape) == 2 else ...] = -np.inf
    qkv = draw([2, 9, 36] if axis is None else [2, 9, 4, 36], "float64")
    check_attention(qkv, 3, tf.constant(bias), axis)


@pytest.mark.parametrize("axis", [1, 2])
def test_masked_lines(axis):
    bias = np.zeros([4, 1, 4, 4])
    bias[1, 0, 2] = bias[3] = -np.inf
    check_attention(draw([2, 4, 4, 24], "float64"), 2, tf.constant(bias), axis)


# Even and odd head sizes.
@pytest.mark.parametrize(
    ("size", "scale", "dtype"),
    [(16, 0.1, "float32"), (20, 1.0, "bfloat16"), (5, 0.37, "float64"), (4, 2.0, "float16")],
)
def test_scale(size, scale, dtype):
    qkv, bias = draw([2, 18, 3 * 3 * size], dtype), draw([3, 18, 18], dtype)
    # Rows with almost all weight on one key amplify rounding.
    bounded = scale**2 * size < 20
    for given in (None, bias):
        check_attention(qkv, 3, given, scale=scale, bounded=bounded)


@pytest.mark.parametrize(("axis", "dtype"), [(1, "float32"), (2, "bfloat16")])
def test_scale_along_an_axis(axis, dtype):
    qkv, bias = draw([2, 5, 7, 3 * 24], dtype), draw([5 if axis == 1 else 7], dtype)
    check_attention(qkv, 3, bias, axis, scale=0.5)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("axis", [None, 1, 2])
def test_default_scale(axis, implementation):
    qkv = draw([2, 7, 36] if axis is None else [2, 5, 7, 36])
    np.testing.assert_array_equal(
        call_attention(qkv, 3, axis, scale=0.5, implementation=implementation),
        call_attention(qkv, 3, axis, implementation=implementation),
    )


def test_a_scale_beyond_the_kernels_takes_the_reference():
    qkv = draw([1, 4, 12], "float64")
    out = custom_ops.attention(1e30 * qkv, 1, scale=1e-60, implementation="reference")
    expected, _, _ = oracle.attention(exact(qkv), 1, None, 1.0)
    # q, k and v are 1e30 times as large.
    assert_close(out / 1e30, expected, "float64", "attention")
    single = tf.cast(qkv, "float32")
    for wide, scale in ((1e30 * qkv, 1e-60), (single, 1e-40), (single, 3e38)):
        np.testing.assert_array_equal(
            custom_ops.attention(wide, 1, scale=scale, implementation="compiled"),
            custom_ops.attention(wide, 1, scale=scale, implementation="reference"),
        )


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_products_beyond_float16_are_scaled_before_they_overflow(implementation):
    """Each query equals the next key and is orthogonal to the others, so it takes that value."""
    signs = np.ones([1, 1])
    for _ in range(6):
        signs = np.kron(signs, [[1, 1], [1, -1]])
    keys, values = 48 * signs[None, :9], exact(draw([1, 9, 64], "float16"))
    queries = np.roll(keys, -1, axis=1)
    assert (queries @ keys[0].T).max() == 147456  # The largest float16 is 65504.
    qkv = tf.constant(np.concatenate([queries, keys, values], axis=-1), "float16")
    out, d_qkv = attend(implementation, qkv, 1, tf.constant(values, "float16"))
    np.testing.assert_array_equal(exact(out), np.roll(values, -1, axis=1))
    np.testing.assert_array_equal(exact(d_qkv)[:, :, 128:], np.roll(values, 1, axis=1))
    # A weight of 1 gives the logits no gradient. Some softmaxes of TensorFlow end a rounding of
    # float32 below 1, which leaves that part of the largest product of cotangent and value. Here
    # keys and queries of 48 times the scale of 1/8 follow.
    largest = np.abs(values[0] @ values[0].T).max()
    weight_error = EPSILON["float32"] if implementation == "reference" else 0
    assert np.abs(exact(d_qkv)[:, :, :128]).max() <= weight_error * largest * 48 / 8


@pytest.mark.parametrize(("scale", "dtype"), with_dtypes([1.0, 3.0, 100.0, 100.0]))
def test_one_token_has_no_gradient_but_that_of_its_value(scale, dtype):
    qkv = tf.cast(scale * draw([2, 1, 3 * 80], dtype), dtype)
    cotangent = draw([2, 1, 80], dtype, seed=1)
    out, d_qkv = attend("compiled", qkv, 2, cotangent)
    np.testing.assert_array_equal(exact(out), exact(qkv)[:, :, 160:])
    np.testing.assert_array_equal(exact(d_qkv)[:, :, :160], 0)
    np.testing.assert_array_equal(exact(d_qkv)[:, :, 160:], exact(cotangent))


def test_the_same_bits_every_time():
    qkv, bias = draw([3, 77, 3 * 40], "bfloat16"), draw([77, 77])
    cotangent = draw([3, 77, 40], "bfloat16", seed=1)
    first, again = (attend("compiled", qkv, 2, cotangent, bias) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(exact(one), exact(other))


def test_gradients_of_numbers():
    """Checks gradients against finite differences, without an oracle."""
    qkv, bias = draw([1, 4, 12], "float64"), draw([2, 4, 4], "float64")

    def call(qkv, bias):
        return custom_ops.attention(qkv, 2, bias=bias, implementation="compiled")

    theory, numbers = tf.test.compute_gradient(call, [qkv, bias], delta=1e-4)
    for one, other in zip(theory, numbers, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-7)
