"""Reads sizes, grids and configurations from the shapes of arrays, with messages for the file."""

import math
import re


def summarize(keys, most=4) -> str:
    """The first few of a list of keys, and the number of the others."""
    shown = ", ".join(keys[:most])
    return shown + (f" and {len(keys) - most} more" if len(keys) > most else "")


def build_config(kind, path, **fields):
    """A configuration of class `kind` with the values in a file.

    Raises:
        ValueError: if the values are not valid; the message names the file and the reason.
    """
    try:
        return kind(**fields)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} holds a model that vit_tf does not support: {error}") from None


def square_grid(count) -> tuple[int, int] | None:
    """(rows, columns) of the square grid with `count` patches; None if `count` is no square."""
    side = math.isqrt(max(count, 0))
    return (side, side) if side and side * side == count else None


def assumed_square(grid, path) -> str:
    """The note on a file whose positions are assumed to form a square, see `square_grid`."""
    return (
        f"the grid of the patches is not stated: assumed a square of {grid[0]} x {grid[1]}. If the "
        f'images were not square, add a sidecar {path}.json with {{"grid": [rows, columns]}}'
    )


def check_grid(value, path) -> tuple[int, int]:
    """Checks a grid from a caller or a file, returns a tuple; `path` is for the message.

    Raises:
        ValueError: unless it is a pair of integers of at least 1.
    """
    is_pair = isinstance(value, list | tuple) and len(value) == 2
    if not is_pair or not all(type(side) is int and side > 0 for side in value):
        raise ValueError(f"{path}: a grid is (rows, columns), in patches. Received: {value!r}.")
    return tuple(value)


def shape_of(shapes, key, rank, path) -> tuple[int, ...]:
    """The shape of a required array with `rank` axes; `path` is for the message."""
    if key not in shapes or len(shapes[key]) != rank:
        found = f"has shape {tuple(shapes[key])}" if key in shapes else "is missing"
        raise ValueError(
            f"{path} does not hold a plain Vision Transformer or BiT ResNet: {key} {found}, so its "
            "structure cannot be read from its arrays."
        )
    return tuple(shapes[key])


def stage_depths(shapes, pattern, path) -> tuple[int, ...]:
    """Residual units of each stage, from stage and unit numbers in the keys; both start at 1."""
    found = {tuple(map(int, match.groups())) for key in shapes if (match := re.match(pattern, key))}
    stages = {stage for stage, _ in found}
    counts = [sum(stage == i + 1 for stage, _ in found) for i in range(len(stages))]
    expected = {(i + 1, j + 1) for i, count in enumerate(counts) for j in range(count)}
    if found != expected:
        raise ValueError(
            f"{path} does not hold a ResNet: of its units, {summarize(sorted(map(str, found)))} "
            "(stage, unit), some are missing."
        )
    return tuple(counts)


def width_factor(shapes, key, path, side=7) -> float:
    """The width factor, from the shape of the root convolution with kernels of `side` pixels."""
    shape = shape_of(shapes, key, 4, path)
    if shape[:3] != (side, side, 3):
        raise ValueError(f"{path}: {key} must be ({side}, {side}, 3, 64 w). Received: {shape}.")
    return shape[3] / 64
