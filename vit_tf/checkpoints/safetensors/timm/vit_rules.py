"""Tensors of timm's Vision Transformers and hybrids <-> published arrays; `D` is the width."""

from vit_tf.checkpoints.published.vit import (
    DISTILLATION,
    DISTILLED_HEAD,
    MAP_HEAD,
    REGISTERS,
    SCALED_LAYERS,
)
from vit_tf.checkpoints.published.vit_positions import POSITIONS
from vit_tf.checkpoints.rule import Rule
from vit_tf.checkpoints.safetensors.rules import (
    convolution,
    linear,
    norm,
    registers,
    renamed,
    with_register_slots,
    without_class_slot,
)
from vit_tf.checkpoints.safetensors.timm.residual import kernel_shapes, standardized, units

BACKBONE = "patch_embed.backbone"
_REGISTERS = "reg_token", REGISTERS


def rules(config, slots=True) -> list[Rule]:
    """Rules for all tensors of a model.

    Args:
        config: a `ViTConfig`.
        slots: whether the position table has rows for the tokens before the patches, if there are
            some.
    """
    width, channels = (config.hidden_size,), config.stem.channels if config.stem else 3
    found, first, count = [], int(config.has_class_token), config.unplaced_tokens
    # A model with a distillation token always has a table.
    has_table = config.position_embedding != "none" or config.is_distilled
    table = (1, first + config.grid[0] * config.grid[1], *width)
    if first:
        found.append(renamed("cls_token", "cls", (1, 1, *width)))
    if count:
        name = "pos_embed" if has_table and slots else None
        token, key = ("dist_token", DISTILLATION) if config.is_distilled else _REGISTERS
        found.append(registers(token, key, (1, count, *width), name, first))
    if has_table and count and slots:
        found.append(with_register_slots("pos_embed", POSITIONS, table, count, first))
    elif has_table:
        rule = without_class_slot if first and not slots else renamed
        found.append(rule("pos_embed", POSITIONS, table))
    if config.stem:
        found += _stem(config.stem)
    kernel = (config.patch_size, config.patch_size, channels, *width)
    found.append(convolution("patch_embed.proj.weight", "embedding/kernel", kernel))
    found.append(renamed("patch_embed.proj.bias", "embedding/bias", width))
    for index in range(config.layers):
        name, key = f"blocks.{index}", f"Transformer/encoderblock_{index}"
        found += norm(f"{name}.norm1", f"{key}/LayerNorm_0", *width)
        attention = f"{key}/MultiHeadDotProductAttention_1"
        found += _attention(config, attention, f"{name}.attn.proj", {"attn.qkv": "qkv"}, name)
        found += norm(f"{name}.norm2", f"{key}/LayerNorm_2", *width)
        found += _mlp(config, f"{name}.mlp", f"{key}/MlpBlock_3")
        if config.layer_scale:
            for ours, theirs in zip(SCALED_LAYERS, ("ls1", "ls2"), strict=True):
                found.append(renamed(f"{name}.{theirs}.gamma", f"{key}/{ours}", width))
    found += norm("norm", "Transformer/encoder_norm", *width)
    if config.classifier == "map":
        found.append(renamed("attn_pool.latent", f"{MAP_HEAD}/probe", (1, 1, *width)))
        attention = f"{MAP_HEAD}/MultiHeadDotProductAttention_0"
        parts = {"q": "q", "kv": "kv"}
        found += _attention(config, attention, "attn_pool.proj", parts, "attn_pool")
        found += norm("attn_pool.norm", f"{MAP_HEAD}/LayerNorm_0", *width)
        found += _mlp(config, "attn_pool.mlp", f"{MAP_HEAD}/MlpBlock_0")
    if config.representation_size:
        found += linear("pre_logits.fc", "pre_logits", width, (config.representation_size,))
    if config.num_classes:
        inputs = config.representation_size or config.hidden_size
        for name in ("head", DISTILLED_HEAD)[: 1 + config.is_distilled]:
            found += linear(name, name, (inputs,), (config.num_classes,))
    return found


def _attention(config, key, out, layers, prefix):
    """`layers`: name of a layer -> the first letters of the projections that it holds."""
    heads = (config.heads, config.hidden_size // config.heads)
    parts = {"q": "query", "k": "key", "v": "value"}
    found = []
    for layer, letters in layers.items():
        keys = [f"{key}/{parts[letter]}" for letter in letters]
        # The attention that pools always has biases.
        has_bias = config.qkv_bias or layer != "attn.qkv"
        found += linear(f"{prefix}.{layer}", keys, (config.hidden_size,), heads)[: 1 + has_bias]
    return found + linear(out, f"{key}/out", heads, (config.hidden_size,))


def _mlp(config, name, key):
    width, hidden = (config.hidden_size,), (config.mlp_size,)
    first = linear(f"{name}.fc1", f"{key}/Dense_0", width, hidden)
    return first + linear(f"{name}.fc2", f"{key}/Dense_1", hidden, width)


def _stem(stem):
    # A backbone with only a root is not wrapped in another module.
    root, name = stem.root_channels, f"{BACKBONE}.stem" if stem.stage_depths else BACKBONE
    found = [standardized(stem, f"{name}.conv.weight", "conv_root/kernel", (7, 7, 3, root))]
    found += norm(f"{name}.norm", "gn_root", root)
    for name, key, inputs, width, is_first in units(stem):
        key = f"{key}/unit{int(name.rsplit('.', 1)[1]) + 1}"
        name = f"{BACKBONE}.{name}"
        for index, shape in enumerate(kernel_shapes(inputs, width), 1):
            conv = f"{name}.conv{index}.weight"
            found.append(standardized(stem, conv, f"{key}/conv{index}/kernel", shape))
            found += norm(f"{name}.norm{index}", f"{key}/gn{index}", shape[-1])
        if is_first:
            shape, conv = (1, 1, inputs, 4 * width), f"{name}.downsample.conv.weight"
            found.append(standardized(stem, conv, f"{key}/conv_proj/kernel", shape))
            found += norm(f"{name}.downsample.norm", f"{key}/gn_proj", 4 * width)
    return found
