"""Checks of single arrays: what no trained model has. They find damage, not subtle mistakes.

The ranges are wide, and derived from how training begins, not from measured files.

- A kernel begins with a standard deviation of about `1 / sqrt(fan_in)`, which keeps the size of its
  input. 100 times less or more would switch a layer off, or drown all others. A head begins with
  zeros, so it has no lower bound. Kernels that the model standardizes may have any scale.
- Scales of norms begin with 1, the last of a residual unit with 0: the largest is 0.001 to 100.
- Biases begin with 0 (of some heads with -10), tokens near 0: none is above 100. Biases alone may
  stay constant: the gradient of the keys' bias is 0.
- Position embeddings begin with a standard deviation of 0.02: their root mean square is 0.001 to
  10. Neighbors become similar in training (the paper's figure 7): the mean cosine of neighboring
  patches is at least 0.1 above that of all pairs. Random vectors of D numbers have 0 +- 1/sqrt(D).
- Two different arrays are not equal.
"""

import hashlib
import math
import re

import numpy as np

from vit_tf.checkpoints.published.vit_positions import POSITIONS

_MOST_GAIN = 100.0
_SCALES = 1e-3, 100.0
_MOST_BIAS = 100.0
_POSITIONS = 1e-3, 10.0
_LEAST_SIMILARITY = 0.1
_STANDARDIZED = re.compile(r"(standardized_conv2d|conv_root|conv\d|conv_proj)/kernel$")
_OF_HEADS = re.compile(r"/(query|key|value)/kernel$")
_BIAS = re.compile(r"/(bias|beta)$")
_SCALE = re.compile(r"/(scale|gamma)$")
_HEAD = re.compile(r"(^|/)head/")


class ArrayChecks:
    """Collects what is wrong with the arrays of a file.

    Args:
        grid: (rows, columns) of the patches; None without position embeddings.

    Attributes:
        problems: one sentence for each array that is not plausible.
    """

    def __init__(self, grid):
        self.problems = []
        self._grid = grid
        self._seen = {}

    def add(self, key, array):
        """Checks an array under its published key."""
        problem = _problem(key, array)
        if problem is None and key == POSITIONS and self._grid:
            problem = _position_problem(array, self._grid)
        if problem is None:
            problem = self._equal(key, array)
        if problem:
            self.problems.append(f"{key}: {problem}")

    def _equal(self, key, array):
        if array.min() == array.max():
            return None
        digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).digest()
        first = self._seen.setdefault((array.shape, digest), key)
        return None if first == key else f"equal to {first}"


def _problem(key, array):
    """What is wrong with an array, or None."""
    if not np.isfinite(array).all():
        return "NaN or infinite values"
    largest, size = float(np.abs(array).max()), float(np.sqrt(np.square(array, dtype=float).mean()))
    if _BIAS.search(key):
        return _outside("largest value", largest, 0.0, _MOST_BIAS)
    if array.size > 1 and array.min() == array.max():
        return f"all values are {array.flat[0]:g}"
    if _SCALE.search(key):
        return _outside("largest value", largest, *_SCALES)
    if key == POSITIONS:
        return _outside("root mean square", size, *_POSITIONS)
    if not key.endswith("/kernel"):
        return _outside("largest value", largest, 0.0, _MOST_BIAS)
    if _STANDARDIZED.search(key):
        return None
    fan_in = array.shape[0] if _OF_HEADS.search(key) else math.prod(array.shape[:-1])
    least = 0.0 if _HEAD.search(key) else 1 / _MOST_GAIN
    gain = float(array.std(dtype=float)) * math.sqrt(fan_in)
    return _outside("standard deviation times sqrt(fan_in)", gain, least, _MOST_GAIN)


def _position_problem(array, grid):
    rows, columns = grid
    table = array[0, -rows * columns :].astype(float)
    table = table - table.mean(axis=0)
    table /= np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-12)
    cosines = table @ table.T
    index = np.arange(rows * columns).reshape(grid)
    beside = [cosines[index[:, :-1], index[:, 1:]].ravel(), cosines[index[:-1], index[1:]].ravel()]
    neighbors = np.concatenate(beside)
    if not neighbors.size:
        return None
    gained = neighbors.mean() - cosines.mean()
    return _outside("cosine of neighbors above that of all pairs", gained, _LEAST_SIMILARITY, 2.0)


def _outside(what, value, least, most):
    if least <= value <= most:
        return None
    return f"{what} is {value:.3g}, expected {least:g} to {most:g}"
