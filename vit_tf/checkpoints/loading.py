"""Puts published arrays into a model: what is loaded, reset, dropped or resized.

Everything is checked before the first variable changes.
"""

import dataclasses

from vit_tf.checkpoints.published_layout import (
    POSITIONS,
    is_head,
    is_pre_logits,
    published_table,
    some,
)
from vit_tf.config import ResNetConfig
from vit_tf.layers.positions import resize_position_table

HEAD_MODES = ("auto", "keep", "reset", "reset_last")
# A table for 4096 x 4096 pixels and patches of 8 x 8; a hostile header cannot ask for more memory.
_MOST_POSITIONS = 512 * 512
# What no array shows and the weights depend on, of a ViT and of whatever has a ResNet.
_MEANING = ("activation", "layer_norm_epsilon")
_RESIDUAL_MEANING = ("group_norm_epsilon", "variance_epsilon", "deviation_epsilon")


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """What loading did, by published key; `str()` is one line per fact.

    Attributes:
        path: the file.
        loaded: keys whose values are now in the model.
        reset: keys of the model that got fresh initial values.
        dropped: keys of the file that the model has no use for.
        resized: `(source grid, target grid)` of the position table, or None.
    """

    path: str
    loaded: list[str]
    reset: list[str]
    dropped: list[str]
    resized: tuple[tuple[int, int], tuple[int, int]] | None

    def __str__(self):
        lines = [f"loaded {len(self.loaded)} arrays from {self.path}"]
        if self.resized:
            (rows, columns), (new_rows, new_columns) = self.resized
            lines.append(f"resized positions from {rows} x {columns} to {new_rows} x {new_columns}")
        if self.reset:
            lines.append(f"fresh initial values: {', '.join(self.reset)}")
        if self.dropped:
            lines.append(f"dropped: {', '.join(self.dropped)}")
        return "\n".join(lines)


def load_arrays(model, file, path, head, grid=None, config=None) -> LoadReport:
    """Loads published arrays into a model; the arguments are as for `vit_tf.load_npz`.

    Args:
        model: a `VisionTransformer` or `ResNet`.
        file: has `shapes`, canonical key -> shape; `check`, which raises `ValueError` if the array
            of a canonical key is damaged; and `read`, which returns it as float32.
        path: where they come from, for messages.
        head: one of `HEAD_MODES`.
        grid: `(rows, columns)` of the position table; None takes it as square.
        config: the configuration that the weights were trained with, if it is known.

    Raises:
        ValueError: if they do not fit. The model is then unchanged.
    """
    if head not in HEAD_MODES:
        raise ValueError(f"head must be one of {', '.join(HEAD_MODES)}. Received: {head!r}.")
    if config is not None:
        _check_meaning(model.config, config, path)
    shapes = file.shapes
    entries = published_table(model)
    head_entries = [entry for entry in entries if _of_head(entry)]
    loaded_head = _choose_head(head, head_entries, shapes, path)
    wanted = [entry for entry in entries if not _of_head(entry)] + loaded_head

    unused = shapes.keys() - {key for entry in wanted for key in entry.shapes}
    # A model without class token or position table does without the file's.
    dropped = {key for key in unused if is_head(key) or key in ("cls", POSITIONS)}
    if foreign := sorted(unused - dropped):
        raise ValueError(
            f"{path} holds arrays this model has no place for: {some(foreign)}. "
            "Create the model the file was written for."
        )
    table, resized = None, None
    for entry in wanted:
        if POSITIONS in entry.shapes:
            table, resized = _read_positions(file, model, path, grid)
            continue
        _check_shapes(entry, shapes, path)
        for key in entry.shapes:
            file.check(key)

    # Read a second time, and one array at a time: memory never holds the file beside the model.
    for entry in wanted:
        if POSITIONS in entry.shapes:
            entry.variable.assign(table)
        else:
            entry.variable.assign(entry.pack([file.read(key) for key in entry.shapes]))
    reset = [entry for entry in head_entries if entry not in loaded_head]
    for entry in reset:
        _reset(model, entry)
    return LoadReport(
        path=str(path),
        loaded=[key for entry in wanted for key in entry.shapes],
        reset=[key for entry in reset for key in entry.shapes],
        dropped=sorted(dropped),
        resized=resized,
    )


def _check_meaning(config, trained, path):
    """Refuses weights that would fit, and mean something else in this model."""
    if type(config) is not type(trained):
        return  # Of another family, whose arrays do not fit at all.
    if isinstance(config, ResNetConfig):
        pairs = [("", config, trained, _RESIDUAL_MEANING)]
    else:
        pairs = [("", config, trained, _MEANING)]
        # A table that is dropped or missing is noticed; fixed positions leave no trace in a file.
        if {config.position_embedding, trained.position_embedding} == {"sincos_2d", "none"}:
            pairs.append(("", config, trained, ("position_embedding",)))
        if config.stem and trained.stem:
            pairs.append(("stem.", config.stem, trained.stem, _RESIDUAL_MEANING))
    for part, ours, theirs, names in pairs:
        for name in names:
            if getattr(ours, name) != getattr(theirs, name):
                raise ValueError(
                    f"{path} was trained with {name}={getattr(theirs, name)}, this model has "
                    f"{getattr(ours, name)}: it would load and compute something else. Create the "
                    f"model with {part}{name}={getattr(theirs, name)}."
                )


def _of_head(entry):
    return all(map(is_head, entry.shapes))


def _choose_head(mode, head_entries, shapes, path):
    """Which of the model's head entries are loaded under `mode`."""
    has_pre_logits = any(map(is_pre_logits, shapes))
    wants_pre_logits = any("pre_logits/kernel" in entry.shapes for entry in head_entries)
    if mode == "reset" or not head_entries:
        return []
    if mode == "reset_last":
        chosen = [entry for entry in head_entries if is_pre_logits(next(iter(entry.shapes)))]
        for entry in chosen:
            _check_shapes(entry, shapes, path)
        return chosen
    try:
        if has_pre_logits and not wants_pre_logits:
            raise ValueError(
                f"{path} has pre_logits, the model has none. Set representation_size, or "
                'load with head="reset".'
            )
        for entry in head_entries:
            _check_shapes(entry, shapes, path)
    except ValueError:
        if mode == "keep":
            raise
        return []
    return head_entries


def _check_shapes(entry, shapes, path):
    for key, expected in entry.shapes.items():
        if key not in shapes:
            raise ValueError(
                f"{path} has no array {key}, which the model needs with shape {tuple(expected)}. "
                "The file is incomplete or was written for another model."
            )
        if tuple(shapes[key]) != tuple(expected):
            raise ValueError(
                f"{path}: {key} has shape {tuple(shapes[key])}, the model needs {tuple(expected)}. "
                "Create the model the file was written for."
            )


def _read_positions(file, model, path, grid):
    """The file's position table on the model's grid, and `(old, new)` grids if they differ."""
    width = model.config.hidden_size
    if POSITIONS not in file.shapes:
        raise ValueError(
            f"{path} has no {POSITIONS}. Create the model with the position_embedding that it was "
            "trained with: 'sincos_2d' (big_vision) or 'none'."
        )
    shape = file.shapes[POSITIONS]
    if len(shape) != 3 or shape[0] != 1 or shape[2] != width:
        raise ValueError(
            f"{path}: {POSITIONS} has shape {tuple(shape)}, the model needs (1, tokens, {width})."
        )
    prefix = int("cls" in file.shapes)
    rows = shape[1] - prefix
    if not 1 <= rows <= _MOST_POSITIONS:
        raise ValueError(
            f"{path}: {POSITIONS} claims {rows} patch positions. Expected 1 to {_MOST_POSITIONS}."
        )
    grid = _source_grid(path, grid, rows)
    table = file.read(POSITIONS)[0]
    if grid != model.grid:
        table = resize_position_table(table, grid, model.grid, prefix)
    table = table[prefix - model.num_prefix_tokens :] if prefix > model.num_prefix_tokens else table
    return table, (None if grid == model.grid else (grid, model.grid))


def _source_grid(path, grid, rows):
    if grid is None:
        side = int(round(rows**0.5))
        if side * side != rows:
            raise ValueError(
                f"{path} has {rows} patch positions, which is not a square. "
                "Pass source_grid=(rows, columns)."
            )
        return side, side
    if grid[0] * grid[1] != rows:
        raise ValueError(
            f"{path} has {rows} patch positions, which do not fill {grid[0]} x {grid[1]}. "
            "Pass source_grid=(rows, columns) as it was trained with."
        )
    return grid


def _reset(model, entry):
    layer = model.pre_logits if is_pre_logits(next(iter(entry.shapes))) else model.head
    is_kernel = entry.variable is layer.kernel
    initializer = layer.kernel_initializer if is_kernel else layer.bias_initializer
    entry.variable.assign(initializer(entry.variable.shape, dtype=entry.variable.dtype))
