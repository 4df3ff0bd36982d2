"""Tensors of timm's BiT ResNets <-> published arrays."""

from vit_tf.checkpoints.published.resnet import ROOT
from vit_tf.checkpoints.safetensors import infer_config
from vit_tf.checkpoints.safetensors.rules import ReadRules, WriteRules, convolution, norm, renamed
from vit_tf.checkpoints.safetensors.timm import residual
from vit_tf.checkpoints.safetensors.timm.config_json import (
    INEXPRESSIBLE_TENSORS,
    cannot,
    pretrained_json,
    read_config_json,
)
from vit_tf.checkpoints.safetensors.timm.residual import (
    EPSILONS,
    kernel_shapes,
    stage_depths,
    standardized,
    units,
)
from vit_tf.checkpoints.shapes import build_config
from vit_tf.config import ResNetConfig

# Pattern of the architectures with known activation, epsilons and padding, and an example.
_ARCHITECTURES = r"resnetv2_(\d+x\d+|custom)_bitm?(_\w+)?", "resnetv2_50x1_bit"
# (stage_depths, width) -> architecture.
_RESNETS = {
    ((3, 4, 6, 3), 1): "resnetv2_50x1_bit",
    ((3, 4, 6, 3), 3): "resnetv2_50x3_bit",
    ((3, 4, 23, 3), 1): "resnetv2_101x1_bit",
    ((3, 4, 23, 3), 3): "resnetv2_101x3_bit",
    ((3, 8, 36, 3), 2): "resnetv2_152x2_bit",
    ((3, 8, 36, 3), 4): "resnetv2_152x4_bit",
}


def recognizes(names) -> bool:
    """Whether tensors with these names are a ResNet of this layout."""
    return bool({"stem.conv.weight", "stem.conv1.weight"} & set(names))


def read(path, shapes, folder, own_grid) -> ReadRules:
    """Plans how to read a file.

    Args:
        path: the file, for messages.
        shapes: tensor name -> shape.
        folder: where its `config.json` is, if there is one.
        own_grid: not used; a ResNet has no positions.

    Raises:
        ValueError: if vit_tf does not support the model in the file; the message states why.
    """
    del own_grid
    infer_config.check_tensor_names(path, shapes, INEXPRESSIBLE_TENSORS)
    notes, stated = [], read_config_json(folder)
    stated.architecture(*_ARCHITECTURES, notes)
    if "act_layer" in stated.arguments:
        raise stated.arguments.unsupported("act_layer", "none: vit_tf's ResNets have ReLU")
    if stated.global_pool not in (None, "", "avg"):
        raise ValueError(
            f"{path} cannot be expressed in vit_tf: its global_pool is {stated.global_pool!r}. "
            "Expected 'avg'."
        )
    config = _config(path, shapes, stated.image_size, notes)
    infer_config.check_stated_classes(stated.settings, config.num_classes, "head.fc")
    return ReadRules(
        config=config,
        preprocessing=stated.preprocessing(config, notes),
        classes=stated.classes(config.num_classes),
        notes=notes,
        rules=_rules(config),
    )


def write(config, preprocessing, classes) -> WriteRules:
    """Plans how to write a model.

    Raises:
        ValueError: if the layout cannot express the model; the message states why.
    """
    notes, custom = [], "resnetv2_custom_bit"
    if config.spatial != "convolution" or config.squeeze_excite:
        raise cannot(
            "timm's BiT ResNets have plain convolutions, here "
            f"spatial={config.spatial!r} and squeeze_excite={config.squeeze_excite}"
        )
    residual.check_writable(config)
    architecture = _RESNETS.get((config.stage_depths, config.width), custom)
    if architecture == custom:
        residual.note_unknown(config, custom, notes)
    settings = {
        "architecture": architecture,
        "num_classes": config.num_classes,
        "pretrained_cfg": pretrained_json(
            config,
            preprocessing,
            classes,
            notes,
            first_conv="stem.conv",
            classifier="head.fc",
            fixed_size=False,
        ),
    }
    return WriteRules(_rules(config), {"config.json": settings}, notes)


def _rules(config):
    """Rules for all tensors of a model."""
    conv, root = "standardized_conv2d/kernel", config.root_channels
    found = [standardized(config, "stem.conv.weight", ROOT, (7, 7, 3, root))]
    for name, key, inputs, width, is_first in units(config):
        key = f"resnet/{key}/unit{int(name.rsplit('.', 1)[1]) + 1:02}"
        for index, (part, shape) in enumerate(
            zip("abc", kernel_shapes(inputs, width), strict=True), 1
        ):
            group = f"{key}/{part}/group_norm"
            found += norm(f"{name}.norm{index}", group, shape[-2], "gamma", "beta")
            found.append(
                standardized(config, f"{name}.conv{index}.weight", f"{key}/{part}/{conv}", shape)
            )
        if is_first:
            shape, proj = (1, 1, inputs, 4 * width), f"{name}.downsample.conv.weight"
            found.append(standardized(config, proj, f"{key}/a/proj/{conv}", shape))
    found += norm("norm", "resnet/group_norm", config.channels, "gamma", "beta")
    if config.num_classes:
        shape = (1, 1, config.channels, config.num_classes)
        found.append(convolution("head.fc.weight", "resnet/head/conv2d/kernel", shape))
        found.append(renamed("head.fc.bias", "resnet/head/conv2d/bias", shape[-1:]))
    return found


def _config(path, shapes, stated, notes):
    if stated is None:
        stated = (224, 224)
        notes.append("the image size is not stated: assumed 224 x 224")
    infer_config.check_image_size(stated, path)
    num_classes = 0
    if "head.fc.weight" in shapes:
        num_classes = infer_config.sizes(shapes, "head.fc.weight", 4, path)[0]
    return build_config(
        ResNetConfig,
        path,
        stage_depths=stage_depths(shapes, "stages"),
        width=infer_config.sizes(shapes, "stem.conv.weight", 4, path)[0] / 64,
        image_size=stated,
        num_classes=num_classes,
        **EPSILONS,
    )
