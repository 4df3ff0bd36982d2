"""The position embeddings of Vision Transformers in the published layout (docs/paper.md B.2, B.6).

The published files hold one table. Vectors of rows and columns, tables of later blocks and relative
positions (docs/paper.md D.1) are in no published file; their keys here follow the files' keys.
"""

import math

from vit_tf.checkpoints.shapes import shape_of, square_grid
from vit_tf.layers.positions import resize_position_table

POSITIONS = "Transformer/posembed_input/pos_embedding"
# Variable of the position layer -> key.
POSITION_KEYS = {
    "table": POSITIONS,
    "y": f"{POSITIONS}_y",
    "x": f"{POSITIONS}_x",
    "prefix": f"{POSITIONS}_prefix",
}
# The relative positions of the first block; every block has some.
RELATIVE = "Transformer/encoderblock_0/MultiHeadDotProductAttention_1/relative_embedding"
# A table for 4096 x 4096 pixels and patches of 8 x 8; a hostile header cannot request more memory.
_MOST_POSITIONS = 512 * 512


def position_key(name, block=0):
    """The key of a variable of a position layer; `block` is the first one that the layer is for."""
    key = POSITION_KEYS[name]
    return key.replace("Transformer", f"Transformer/encoderblock_{block}") if block else key


def trained_positions(shapes) -> str | None:
    """The kind of learned positions that the arrays show, if any."""
    if POSITIONS in shapes:
        return "learned_1d"
    if {POSITION_KEYS["x"], POSITION_KEYS["y"]} & shapes.keys():
        return "learned_2d"
    return "relative" if RELATIVE in shapes else None


def trained_injection(shapes) -> str:
    """The injection that the arrays show; one table for all blocks looks like one for the stem."""
    of_second_block = {position_key(name, block=1) for name in POSITION_KEYS}
    return "every_layer" if of_second_block & shapes.keys() else "stem"


def patch_grid(shapes, path, grid, has_token, width):
    """Rows and columns of the patches: `grid`, the grid that the arrays show, or a square."""
    kind = trained_positions(shapes)
    if kind == "learned_2d":
        return _grid_of_sides(path, shapes, width // 2, grid)
    if kind is None:
        if grid is None:
            raise ValueError(
                f"{path} has no {POSITIONS} and does not hold the size of its images; with fixed "
                f'positions it cannot be told. Add a sidecar {path}.json with {{"grid": [rows, '
                "columns]}."
            )
        return grid
    if kind == "relative":
        rows = _relative_tokens(path, shapes) - has_token
    else:
        rows = shape_of(shapes, POSITIONS, 3, path)[1] - has_token
    if grid is None and (grid := square_grid(rows)) is None:
        problem = "which are not a square"
    elif grid[0] * grid[1] != rows:
        problem = f"which do not fill a grid of {grid[0]} x {grid[1]}"
    else:
        return grid
    raise ValueError(
        f"{path} has {rows} patch positions, {problem}; the image size is unknown. Add a sidecar "
        f'{path}.json with {{"grid": [rows, columns]}}.'
    )


def read_table(checkpoint, model, grid, block):
    """A table of class token and patches on a model's grid, by key, and the grid of the file."""
    path, shapes, key = checkpoint.path, checkpoint.shapes, position_key("table", block)
    prefix, wanted = int("cls" in shapes), int(model.config.has_class_token)
    rows = _position_rows(path, shapes, key, model.config.hidden_size) - prefix
    _check_count(path, rows)
    grid = _source_grid(path, grid, rows, model.grid)
    table = checkpoint.read(key)[0]
    if grid != model.grid:
        method = checkpoint.position_resize
        table = resize_position_table(table, grid, model.grid, prefix, method)
    return {key: table[prefix - wanted :] if prefix > wanted else table}, grid


def read_sides(checkpoint, model, grid, block):
    """The vectors of rows and columns on the grid of a model, by key, and the grid of the file."""
    path, shapes = checkpoint.path, checkpoint.shapes
    source = _grid_of_sides(path, shapes, model.config.hidden_size // 2, grid, block)
    arrays = {}
    for name, old, new in zip("yx", source, model.grid, strict=True):
        key = position_key(name, block)
        table = checkpoint.read(key)[0]
        if old != new:
            table = resize_position_table(table, (old, 1), (new, 1), num_prefix_tokens=0)
        arrays[key] = table
    return arrays, source


def check_relative(checkpoint, model, grid):
    """Raises if the relative positions of a file are for another grid than the model's."""
    path, shapes = checkpoint.path, checkpoint.shapes
    patches = _relative_tokens(path, shapes) - int("cls" in shapes)
    rows, columns = grid = _source_grid(path, grid, patches, model.grid)
    if grid != model.grid:
        raise ValueError(
            f"{path} has relative positions for a grid of {rows} x {columns}, the model has "
            f"{model.grid[0]} x {model.grid[1]}. An offset is another displacement there, so that "
            f"they cannot be resized: create the model with an image_size of {rows} x {columns} "
            "patches."
        )


def _relative_tokens(path, shapes):
    """Number of tokens whose offsets the relative positions are for."""
    return (shape_of(shapes, RELATIVE, 2, path)[0] + 1) // 2


def _grid_of_sides(path, shapes, width, stated=None, block=0):
    """(rows, columns) of the positions per row and column; raises if `stated` is another grid."""
    rows, columns = (
        _position_rows(path, shapes, position_key(name, block), width) for name in "yx"
    )
    _check_count(path, rows * columns)
    if stated not in (None, (rows, columns)):
        raise ValueError(
            f"{path} has positions for {rows} x {columns} patches, but the grid is said to be "
            f"{stated[0]} x {stated[1]}. Correct the sidecar or source_grid."
        )
    return rows, columns


def _position_rows(path, shapes, key, width):
    """Number of vectors in an array of positions."""
    if key not in shapes:
        raise ValueError(f"{path} has no array {key}, which the model needs.")
    shape = tuple(shapes[key])
    if len(shape) != 3 or shape[0] != 1 or shape[2] != width:
        raise ValueError(f"{path}: {key} has shape {shape}, the model needs (1, tokens, {width}).")
    return shape[1]


def _check_count(path, patches):
    if not 1 <= patches <= _MOST_POSITIONS:
        raise ValueError(
            f"{path}: the positions are for {patches} patches. Expected 1 to {_MOST_POSITIONS}."
        )


def _source_grid(path, grid, rows, own_grid):
    if grid is None:
        grid = own_grid if math.prod(own_grid) == rows else square_grid(rows)
    if grid is None:
        raise ValueError(
            f"{path} has {rows} patch positions, which are neither the {own_grid[0]} x "
            f"{own_grid[1]} of the model nor a square. Pass source_grid=(rows, columns)."
        )
    if grid[0] * grid[1] != rows:
        raise ValueError(
            f"{path} has {rows} patch positions, which do not fill {grid[0]} x {grid[1]}. "
            "Pass source_grid=(rows, columns) as it was trained with."
        )
    return grid
