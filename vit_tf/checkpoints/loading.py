"""Puts published arrays into a model: what is loaded, reset, dropped or resized.

Everything is checked before the first variable changes.
"""

import dataclasses

from vit_tf.checkpoints.grids import check_grid, square_grid
from vit_tf.checkpoints.messages import summarize
from vit_tf.checkpoints.published.vit import POSITIONS
from vit_tf.layers.positions import resize_position_table

HEAD_MODES = ("auto", "keep", "reset", "reset_last")
_PRE_LOGITS = "pre_logits/"
# A table for 4096 x 4096 pixels and patches of 8 x 8; a hostile header cannot ask for more memory.
_MOST_POSITIONS = 512 * 512


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


def load_checkpoint(model, checkpoint, family, head, source_grid=None) -> LoadReport:
    """Loads an open checkpoint into a model; see `vit_tf.weights.load_npz`.

    Args:
        model: the model.
        checkpoint: has `path`, `shapes`, `check`, `read`, `trained_config` and `grid` as
            `vit_tf.checkpoints` describes them.
        family: the module of the published layout for the model's family, such as `published.vit`.
        head: one of `HEAD_MODES`.
        source_grid: `(rows, columns)` of the position table; None takes the checkpoint's.

    Raises:
        ValueError: if they do not fit. The model is then unchanged.
    """
    if head not in HEAD_MODES:
        raise ValueError(f"head must be one of {', '.join(HEAD_MODES)}. Received: {head!r}.")
    path, shapes = checkpoint.path, checkpoint.shapes
    grid = checkpoint.grid if source_grid is None else check_grid(source_grid, path)
    _check_trained_fields(model.config, checkpoint.trained_config, family, path)
    entries = family.entries(model)
    head_entries = [
        entry for entry in entries if _first_key(entry).startswith(family.HEAD_PREFIXES)
    ]
    loaded_head = _choose_head(head, head_entries, shapes, path)
    loaded = [entry for entry in entries if entry not in head_entries] + loaded_head
    dropped = _find_dropped(shapes, loaded, family, path)
    table, resized = None, None
    for entry in loaded:
        if POSITIONS in entry.shapes:
            table, resized = _read_positions(checkpoint, model, grid)
            continue
        _check_shapes(entry, shapes, path)
        for key in entry.shapes:
            checkpoint.check(key)

    # Read a second time, and one array at a time: memory never holds the file beside the model.
    for entry in loaded:
        if POSITIONS in entry.shapes:
            entry.variable.assign(table)
        else:
            entry.variable.assign(entry.pack([checkpoint.read(key) for key in entry.shapes]))
    reset = [entry for entry in head_entries if entry not in loaded_head]
    for entry in reset:
        _reset(model, entry)
    return LoadReport(
        path=path,
        loaded=[key for entry in loaded for key in entry.shapes],
        reset=[key for entry in reset for key in entry.shapes],
        dropped=dropped,
        resized=resized,
    )


def _check_trained_fields(config, trained, family, path):
    """Refuses weights that would fit, and compute something else in this model."""
    if type(config) is not type(trained):
        return  # Not known, or of another family, whose arrays do not fit at all.
    ours, theirs = family.trained_fields(config), family.trained_fields(trained)
    for name in [name for name in ours if name in theirs]:
        if ours[name] != theirs[name]:
            raise ValueError(
                f"{path} was trained with {name.rpartition('.')[2]}={theirs[name]}, this model has "
                f"{ours[name]}: it would load and compute something else. Create the model with "
                f"{name}={theirs[name]}."
            )


def _find_dropped(shapes, loaded, family, path):
    """The keys of the file that the model has no use for; raises if one of them is essential."""
    unused = shapes.keys() - {key for entry in loaded for key in entry.shapes}
    dropped = {
        key for key in unused if key.startswith(family.HEAD_PREFIXES) or key in family.OPTIONAL_KEYS
    }
    if unknown := sorted(unused - dropped):
        raise ValueError(
            f"{path} holds arrays this model has no place for: {summarize(unknown)}. "
            "Create the model the file was written for."
        )
    return sorted(dropped)


def _first_key(entry):
    return next(iter(entry.shapes))


def _choose_head(mode, head_entries, shapes, path):
    """Which of the model's head entries are loaded under `mode`."""
    has_pre_logits = any(key.startswith(_PRE_LOGITS) for key in shapes)
    wants_pre_logits = any(_first_key(entry).startswith(_PRE_LOGITS) for entry in head_entries)
    if mode == "reset" or not head_entries:
        return []
    if mode == "reset_last":
        chosen = [entry for entry in head_entries if _first_key(entry).startswith(_PRE_LOGITS)]
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


def _read_positions(checkpoint, model, grid):
    """The file's position table on the model's grid, and `(old, new)` grids if they differ."""
    path, shapes, width = checkpoint.path, checkpoint.shapes, model.config.hidden_size
    if POSITIONS not in shapes:
        raise ValueError(
            f"{path} has no {POSITIONS}. Create the model with the position_embedding that it was "
            "trained with: 'sincos_2d' (big_vision) or 'none'."
        )
    shape = shapes[POSITIONS]
    if len(shape) != 3 or shape[0] != 1 or shape[2] != width:
        raise ValueError(
            f"{path}: {POSITIONS} has shape {tuple(shape)}, the model needs (1, tokens, {width})."
        )
    prefix = int("cls" in shapes)
    rows = shape[1] - prefix
    if not 1 <= rows <= _MOST_POSITIONS:
        raise ValueError(
            f"{path}: {POSITIONS} claims {rows} patch positions. Expected 1 to {_MOST_POSITIONS}."
        )
    grid = _source_grid(path, grid, rows)
    table = checkpoint.read(POSITIONS)[0]
    if grid != model.grid:
        table = resize_position_table(table, grid, model.grid, prefix)
    table = table[prefix - model.num_prefix_tokens :] if prefix > model.num_prefix_tokens else table
    return table, (None if grid == model.grid else (grid, model.grid))


def _source_grid(path, grid, rows):
    grid = square_grid(rows) if grid is None else grid
    if grid is None:
        raise ValueError(
            f"{path} has {rows} patch positions, which is not a square. "
            "Pass source_grid=(rows, columns)."
        )
    if grid[0] * grid[1] != rows:
        raise ValueError(
            f"{path} has {rows} patch positions, which do not fill {grid[0]} x {grid[1]}. "
            "Pass source_grid=(rows, columns) as it was trained with."
        )
    return grid


def _reset(model, entry):
    layer = model.pre_logits if _first_key(entry).startswith(_PRE_LOGITS) else model.head
    is_kernel = entry.variable is layer.kernel
    initializer = layer.kernel_initializer if is_kernel else layer.bias_initializer
    entry.variable.assign(initializer(entry.variable.shape, dtype=entry.variable.dtype))
