"""Grids of patches from a number of positions."""

import pytest

from vit_tf.checkpoints.shapes import check_grid, square_grid


@pytest.mark.parametrize(
    ("count", "grid"),
    [(-4, None), (0, None), (1, (1, 1)), (6, None), (196, (14, 14)), (2**60 + 1, None)],
)
def test_square_grid(count, grid):
    assert square_grid(count) == grid


def test_check_grid():
    assert check_grid([2, 3], "file") == (2, 3)
    for value in (6, "23", [2], [2.0, 3], [0, 6], [True, 6], None):
        with pytest.raises(ValueError, match="file: a grid"):
            check_grid(value, "file")
