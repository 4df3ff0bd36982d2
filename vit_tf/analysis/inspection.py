"""Filters, positions and attention of a Vision Transformer, as arrays (paper, section 4.5).

All functions compute on NumPy arrays that were taken from a model; none of them runs a model.

Shapes: `P` patch side in pixels, `C` channels, `D` width, `T` prefix tokens, `N = rows * columns`
patches in row-major order.
"""

import numpy as np


def filter_components(kernel, count=28):
    """Principal components of the patch embedding filters (figure 7, left; docs/paper.md J.1).

    Each of the `D` columns of the embedding is one filter; the mean filter is subtracted. The sign
    of a component is arbitrary.

    Args:
        kernel: float `[P, P, C, D]`.
        count: largest number of components to return; the paper shows 28.

    Returns:
        `(components, singular_values)`: float64 `[n, P, P, C]`, orthonormal when flattened, and
        `[n]` in descending order, where `n = min(count, D, P * P * C)`.

    Raises:
        ValueError: if `kernel` is not of rank 4 or `count` is below 1.
    """
    kernel = np.asarray(kernel, np.float64)
    if kernel.ndim != 4:
        raise ValueError(f"Expected a kernel [P, P, C, D]. Received: shape {kernel.shape}.")
    if count < 1:
        raise ValueError(f"count must be at least 1. Received: {count}.")
    filters = kernel.reshape(-1, kernel.shape[-1]).T
    filters = filters - filters.mean(axis=0)
    _, values, directions = np.linalg.svd(filters, full_matrices=False)
    return directions[:count].reshape(-1, *kernel.shape[:-1]), values[:count]


def position_similarity(table, grid, num_prefix_tokens=1):
    """Cosine similarity of every position embedding with every other (docs/paper.md J.2).

    Figure 7, center.

    Args:
        table: float `[T + N, D]`.
        grid: `(rows, columns)` of the patches.
        num_prefix_tokens: `T` leading rows that are not patches; they are left out.

    Returns:
        float64 `[rows, columns, rows, columns]` in [-1, 1]: entry `[i, j]` is the map of position
        `(i, j)`. A zero embedding has similarity 0 with every embedding, also with itself.

    Raises:
        ValueError: if the table does not have `T + N` rows.
    """
    table = np.asarray(table, np.float64)
    patches = _drop_prefix(table, grid, num_prefix_tokens, axis=0)
    norms = np.linalg.norm(patches, axis=1, keepdims=True)
    directions = np.divide(patches, norms, out=np.zeros_like(patches), where=norms > 0)
    similarity = np.clip(directions @ directions.T, -1.0, 1.0)
    return similarity.reshape(*grid, *grid)


def attention_map(class_row, grid, num_prefix_tokens=1):
    """Places the class token's attention on the patch grid.

    The class token's attention to itself is left out. The other weights are not normalized again,
    so that a map sums to at most 1.

    Args:
        class_row: float `[..., T + N]`, the tap "class_row" of
            `custom_ops.attention_with_taps`.
        grid: `(rows, columns)` of the patches.
        num_prefix_tokens: `T` leading tokens that are not patches.

    Returns:
        Array `[..., rows, columns]` of the same dtype.

    Raises:
        ValueError: if a row does not have `T + N` weights.
    """
    class_row = np.asarray(class_row)
    patches = _drop_prefix(class_row, grid, num_prefix_tokens, axis=-1)
    return patches.reshape(*class_row.shape[:-1], *grid)


def to_unit_range(values, axis=None):
    """Scales values to [0, 1] by their smallest and largest.

    Args:
        values: float array.
        axis: axes over which the extremes are taken, as in `np.min`; None scales all together.

    Returns:
        float64 array of the same shape; where all values are equal it is 0.
    """
    values = np.asarray(values, np.float64)
    low, high = (f(values, axis=axis, keepdims=True) for f in (np.min, np.max))
    return np.divide(values - low, high - low, out=np.zeros_like(values), where=high > low)


def _drop_prefix(tokens, grid, num_prefix_tokens, axis):
    """`tokens` without the prefix; checks that the rest fills the grid."""
    rows, columns = grid
    expected = num_prefix_tokens + rows * columns
    if tokens.shape[axis] != expected:
        raise ValueError(
            f"A {rows} x {columns} grid and {num_prefix_tokens} prefix tokens make {expected} "
            f"tokens. Received: {tokens.shape[axis]}, in shape {tokens.shape}."
        )
    return np.take(tokens, range(num_prefix_tokens, expected), axis=axis)
