"""The ops of a training step: both implementations against float64, in every kind of function."""

import math

import numpy as np
import pytest
import tensorflow as tf

import custom_ops
from tests.custom_ops.compare import compiled_ops, draw, each_isa, exact
from tests.tolerances import EPSILON

DTYPES = ("float32", "bfloat16", "float16")
SHAPES = ([1, 1], [2, 3, 5], [40, 33], [2, 150, 48])

_erf = np.vectorize(math.erf)


def gelu(x, activation):
    """GELU and its derivative in float64."""
    if activation == "gelu_erf":
        share = 0.5 * (1 + _erf(x / math.sqrt(2)))
        return x * share, share + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    tanh = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    inner = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x)
    return 0.5 * x * (1 + tanh), 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh**2) * inner


def close(actual, expected, dtype, times=8.0):
    """Within rounding to the dtype of numbers, and of sums, of the size of the largest one."""
    scale = np.abs(expected).max(initial=1)
    tolerance = times * EPSILON[dtype] * scale
    np.testing.assert_allclose(exact(actual), expected, rtol=0, atol=tolerance)


def activated(x, bias, activation, upstream, **options):
    with tf.GradientTape() as tape:
        tape.watch([x, bias])
        out = custom_ops.bias_gelu(x, bias, activation, **options)
    return [out, *tape.gradient(out, [x, bias], upstream)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ["gelu_tanh", "gelu_erf"])
def test_bias_and_gelu_equal_their_equations(activation, dtype, auto):
    for shape in SHAPES:
        x, upstream, bias = 2 * draw(shape, dtype), draw(shape, dtype, 1), draw(shape[-1:], dtype)
        out, slope = gelu(exact(x) + exact(bias), activation)
        d_x = slope * exact(upstream)
        d_bias = d_x.reshape(-1, shape[-1]).sum(axis=0)

        def check(results, times, oracle=(out, d_x, d_bias)):
            for actual, expected in zip(results, oracle, strict=True):
                assert actual.dtype == dtype
                close(actual, expected, dtype, times)

        # The reference rounds every tensor of its formula, and adds in the dtype.
        for keep_slope in (False, True):
            plain = {"keep_slope": keep_slope, "implementation": "reference"}
            check(activated(x, bias, activation, upstream, **plain), 48)
        for _ in each_isa():
            check(activated(x, bias, activation, upstream, implementation="compiled"), 8)


def normalized(x, scale, bias, branch, pulls, implementation):
    sources = [x, scale, bias, *([] if branch is None else [branch])]
    with tf.GradientTape() as tape:
        tape.watch(sources)
        out = custom_ops.layer_norm(
            x, scale, bias, epsilon=1e-3, branch=branch, implementation=implementation
        )
        results = [out] if branch is None else [*out]
    return [*results, *tape.gradient(results, sources, pulls[: len(results)][::-1])]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_branch", [False, True])
def test_layer_norm_equals_its_equations(has_branch, dtype, auto):
    for shape in SHAPES[1:]:
        x, d_normalized, d_sum = (draw(shape, dtype, seed) for seed in range(3))
        branch = draw(shape, dtype, 3) if has_branch else None
        scale, bias = (draw(shape[-1:], "float32", seed) for seed in (4, 5))
        total = x if branch is None else x + branch
        number, pull = exact(total), exact(d_normalized)
        centered = number - number.mean(axis=-1, keepdims=True)
        factor = 1 / np.sqrt((centered**2).mean(axis=-1, keepdims=True) + 1e-3)
        unit, g = centered * factor, pull * exact(scale)
        d_x = factor * (
            g - g.mean(axis=-1, keepdims=True) - unit * (g * unit).mean(axis=-1, keepdims=True)
        )
        if has_branch:
            d_x = d_x + exact(d_sum)
        rows = tuple(range(len(shape) - 1))
        expected = [unit * exact(scale) + exact(bias)]
        expected = ([number] if has_branch else []) + expected
        expected += [d_x, (pull * unit).sum(axis=rows), pull.sum(axis=rows)]
        expected += [d_x] if has_branch else []
        for implementation in ("reference", "compiled"):
            for _ in each_isa() if implementation == "compiled" else [None]:
                arguments = (x, scale, bias, branch, [d_normalized, d_sum], implementation)
                for actual, array in zip(normalized(*arguments), expected, strict=True):
                    close(actual, array, actual.dtype.name, 32)


def update(name, momentum_dtype, implementation, shape=(7, 9)):
    """Two updates; all arrays as float64, and those of a float64 loop."""
    weight, gradient = draw(shape), draw(shape, seed=1)
    slots = [tf.cast(draw(shape, momentum_dtype, 2), momentum_dtype)]
    slots += [tf.abs(draw(shape, seed=3))] if name == "adamw_update" else []
    numbers = {"momentum_decay": 0.9}
    if name == "adamw_update":
        numbers = {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 0.5}
    scalars = [0.3, 0.01, 0.19, 0.002][: 2 * len(slots)]
    new = getattr(custom_ops, name)(
        weight,
        gradient,
        *slots,
        tf.constant(scalars),
        **numbers,
        weight_decay=0.1,
        implementation=implementation,
    )
    w, g, m, *v = (exact(array) for array in (weight, gradient, *slots))
    g = g * np.float32(0.3)
    if name == "sgd_update":
        direction = m = 0.9 * m + g
        expected = [m]
    else:
        m, second = 0.9 * m + (1 - 0.9) * g, 0.999 * v[0] + (1 - 0.999) * g * g
        direction = m / np.float32(0.19) / (np.sqrt(second / np.float32(0.002)) + 0.5)
        expected = [m, second]
    return new, [w - np.float32(0.01) * (direction + 0.1 * w), *expected]


@pytest.mark.parametrize("momentum_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["sgd_update", "adamw_update"])
def test_updates_equal_their_equations(name, momentum_dtype, auto):
    for implementation in ("reference", "compiled"):
        for _ in each_isa() if implementation == "compiled" else [None]:
            found, expected = update(name, momentum_dtype, implementation)
            for actual, array in zip(found, expected, strict=True):
                close(actual, array, actual.dtype.name, 2)


# In functions, and where there are no kernels -----------------------------------------------------


def step(x, scale, bias):
    """All four ops, with gradients."""
    with tf.GradientTape() as tape:
        tape.watch([x, scale, bias])
        total, out = custom_ops.layer_norm(x, scale, bias, epsilon=1e-6, branch=2 * x)
        loss = tf.reduce_sum(custom_ops.bias_gelu(out, bias) + total)
    gradients = tape.gradient(loss, [x, scale, bias])
    slots = tf.zeros_like(scale), tf.ones_like(scale)
    adamw = custom_ops.adamw_update(
        scale, gradients[1], *slots, [1.0, 0.1, 0.1, 0.1], beta_1=0.9, beta_2=0.9, epsilon=1e-8
    )
    sgd = custom_ops.sgd_update(bias, gradients[2], slots[0], [1.0, 0.1], momentum_decay=0.9)
    return [loss, *gradients, *adamw, *sgd]


ALL = {
    *("VitBiasGelu", "VitBiasGeluGrad", "VitResidualNorm", "VitResidualNormGrad"),
    *("VitSgdUpdate", "VitAdamwUpdate"),
}


@pytest.mark.parametrize("jit", [False, True])
def test_functions_give_the_eager_results(jit, auto):
    arguments = draw([5, 7]), draw([7]), draw([7], seed=1)
    function = tf.function(step, jit_compile=jit, autograph=False)
    assert compiled_ops(function, *arguments) == ALL
    for one, other in zip(function(*arguments), step(*arguments), strict=True):
        close(one, exact(other), "float32", 4)


def test_shapes_that_are_unknown_at_tracing(auto):
    signature = [tf.TensorSpec(None), tf.TensorSpec([None]), tf.TensorSpec([None])]
    function = tf.function(step, input_signature=signature, autograph=False)
    arguments = draw([2, 3, 7]), draw([7]), draw([7], seed=1)
    for one, other in zip(function(*arguments), step(*arguments), strict=True):
        close(one, exact(other), "float32", 4)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"scale has shape \[6\]"):
        function(arguments[0], draw([6]), draw([7]))


def test_no_elements_give_zeros(each_implementation):
    x = tf.zeros([0, 5])
    out, d_x, d_bias = activated(x, draw([5]), "gelu_tanh", x)
    assert out.shape == d_x.shape == x.shape
    np.testing.assert_array_equal(d_bias, np.zeros(5))
    total, out = custom_ops.layer_norm(x, draw([5]), draw([5]), epsilon=1e-6, branch=x)
    assert total.shape == out.shape == x.shape


def test_slopes_that_are_kept_are_numbers_for_any_float16(auto):
    for activation in ("gelu_tanh", "gelu_erf"):
        x = tf.constant([[700, 1200, 60_000, -700, -60_000]], tf.float16)
        for options in ({"implementation": "compiled"}, {"keep_slope": True}):
            options = {"implementation": "reference"} | options
            _, d_x, _ = activated(x, tf.zeros([5], tf.float16), activation, x * 0 + 1, **options)
            np.testing.assert_array_equal(d_x, [[1, 1, 1, 0, 0]])


def test_what_kernels_do_not_cover_runs_in_the_reference(auto):
    x, table = draw([3, 4], "float64"), draw([4], "float64")
    with custom_ops.implementation("compiled"):
        out = custom_ops.bias_gelu(x, table, "gelu_erf")
        np.testing.assert_allclose(out, gelu(x + table, "gelu_erf")[0], rtol=1e-12)
        assert custom_ops.layer_norm(x, table, table, epsilon=1e-6).dtype == tf.float64
        scalars, options = [1.0, 0.1], {"momentum_decay": 0.9}
        new, _ = custom_ops.sgd_update(
            x, x, x, tf.cast(scalars, tf.float64), **options, weight_decay=0.5
        )
    np.testing.assert_allclose(new, x - np.float32(0.1) * (1.9 * x + 0.5 * x), rtol=1e-6)


def test_there_are_no_second_derivatives(auto):
    x, table = draw([2, 3]), draw([3])
    calls = [
        lambda: custom_ops.bias_gelu(x, table),
        lambda: custom_ops.layer_norm(x, table, table, epsilon=1e-6),
    ]
    for call in calls:
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                out = call()
            gradient = inner.gradient(out, x)
        with pytest.raises(NotImplementedError, match="VIT_OPS=reference"):
            outer.gradient(gradient, x)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x, t: custom_ops.bias_gelu(x, t, "relu"), "'relu' is unknown"),
        (lambda x, t: custom_ops.bias_gelu(tf.cast(x, tf.int32), t), "x has dtype int32"),
        (lambda x, t: custom_ops.bias_gelu(x, t[:2]), r"\(2,\), but it must be \[D\] with D = 3"),
        (lambda x, t: custom_ops.bias_gelu(t[0], t), "x is a scalar"),
        (lambda x, t: custom_ops.layer_norm(x, t, t, epsilon=-1), "epsilon must be at least 0"),
        (
            lambda x, t: custom_ops.layer_norm(x, t, t, epsilon=0, branch=x[:1]),
            "branch has shape",
        ),
        (
            lambda x, t: custom_ops.layer_norm(x, t, t, epsilon=0, branch=tf.cast(x, "bfloat16")),
            "branch has dtype bfloat16, and x float32",
        ),
        (
            lambda x, t: custom_ops.sgd_update(x, t, x, [1.0, 1.0], momentum_decay=0.9),
            "gradient has shape",
        ),
    ],
)
def test_illegal_arguments_are_named(call, words, each_implementation):
    with pytest.raises(ValueError, match=words):
        call(draw([2, 3]), draw([3]))
