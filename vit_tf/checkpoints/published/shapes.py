"""Reads sizes from the shapes of published arrays, any of which may be missing."""

import re

from vit_tf.checkpoints.messages import summarize


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
