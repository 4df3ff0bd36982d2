"""Filters, positions and attention of a Vision Transformer, as arrays and pictures (section 4.5).

All functions compute on NumPy arrays that were taken from a model; none of them runs a model.
The pictures are float arrays in [0, 1], `[h, w]` gray or `[h, w, 3]` RGB.

Shapes: `P` patch side in pixels, `C` channels, `D` width, `T` prefix tokens, `N = rows * columns`
patches in row-major order.
"""

import numpy as np
import tensorflow as tf

# Nine evenly spaced colors of matplotlib's viridis. Its lightness is monotonic, so that pictures
# are readable in gray print and for color-blind people.
_VIRIDIS = np.array(
    [
        (0x44, 0x01, 0x54),
        (0x47, 0x2D, 0x7B),
        (0x3B, 0x52, 0x8B),
        (0x2C, 0x72, 0x8E),
        (0x21, 0x91, 0x8C),
        (0x28, 0xAE, 0x80),
        (0x5E, 0xC9, 0x62),
        (0xAD, 0xDC, 0x30),
        (0xFD, 0xE7, 0x25),
    ]
) / 255.0  # fmt: skip


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


def tile(images, columns, gap=1, fill=1.0):
    """Puts equal-sized images side by side, row after row.

    Args:
        images: `[n, h, w]` or `[n, h, w, C]`, `n` at least 1.
        columns: images per row; the last row may be shorter.
        gap: pixels between neighbors.
        fill: value of gaps and of empty places.

    Returns:
        `[R * (h + gap) - gap, columns * (w + gap) - gap]`, followed by `C` if the images have it,
        for `R` rows of images; same dtype as `images`.

    Raises:
        ValueError: if there is no image, or `columns` is below 1.
    """
    images = np.asarray(images)
    if images.ndim not in (3, 4) or not len(images) or columns < 1:
        raise ValueError(
            f"Expected images [n, h, w] or [n, h, w, C] and at least one column. Received: shape "
            f"{images.shape}, columns={columns}."
        )
    height, width = (side + gap for side in images.shape[1:3])
    rows = -(-len(images) // columns)
    sheet = np.full((rows * height, columns * width, *images.shape[3:]), fill, images.dtype)
    for index, image in enumerate(images):
        top, left = index // columns * height, index % columns * width
        sheet[top : top + height - gap, left : left + width - gap] = image
    return sheet[: rows * height - gap, : columns * width - gap]


def colorize(values):
    """Maps [0, 1] to colors from dark violet (0) over green to yellow (1).

    Args:
        values: float array of any shape; values outside [0, 1] get the color of the nearer end.

    Returns:
        float64 of that shape with a last axis of 3, RGB in [0, 1].
    """
    values = np.asarray(values, np.float64)
    stops = np.linspace(0, 1, len(_VIRIDIS))
    return np.stack([np.interp(values, stops, channel) for channel in _VIRIDIS.T], axis=-1)


def encode_png(image):
    """The bytes of a PNG file.

    Args:
        image: uint8, or floating in [0, 1] (values outside are clipped), `[h, w]` or `[h, w, C]`
            with 1 (gray), 3 (RGB) or 4 (RGBA) channels.

    Raises:
        ValueError: if the image has another shape or dtype, or a value is NaN.
    """
    image = np.asarray(image)
    shape = image.shape
    if image.ndim == 2:
        image = image[..., None]
    if image.ndim != 3 or image.shape[-1] not in (1, 3, 4) or not image.size:
        raise ValueError(f"Expected [h, w] or [h, w, 1, 3 or 4]. Received: shape {shape}.")
    if np.issubdtype(image.dtype, np.floating):
        if np.isnan(image).any():
            raise ValueError("Expected values in [0, 1]. Received: NaN.")
        image = np.round(np.clip(image, 0, 1) * 255).astype(np.uint8)
    if image.dtype != np.uint8:
        raise ValueError(f"Expected uint8, or floats in [0, 1]. Received: {image.dtype}.")
    return tf.io.encode_png(image).numpy()


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
