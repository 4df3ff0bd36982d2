"""What a result loses without parts of the image: occlusion, deletion and insertion.

They measure whether a map that explains a result marks what the result depends on. The image is
NumPy, `[h, w, 3]`, cut into `rows x columns` cells; a mask `[rows, columns]` is true where a cell
is covered.
"""

import numpy as np


def occlusion_masks(grid):
    """Masks that cover one cell each: bool `[rows * columns, rows, columns]`."""
    rows, columns = grid
    return np.eye(rows * columns, dtype=bool).reshape(-1, rows, columns)


def deletion_masks(heat, steps=10):
    """Masks that cover the cells of a map one after another, the largest values first.

    The opposite masks, `~masks`, uncover them in the same order (insertion; Petsiuk et al., 2018).

    Args:
        heat: float `[rows, columns]`; cells of equal value are covered in row-major order.
        steps: number of equal steps from no cell to all; at most one step for each cell.

    Returns:
        `(fractions, masks)`: float `[s + 1]`, the part of the cells that is covered, from 0 to 1,
        and bool `[s + 1, rows, columns]`.
    """
    heat = np.asarray(heat)
    order = np.argsort(-heat.reshape(-1), kind="stable")
    rank = np.empty(heat.size, np.int64)
    rank[order] = np.arange(heat.size)
    covered = np.round(np.linspace(0, heat.size, min(steps, heat.size) + 1)).astype(np.int64)
    masks = rank.reshape(heat.shape) < covered[:, None, None]
    return covered / heat.size, masks


def area(fractions, scores) -> float:
    """The area under a curve over fractions from 0 to 1, by the trapezoid rule.

    Of a deletion curve, small is good: the result falls soon. Of an insertion curve, large is.
    """
    fractions, scores = np.asarray(fractions, np.float64), np.asarray(scores, np.float64)
    return float((np.diff(fractions) * (scores[1:] + scores[:-1]) / 2).sum())


def covered(image, masks, cell, fill):
    """The image with the cells of each mask in one color.

    Args:
        image: `[h, w, 3]`.
        masks: bool `[n, rows, columns]`.
        cell: (height, width) of a cell in pixels. Pixels beyond the last cell are never covered.
        fill: the color, `[3]`.

    Returns:
        `[n, h, w, 3]` in the dtype of the image.
    """
    height, width = image.shape[:2]
    pixels = np.repeat(np.repeat(masks, cell[0], axis=1), cell[1], axis=2)[:, :height, :width]
    beyond = [(0, 0), (0, height - pixels.shape[1]), (0, width - pixels.shape[2])]
    pixels = np.pad(pixels, beyond)[..., None]
    return np.where(pixels, np.asarray(fill, image.dtype), image)


def masked_scores(score, image, masks, cell, fill, batch_size=32):
    """The score of the image under each mask.

    Args:
        score: function from images `[batch_size, h, w, 3]` to scores `[batch_size]`, such as the
            probability of a class. It always gets as many images: the last ones are repeated.
        image, masks, cell, fill: see `covered`.
        batch_size: images of a call; memory grows with it.

    Returns:
        float64 `[n]`.
    """
    scores = []
    for start in range(0, len(masks), batch_size):
        images = covered(image, masks[start : start + batch_size], cell, fill)
        missing = batch_size - len(images)
        full = np.concatenate([images, np.repeat(images[-1:], missing, axis=0)])
        scores.append(np.asarray(score(full), np.float64)[: len(images)])
    return np.concatenate(scores)
