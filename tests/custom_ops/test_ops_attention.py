"""`custom_ops.attention` and the functions that it uses, against the float64 oracle."""

import numpy as np
import pytest
import tensorflow as tf

import custom_ops
from custom_ops import reference
from tests.custom_ops import oracle
from tests.custom_ops.compare import call_attention
from tests.tolerances import EPSILON, assert_close

DTYPES = tuple(EPSILON)

pytestmark = pytest.mark.usefixtures("each_implementation")


def draw(shape, dtype="float64", seed=0):
    """Random normal values that `dtype` represents exactly, as a tensor of `dtype`."""
    values = np.random.default_rng([seed, *shape]).normal(size=shape)
    return tf.cast(tf.constant(values), dtype)


def exact(tensor):
    return tensor.numpy().astype(np.float64)


def run(qkv, cotangent, num_heads, bias=None, **arguments):
    """Returns the output and the gradients of qkv and, with a bias, of the bias."""
    sources = [qkv] if bias is None else [qkv, bias]
    with tf.GradientTape() as tape:
        tape.watch(sources)
        out = call_attention(qkv, num_heads, bias=bias, **arguments)
    return out, *tape.gradient(out, sources, cotangent)


def check(qkv, num_heads, bias=None, axis=None, scale=None):
    """Compares output and gradients with the oracle."""
    dtype = qkv.dtype.name
    cotangent = draw([*qkv.shape[:-1], qkv.shape[-1] // 3], dtype, seed=1)
    out, d_qkv, *d_bias = run(qkv, cotangent, num_heads, bias, axis=axis, scale=scale)
    exact_bias = None if bias is None else exact(bias)
    if axis is None:
        expected, _, backward = oracle.attention(exact(qkv), num_heads, exact_bias, scale)
    else:
        expected, backward = oracle.axial_attention(exact(qkv), num_heads, axis, exact_bias, scale)
    expected_d_qkv, expected_d_bias = backward(exact(cotangent))
    assert out.dtype == d_qkv.dtype == qkv.dtype
    assert_close(out, expected, dtype, "attention")
    assert_close(d_qkv, expected_d_qkv, dtype, "attention gradient")
    if bias is not None:
        assert d_bias[0].dtype == bias.dtype
        # A bias that is the same for all keys has no effect: its gradient cancels to zero.
        magnitude = np.abs(expected_d_qkv).max()
        coarse = max(dtype, bias.dtype.name, key=EPSILON.get)
        assert_close(d_bias[0], expected_d_bias, coarse, "attention gradient", magnitude)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [0, 1, 3, 17, 50, 97])
def test_output_and_gradients_match_the_equations(count, dtype):
    check(draw([2, count, 3 * 24], dtype), num_heads=3)


@pytest.mark.parametrize(("num_heads", "size"), [(1, 1), (5, 3), (2, 7), (3, 33)])
def test_odd_numbers_of_heads_and_head_sizes(num_heads, size):
    check(draw([2, 9, 3 * num_heads * size], "float32"), num_heads)


@pytest.mark.parametrize("axis", [None, 1, 2])
def test_empty_batch(axis):
    shape = [0, 5, 24] if axis is None else [0, 5, 4, 24]
    check(draw(shape, "float32"), 2, axis=axis)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape",
    [[2, 3, 7, 7], [1, 3, 7, 7], [2, 1, 7, 7], [3, 7, 7], [7, 7], [2, 3, 1, 7], [3, 7, 1], [7], []],
)
def test_bias_broadcasts_and_has_gradients(shape, dtype):
    check(draw([2, 7, 3 * 12], dtype), 3, bias=draw(shape, dtype))


@pytest.mark.parametrize("bias_dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bias_may_have_another_dtype(dtype, bias_dtype):
    # Values that every dtype represents: only the dtype may differ.
    check(draw([2, 7, 36], dtype), 3, tf.cast(draw([3, 7, 7], "bfloat16"), bias_dtype))


def test_bias_keeps_float32_precision_beside_bfloat16():
    # 1000 and 1001 are the same value in bfloat16; in float32 their weights differ by a factor of
    # e.
    bias = tf.constant([1000.0, 1001.0])
    weights = reference.attention_weights(tf.zeros([1, 2, 3], "bfloat16"), 1, bias)
    expected = 1 / (1 + np.exp([1.0, -1.0]))
    np.testing.assert_allclose(exact(weights)[0, 0, 0], expected, atol=EPSILON["bfloat16"])


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("axis", [1, 2])
def test_axis_is_a_loop_over_lines(axis, dtype):
    check(draw([2, 5, 6, 3 * 12], dtype), 3, axis=axis)


@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("form", ["full", "heads", "lines", "keys"])
def test_axis_bias(axis, form):
    count, lines = (5, 6) if axis == 1 else (6, 5)
    shape = {
        "full": [2, lines, 3, count, count],
        "heads": [3, count, count],
        "lines": [lines, 1, 1, count],
        "keys": [count],
    }[form]
    check(draw([2, 5, 6, 3 * 12], "float64"), 3, bias=draw(shape), axis=axis)


@pytest.mark.parametrize("axis", [1, 2])
def test_axis_with_lines_of_one_and_none(axis):
    check(draw([2, 1, 1, 12], "float64"), 2, axis=axis)
    check(draw([2, 0, 3, 12], "float64"), 2, axis=axis)


def masked_bias(dtype="float64"):
    """`[2, 3, 6, 6]`: some rows are all -inf, some partly, and one head has no -inf."""
    bias = exact(draw([2, 3, 6, 6], dtype))
    bias[0, 0, 2] = bias[1, 2, 0] = bias[1, 2, 5] = -np.inf
    bias[:, 1] = -np.inf
    bias[0, 0, 3, 1:] = bias[1, 0, :, 4] = -np.inf
    return tf.cast(tf.constant(bias), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_masked_in_full_or_in_part(dtype):
    bias = masked_bias(dtype)
    qkv = draw([2, 6, 3 * 12], dtype)
    check(qkv, 3, bias)

    out, d_qkv, d_bias = run(qkv, tf.ones([2, 6, 12], dtype), 3, bias)
    heads = exact(out).reshape(2, 6, 3, 4)
    assert not heads[0, 2, 0].any() and not heads[1, 0, 2].any() and not heads[:, :, 1].any()
    assert not exact(d_bias)[np.isneginf(exact(bias))].any()
    # A query whose row is all -inf has no gradient; the key and value of its token do.
    by_part = exact(d_qkv).reshape(2, 6, 3, 3, 4)
    assert not by_part[0, 2, 0, 0].any() and not by_part[:, :, :, 1].any()
    assert by_part[0, 2, 2, 0].any()


@pytest.mark.parametrize("shape", [[6, 6], [6, 1], [1], []])
def test_masked_rows_of_a_broadcast_bias(shape):
    bias = np.zeros(shape)
    bias[(2,) if len(shape) == 2 else ...] = -np.inf
    check(draw([2, 6, 36], "float64"), 3, tf.constant(bias))


@pytest.mark.parametrize("axis", [1, 2])
def test_masked_rows_with_an_axis(axis):
    bias = np.zeros([4, 1, 4, 4])
    bias[1, 0, 2] = bias[3] = -np.inf
    check(draw([2, 4, 4, 24], "float64"), 2, tf.constant(bias), axis=axis)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis", [None, 1, 2])
def test_scale_replaces_the_default(axis, dtype):
    qkv = draw([2, 7, 36] if axis is None else [2, 5, 7, 36], dtype)
    bias = draw([3, 7, 7] if axis != 1 else [3, 5, 5], dtype)
    for scale in (0.1, 2.0):
        check(qkv, 3, bias, axis, scale)
    default = call_attention(qkv, 3, axis, scale=0.5)
    np.testing.assert_array_equal(exact(default), exact(call_attention(qkv, 3, axis)))


def test_taps_follow_the_scale():
    qkv = draw([2, 6, 36])
    _, taps = custom_ops.attention_with_taps(qkv, 3, ("class_row",), scale=0.5)
    _, weights, _ = oracle.attention(exact(qkv), 3, None, 0.5)
    assert_close(taps["class_row"], weights[:, :, 0], "float64", "taps")


def test_a_scale_beyond_the_kernels_is_applied():
    """The reference accepts a scale that attributes and float32 kernels do not."""
    qkv = draw([1, 4, 12])
    out = custom_ops.attention(1e30 * qkv, 1, scale=1e-60, implementation="reference")
    expected, _, _ = oracle.attention(exact(qkv), 1, None, 1.0)
    # q, k and v are 1e30 times as large.
    assert_close(out / 1e30, expected, "float64", "attention")
    np.testing.assert_array_equal(custom_ops.attention(1e30 * qkv, 1, scale=1e-60), out)
    single = tf.cast(qkv, "float32")
    for scale in (1e-40, 3e38):
        np.testing.assert_array_equal(
            custom_ops.attention(single, 1, scale=scale),
            custom_ops.attention(single, 1, scale=scale, implementation="reference"),
        )


def test_large_logits_do_not_overflow():
    qkv = tf.cast(30.0 * draw([2, 9, 3 * 64], "float32"), "float16")
    expected, _, _ = oracle.attention(exact(qkv), 1)
    out = custom_ops.attention(qkv, 1)
    # Almost one-hot rows amplify the rounding of the logits: only check that the scale is applied.
    assert np.isfinite(exact(out)).all()
    assert np.abs(exact(out)).max() <= np.abs(expected).max() * 1.01


def test_the_steps_are_the_whole():
    for axis, shape in ((None, [2, 5, 36]), (1, [2, 5, 4, 36]), (2, [2, 5, 4, 36])):
        qkv = draw(shape, "float32")
        weights = reference.attention_weights(qkv, 3, axis=axis)
        value = reference.split_heads(qkv, 3, axis)[2]
        np.testing.assert_array_equal(
            reference.apply_weights(weights, value, axis),
            call_attention(qkv, 3, axis, implementation="reference"),
        )
        np.testing.assert_array_equal(
            tf.concat(
                [reference.merge_heads(t, axis) for t in reference.split_heads(qkv, 3, axis)], -1
            ),
            qkv,
        )


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights(dtype):
    qkv, bias = draw([2, 6, 36], dtype), masked_bias(dtype)
    weights = reference.attention_weights(qkv, 3, bias)
    _, expected, _ = oracle.attention(exact(qkv), 3, exact(bias))
    assert weights.dtype == qkv.dtype
    assert_close(weights, expected, dtype, "attention")


def test_gradient_of_the_weights_is_finite_where_rows_are_masked():
    qkv, bias = draw([2, 6, 36]), masked_bias()
    with tf.GradientTape() as tape:
        tape.watch([qkv, bias])
        loss = tf.reduce_sum(reference.attention_weights(qkv, 3, bias) ** 2)
    for gradient in tape.gradient(loss, [qkv, bias]):
        assert np.isfinite(gradient).all() and np.any(gradient)


@pytest.mark.parametrize(
    ("signature", "axis"),
    [([None, None, None], None), ([None, None, 36], None), ([None, None, None, 36], 1)],
)
def test_graph_with_unknown_sizes_equals_eager(signature, axis):
    qkv = draw([2, 5, 36] if axis is None else [2, 5, 5, 36], "float32")
    bias = draw([3, 5, 5], "float32")

    @tf.function(
        input_signature=[
            tf.TensorSpec(signature, "float32"),
            tf.TensorSpec([3, None, None], "float32"),
        ]
    )
    def graph(qkv, bias):
        with tf.GradientTape() as tape:
            tape.watch([qkv, bias])
            out = call_attention(qkv, 3, axis, bias=bias)
        return out, *tape.gradient(out, [qkv, bias])

    for actual, expected in zip(graph(qkv, bias), run(qkv, None, 3, bias, axis=axis), strict=True):
        assert_close(actual, exact(expected), "float32", "attention gradient")
    empty = graph(qkv[:0], bias)
    assert empty[0].shape == [0, *qkv.shape[1:-1], 12]


def test_inside_tf_data_equals_eager():
    qkv = draw([3, 5, 36], "float32")
    data = tf.data.Dataset.from_tensor_slices(qkv).batch(3)
    data = data.map(lambda x: custom_ops.attention_with_taps(x, 3, ("entropy",)))
    (out, taps) = next(iter(data))
    expected, expected_taps = custom_ops.attention_with_taps(qkv, 3, ("entropy",))
    assert_close(out, exact(expected), "float32", "attention")
    assert_close(taps["entropy"], exact(expected_taps["entropy"]), "float32", "taps")


def test_compiles_under_xla(monkeypatch):
    monkeypatch.delenv("VIT_OPS")  # VIT_OPS=compiled would fail: no kernels for XLA.
    qkv, bias = draw([2, 6, 36], "float32"), masked_bias("float32")
    cotangent = draw([2, 6, 12], "float32", seed=1)
    compiled = tf.function(run, jit_compile=True)(qkv, cotangent, 3, bias)
    for actual, expected in zip(compiled, run(qkv, cotangent, 3, bias), strict=True):
        assert_close(actual, exact(expected), "float32", "attention gradient")


def test_static_shapes_are_known():
    @tf.function
    def trace(qkv, grid):
        assert custom_ops.attention(qkv, 3).shape.as_list() == [None, 197, 12]
        assert custom_ops.axial_attention(grid, 3, 1).shape.as_list() == [None, 14, 14, 12]
        assert reference.attention_weights(qkv, 3).shape.as_list() == [None, 3, 197, 197]
        return True

    trace.get_concrete_function(tf.TensorSpec([None, 197, 36]), tf.TensorSpec([None, 14, 14, 36]))


def test_numpy_input():
    qkv = np.random.default_rng(0).normal(size=[2, 5, 36])
    out = custom_ops.attention(qkv, 3)
    assert out.dtype == tf.float64
    assert_close(out, oracle.attention(qkv, 3)[0], "float64", "attention")


@pytest.mark.parametrize(
    ("shape", "arguments", "message"),
    [
        ([2, 5, 36, 1], {}, r"shape \(2, 5, 36, 1\).*\[B, N, 3 D\]"),
        ([2, 5, 36], {"axis": 1}, r"shape \(2, 5, 36\).*\[B, R, C, 3 D\]"),
        ([2, 5, 4, 36], {"axis": 3}, "axis=3.*1 .*2 "),
        ([2, 5, 4, 36], {"axis": 0}, "axis=0"),
        ([2, 5, 35], {}, "35.*3 \\* num_heads = 9"),
        ([2, 5, 0], {}, "0, which is not a positive"),
        ([2, 5, 36], {"num_heads": 5}, "36.*num_heads=5"),
        ([2, 5, 36], {"num_heads": 0}, "num_heads.*Received: 0"),
        ([2, 5, 36], {"num_heads": 1.5}, "num_heads.*Received: 1.5"),
        ([2, 5, 36], {"bias": np.zeros([5, 4])}, r"\(5, 4\).*\[B, H, N, N\] = \[2, 3, 5, 5\]"),
        ([1, 5, 36], {"bias": np.zeros([2, 3, 5, 5])}, r"\(2, 3, 5, 5\).*\[1, 3, 5, 5\]"),
        ([2, 5, 36], {"bias": np.zeros([1, 1, 1, 5, 5])}, "does not broadcast"),
        ([2, 5, 4, 36], {"axis": 1, "bias": np.zeros([3, 4, 4])}, r"= \[2, 4, 3, 5, 5\]"),
        ([2, 5, 36], {"bias": np.zeros([5, 5], "bool")}, "bias has dtype bool.*-inf"),
        ([2, 5, 36], {"taps": ("rows", "entropy")}, r"'rows'.*class_row"),
        ([2, 5, 36], {"taps": "entropy"}, "taps='entropy' must be a tuple"),
        ([2, 5, 36], {"scale": 0.0}, "scale=0.0 must be a finite number above 0"),
        ([2, 5, 36], {"scale": -1}, "scale=-1 must be"),
        ([2, 5, 36], {"scale": float("nan")}, "scale=nan must be"),
        ([2, 5, 4, 36], {"axis": 2, "scale": float("inf")}, "scale=inf must be"),
        ([2, 5, 36], {"taps": (), "scale": "1"}, "scale='1' must be"),
        ([2, 5, 36], {"taps": ("distance",)}, "needs grid"),
        ([2, 5, 36], {"taps": ("distance",), "grid": (2, 3)}, "6 patches.*5 tokens"),
        ([2, 5, 36], {"taps": ("distance",), "grid": 2}, "grid=2 must be the pair"),
        ([2, 5, 36], {"taps": ("distance",), "grid": (0, 2)}, "positive integer. Received: 0"),
        ([2, 5, 36], {"implementation": "fast"}, "implementation='fast' is unknown"),
    ],
)
def test_illegal_arguments_are_named(shape, arguments, message):
    arguments = {"num_heads": 3} | arguments
    with pytest.raises(ValueError, match=message):
        call_attention(tf.zeros(shape), **arguments)


def test_illegal_dtype_is_named():
    with pytest.raises(ValueError, match="qkv has dtype int32. Cast it"):
        custom_ops.attention(tf.zeros([2, 5, 36], "int32"), 3)
