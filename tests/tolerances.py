"""Tolerances of results against their oracle, in one table, so that no test tunes its own.

A bound is a multiple of the dtype's epsilon times the largest magnitude of the expected tensor.
Oracles are in float64 and read the inputs as rounded to the tested dtype, so the bound covers the
rounding of the computation alone.
"""

import numpy as np

EPSILON = {
    "float64": 2.0**-52,
    "float32": 2.0**-23,
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
}

# Multiples of epsilon for (float64 and float32, float16 and bfloat16): about twice the largest
# error over 25 seeds of every size that the tests use. float32 and float64 accumulate their own
# rounding errors; 16-bit types accumulate in float32 and round only a few times.
MULTIPLE = {
    "attention": (10, 4),
    "attention gradient": (14, 4),
    "taps": (36, 4),
    "patch_embed": (8, 4),
    "patch_embed gradient": (8, 4),
    "model": (22, 15),
}


def assert_close(actual, expected, dtype, kind, magnitude=0.0):
    """Asserts that `actual` has the shape of `expected` and is within the bound of the table.

    Args:
        actual: tensor.
        expected: float64 array.
        dtype: name of the dtype that the computation ran in, a key of `EPSILON`.
        kind: what was computed, a key of `MULTIPLE`.
        magnitude: magnitude of the terms of a sum, for gradients in which they cancel.
    """
    actual = actual.numpy().astype(np.float64)
    expected = np.asarray(expected)
    assert actual.shape == expected.shape
    if not expected.size:
        return
    assert np.isfinite(actual).all(), f"{kind} in {dtype}: not finite"
    error = np.abs(actual - expected).max()
    multiple = MULTIPLE[kind][dtype in ("float16", "bfloat16")]
    bound = multiple * EPSILON[dtype] * max(np.abs(expected).max(), magnitude)
    assert error <= bound, f"{kind} in {dtype}: error {error:.3g} exceeds {bound:.3g}"


# Planned memory of a training step, as a part of the measured one.
PLANNED_MEMORY = 0.25


# Golden values are float32 results of other code. Some gradients are zero in exact arithmetic, so
# the tolerance also depends on the largest gradient of the model.
GOLDEN_RELATIVE = 1e-5
GOLDEN_OF_LARGEST_GRADIENT = 1e-6


def golden_excess(actual, expected, largest_gradient=0.0):
    """The largest error in units of the tolerance for golden values: above 1 it is too large."""
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    assert actual.shape == expected.shape
    bound = GOLDEN_RELATIVE * np.abs(expected).max() + GOLDEN_OF_LARGEST_GRADIENT * largest_gradient
    return np.abs(actual - expected).max() / bound


def assert_golden(actual, expected, largest_gradient=0.0, name="value"):
    """Asserts that `actual` has the shape of `expected` and is within the tolerance."""
    excess = golden_excess(actual, expected, largest_gradient)
    assert excess <= 1, f"{name}: error is {excess:.3g} times the tolerance for golden values"


# Multiples of epsilon by which an error may exceed twice the error of plain TensorFlow, for the
# dtypes as in `MULTIPLE`: plain TensorFlow's error can be small by chance, because of its order of
# summation.
ROUNDINGS = (6, 1)


def as_good_bound(plain_error, expected, dtype, magnitude=0.0):
    """Twice the error of a plain computation, plus `ROUNDINGS` of the largest magnitude.

    Args:
        plain_error: largest error of the plain computation.
        expected: float64 array.
        dtype: name of the dtype that it ran in, a key of `EPSILON`.
        magnitude: magnitude of the terms of a sum, for gradients in which they cancel.
    """
    roundings = ROUNDINGS[dtype in ("float16", "bfloat16")] * EPSILON[dtype]
    return 2 * plain_error + roundings * max(np.abs(expected).max(), magnitude)


def assert_as_good(actual, plain, expected, dtype, magnitude=0.0):
    """Asserts that an error is at most twice plain TensorFlow's error, plus `ROUNDINGS`.

    Args:
        actual: tensor, from the compiled library.
        plain: tensor, the result of plain TensorFlow in the same dtype.
        expected: float64 array.
        dtype: name of the dtype that both ran in, a key of `EPSILON`.
        magnitude: magnitude of the terms of a sum, for gradients in which they cancel.
    """
    actual, plain = (tensor.numpy().astype(np.float64) for tensor in (actual, plain))
    assert actual.shape == plain.shape == expected.shape
    if not expected.size:
        return
    assert np.isfinite(actual).all(), f"{dtype}: not finite"
    error, allowed = (np.abs(array - expected).max() for array in (actual, plain))
    bound = as_good_bound(allowed, expected, dtype, magnitude)
    assert error <= bound, f"{dtype}: error {error:.3g}, plain TensorFlow's {allowed:.3g}"
