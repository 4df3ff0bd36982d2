"""Freezes variables of a model by pattern (`optimizer.freeze`, `optimizer.train_only`)."""

import fnmatch
import math

from pipelines.errors import UserError
from vit_tf.config.near_names import did_you_mean


def freeze(model, patterns, zero_kernel=None, only=()) -> list[str]:
    """Excludes variables from training: they leave `model.trainable_variables`.

    Args:
        model: a built Keras model.
        patterns: each matches the path of a variable below the model, such as
            "block_0/mlp/dense_0/kernel", or of a layer, and then all variables in the layer. `*`
            stands for any characters, also for `/`, `?` for one character, `[ab]` for a or b, and
            `[!ab]` for any other character.
        zero_kernel: the variable that starts with zeros: without it no other has a gradient; None
            allows it to be frozen.
        only: instead of `patterns`: patterns of the only variables that are not frozen.

    Returns:
        A line of text with the number of frozen variables and parameters, if there are any.

    Raises:
        UserError: if a pattern matches nothing, no variable would be left, or a head of zeros would
            stay as it is: then no other gradient would differ from zero.
    """
    variables = model.trainable_variables
    paths = [variable.path.partition("/")[2] for variable in variables]
    frozen = _find("freeze", patterns, paths, model)
    if only:
        frozen = set(range(len(paths))) - _find("train_only", only, paths, model)
    if len(frozen) == len(variables):
        raise UserError(
            f"optimizer.freeze={','.join(patterns)} freezes all {len(variables)} variables. Leave "
            "out the pattern of a layer that is to be trained, such as head."
        )
    for index in frozen:
        variables[index].trainable = False
    if zero_kernel is not None and not zero_kernel.trainable:
        path = zero_kernel.path.partition("/")[2]
        layer = path.partition("/")[0]
        fix = f"Add {layer} to train_only." if only else "Leave out the pattern that matches it."
        raise UserError(
            f"optimizer.{'train_only leaves out' if only else 'freeze includes'} {path}, "
            f"which starts with zeros: nothing could learn. {fix}"
        )
    if not frozen:
        return []
    counts = [math.prod(variable.shape) for variable in variables]
    return [
        f"frozen: {len(frozen)} of {len(variables)} variables, "
        f"{sum(counts[index] for index in frozen):,} of {sum(counts):,} parameters"
    ]


def _find(field, patterns, paths, model):
    """Indices of the paths that one of the patterns of a field matches."""
    found = set()
    for pattern in patterns:
        matched = {i for i, path in enumerate(paths) if _matches(path, pattern)}
        if not matched:
            raise UserError(
                f"optimizer.{field}: {pattern!r} matches no variable of {model.name}."
                + _hint(pattern, paths)
            )
        found |= matched
    return found


def _matches(path, pattern):
    return fnmatch.fnmatchcase(path, pattern) or fnmatch.fnmatchcase(path, f"{pattern}/*")


def _hint(pattern, paths):
    """Near paths of variables and layers, or else the outermost layers."""
    parts = [path.split("/") for path in paths]
    known = dict.fromkeys("/".join(part[:end]) for part in parts for end in range(1, len(part) + 1))
    near = did_you_mean(pattern.removesuffix("/*"), known)
    return near or f" Its layers are {', '.join(dict.fromkeys(part[0] for part in parts))}."
