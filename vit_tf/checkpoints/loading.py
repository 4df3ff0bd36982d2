"""Loads published arrays into a model, and reports the arrays loaded, reset, dropped or resized.

Everything is checked before the first variable changes. If the model reads pixels with another mean
and standard deviation than the weights, a first convolution without padding includes the difference
exactly: for the kernel `w`, w * (scale x + offset) = (w scale) x + w offset.
"""

import dataclasses
import warnings

import numpy as np

from vit_tf.checkpoints.published.vit_positions import trained_positions
from vit_tf.checkpoints.rule import variables_by_path
from vit_tf.checkpoints.shapes import assumed_square, check_grid, summarize
from vit_tf.images.value_range import MEAN, STD

# Relative positions of a line of 4096 pixels; a hostile header cannot request more memory.
_MOST_OFFSETS = 2 * 4096 - 1
_KERNEL, _BIAS = "embedding/kernel", "embedding/bias"
HEAD_MODES = ("auto", "keep", "reset", "reset_last")


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """The result of loading, by published key; `str()` has one line per fact.

    Attributes:
        path: the file.
        loaded: keys whose values are now in the model.
        reset: keys of the model that got fresh initial values.
        dropped: keys of the file that the model does not use.
        resized: `(source grid, target grid)` of the position table, or None.
        position_resize: how the position table was resized, see `resize_position_table`.
        resized_tables: keys of the tables of relative positions that were resized.
        converted: whether the patch embedding was converted to the model's range of pixels.
        notes: assumptions about the file, one sentence each.
    """

    path: str
    loaded: list[str]
    reset: list[str]
    dropped: list[str]
    resized: tuple[tuple[int, int], tuple[int, int]] | None
    resized_tables: list[str]
    converted: bool = False
    notes: tuple[str, ...] = ()
    position_resize: str = "bilinear"

    def __str__(self):
        lines = [f"loaded {len(self.loaded)} arrays from {self.path}"]
        if self.resized:
            (rows, columns), (new_rows, new_columns) = self.resized
            names = {"bilinear": "", "bicubic_antialias": ", bicubic with antialiasing"}
            how = names.get(self.position_resize, f", {self.position_resize}")
            lines.append(
                f"resized positions from {rows} x {columns} to {new_rows} x {new_columns}{how}"
            )
        if self.resized_tables:
            lines.append(f"resized {len(self.resized_tables)} tables of relative positions")
        if self.converted:
            lines.append("converted the patch embedding to this model's mean and std of pixels")
        if self.reset:
            lines.append(f"fresh initial values: {', '.join(self.reset)}")
        if self.dropped:
            lines.append(f"dropped: {', '.join(self.dropped)}")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def load_checkpoint(model, checkpoint, mapping, head, source_grid=None) -> LoadReport:
    """Loads an open checkpoint into a model; see `vit_tf.weights.load_npz`.

    Warns about values that are not finite.

    Args:
        model: the model.
        checkpoint: has `path`, `shapes`, `check`, `read`, `trained_config` and `grid` as
            `vit_tf.checkpoints` describes them.
        mapping: the module of the published layout for the model's family, such as `published.vit`.
        head: one of `HEAD_MODES`.
        source_grid: `(rows, columns)` of the position table; None means the checkpoint's.

    Raises:
        ValueError: if the checkpoint does not fit the model. The model is then unchanged.
    """
    if head not in HEAD_MODES:
        raise ValueError(f"head must be one of {', '.join(HEAD_MODES)}. Received: {head!r}.")
    path, shapes = checkpoint.path, checkpoint.shapes
    grid = checkpoint.grid if source_grid is None else check_grid(source_grid, path)
    _check_trained_fields(model.config, checkpoint.trained_config, mapping, path)
    rules, variables = mapping.rules(model), variables_by_path(model)
    head_rules = [rule for rule in rules if _first_key(rule).startswith(mapping.HEAD_PREFIXES)]
    loaded_head = _choose_head(head, head_rules, shapes, mapping, path)
    loaded = [rule for rule in rules if rule not in head_rules] + loaded_head
    dropped = _find_dropped(shapes, loaded, mapping, path)
    positions, resized = mapping.read_positions(checkpoint, model, grid)
    notes = list(checkpoint.notes)
    if grid is None and resized and trained_positions(shapes) == "learned_1d":
        notes.append(assumed_square(resized[0], path))
    for rule in loaded:
        if _first_key(rule) in positions:
            continue
        _check_shapes(rule, shapes, path)
        for key in rule.shapes:
            checkpoint.check(key)

    # Arrays are read again, one at a time, so that memory never holds the whole file and the model.
    bad = []
    for rule in loaded:
        if (key := _first_key(rule)) in positions:
            arrays = [positions[key]]
            variables[rule.name].assign(positions[key])
        else:
            arrays = [checkpoint.read(key) for key in rule.shapes]
            variables[rule.name].assign(rule.to_tensor(arrays))
        bad += not_finite(zip(rule.shapes, arrays, strict=True))
    warn_not_finite(path, bad)
    reset = [rule for rule in head_rules if rule not in loaded_head]
    for rule in reset:
        _reset(variables[rule.name], mapping.head_layer(model, _first_key(rule)))
    return LoadReport(
        path=path,
        loaded=[key for rule in loaded for key in rule.shapes],
        reset=[key for rule in reset for key in rule.shapes],
        dropped=dropped,
        resized=resized,
        resized_tables=[
            key
            for rule in loaded
            for key, shape in rule.shapes.items()
            if rule.resizable and tuple(shapes[key]) != tuple(shape)
        ],
        converted=getattr(checkpoint, "is_converted", False),
        notes=tuple(dict.fromkeys(notes)),
        position_resize=checkpoint.position_resize,
    )


def not_finite(arrays) -> list[str]:
    """The keys of the arrays that hold NaN or infinite values, of pairs of key and array."""
    return [key for key, array in arrays if not np.isfinite(array).all()]


def warn_not_finite(path, keys):
    """Warns that the arrays `keys` of the file `path` hold NaN or infinite values, if any do."""
    if keys:
        # Always from this line: Python then shows a text once, however often a file is loaded.
        warnings.warn(
            f"{path} has NaN or infinite values in {len(keys)} of its arrays, first in {keys[0]}. "
            "The model's results will not be numbers; use other weights.",
            stacklevel=1,
        )


def _check_trained_fields(config, trained, mapping, path):
    """Raises for weights that fit, but with which the model would compute something else."""
    if trained is None or trained.family != config.family:
        return  # Unknown, or of another family: then the arrays do not fit at all.
    ours, theirs = mapping.trained_fields(config), mapping.trained_fields(trained)
    for name in [name for name in ours if name in theirs]:
        if ours[name] != theirs[name]:
            raise ValueError(
                f"{path} was trained with {name.rpartition('.')[2]}={theirs[name]}, this model has "
                f"{ours[name]}: its outputs would be wrong. Create the model with "
                f"{name}={theirs[name]}."
            )


def _find_dropped(shapes, loaded, mapping, path):
    """The keys of the file that the model does not use; raises if one of them is essential."""
    unused = shapes.keys() - {key for rule in loaded for key in rule.shapes}
    dropped = {
        key
        for key in unused
        if key.startswith(mapping.HEAD_PREFIXES) or key in mapping.OPTIONAL_KEYS
    }
    if unknown := sorted(unused - dropped):
        raise ValueError(
            f"{path} holds arrays this model has no place for: {summarize(unknown)}. "
            "Create the model the file was written for."
        )
    return sorted(dropped)


def _first_key(rule):
    return next(iter(rule.shapes))


def _choose_head(mode, head_rules, shapes, mapping, path):
    """Which of the model's head rules are loaded under `mode`."""
    before_last = tuple(mapping.HEAD_PREFIXES[:-1])
    if mode == "reset" or not head_rules:
        return []
    if mode == "reset_last":
        chosen = [rule for rule in head_rules if _first_key(rule).startswith(before_last)]
        for rule in chosen:
            _check_shapes(rule, shapes, path)
        return chosen
    try:
        for prefix in before_last:
            is_in_model = any(_first_key(rule).startswith(prefix) for rule in head_rules)
            if not is_in_model and any(key.startswith(prefix) for key in shapes):
                raise ValueError(
                    f"{path} has {prefix.rstrip('/')}, the model has none. Set "
                    'representation_size, or load with head="reset".'
                )
        for rule in head_rules:
            _check_shapes(rule, shapes, path)
    except ValueError:
        if mode == "keep":
            raise
        return []
    return head_rules


def _check_shapes(rule, shapes, path):
    for key, expected in rule.shapes.items():
        if key not in shapes:
            raise ValueError(
                f"{path} has no array {key}, which the model needs with shape {tuple(expected)}. "
                "Create the model that the file was written for."
            )
        if not _fits(tuple(shapes[key]), tuple(expected), rule.resizable):
            raise ValueError(
                f"{path}: {key} has shape {tuple(shapes[key])}, the model needs {tuple(expected)}. "
                "Create the model the file was written for."
            )


def _fits(shape, expected, resizable):
    if resizable and shape and shape[-1] % 2 and shape[-1] <= _MOST_OFFSETS:
        return shape[:-1] == expected[:-1]
    return shape == expected


def _reset(variable, layer):
    is_kernel = variable is layer.kernel
    initializer = layer.kernel_initializer if is_kernel else layer.bias_initializer
    variable.assign(initializer(variable.shape, dtype=variable.dtype))


def for_range(checkpoint, preprocessing):
    """An open checkpoint as the weights of a model whose images `preprocessing` prepares.

    Args:
        checkpoint: see `vit_tf.checkpoints`.
        preprocessing: `Preprocessing`; None means pixels in [-1, 1].

    Returns:
        `checkpoint` itself if both have the same mean and deviation, or the checkpoint has no
        preprocessing.

    Raises:
        ValueError: if they differ, and the model starts with a padded convolution (a ResNet).
    """
    source = checkpoint.preprocessing
    wanted = (MEAN, STD) if preprocessing is None else (preprocessing.mean, preprocessing.std)
    if source is None or (source.mean, source.std) == wanted:
        return checkpoint
    kernel = checkpoint.shapes.get(_KERNEL, ())
    if kernel[2:3] != (3,) or _BIAS not in checkpoint.shapes:
        raise ValueError(
            f"{checkpoint.path} reads pixels with mean={source.mean} and std={source.std}, this "
            f"model with mean={wanted[0]} and std={wanted[1]}: padded convolutions cannot include "
            "the difference. Use those of the file: the argument preprocessing of load_npz or "
            f"load_safetensors, or in a command --set data.mean={_text(source.mean)} "
            f"--set data.std={_text(source.std)}."
        )
    (mean, std), (new_mean, new_std) = (np.asarray(x) for x in ((source.mean, source.std), wanted))
    return _Converted(checkpoint, new_std / std, (new_mean - mean) / std)


def _text(values):
    return ",".join(map(str, values))


class _Converted:
    """A checkpoint whose model reads `scale * x + offset` in each color, for a model that reads x.

    Args:
        checkpoint: the open checkpoint.
        scale, offset: float64 `[3]`.
    """

    is_converted = True

    def __init__(self, checkpoint, scale, offset):
        self._checkpoint, self._scale, self._offset = checkpoint, scale, offset

    def __getattr__(self, name):
        return getattr(self._checkpoint, name)

    def read(self, key):
        """The array of a key, float32; see `vit_tf.checkpoints`."""
        array = self._checkpoint.read(key)
        if key == _KERNEL:
            return (array * self._scale[:, None]).astype(np.float32)
        if key == _BIAS:
            kernel = self._checkpoint.read(_KERNEL).astype(np.float64)
            return (array + np.einsum("ijcd,c->d", kernel, self._offset)).astype(np.float32)
        return array
