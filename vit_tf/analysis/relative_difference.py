"""The difference of two arrays."""

import numpy as np

_SMALLEST_FLOAT32 = np.finfo(np.float32).tiny


def relative_difference(actual, expected, min_scale=_SMALLEST_FLOAT32) -> float:
    """Largest absolute difference divided by the largest absolute expected value.

    Args:
        actual, expected: float arrays of equal shape.
        min_scale: the smallest divisor.

    Returns:
        0 for empty arrays, NaN if a value is NaN.
    """
    scale = max(np.abs(expected).max(initial=0), min_scale)
    return float(np.abs(actual - expected).max(initial=0) / scale)
