"""The published checkpoint layout: names and shapes <-> our variables, in one table.

The canonical layout is that of the files released with the paper: keys joined with "/", float32
arrays, submodules of a block numbered together. Newer (Linen) block names and the prefixes of
training states are read as well.
"""

import dataclasses
import re
from collections.abc import Callable

import numpy as np

from vit_tf.config import ViTConfig

POSITIONS = "Transformer/posembed_input/pos_embedding"
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
    """The correspondence between a `VisionTransformer` and the published layout (paper.md B.2)."""
    width, heads = model.config.hidden_size, model.config.heads
    entries = []
    if model.class_token is not None:
        entries.append(_reshaped(model.class_token.token, "cls", (1, 1, width)))
    entries += _same(model.patch_embedding, "embedding", ("kernel", "bias"))
    if model.position_embedding is not None:
        table = model.position_embedding.table
        entries.append(_reshaped(table, POSITIONS, (1, *table.shape)))
    for index, block in enumerate(model.blocks):
        prefix = f"Transformer/encoderblock_{index}"
        attention = f"{prefix}/MultiHeadDotProductAttention_1"
        entries += _norm(block.norm_attention, f"{prefix}/LayerNorm_0")
        entries += _packed_projection(block.attention.qkv, attention, width, heads)
        out_shape = (heads, width // heads, width)
        entries.append(_reshaped(block.attention.out.kernel, f"{attention}/out/kernel", out_shape))
        entries.append(_reshaped(block.attention.out.bias, f"{attention}/out/bias", (width,)))
        entries += _norm(block.norm_mlp, f"{prefix}/LayerNorm_2")
        for name in ("dense_0", "dense_1"):
            layer = getattr(block.mlp, name)
            entries += _same(layer, f"{prefix}/MlpBlock_3/{name.title()}", ("kernel", "bias"))
    entries += _norm(model.norm, "Transformer/encoder_norm")
    for name in ("pre_logits", "head"):
        if (layer := getattr(model, name)) is not None:
            entries += _same(layer, name, ("kernel", "bias"))
    return entries


def config_of_shapes(shapes, path, grid=None) -> ViTConfig:
    """The configuration of a published ViT, read off its array shapes.

    What shapes cannot tell is taken from the paper: tanh GELU, epsilon 1e-6, no dropout.

    Args:
        shapes: array name -> shape, names as in the file.
        path: the file, for messages.
        grid: `(rows, columns)` of the position table; None takes it as square.

    Returns:
        A `ViTConfig` whose image size is the grid times the patch size.

    Raises:
        ValueError: if the arrays are not those of a plain Vision Transformer.
    """
    names = canonical_names(shapes, path)
    block = "Transformer/encoderblock_0"
    found = (re.match(r"Transformer/encoderblock_(\d+)/", key) for key in names)
    blocks = {match[1] for match in found if match}
    if blocks != {str(index) for index in range(len(blocks))}:
        raise ValueError(
            f"{path} does not hold a plain Vision Transformer: of its encoder blocks, numbered "
            f"{some(sorted(blocks))}, some are missing."
        )
    try:
        patch_size, width_patch, channels, hidden_size = shapes[names["embedding/kernel"]]
        _, heads, _ = shapes[names[f"{block}/MultiHeadDotProductAttention_1/query/kernel"]]
        (mlp_size,) = shapes[names[f"{block}/MlpBlock_3/Dense_0/bias"]]
        _, positions, _ = shapes[names[POSITIONS]]
        num_classes, representation_size = 0, None
        if "head/bias" in names:
            (num_classes,) = shapes[names["head/bias"]]
        if "pre_logits/bias" in names:
            (representation_size,) = shapes[names["pre_logits/bias"]]
    except (KeyError, ValueError) as error:
        raise ValueError(
            f"{path} does not hold a plain Vision Transformer ({error}): its structure cannot be "
            "read off its arrays."
        ) from None
    if (patch_size, channels) != (width_patch, 3):
        raise ValueError(
            f"{path}: embedding/kernel must be (P, P, 3, D). "
            f"Received: {(patch_size, width_patch, channels, hidden_size)}."
        )
    has_token = "cls" in names
    rows = positions - has_token
    if grid is None:
        grid = (int(round(max(rows, 0) ** 0.5)),) * 2
    if rows < 1 or grid[0] * grid[1] != rows:
        raise ValueError(
            f"{path} has {rows} patch positions, which do not fill a grid of "
            f"{grid[0]} x {grid[1]}; the image size is unknown. Add a sidecar {path}.json with "
            '{"grid": [rows, columns]}.'
        )
    try:
        return ViTConfig(
            hidden_size=hidden_size,
            mlp_size=mlp_size,
            layers=len(blocks),
            heads=heads,
            patch_size=patch_size,
            image_size=(grid[0] * patch_size, grid[1] * patch_size),
            num_classes=num_classes,
            classifier="token" if has_token else "gap",
            representation_size=representation_size,
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} describes no Vision Transformer: {error}") from None


def canonical_names(shapes, path) -> dict[str, str]:
    """Canonical key -> name in the file, without prefix and in pre-Linen numbering."""
    for prefix in _PREFIXES:
        names = [name for name in shapes if name.startswith(prefix)]
        if prefix + "embedding/kernel" in names:
            break
    else:
        raise ValueError(
            f"{path} is not a Vision Transformer checkpoint in the published layout: it has no "
            f"embedding/kernel. It holds {some(sorted(shapes)) or 'no arrays'}."
        )
    linen = any("MultiHeadDotProductAttention_0/" in name for name in names)
    canonical = {}
    for name in names:
        key = name[len(prefix) :]
        if linen:
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
        {key: shape},
        pack=lambda arrays: arrays[0].reshape(variable.shape),
        unpack=lambda value: [value.reshape(shape)],
    )


def _same(layer, prefix, names):
    variables = [(name, getattr(layer, name)) for name in names]
    return [_reshaped(variable, f"{prefix}/{name}", variable.shape) for name, variable in variables]


def _norm(layer, prefix):
    return [
        _reshaped(layer.gamma, f"{prefix}/scale", layer.gamma.shape),
        _reshaped(layer.beta, f"{prefix}/bias", layer.beta.shape),
    ]


def _packed_projection(layer, prefix, width, heads):
    """Our q | k | v kernel `[D, 3 D]` against three published kernels `[D, heads, D / heads]`."""
    parts = ("query", "key", "value")

    def entry(variable, name, shape):
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
        entry(layer.kernel, "kernel", (width, *head_shape)),
        entry(layer.bias, "bias", head_shape),
    ]


def some(keys, most=4):
    """The first few keys, for a message."""
    shown = ", ".join(keys[:most])
    return shown + (f" and {len(keys) - most} more" if len(keys) > most else "")
