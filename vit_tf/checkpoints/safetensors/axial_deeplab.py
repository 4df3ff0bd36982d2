"""AxialResNets as a `state_dict` of csrhddlam/axial-deeplab (docs/paper.md E.2).

Checked against `lib/models/axialnet.py` at commit 79088ed. Convert its `.pth` files with
`safetensors.torch.save_file(state_dict, "model.safetensors")`. The tensors show sizes, heads and
spans. They do not show how pixels were scaled: without a `config.json`, as that project's training
does it, by ImageNet's mean and deviation. `config.json` is of this project: `pixel_mean`,
`pixel_deviation` and `preprocessing`, the dictionary of a `Preprocessing`.
"""

import os
import re

from vit_tf.checkpoints.rule import Rule
from vit_tf.checkpoints.safetensors import infer_config
from vit_tf.checkpoints.safetensors.rules import (
    ReadRules,
    WriteRules,
    convolution,
    linear,
    renamed,
)
from vit_tf.checkpoints.shapes import build_config
from vit_tf.checkpoints.sidecar import stored_fields
from vit_tf.classes import Classes
from vit_tf.config import AxialResNetConfig
from vit_tf.files.json_object import JsonObject, read_json_object
from vit_tf.preprocessing import Preprocessing

# Buffers of PyTorch that follow from the sizes or have no effect on the outputs.
_BUFFERS = ("num_batches_tracked", "flatten_index")
# Parts of a norm: PyTorch's name -> ours.
_NORM = {
    "weight": "gamma",
    "bias": "beta",
    "running_mean": "moving_mean",
    "running_var": "moving_variance",
}
_EPSILON = 1e-5
# As in torchvision's models, for pixels of 0 to 1.
_IMAGENET = {"pixel_mean": (0.485, 0.456, 0.406), "pixel_deviation": (0.229, 0.224, 0.225)}


def recognizes(names) -> bool:
    """Whether tensors with these names are a model of this layout."""
    return any(re.fullmatch(r"layer\d+\.\d+\.hight_block\.relative", name) for name in names)


def read(path, shapes, folder, own_grid) -> ReadRules:
    """Plans how to read a file.

    Args:
        path: the file, for messages.
        shapes: tensor name -> shape.
        folder: where its `config.json` is, if there is one.
        own_grid: not used; the spans of attention are in the file.

    Raises:
        ValueError: if vit_tf does not support the model in the file; the message states why.
    """
    del own_grid
    notes, settings = [], read_json_object(os.path.join(folder, "config.json"))
    if settings is None:
        notes.append("there is no config.json: pixels are normalized as by ImageNet's statistics")
        settings = JsonObject(os.path.join(folder, "config.json"), {})
    stated = settings.section("preprocessing")
    config = _config(path, shapes, settings, stated)
    if "image_size" in stated:
        try:
            preprocessing = Preprocessing.from_dict(settings.raw("preprocessing"))
            classes = Classes.from_dict(settings.raw("preprocessing"))
            infer_config.checked_labels(classes, config.num_classes)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{stated.path}: {error}") from None
    else:
        notes.append("the preprocessing is not stated: direct resize, no class names")
        preprocessing = infer_config.preprocessing(path, config.image_size, notes)
        classes = Classes()
    return ReadRules(
        config=config,
        preprocessing=preprocessing,
        classes=classes,
        notes=notes,
        rules=_rules(config),
        ignored=frozenset(name for name in shapes if name.rsplit(".", 1)[-1] in _BUFFERS),
    )


def write(config, preprocessing, classes) -> WriteRules:
    """Plans how to write a model.

    Raises:
        ValueError: if the layout cannot express the model; the message states why.
    """
    if config.norm != "batch":
        raise _cannot("its norms are BatchNorm, here GroupNorm")
    if config.batch_norm_epsilon != _EPSILON:
        raise _cannot(f"its BatchNorm has epsilon {_EPSILON}, here {config.batch_norm_epsilon}")
    infer_config.checked_labels(classes, config.num_classes)
    notes = [
        "the buffers flatten_index and num_batches_tracked are left out: load with strict=False"
    ]
    if len(config.stage_depths) != 4:
        notes.append(f"the project's models have 4 stages, here {len(config.stage_depths)}")
    settings = {
        "pixel_mean": list(config.pixel_mean),
        "pixel_deviation": list(config.pixel_deviation),
        "preprocessing": stored_fields(preprocessing, classes),
    }
    return WriteRules(_rules(config), {"config.json": settings}, notes)


def _cannot(reason):
    return ValueError(f"This model cannot be written in the axial_deeplab layout: {reason}.")


def _config(path, shapes, settings, stated):
    stages = infer_config.how_many(shapes, r"layer(\d+)\.")
    depths = [infer_config.how_many(shapes, rf"layer{i + 1}\.(\d+)\.") for i in range(stages)]
    first = "layer1.0"
    spans = [
        infer_config.sizes(shapes, f"{first}.{block}.relative", 2, path)[1]
        for block in ("hight_block", "width_block")
    ]
    # A table has 2 k - 1 columns for a side of k pixels, a quarter of the image's.
    size = tuple(2 * (columns + 1) for columns in spans)
    if "image_size" in stated:
        size = stated.sides("image_size")
        infer_config.check_image_size(size, path)
        if [2 * -(-side // 4) - 1 for side in size] != spans:
            raise stated.error("image_size", f"a size for tables of {spans} relative positions")
    num_classes = 0
    if "fc.weight" in shapes:
        num_classes = infer_config.sizes(shapes, "fc.weight", 2, path)[0]
    maps = infer_config.sizes(shapes, f"{first}.hight_block.bn_similarity.weight", 1, path)[0]
    return build_config(
        AxialResNetConfig,
        path,
        stage_depths=tuple(depths),
        width=infer_config.sizes(shapes, "conv1.weight", 4, path)[0] / 64,
        heads=maps // 3,
        image_size=size,
        num_classes=num_classes,
        **{name: settings.numbers(name, 3, default) for name, default in _IMAGENET.items()},
    )


def _rules(config):
    """Rules for all tensors of a model."""
    channels, spans = config.root_channels, config.root_size
    found = [convolution("conv1.weight", "root/kernel", (7, 7, 3, channels))]
    found += _norm("bn1", "root_norm", channels)
    for stage, count in enumerate(config.stage_depths):
        width = config.root_channels * 2 ** (stage + 1)
        for index in range(count):
            name, key = f"layer{stage + 1}.{index}", f"block{stage + 1}_unit{index + 1}"
            is_strided = stage > 0 and index == 0
            down, up = (1, 1, channels, width), (1, 1, width, 2 * width)
            found.append(convolution(f"{name}.conv_down.weight", f"{key}/conv_down/kernel", down))
            found += _norm(f"{name}.bn1", f"{key}/norm_down", width)
            blocks = (("hight_block", "height"), ("width_block", "width"))
            for (theirs, ours), span in zip(blocks, spans, strict=True):
                sizes = (width, config.heads, span)
                found += _attention(f"{name}.{theirs}", f"{key}/{ours}", *sizes)
            found.append(convolution(f"{name}.conv_up.weight", f"{key}/conv_up/kernel", up))
            found += _norm(f"{name}.bn2", f"{key}/norm_up", 2 * width)
            if is_strided or channels != 2 * width:
                shape, proj = (1, 1, channels, 2 * width), f"{name}.downsample"
                found.append(convolution(f"{proj}.0.weight", f"{key}/conv_proj/kernel", shape))
                found += _norm(f"{proj}.1", f"{key}/norm_proj", 2 * width)
            channels = 2 * width
            spans = tuple(span // 2 for span in spans) if is_strided else spans
    if config.num_classes:
        found += linear("fc", "head", (channels,), (config.num_classes,))
    return found


def _attention(name, key, width, heads, span):
    """Rules for one layer of attention."""
    table = (2 * width // heads, 2 * span - 1)
    return [
        renamed(f"{name}.relative", f"{key}/relative", table),
        Rule(
            f"{name}.qkv_transform.weight",
            (2 * width, width, 1),
            {f"{key}/qkv/kernel": (width, 2 * width)},
            to_arrays=lambda tensor: [tensor[:, :, 0].T],
            to_tensor=lambda arrays: arrays[0].T[:, :, None],
        ),
        *_norm(f"{name}.bn_qkv", f"{key}/norm_qkv", 2 * width),
        *_norm(f"{name}.bn_similarity", f"{key}/norm_logits", 3 * heads),
        *_norm(f"{name}.bn_output", f"{key}/norm_values", 2 * width),
    ]


def _norm(name, key, channels):
    return [
        renamed(f"{name}.{theirs}", f"{key}/{ours}", (channels,)) for theirs, ours in _NORM.items()
    ]
