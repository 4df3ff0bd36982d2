"""Loads and saves published `.npz` checkpoints.

Everything in a file is checked before the first variable changes, and a file is written whole or
not at all.
"""

import dataclasses
import json
import os

import numpy as np

from vit_tf.config import ViTConfig
from vit_tf.files import write_atomically
from vit_tf.layers.embeddings import resize_position_table
from vit_tf.published_file import PublishedFile
from vit_tf.published_layout import (
    POSITIONS,
    config_of_shapes,
    published_table,
    some,
)

HEAD_MODES = ("auto", "keep", "reset", "reset_last")
# A table for 4096 x 4096 pixels and patches of 8 x 8; a hostile header cannot ask for more memory.
_MOST_POSITIONS = 512 * 512


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """What `load_npz` did, by published key; `str()` is one line per fact.

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


def load_npz(model, path, head="auto", source_grid=None) -> LoadReport:
    """Loads a published checkpoint into a model, resizing positions where the grids differ.

    Args:
        model: a `VisionTransformer`.
        path: `.npz` file; read without pickle.
        head: what happens to `pre_logits` and `head`. "keep": loaded, a mismatch is an error.
            "auto": loaded if they fit, reset if not. "reset": both reset (the head to zeros, as for
            fine-tuning; the paper's choice). "reset_last": `pre_logits` loaded, `head` reset.
        source_grid: `(rows, columns)` of the file's position table. None reads it from the sidecar
            `<path>.json`, else takes the table as square.

    Returns:
        A `LoadReport`.

    Raises:
        ValueError: if the file is damaged, foreign or does not fit. The model is then unchanged.
        FileNotFoundError: if there is no such file.
    """
    if head not in HEAD_MODES:
        raise ValueError(f"head must be one of {', '.join(HEAD_MODES)}. Received: {head!r}.")
    with PublishedFile(path) as file:
        shapes = file.shapes
        entries = published_table(model)
        head_entries = [entry for entry in entries if _is_head(entry)]
        loaded_head = _choose_head(head, head_entries, shapes, path)
        wanted = [entry for entry in entries if not _is_head(entry)] + loaded_head

        unused = shapes.keys() - {key for entry in wanted for key in entry.shapes}
        dropped = {key for key in unused if key.split("/")[0] in ("pre_logits", "head")}
        if model.class_token is None:
            dropped |= unused & {"cls"}
        if model.position_embedding is None:
            dropped |= unused & {POSITIONS}
        if foreign := sorted(unused - dropped):
            raise ValueError(
                f"{path} holds arrays this model has no place for: {some(foreign)}. "
                "Create the model the file was written for."
            )
        values, resized = [], None
        for entry in wanted:
            if POSITIONS in entry.shapes:
                table, resized = _read_positions(file, model, path, source_grid)
                values.append(table)
                continue
            _check_shapes(entry, shapes, path)
            values.append(entry.pack([file.read(key) for key in entry.shapes]))

    for entry, value in zip(wanted, values, strict=True):
        entry.variable.assign(value)
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


def save_npz(model, path, preprocessing=None) -> None:
    """Writes a model in the published layout, with a sidecar `<path>.json`.

    The file loads in the reference JAX code. The sidecar holds what the layout has no place for:
    the patch grid, the configuration, and the preprocessing with the class names. Both are written
    beside their place and renamed, so a reader never sees half a file.

    Args:
        model: a `VisionTransformer`.
        path: file name; its directory must exist.
        preprocessing: optional `vit_tf.Preprocessing`.
    """
    arrays = {}
    for entry in published_table(model):
        value = np.asarray(entry.variable.value, np.float32)
        arrays.update(zip(entry.shapes, entry.unpack(value), strict=True))
    sidecar = {
        "grid": list(model.grid),
        "config": model.config.to_dict(),
        "preprocessing": None if preprocessing is None else preprocessing.to_dict(),
    }
    path = os.fspath(path)
    write_atomically(path, lambda file: np.savez(file, **arrays))
    text = json.dumps(sidecar, indent=1) + "\n"
    write_atomically(path + ".json", lambda file: file.write(text.encode()))


def read_sidecar(path) -> dict:
    """The sidecar of a checkpoint, `{}` if it has none.

    Raises:
        ValueError: if the sidecar is not a JSON object.
    """
    sidecar_path = os.fspath(path) + ".json"
    try:
        with open(sidecar_path, encoding="utf-8") as file:
            sidecar = json.load(file)
    except FileNotFoundError:
        return {}
    except (ValueError, OSError, RecursionError) as error:
        raise ValueError(f"{sidecar_path} is not JSON: {error}. Delete or restore it.") from None
    if not isinstance(sidecar, dict):
        raise ValueError(f"{sidecar_path} must hold a JSON object. Delete or restore it.")
    return sidecar


def infer_config(path) -> ViTConfig:
    """The configuration of the model in a published file, read off its array shapes.

    Raises:
        ValueError: if the file is damaged or not a plain Vision Transformer.
        FileNotFoundError: if there is no such file.
    """
    with PublishedFile(path) as file:
        grid = read_sidecar(path).get("grid")
        return config_of_shapes(file.shapes, path, None if grid is None else _grid(grid, path))


def _is_head(entry):
    return all(key.split("/")[0] in ("pre_logits", "head") for key in entry.shapes)


def _choose_head(mode, head_entries, shapes, path):
    """Which of the model's head entries are loaded under `mode`."""
    has_pre_logits = any(key.startswith("pre_logits/") for key in shapes)
    wants_pre_logits = any("pre_logits/kernel" in entry.shapes for entry in head_entries)
    if mode == "reset" or not head_entries:
        return []
    if mode == "reset_last":
        chosen = [entry for entry in head_entries if "pre_logits" in next(iter(entry.shapes))]
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


def _read_positions(file, model, path, source_grid):
    """The file's position table on the model's grid, and `(old, new)` grids if they differ."""
    width = model.config.hidden_size
    if POSITIONS not in file.shapes:
        raise ValueError(
            f"{path} has no {POSITIONS}. Create the model with position_embedding='none'."
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
    grid = _source_grid(path, source_grid, rows)
    table = file.read(POSITIONS)[0]
    if grid != model.grid:
        table = resize_position_table(table, grid, model.grid, prefix)
    table = table[prefix - model.num_prefix_tokens :] if prefix > model.num_prefix_tokens else table
    return table, (None if grid == model.grid else (grid, model.grid))


def _source_grid(path, source_grid, rows):
    if source_grid is None:
        source_grid = read_sidecar(path).get("grid")
    if source_grid is None:
        side = int(round(rows**0.5))
        if side * side != rows:
            raise ValueError(
                f"{path} has {rows} patch positions, which is not a square. "
                "Pass source_grid=(rows, columns)."
            )
        return side, side
    grid = _grid(source_grid, path)
    if grid[0] * grid[1] != rows:
        raise ValueError(
            f"{path} has {rows} patch positions, which do not fill {grid[0]} x {grid[1]}. "
            "Pass source_grid=(rows, columns) as it was trained with."
        )
    return grid


def _grid(value, path):
    """Checks a grid from a caller or a sidecar."""
    is_pair = isinstance(value, list | tuple) and len(value) == 2
    if not is_pair or not all(type(side) is int and side > 0 for side in value):
        raise ValueError(f"{path}: a grid is (rows, columns), in patches. Received: {value!r}.")
    return tuple(value)


def _reset(model, entry):
    layer = model.head if "head" in next(iter(entry.shapes)).split("/")[0] else model.pre_logits
    is_kernel = entry.variable is layer.kernel
    initializer = layer.kernel_initializer if is_kernel else layer.bias_initializer
    entry.variable.assign(initializer(entry.variable.shape, dtype=entry.variable.dtype))
