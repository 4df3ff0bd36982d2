"""Tensors of timm's Vision Transformers, hybrids and BiT ResNets <-> published arrays.

`D` width, `f` the width of a residual unit's bottleneck; a unit has `4 f` channels.
"""

import numpy as np

from vit_tf.checkpoints.published_layout import MAP_HEAD, POSITIONS, ROOT
from vit_tf.checkpoints.safetensors.rules import (
    Rule,
    convolution,
    linear,
    norm,
    same,
    without_class_slot,
)
from vit_tf.config import ResNetConfig

LAYER_NORM_EPSILON = 1e-6
# Kernels are standardised as (w - mean) / sqrt(variance + 1e-8), in hybrids and BiT models alike.
EPSILONS = {"group_norm_epsilon": 1e-5, "variance_epsilon": 1e-8, "deviation_epsilon": 0.0}
BACKBONE = "patch_embed.backbone"
# classifier -> timm's global_pool.
POOLS = {"token": "token", "gap": "avg", "map": "map", "unpooled": ""}


def rules(config, class_slot=True) -> list[Rule]:
    """All tensors of a model.

    Args:
        config: `ViTConfig` or `ResNetConfig`.
        class_slot: whether the position table has a row for the class token, if there is one.
    """
    if isinstance(config, ResNetConfig):
        return _bit(config)
    width, channels = (config.hidden_size,), config.stem.channels if config.stem else 3
    found = []
    if config.num_prefix_tokens:
        found.append(same("cls_token", "cls", (1, 1, *width)))
    if config.position_embedding != "none":
        tokens = config.num_prefix_tokens + config.grid[0] * config.grid[1]
        rule = same if class_slot or not config.num_prefix_tokens else without_class_slot
        found.append(rule("pos_embed", POSITIONS, (1, tokens, *width)))
    if config.stem:
        found += _stem(config.stem)
    kernel = (config.patch_size, config.patch_size, channels, *width)
    found.append(convolution("patch_embed.proj.weight", "embedding/kernel", kernel))
    found.append(same("patch_embed.proj.bias", "embedding/bias", width))
    for index in range(config.layers):
        name, key = f"blocks.{index}", f"Transformer/encoderblock_{index}"
        found += norm(f"{name}.norm1", f"{key}/LayerNorm_0", *width)
        attention = f"{key}/MultiHeadDotProductAttention_1"
        found += _attention(config, attention, f"{name}.attn.proj", {"attn.qkv": "qkv"}, name)
        found += norm(f"{name}.norm2", f"{key}/LayerNorm_2", *width)
        found += _mlp(config, f"{name}.mlp", f"{key}/MlpBlock_3")
    found += norm("norm", "Transformer/encoder_norm", *width)
    if config.classifier == "map":
        found.append(same("attn_pool.latent", f"{MAP_HEAD}/probe", (1, 1, *width)))
        attention = f"{MAP_HEAD}/MultiHeadDotProductAttention_0"
        parts = {"q": "q", "kv": "kv"}
        found += _attention(config, attention, "attn_pool.proj", parts, "attn_pool")
        found += norm("attn_pool.norm", f"{MAP_HEAD}/LayerNorm_0", *width)
        found += _mlp(config, "attn_pool.mlp", f"{MAP_HEAD}/MlpBlock_0")
    if config.representation_size:
        found += linear("pre_logits.fc", "pre_logits", width, (config.representation_size,))
    if config.num_classes:
        inputs = config.representation_size or config.hidden_size
        found += linear("head", "head", (inputs,), (config.num_classes,))
    return found


def _attention(config, key, out, layers, prefix):
    """`layers`: name of a layer -> the first letters of the projections that it holds."""
    heads = (config.heads, config.hidden_size // config.heads)
    parts = {"q": "query", "k": "key", "v": "value"}
    found = []
    for layer, letters in layers.items():
        keys = [f"{key}/{parts[letter]}" for letter in letters]
        found += linear(f"{prefix}.{layer}", keys, (config.hidden_size,), heads)
    return found + linear(out, f"{key}/out", heads, (config.hidden_size,))


def _mlp(config, name, key):
    width, hidden = (config.hidden_size,), (config.mlp_size,)
    first = linear(f"{name}.fc1", f"{key}/Dense_0", width, hidden)
    return first + linear(f"{name}.fc2", f"{key}/Dense_1", hidden, width)


def _stem(stem):
    # A backbone of the root alone is not wrapped in a model of its own.
    root, name = stem.root_channels, f"{BACKBONE}.stem" if stem.stage_depths else BACKBONE
    found = [_standardized(stem, f"{name}.conv.weight", "conv_root/kernel", (7, 7, 3, root))]
    found += norm(f"{name}.norm", "gn_root", root)
    for name, key, inputs, width, is_first in _units(stem):
        key = f"{key}/unit{int(name.rsplit('.', 1)[1]) + 1}"
        name = f"{BACKBONE}.{name}"
        for index, shape in enumerate(_kernels(inputs, width), 1):
            conv = f"{name}.conv{index}.weight"
            found.append(_standardized(stem, conv, f"{key}/conv{index}/kernel", shape))
            found += norm(f"{name}.norm{index}", f"{key}/gn{index}", shape[-1])
        if is_first:
            shape, conv = (1, 1, inputs, 4 * width), f"{name}.downsample.conv.weight"
            found.append(_standardized(stem, conv, f"{key}/conv_proj/kernel", shape))
            found += norm(f"{name}.downsample.norm", f"{key}/gn_proj", 4 * width)
    return found


def _bit(config):
    conv, root = "standardized_conv2d/kernel", config.root_channels
    found = [_standardized(config, "stem.conv.weight", ROOT, (7, 7, 3, root))]
    for name, key, inputs, width, is_first in _units(config):
        key = f"resnet/{key}/unit{int(name.rsplit('.', 1)[1]) + 1:02}"
        for index, (part, shape) in enumerate(zip("abc", _kernels(inputs, width), strict=True), 1):
            group = f"{key}/{part}/group_norm"
            found += norm(f"{name}.norm{index}", group, shape[-2], "gamma", "beta")
            found.append(
                _standardized(config, f"{name}.conv{index}.weight", f"{key}/{part}/{conv}", shape)
            )
        if is_first:
            shape, proj = (1, 1, inputs, 4 * width), f"{name}.downsample.conv.weight"
            found.append(_standardized(config, proj, f"{key}/a/proj/{conv}", shape))
    found += norm("norm", "resnet/group_norm", config.channels, "gamma", "beta")
    if config.num_classes:
        shape = (1, 1, config.channels, config.num_classes)
        found.append(convolution("head.fc.weight", "resnet/head/conv2d/kernel", shape))
        found.append(same("head.fc.bias", "resnet/head/conv2d/bias", shape[-1:]))
    return found


def _units(config):
    """(timm's name, key of the stage, channels in, f, whether it is the first of its stage)."""
    inputs = config.root_channels
    for stage, count in enumerate(config.stage_depths):
        width = config.root_channels * 2**stage
        for unit in range(count):
            yield f"stages.{stage}.blocks.{unit}", f"block{stage + 1}", inputs, width, unit == 0
            inputs = 4 * width


def _kernels(inputs, width):
    return (1, 1, inputs, width), (3, 3, width, width), (1, 1, width, 4 * width)


def _standardized(config, name, key, shape):
    """The kernel of a convolution that standardises it before use."""
    rule = convolution(name, key, shape)
    epsilons = config.variance_epsilon, config.deviation_epsilon
    if epsilons == (EPSILONS["variance_epsilon"], EPSILONS["deviation_epsilon"]):
        return rule
    return Rule(
        rule.names,
        rule.shapes,
        rule.pack,
        lambda arrays: rule.unpack([rescaled(arrays[0], *epsilons)]),
    )


def rescaled(kernel, variance_epsilon, deviation_epsilon):
    """A kernel that timm standardises to what ours is standardised to.

    Ours divides w - mean by sqrt(v + a) + b; call its square v + e, which defines e > 0. timm
    divides by sqrt(v + 1e-8). With c w in place of w, timm gives c (w - mean) / sqrt(c^2 v + 1e-8),
    which is ours exactly where c^2 = 1e-8 / e.

    Args:
        kernel: `[rows, columns, I, O]`; v is the variance of each of the `O` filters.
        variance_epsilon: a.
        deviation_epsilon: b; not both are 0.

    Returns:
        float32 of the same shape.
    """
    kernel = kernel.astype(np.float64)
    root = np.sqrt(kernel.var(axis=(0, 1, 2)) + variance_epsilon)
    excess = variance_epsilon + 2 * deviation_epsilon * root + deviation_epsilon**2
    return (kernel * np.sqrt(EPSILONS["variance_epsilon"] / excess)).astype(np.float32)
