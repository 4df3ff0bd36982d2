"""Checks and conversions of arguments that several ops share. Imports no TensorFlow."""

import ctypes
import operator


def positive_int(value, name):
    """Returns `value` as an int; raises a `ValueError` with `name` if it is not an int above 0."""
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if number < 1:
        raise ValueError(f"{name} must be a positive integer. Received: {value!r}.")
    return number


def exact_floats(number):
    """Returns at most three float32 values whose sum is exactly the number.

    Op attributes hold float32, not float64. Returns None if there are no such values: the number is
    not finite, or beyond the range of float32.
    """
    parts, rest = [], float(number)
    while rest or not parts:
        parts.append(ctypes.c_float(rest).value)
        rest -= parts[-1]
        if len(parts) == 3 and rest:  # Three have more digits than a double.
            return None
    return parts
