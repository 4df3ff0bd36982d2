"""What a published checkpoint says of its model: the configuration, read off array shapes."""

import re

from vit_tf.checkpoints.published_layout import MAP_HEAD, POSITIONS, ROOT, some
from vit_tf.config import ModelConfig, ResNetConfig, StemConfig, ViTConfig


def config_of_shapes(shapes, path, grid=None) -> ModelConfig:
    """The configuration of a published model.

    What shapes cannot tell is taken from the paper: tanh GELU, the epsilons, no dropout, and for a
    ResNet, which reads any size, images of 224 x 224.

    Args:
        shapes: canonical key -> shape, of a `PublishedFile` for instance.
        path: the file, for messages.
        grid: `(rows, columns)` of the patches; None takes the position table as square.

    Returns:
        A configuration whose image size is the grid times the patch size.

    Raises:
        ValueError: if the arrays are not those of a model of ours.
    """
    try:
        return _resnet(shapes, path) if ROOT in shapes else _vit(shapes, path, grid)
    except TypeError as error:
        raise ValueError(f"{path} describes no model: {error}") from None


def _resnet(shapes, path):
    width = _width(shapes, ROOT, path)
    num_classes = 0
    if "resnet/head/conv2d/bias" in shapes:
        (num_classes,) = _shape(shapes, "resnet/head/conv2d/bias", 1, path)
    depths = _stage_depths(shapes, r"resnet/block(\d+)/unit(\d+)/", path)
    return build(ResNetConfig, path, stage_depths=depths, width=width, num_classes=num_classes)


def _vit(shapes, path, grid):
    block = "Transformer/encoderblock_0"
    found = (re.match(r"Transformer/encoderblock_(\d+)/", key) for key in shapes)
    blocks = {match[1] for match in found if match}
    if blocks != {str(index) for index in range(len(blocks))}:
        raise ValueError(
            f"{path} does not hold a plain Vision Transformer: of its encoder blocks, numbered "
            f"{some(sorted(blocks))}, some are missing."
        )
    stem = None
    if "conv_root/kernel" in shapes:
        width = _width(shapes, "conv_root/kernel", path)
        depths = _stage_depths(shapes, r"block(\d+)/unit(\d+)/", path)
        stem = build(StemConfig, path, stage_depths=depths, width=width)
    embedding = _shape(shapes, "embedding/kernel", 4, path)
    patch_size, width_patch, channels, hidden_size = embedding
    if (patch_size, channels) != (width_patch, stem.channels if stem else 3):
        raise ValueError(
            f"{path}: embedding/kernel must be (P, P, {stem.channels if stem else 3}, D). "
            f"Received: {embedding}."
        )
    query = f"{block}/MultiHeadDotProductAttention_1/query/kernel"
    (mlp_size,) = _shape(shapes, f"{block}/MlpBlock_3/Dense_0/bias", 1, path)
    fields = {
        "hidden_size": hidden_size,
        "mlp_size": mlp_size,
        "layers": len(blocks),
        "heads": _shape(shapes, query, 3, path)[1],
        "patch_size": patch_size,
        "classifier": "token" if "cls" in shapes else "gap",
        "num_classes": 0,
        "stem": stem,
    }
    if "head/bias" in shapes:
        (fields["num_classes"],) = _shape(shapes, "head/bias", 1, path)
    if "pre_logits/bias" in shapes:
        (fields["representation_size"],) = _shape(shapes, "pre_logits/bias", 1, path)
    if f"{MAP_HEAD}/probe" in shapes:
        fields["classifier"] = "map"
    grid = _grid(shapes, path, grid, "cls" in shapes)
    if POSITIONS not in shapes:
        fields["position_embedding"] = "sincos_2d"
    factor = stem.reduction if stem else 1
    fields["image_size"] = tuple(side * patch_size * factor for side in grid)
    return build(ViTConfig, path, **fields)


def _grid(shapes, path, grid, has_token):
    """Rows and columns of the patches: `grid`, or what a square position table says."""
    if POSITIONS not in shapes:
        if grid is None:
            raise ValueError(
                f"{path} has no {POSITIONS} and does not hold the size of its images; with fixed "
                f'positions it cannot be told. Add a sidecar {path}.json with {{"grid": [rows, '
                "columns]}."
            )
        return grid
    rows = _shape(shapes, POSITIONS, 3, path)[1] - has_token
    if grid is None:
        grid = (int(round(max(rows, 0) ** 0.5)),) * 2
    if rows < 1 or grid[0] * grid[1] != rows:
        raise ValueError(
            f"{path} has {rows} patch positions, which do not fill a grid of "
            f"{grid[0]} x {grid[1]}; the image size is unknown. Add a sidecar {path}.json with "
            '{"grid": [rows, columns]}.'
        )
    return grid


def _stage_depths(shapes, pattern, path):
    """Residual units of each stage, from the numbers in the keys, which both count from 1."""
    found = {tuple(map(int, match.groups())) for key in shapes if (match := re.match(pattern, key))}
    stages = {stage for stage, _ in found}
    counts = [sum(stage == i + 1 for stage, _ in found) for i in range(len(stages))]
    expected = {(i + 1, j + 1) for i, count in enumerate(counts) for j in range(count)}
    if found != expected:
        raise ValueError(
            f"{path} does not hold a ResNet: of its units, {some(sorted(map(str, found)))} (stage, "
            "unit), some are missing."
        )
    return tuple(counts)


def _width(shapes, key, path):
    """The width factor that a root convolution shows."""
    shape = _shape(shapes, key, 4, path)
    if shape[:3] != (7, 7, 3):
        raise ValueError(f"{path}: {key} must be (7, 7, 3, 64 w). Received: {shape}.")
    return shape[3] / 64


def _shape(shapes, key, rank, path):
    if key not in shapes or len(shapes[key]) != rank:
        found = f"has shape {tuple(shapes[key])}" if key in shapes else "is missing"
        raise ValueError(
            f"{path} does not hold a plain Vision Transformer or BiT ResNet: {key} {found}, so its "
            "structure cannot be read off its arrays."
        )
    return tuple(shapes[key])


def build(kind, path, **fields):
    """A configuration of class `kind`, or the reason why there is none, naming the file."""
    try:
        return kind(**fields)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} describes no model of ours: {error}") from None
