"""The compiled attention is as accurate as plain TensorFlow: outputs, gradients, taps."""

import numpy as np
import pytest
import tensorflow as tf

import custom_ops
from custom_ops.attention import TAPS
from tests.custom_ops import oracle
from tests.custom_ops.compare import attend, check_attention, draw, each_isa, exact
from tests.tolerances import EPSILON, assert_as_good, assert_close

DTYPES = tuple(EPSILON)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [0, 1, 3, 7, 15, 16, 17, 31, 33, 50, 97, 197, 257])
def test_numbers_of_tokens_around_the_vector_width(count, dtype):
    check_attention(draw([2, count, 3 * 16], dtype), 2)
    if count < 100:
        bias = draw([2, count, count], "float64" if dtype == "float64" else "float32")
        check_attention(draw([1, count, 3 * 2 * 20], dtype), 2, bias)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 3, 5, 20, 64, 80])
def test_head_sizes(size, dtype):
    check_attention(draw([2, 18, 3 * 3 * size], dtype), 3, draw([3, 18, 18], dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_instruction_set(dtype, monkeypatch):
    for _ in each_isa(monkeypatch):
        for count, size in ((1, 5), (16, 64), (17, 80), (33, 20), (97, 64), (130, 3)):
            qkv = draw([2, count, 3 * 2 * size], dtype)
            check_attention(qkv, 2, draw([2, 1, count, count], dtype))
        check_attention(draw([2, 5, 18, 3 * 40], dtype), 2, draw([18, 18], dtype), axis=2)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_long_sequences(dtype):
    # Several blocks of keys and queries, and a smaller last block.
    check_attention(draw([1, 577, 3 * 64], dtype), 1, draw([577, 1], dtype))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("count", [1025, 1370, 4097])
def test_very_long_sequences(count, dtype):
    check_attention(draw([1, count, 3 * 8], dtype), 1)


@pytest.mark.parametrize("batch", [0, 1, 3])
@pytest.mark.parametrize("axis", [None, 1, 2])
def test_batches(axis, batch):
    shape = [batch, 9, 36] if axis is None else [batch, 9, 7, 36]
    check_attention(draw(shape), 3, draw([3, 1, shape[axis or 1]]), axis)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape",
    [[2, 3, 9, 9], [1, 3, 9, 9], [2, 1, 9, 9], [2, 3, 1, 9], [2, 3, 9, 1], [2, 1, 1, 1]]
    + [[3, 9, 9], [3, 1, 9], [3, 9, 1], [9, 9], [1, 9], [9, 1], [9], [1], []],
)
def test_bias_broadcasts(shape, dtype):
    check_attention(draw([2, 9, 36], dtype), 3, draw(shape, dtype))


@pytest.mark.parametrize("bias_dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_bias_of_another_dtype(dtype, bias_dtype):
    # Values that every dtype represents: only the dtype may differ.
    bias = tf.cast(tf.cast(draw([3, 9, 9], "bfloat16"), "float16"), bias_dtype)
    check_attention(draw([2, 9, 36], dtype), 3, bias)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_bias_keeps_its_precision_beside_half_width(dtype):
    # 1000 and 1000.25 are the same value in 16 bits. The values v are 1 and 0: the output is a
    # weight.
    qkv = tf.constant([[[0, 0, 1], [0, 0, 0]]], dtype)
    bias = tf.constant([1000.25, 1000.0])
    out = custom_ops.attention(qkv, 1, bias=bias, implementation="compiled")
    np.testing.assert_allclose(exact(out), 1 / (1 + np.exp(-0.25)), rtol=EPSILON[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (5, 18), (17, 4), (0, 3), (3, 0)])
@pytest.mark.parametrize("axis", [1, 2])
def test_axis(axis, rows, columns, dtype):
    check_attention(draw([2, rows, columns, 3 * 24], dtype), 3, axis=axis)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@pytest.mark.parametrize("form", ["full", "batch", "lines", "heads", "row", "scalar"])
@pytest.mark.parametrize("axis", [1, 2])
def test_axis_bias_broadcasts(axis, form, dtype):
    count, lines = (5, 6) if axis == 1 else (6, 5)
    shape = {
        "full": [2, lines, 3, count, count],
        "batch": [2, 1, 1, count, 1],
        "lines": [lines, 1, count, count],
        "heads": [3, count, count],
        "row": [count],
        "scalar": [],
    }[form]
    check_attention(draw([2, 5, 6, 36], dtype), 3, draw(shape, dtype), axis)


@pytest.mark.parametrize("dtype", DTYPES)
def test_masked_rows(dtype, monkeypatch):
    """Rows that are all -inf give exact zeros; rows that are partly -inf use the other keys."""
    bias = exact(draw([2, 3, 20, 20], dtype))
    bias[0, 0, 2] = bias[1, 2, 0] = bias[1, 2, 19] = -np.inf
    bias[:, 1] = -np.inf
    bias[0, 0, 3, 1:] = bias[1, 0, :, 4] = bias[0, 2, :, :17] = -np.inf
    bias = tf.cast(tf.constant(bias), dtype)
    qkv, cotangent = draw([2, 20, 36], dtype), tf.ones([2, 20, 12], dtype)
    for _ in each_isa(monkeypatch):
        check_attention(qkv, 3, bias)
        out, d_qkv, d_bias = attend("compiled", qkv, 3, cotangent, bias)
        heads = exact(out).reshape(2, 20, 3, 4)
        assert not heads[0, 2, 0].any() and not heads[1, 0, 2].any() and not heads[:, :, 1].any()
        assert not exact(d_bias)[np.isneginf(exact(bias))].any()
        by_part = exact(d_qkv).reshape(2, 20, 3, 3, 4)
        assert not by_part[0, 2, 0, 0].any() and not by_part[:, :, :, 1].any()
        assert by_part[0, 2, 2, 0].any()


@pytest.mark.parametrize("shape", [[9, 9], [9, 1], [1], []])
@pytest.mark.parametrize("axis", [None, 1])
def test_masked_rows_of_a_broadcast_bias(axis, shape):
    bias = np.zeros(shape)
    bias[(2,) if len(shape) == 2 else ...] = -np.inf
    qkv = draw([2, 9, 36] if axis is None else [2, 9, 4, 36], "float64")
    check_attention(qkv, 3, tf.constant(bias), axis)


def draw_coarse(shape, scale, dtype):
    """Multiples of an eighth times a power of two: their products are summed without rounding.

    If rounding of a logit decides between two keys, errors depend on chance. With these numbers
    only the computation after the logits has an error.
    """
    eighths = np.rint(8 * np.clip(exact(draw(shape, "float64")), -4, 4)) / 8
    return tf.cast(tf.constant(scale * eighths), dtype)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("scale", [2.0, 8.0, 32.0, 128.0, 2.0**10, 2.0**20, 2.0**40])
def test_large_logits(scale, dtype, monkeypatch):
    """Logits up to 1e25: most rows have one key or a tie. Rounding does not scale the weights."""
    qkv = draw_coarse([4, 33, 36], scale, dtype)
    for _ in each_isa(monkeypatch):
        check_attention(qkv, 3, magnitude=scale)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("scale", [2.0, 8.0, 16.0])
def test_large_logits_of_half_width(scale, dtype, monkeypatch):
    qkv = draw_coarse([2, 33, 3 * 64], scale, dtype)
    for _ in each_isa(monkeypatch):
        check_attention(qkv, 1, magnitude=scale)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1.0, 3.0, 100.0])
def test_one_token_has_no_gradient_but_that_of_its_value(scale, dtype, monkeypatch):
    qkv = tf.cast(scale * draw([2, 1, 3 * 80], dtype), dtype)
    cotangent = draw([2, 1, 80], dtype, seed=1)
    for _ in each_isa(monkeypatch):
        out, d_qkv = attend("compiled", qkv, 2, cotangent)
        np.testing.assert_array_equal(exact(out), exact(qkv)[:, :, 160:])
        np.testing.assert_array_equal(exact(d_qkv)[:, :, :160], 0)
        np.testing.assert_array_equal(exact(d_qkv)[:, :, 160:], exact(cotangent))


LARGE = [-1e4, -1e9, 1e9, -3e38, 3e38, tf.float32.min, tf.float32.max, tf.bfloat16.min]


def large_bias(value, dtype="float32"):
    """Large values in two whole rows, in some keys of another row, and in one key of all rows."""
    bias = np.zeros([37, 37])
    bias[0] = bias[3] = bias[5, ::3] = bias[:, 7] = value
    return tf.constant(bias, dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("value", LARGE)
def test_large_bias(value, dtype, monkeypatch):
    """Only -inf closes a key: a row of the lowest number has equal weights."""
    for _ in each_isa(monkeypatch):
        check_attention(draw([1, 37, 48], dtype), 2, large_bias(value))


@pytest.mark.parametrize("value", [-1e9, tf.float32.min, tf.float64.min, tf.float64.max])
def test_large_bias_in_float64(value, monkeypatch):
    for _ in each_isa(monkeypatch):
        check_attention(draw([1, 37, 48], "float64"), 2, large_bias(value, "float64"))


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("value", [-1e9, 1e9, tf.float32.min, tf.float32.max])
def test_weights_of_a_row_add_up_to_one(value, dtype, monkeypatch):
    """Rounding of large numbers affects all weights of a row equally."""
    for _ in each_isa(monkeypatch):
        for scale in (1.0, 100.0, 1e4):
            qkv = tf.cast(scale * draw([2, 37, 48], dtype), dtype)
            _, taps = custom_ops.attention_with_taps(
                qkv,
                2,
                ("class_row", "entropy"),
                bias=large_bias(value),
                implementation="compiled",
            )
            sums = exact(taps["class_row"]).sum(-1)
            np.testing.assert_allclose(sums, 1, rtol=0, atol=4 * EPSILON["float32"])
            assert (exact(taps["entropy"]) <= np.log(37)).all()


def check_not_finite(qkv, bias=None, cotangent=None):
    """Checks that NaN is exactly where the reference has NaN, and that other values are right.

    The reference runs in float64: in float32 TensorFlow's softmax leaves some weights of a row with
    a NaN unchanged, unlike the equation.
    """
    dtype = qkv.dtype.name
    if cotangent is None:
        cotangent = draw([*qkv.shape[:-1], qkv.shape[-1] // 3], dtype, seed=1)
    wide = [None if x is None else tf.cast(x, "float64") for x in (qkv, bias, cotangent)]
    expected = attend("reference", wide[0], 2, wide[2], wide[1])
    for one, other in zip(attend("compiled", qkv, 2, cotangent, bias), expected, strict=True):
        np.testing.assert_allclose(
            exact(one), exact(other), rtol=0, atol=30 * EPSILON[dtype], equal_nan=True
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("part", [0, 1, 2])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_inf_spread_as_in_the_reference(value, part, dtype, monkeypatch):
    qkv = exact(draw([2, 19, 3, 2, 8], dtype))
    qkv[1, 4, part, 1, 3] = value
    for _ in each_isa(monkeypatch):
        check_not_finite(tf.cast(tf.constant(qkv.reshape(2, 19, 48)), dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("count", [4, 5, 17, 18])
def test_an_infinite_key(count, sign, dtype, monkeypatch):
    """For q of the other sign its weight is 0, even if a vector or a pair is partly empty."""
    qkv = exact(draw([2, count, 3, 2, 8], dtype))
    qkv[:, :, 0, :, 3] = sign * (1 + np.abs(qkv[:, :, 0, :, 3]))
    qkv[1, 2, 1, 1, 3] = np.inf
    for _ in each_isa(monkeypatch):
        check_not_finite(tf.cast(tf.constant(qkv.reshape(2, count, 48)), dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_and_inf_in_the_gradient_of_masked_rows(value, dtype, monkeypatch):
    """They have no effect, because the output of these rows is constant."""
    bias = np.zeros([19, 19])
    bias[[2, 5, 18]] = -np.inf
    cotangent = exact(draw([2, 19, 16], dtype, seed=1))
    cotangent[:, [2, 18]] = value
    cotangent[1, 5, 3] = value
    qkv, bias = draw([2, 19, 48], dtype), tf.cast(tf.constant(bias), dtype)
    given = tf.cast(tf.constant(cotangent), dtype)
    for _ in each_isa(monkeypatch):
        check_not_finite(qkv, bias, given)
        assert np.isfinite(exact(attend("compiled", qkv, 2, given, bias)[1])).all()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_and_inf_in_the_bias(value, monkeypatch):
    bias = np.zeros([2, 19, 19], np.float32)
    bias[1, 4, 7] = value
    for _ in each_isa(monkeypatch):
        check_not_finite(draw([2, 19, 48]), tf.constant(bias))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_bias", [False, True])
def test_taps(dtype, with_bias, monkeypatch):
    for _ in each_isa(monkeypatch):
        for count, grid in ((1, (1, 1)), (13, (3, 4)), (18, (4, 4)), (50, (7, 7)), (70, (2, 34))):
            qkv = draw([2, count, 3 * 24], dtype)
            bias = draw([3, count, count], dtype) if with_bias else None
            out, weights, _ = oracle.attention(exact(qkv), 3, exact(bias) if with_bias else None)
            expected = {
                "class_row": weights[:, :, 0],
                "distance": oracle.distance(weights, grid),
                "entropy": oracle.entropy(weights) if count > 1 else np.zeros([2, 3]),
            }
            arguments = {"bias": bias, "taps": TAPS, "grid": grid}
            actual, found = custom_ops.attention_with_taps(
                qkv, 3, **arguments, implementation="compiled"
            )
            plain = custom_ops.attention(qkv, 3, bias=bias, implementation="reference")
            assert_as_good(actual, plain, out, dtype)
            assert list(found) == list(TAPS)
            for name, tap in found.items():
                assert tap.dtype == ("float64" if dtype == "float64" else "float32")
                assert_close(tap, expected[name], dtype, "taps")


@pytest.mark.parametrize("dtype", DTYPES)
def test_scale(dtype, monkeypatch):
    """Output, gradients and taps, with and without a bias, for even and odd head sizes."""
    for _ in each_isa(monkeypatch):
        for size, scale in ((16, 0.1), (20, 1.0), (5, 0.37)):
            qkv = draw([2, 18, 3 * 3 * size], dtype)
            check_attention(qkv, 3, scale=scale)
            check_attention(qkv, 3, draw([3, 18, 18], dtype), scale=scale)
            _, taps = custom_ops.attention_with_taps(
                qkv, 3, TAPS, grid=(4, 4), scale=scale, implementation="compiled"
            )
            _, weights, _ = oracle.attention(exact(qkv), 3, None, scale)
            assert_close(taps["class_row"], weights[:, :, 0], dtype, "taps")
            assert_close(taps["entropy"], oracle.entropy(weights), dtype, "taps")
        check_attention(draw([2, 5, 7, 3 * 24], dtype), 3, axis=1, scale=0.5)


@pytest.mark.parametrize("names", [("entropy",), ("distance", "class_row"), ("class_row",)])
def test_only_the_taps_asked_for(names):
    qkv = draw([2, 13, 36])
    _, every = custom_ops.attention_with_taps(qkv, 3, TAPS, grid=(3, 4), implementation="compiled")
    _, some = custom_ops.attention_with_taps(qkv, 3, names, grid=(3, 4), implementation="compiled")
    assert list(some) == list(names)
    for name in names:
        np.testing.assert_array_equal(some[name], every[name])


def test_masked_rows_have_zero_taps():
    bias = np.zeros([2, 6, 6], np.float32)
    bias[0] = bias[1, 0] = -np.inf
    arguments = {"taps": TAPS, "grid": (2, 3), "implementation": "compiled"}
    _, taps = custom_ops.attention_with_taps(
        draw([1, 6, 24]), 2, bias=tf.constant(bias), **arguments
    )
    assert not np.any(taps["class_row"])
    assert taps["distance"][0, 0] == taps["entropy"][0, 0] == 0 < taps["entropy"][0, 1]


def test_no_tokens_or_images_have_taps_of_zero():
    arguments = {"taps": ("class_row", "entropy"), "implementation": "compiled"}
    _, taps = custom_ops.attention_with_taps(tf.zeros([2, 0, 36]), 3, **arguments)
    assert taps["class_row"].shape == [2, 3, 0]
    np.testing.assert_array_equal(taps["entropy"], np.zeros([2, 3]))
    _, taps = custom_ops.attention_with_taps(tf.zeros([0, 5, 36]), 3, **arguments)
    assert taps["class_row"].shape == [0, 3, 5] and taps["entropy"].shape == [0, 3]


def test_the_same_bits_every_time():
    qkv, bias = draw([3, 77, 3 * 40], "bfloat16"), draw([77, 77])
    cotangent = draw([3, 77, 40], "bfloat16", seed=1)
    first = attend("compiled", qkv, 2, cotangent, bias)
    for _ in range(3):
        for one, other in zip(first, attend("compiled", qkv, 2, cotangent, bias), strict=True):
            np.testing.assert_array_equal(exact(one), exact(other))


def test_gradients_of_numbers():
    """Checks gradients against finite differences, without an oracle."""
    qkv, bias = draw([1, 4, 12], "float64"), draw([2, 4, 4], "float64")

    def call(qkv, bias):
        return custom_ops.attention(qkv, 2, bias=bias, implementation="compiled")

    theory, numbers = tf.test.compute_gradient(call, [qkv, bias], delta=1e-4)
    for one, other in zip(theory, numbers, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-7)
