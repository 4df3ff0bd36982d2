"""The published checkpoint layout: names and shapes <-> our variables, in one table.

The canonical layout is that of the files released with the paper, and for ResNets of those of BiT:
keys joined with "/", float32 arrays, submodules of a block numbered together. Newer (Linen) block
names, numbered layers and the prefixes of training states are read as well.
"""

import dataclasses
import re
from collections.abc import Callable

import numpy as np

from vit_tf.config import ResNetConfig

POSITIONS = "Transformer/posembed_input/pos_embedding"
ROOT = "resnet/root_block/standardized_conv2d/kernel"
MAP_HEAD = "MAPHead_0"
_PREFIXES = ("opt/target/", "params/img/", "params/", "")
_LINEN_NAMES = {
    "LayerNorm_1": "LayerNorm_2",
    "MultiHeadDotProductAttention_0": "MultiHeadDotProductAttention_1",
    "MlpBlock_0": "MlpBlock_3",
}


@dataclasses.dataclass(frozen=True, eq=False)
class Entry:
    """One variable of ours and the published arrays it is made of.

    Attributes:
        variable: the Keras variable.
        shapes: published key -> shape.
        pack: list of published arrays, in the order of `shapes`, -> our array.
        unpack: our array -> list of published arrays.
    """

    variable: object
    shapes: dict[str, tuple[int, ...]]
    pack: Callable
    unpack: Callable


def published_table(model) -> list[Entry]:
    """The correspondence between a model and the published layout (paper.md B.2 to B.4, B.8)."""
    return _resnet(model) if isinstance(model.config, ResNetConfig) else _vit(model)


def is_head(key) -> bool:
    """Whether an array belongs to what fine-tuning replaces."""
    return key.startswith(("pre_logits/", "head/", "resnet/head/"))


def is_pre_logits(key) -> bool:
    """Whether an array belongs to the tanh layer before the head."""
    return key.startswith("pre_logits/")


def _vit(model):
    width, heads = model.config.hidden_size, model.config.heads
    entries = []
    if model.class_token is not None:
        entries.append(_reshaped(model.class_token.token, "cls", (1, 1, width)))
    if model.stem is not None:
        entries += _stem(model.stem)
    entries += _same(model.patch_embedding, "embedding")
    if model.position_embedding.is_learned:
        table = model.position_embedding.table
        entries.append(_reshaped(table, POSITIONS, (1, *table.shape)))
    for index, block in enumerate(model.blocks):
        prefix = f"Transformer/encoderblock_{index}"
        attention = f"{prefix}/MultiHeadDotProductAttention_1"
        entries += _norm(block.norm_attention, f"{prefix}/LayerNorm_0")
        entries += _attention(block.attention, attention, width, heads)
        entries += _norm(block.norm_mlp, f"{prefix}/LayerNorm_2")
        entries += _mlp(block.mlp, f"{prefix}/MlpBlock_3")
    entries += _norm(model.norm, "Transformer/encoder_norm")
    if (pooling := model.map_pooling) is not None:
        entries.append(_reshaped(pooling.probe, f"{MAP_HEAD}/probe", (1, 1, width)))
        attention = f"{MAP_HEAD}/MultiHeadDotProductAttention_0"
        entries += _attention(pooling, attention, width, heads)
        entries += _norm(pooling.norm, f"{MAP_HEAD}/LayerNorm_0")
        entries += _mlp(pooling.mlp, f"{MAP_HEAD}/MlpBlock_0")
    for name in ("pre_logits", "head"):
        if (layer := getattr(model, name)) is not None:
            entries += _same(layer, name)
    return entries


def _stem(stem):
    entries = [_kernel(stem.conv_root, "conv_root"), *_norm(stem.gn_root, "gn_root")]
    for unit in stem.unit_layers:
        prefix = unit.name.replace("_", "/")
        for conv, norm in (("conv1", "gn1"), ("conv2", "gn2"), ("conv3", "gn3")):
            entries.append(_kernel(getattr(unit, conv), f"{prefix}/{conv}"))
            entries += _norm(getattr(unit, norm), f"{prefix}/{norm}")
        if unit.conv_proj is not None:
            entries.append(_kernel(unit.conv_proj, f"{prefix}/conv_proj"))
            entries += _norm(unit.gn_proj, f"{prefix}/gn_proj")
    return entries


def _resnet(model):
    names = ("gamma", "beta")
    entries = [_reshaped(model.root.kernel, ROOT, model.root.kernel.shape)]
    for unit in model.unit_layers:
        block, index = re.fullmatch(r"(block\d+)_unit(\d+)", unit.name).groups()
        prefix = f"resnet/{block}/unit{int(index):02}"
        for part in "abc":
            conv, norm = getattr(unit, f"conv_{part}"), getattr(unit, f"gn_{part}")
            entries += _same(norm, f"{prefix}/{part}/group_norm", names)
            entries.append(_kernel(conv, f"{prefix}/{part}/standardized_conv2d"))
        if unit.proj is not None:
            entries.append(_kernel(unit.proj, f"{prefix}/a/proj/standardized_conv2d"))
    entries += _same(model.norm, "resnet/group_norm", names)
    if model.head is not None:
        shape = (1, 1, *model.head.kernel.shape)
        entries.append(_reshaped(model.head.kernel, "resnet/head/conv2d/kernel", shape))
        entries += _same(model.head, "resnet/head/conv2d", ("bias",))
    return entries


def canonical_names(shapes, path) -> dict[str, str]:
    """Canonical key -> name in the file, without prefix and in pre-Linen numbering."""
    for prefix in _PREFIXES:
        names = {name: name[len(prefix) :] for name in shapes if name.startswith(prefix)}
        keys = set(names.values())
        if "embedding/kernel" in keys:
            break
        # BiT's layers carry the numbers that TensorFlow gave them.
        keys = {name: re.sub(r"_\d+(?=/|$)", "", key) for name, key in names.items()}
        if ROOT in keys.values():
            names = keys
            break
    else:
        raise ValueError(
            f"{path} is no Vision Transformer or BiT ResNet checkpoint in the published layout: it "
            f"has no embedding/kernel. It holds {some(sorted(shapes)) or 'no arrays'}."
        )
    linen = any("/MultiHeadDotProductAttention_0/" in key for key in names.values())
    canonical = {}
    for name, key in names.items():
        if linen and key.startswith("Transformer/"):
            key = re.sub(
                r"(?<=/)(LayerNorm_1|MultiHeadDotProductAttention_0|MlpBlock_0)(?=/)",
                lambda match: _LINEN_NAMES[match[1]],
                key,
            )
        if key in canonical:
            raise ValueError(
                f"{path} holds {name} and {canonical[key]}, which are two names of one array."
            )
        canonical[key] = name
    return canonical


def _reshaped(variable, key, shape):
    return Entry(
        variable,
        {key: tuple(shape)},
        pack=lambda arrays: arrays[0].reshape(variable.shape),
        unpack=lambda value: [value.reshape(shape)],
    )


def _same(layer, prefix, names=("kernel", "bias")):
    variables = [(name, getattr(layer, name)) for name in names]
    return [_reshaped(variable, f"{prefix}/{name}", variable.shape) for name, variable in variables]


def _kernel(layer, prefix):
    return _same(layer, prefix, ("kernel",))[0]


def _norm(layer, prefix):
    return [
        _reshaped(layer.gamma, f"{prefix}/scale", layer.gamma.shape),
        _reshaped(layer.beta, f"{prefix}/bias", layer.beta.shape),
    ]


def _mlp(mlp, prefix):
    return _same(mlp.dense_0, f"{prefix}/Dense_0") + _same(mlp.dense_1, f"{prefix}/Dense_1")


def _attention(layer, prefix, width, heads):
    """Our q | k | v kernel `[D, 3 D]` against three published kernels `[D, heads, D / heads]`."""
    parts = ("query", "key", "value")

    def packed(variable, name, shape):
        return Entry(
            variable,
            {f"{prefix}/{part}/{name}": shape for part in parts},
            pack=lambda arrays: np.concatenate(
                [array.reshape(*variable.shape[:-1], width) for array in arrays], axis=-1
            ),
            unpack=lambda value: [part.reshape(shape) for part in np.split(value, 3, axis=-1)],
        )

    head_shape = (heads, width // heads)
    return [
        packed(layer.qkv.kernel, "kernel", (width, *head_shape)),
        packed(layer.qkv.bias, "bias", head_shape),
        _reshaped(layer.out.kernel, f"{prefix}/out/kernel", (*head_shape, width)),
        _reshaped(layer.out.bias, f"{prefix}/out/bias", (width,)),
    ]


def some(keys, most=4):
    """The first few keys, for a message."""
    shown = ", ".join(keys[:most])
    return shown + (f" and {len(keys) - most} more" if len(keys) > most else "")
