"""The tolerance rule, on NumPy arrays."""

import numpy as np

from tests.tolerances import as_good_bound


def compare(name, actual, plain, expected, dtype, magnitude=0.0):
    """Applies the rule: an error at most twice plain PyTorch's error, plus roundings.

    Args:
        name: of the result, for the message.
        actual, plain, expected: float64 arrays: the kernel's, plain PyTorch's, the oracle's. Where
            plain PyTorch overflows, its error counts as 0.
        dtype: name of the dtype that both ran in.
        magnitude: magnitude of the terms of a sum, where they cancel.

    Returns:
        List of one line about the problem, or an empty list.
    """
    if actual.shape != expected.shape:
        return [f"{name}: shape {actual.shape}, expected {expected.shape}"]
    if not expected.size:
        return []
    if not np.isfinite(actual).all():
        count = np.count_nonzero(~np.isfinite(actual))
        return [f"{name}: {count} of {actual.size} elements are not finite"]
    error, allowed = (np.abs(array - expected).max() for array in (actual, plain))
    bound = as_good_bound(allowed if np.isfinite(allowed) else 0.0, expected, dtype, magnitude)
    if error <= bound:
        return []
    return [f"{name}: error {error:.3g} exceeds {bound:.3g}; plain PyTorch's is {allowed:.3g}"]
