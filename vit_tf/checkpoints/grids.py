"""Grids of patches: (rows, columns), from users, sidecars and numbers of positions."""

import math


def square_grid(count) -> tuple[int, int] | None:
    """(rows, columns) of the square grid with `count` patches; None if `count` is no square."""
    side = math.isqrt(max(count, 0))
    return (side, side) if side and side * side == count else None


def check_grid(value, path) -> tuple[int, int]:
    """Checks a grid from a caller or a file, returns a tuple; `path` is for the message.

    Raises:
        ValueError: unless it is a pair of integers of at least 1.
    """
    is_pair = isinstance(value, list | tuple) and len(value) == 2
    if not is_pair or not all(type(side) is int and side > 0 for side in value):
        raise ValueError(f"{path}: a grid is (rows, columns), in patches. Received: {value!r}.")
    return tuple(value)
