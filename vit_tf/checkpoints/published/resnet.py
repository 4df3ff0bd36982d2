"""The published layout of BiT ResNets (docs/paper.md B.4), also with other layers inside.

No files with the layers that take the place of a convolution were published; their arrays have the
paths of our variables. The docstring of the package describes each function.
"""

import re

from vit_tf.checkpoints.rule import Rule, kernel, layer_rules, reshaped, variable_rules
from vit_tf.checkpoints.shapes import build_config, shape_of, stage_depths, width_factor
from vit_tf.config import ResNetConfig
from vit_tf.config.spatial import PATCH, SPATIAL

HEAD_PREFIXES = ("resnet/head/",)
OPTIONAL_KEYS = ()
ROOT = "resnet/root_block/standardized_conv2d/kernel"
_HEAD = "resnet/head/conv2d"


def canonical_names(names) -> dict[str, str] | None:
    """Name -> canonical key, without the numbers that TensorFlow gave the layers."""
    keys = {name: re.sub(r"_\d+(?=/|$)", "", name) for name in names}
    return keys if ROOT in keys.values() else None


def config_from_shapes(shapes, path, grid=None) -> ResNetConfig:
    """The configuration, for images of 224 x 224; `grid` is not used: most ResNets read any size.

    The tables of "augmented" and "full" belong to one size of image, which the arrays do not show.

    Raises:
        ValueError: if vit_tf does not support a model with these arrays.
    """
    found = [kind for kind in SPATIAL if any(f"/b/{kind}/" in key for key in shapes)]
    spatial = found[0] if found else "convolution"
    num_classes = 0
    if f"{_HEAD}/bias" in shapes:
        (num_classes,) = shape_of(shapes, f"{_HEAD}/bias", 1, path)
    return build_config(
        ResNetConfig,
        path,
        width=width_factor(shapes, ROOT, path, PATCH if spatial == "full" else 7),
        spatial=spatial,
        squeeze_excite=any("/squeeze_excite/" in key for key in shapes),
        stage_depths=stage_depths(shapes, r"resnet/block(\d+)/unit(\d+)/", path),
        num_classes=num_classes,
    )


def array_fields(config) -> dict:
    """The fields that the arrays of a model show."""
    names = ("num_classes", "stage_depths", "width", "spatial", "squeeze_excite")
    return {name: getattr(config, name) for name in names}


def trained_fields(config) -> dict:
    """The fields that the weights depend on, but that no array shows."""
    names = ("group_norm_epsilon", "variance_epsilon", "deviation_epsilon")
    return {name: getattr(config, name) for name in names}


def rules(model) -> list[Rule]:
    """All weights of a `ResNet`."""
    names = ("gamma", "beta")
    found = [reshaped(model.root.kernel, ROOT, model.root.kernel.shape)]
    for unit in model.unit_layers:
        block, index = unit.name.split("_unit")
        prefix = f"resnet/{block}/unit{int(index):02}"
        for part in "abc":
            conv, norm = getattr(unit, f"conv_{part}"), getattr(unit, f"gn_{part}")
            found += layer_rules(norm, f"{prefix}/{part}/group_norm", names)
            if conv is not None:
                found.append(kernel(conv, f"{prefix}/{part}/standardized_conv2d"))
        for layer, place in ((unit.spatial_b, f"{prefix}/b"), (unit.scale, prefix)):
            found += [] if layer is None else variable_rules(layer, place)
        if unit.proj is not None:
            found.append(kernel(unit.proj, f"{prefix}/a/proj/standardized_conv2d"))
    found += layer_rules(model.norm, "resnet/group_norm", names)
    if model.head is not None:
        shape = (1, 1, *model.head.kernel.shape)
        found.append(reshaped(model.head.kernel, f"{_HEAD}/kernel", shape))
        found += layer_rules(model.head, _HEAD, ("bias",))
    return found


def read_positions(checkpoint, model, grid):
    """No arrays, and no grids: a ResNet has no positions."""
    del checkpoint, model, grid
    return {}, None


def head_layer(model, key):
    """The layer of a model that a key with one of `HEAD_PREFIXES` belongs to."""
    del key
    return model.head
