"""Filters, positions and attention of a Vision Transformer, as arrays (paper, section 4.5).

All functions compute on NumPy arrays that were taken from a model; none of them runs a model.

Shapes: `P` patch side in pixels, `C` channels, `D` width, `T` prefix tokens, `N = rows * columns`
patches in row-major order.
"""

import math

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
    table, (rows, columns) = np.asarray(table, np.float64), grid
    expected = num_prefix_tokens + rows * columns
    if len(table) != expected:
        raise ValueError(
            f"A {rows} x {columns} grid and {num_prefix_tokens} prefix tokens make {expected} "
            f"rows. Received: {len(table)}, in shape {table.shape}."
        )
    patches = table[num_prefix_tokens:]
    norms = np.linalg.norm(patches, axis=1, keepdims=True)
    directions = np.divide(patches, norms, out=np.zeros_like(patches), where=norms > 0)
    similarity = np.clip(directions @ directions.T, -1.0, 1.0)
    return similarity.reshape(*grid, *grid)


def map_components(maps, count=3):
    """Principal components of the vectors of several maps, each scaled to [0, 1] over all maps.

    The entry of a component's direction with the largest absolute value is positive, so that the
    sign does not depend on the order of the maps.

    Args:
        maps: float `[B, rows, columns, D]`.
        count: number of components, in descending order of variance.

    Returns:
        float64 `[B, rows, columns, count]` in [0, 1]; 0 for a component without variance.

    Raises:
        ValueError: if `count` is below 1 or above the smaller of `D` and the number of vectors.
    """
    maps = np.asarray(maps, np.float64)
    vectors = maps.reshape(-1, maps.shape[-1])
    if not 1 <= count <= min(vectors.shape):
        raise ValueError(
            f"{len(vectors)} vectors of {vectors.shape[1]} values have at most "
            f"{min(vectors.shape)} components. Received: count={count}."
        )
    centered = vectors - vectors.mean(axis=0)
    # Singular vectors on the right side stay the same, and the matrix becomes small.
    directions = np.linalg.svd(np.linalg.qr(centered, mode="r"))[2][:count]
    largest = np.abs(directions).argmax(axis=1)[:, None]
    directions = directions * np.sign(np.take_along_axis(directions, largest, axis=1))
    values = centered @ directions.T
    # Rounding errors would become a picture.
    values[:, np.abs(values).max(axis=0) <= 1e-9 * np.abs(vectors).max()] = 0
    return to_unit_range(values, axis=0).reshape(*maps.shape[:-1], count)


def distances(grid):
    """Euclidean distances between the places of a grid: float64 `[rows, columns, rows, columns]`.

    Args:
        grid: `(rows, columns)`.
    """
    rows, columns = (np.arange(side, dtype=np.float64) for side in grid)
    vertical = (rows[:, None] - rows)[:, None, :, None]
    horizontal = (columns[:, None] - columns)[None, :, None, :]
    return np.sqrt(vertical**2 + horizontal**2)


def uniform_distance(grid, patch_pixels, num_prefix_tokens=0) -> float:
    """The attention distance of a head that attends equally to all tokens, in pixels (J.3).

    Args:
        grid: `(rows, columns)` of the patches.
        patch_pixels: side of a patch in pixels.
        num_prefix_tokens: tokens that get attention and are left out of the distance.
    """
    count = grid[0] * grid[1]
    return float(distances(grid).mean() * patch_pixels * count / (count + num_prefix_tokens))


def effective_rank(singular_values) -> float:
    """How many components share the variance: (sum of the variances)^2 / (sum of their squares).

    It is 1 if one component has all variance, and the number of components if all have the same.

    Args:
        singular_values: float `[n]`; variances are their squares. 0 if all are zero.
    """
    variances = np.square(np.asarray(singular_values, np.float64))
    squares = np.square(variances).sum()
    return float(variances.sum() ** 2 / squares) if squares else 0.0


def rank_correlation(first, second) -> float:
    """Spearman's rank correlation of two maps: 1 if they order the places alike, 0 if by chance.

    Equal values share the mean of their ranks.

    Args:
        first, second: float arrays of the same shape.

    Returns:
        In [-1, 1]; NaN if one of them is constant.
    """
    ranks = [_ranks(np.ravel(values)) for values in (first, second)]
    first, second = (each - each.mean() for each in ranks)
    product = np.linalg.norm(first) * np.linalg.norm(second)
    return float(first @ second / product) if product else math.nan


def _ranks(values):
    """Ranks from 0; equal values share their mean."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts + 1) / 2)[places]


def rollout_mask(rollout, image_size, patch_pixels):
    """A rollout map as the paper's figures show it: a factor for every pixel (docs/paper.md J.4).

    Divided by the maximum, stretched to the image, blurred by a Gaussian of the size of a patch,
    and scaled to [0, 1].

    Args:
        rollout: float `[rows, columns]`.
        image_size: (height, width) of the image in pixels.
        patch_pixels: standard deviation of the Gaussian, in pixels.

    Returns:
        float64 `[height, width]` in [0, 1]; 1 everywhere for a map without differences.
    """
    mask = np.asarray(rollout, np.float64) / max(np.max(rollout), np.finfo(np.float64).tiny)
    for axis, pixels in enumerate(image_size):
        centers = (np.arange(pixels) + 0.5) * mask.shape[axis] / pixels - 0.5
        places = np.arange(mask.shape[axis])
        stretch = np.maximum(0, 1 - np.abs(np.clip(centers, 0, places[-1])[:, None] - places))
        distance = np.arange(pixels)[:, None] - np.arange(pixels)
        blur = np.exp(-(distance**2) / (2 * patch_pixels**2))
        blur /= blur.sum(axis=1, keepdims=True)
        mask = np.moveaxis(np.tensordot(blur @ stretch, mask, (1, axis)), 0, axis)
    if np.ptp(mask) <= 1e-9:  # Rounding errors would become a picture.
        return np.ones_like(mask)
    return to_unit_range(mask)


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
