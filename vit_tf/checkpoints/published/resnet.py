"""The published layout of BiT ResNets (docs/paper.md B.4).

The docstring of the package describes each function.
"""

import re

from vit_tf.checkpoints.configs import build_config
from vit_tf.checkpoints.published.entries import Entry, kernel, layer_entries, reshaped
from vit_tf.checkpoints.published.shapes import shape_of, stage_depths, width_factor
from vit_tf.config import ResNetConfig

HEAD_PREFIXES = ("resnet/head/",)
OPTIONAL_KEYS = ()
ROOT = "resnet/root_block/standardized_conv2d/kernel"
_HEAD = "resnet/head/conv2d"


def canonical_names(names) -> dict[str, str] | None:
    """Name -> canonical key, without the numbers that TensorFlow gave the layers."""
    keys = {name: re.sub(r"_\d+(?=/|$)", "", name) for name in names}
    return keys if ROOT in keys.values() else None


def config_from_shapes(shapes, path, grid=None) -> ResNetConfig:
    """The configuration, for images of 224 x 224; `grid` is not used: a ResNet reads any size.

    Raises:
        ValueError: if vit_tf does not support a model with these arrays.
    """
    num_classes = 0
    if f"{_HEAD}/bias" in shapes:
        (num_classes,) = shape_of(shapes, f"{_HEAD}/bias", 1, path)
    return build_config(
        ResNetConfig,
        path,
        width=width_factor(shapes, ROOT, path),
        stage_depths=stage_depths(shapes, r"resnet/block(\d+)/unit(\d+)/", path),
        num_classes=num_classes,
    )


def array_fields(config) -> dict:
    """The fields that the arrays of a model show."""
    return {name: getattr(config, name) for name in ("num_classes", "stage_depths", "width")}


def trained_fields(config) -> dict:
    """The fields that the weights depend on, but that no array shows."""
    names = ("group_norm_epsilon", "variance_epsilon", "deviation_epsilon")
    return {name: getattr(config, name) for name in names}


def entries(model) -> list[Entry]:
    """All weights of a `ResNet`."""
    names = ("gamma", "beta")
    found = [reshaped(model.root.kernel, ROOT, model.root.kernel.shape)]
    for unit in model.unit_layers:
        block, index = unit.name.split("_unit")
        prefix = f"resnet/{block}/unit{int(index):02}"
        for part in "abc":
            conv, norm = getattr(unit, f"conv_{part}"), getattr(unit, f"gn_{part}")
            found += layer_entries(norm, f"{prefix}/{part}/group_norm", names)
            found.append(kernel(conv, f"{prefix}/{part}/standardized_conv2d"))
        if unit.proj is not None:
            found.append(kernel(unit.proj, f"{prefix}/a/proj/standardized_conv2d"))
    found += layer_entries(model.norm, "resnet/group_norm", names)
    if model.head is not None:
        shape = (1, 1, *model.head.kernel.shape)
        found.append(reshaped(model.head.kernel, f"{_HEAD}/kernel", shape))
        found += layer_entries(model.head, _HEAD, ("bias",))
    return found


def read_positions(checkpoint, model, grid):
    """No arrays, and no grids: a ResNet has no positions."""
    del checkpoint, model, grid
    return {}, None


def head_layer(model, key):
    """The layer of a model that a key with one of `HEAD_PREFIXES` belongs to."""
    del key
    return model.head
