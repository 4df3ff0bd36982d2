"""The relative difference: its divisor, empty arrays and NaN."""

import math

import numpy as np

from vit_tf.analysis.relative_difference import relative_difference


def test_the_divisor_is_the_largest_expected_value():
    assert relative_difference(np.array([1.0, -3.0]), np.array([2.0, -4.0])) == 0.25


def test_empty_arrays_do_not_differ():
    assert relative_difference(np.zeros((0, 3)), np.zeros((0, 3))) == 0.0


def test_nan_on_either_side_is_nan():
    numbers, with_nan = np.array([1.0, 2.0]), np.array([1.0, np.nan])
    assert math.isnan(relative_difference(with_nan, numbers))
    assert math.isnan(relative_difference(numbers, with_nan))


def test_a_small_scale_is_replaced():
    ones = np.ones(2)
    assert relative_difference(ones, np.zeros(2), min_scale=4.0) == 0.25
    assert relative_difference(np.zeros(2), np.zeros(2)) == 0.0
    assert relative_difference(ones, 2 * ones, min_scale=0.5) == 0.5
