"""The published layout of Vision Transformers and hybrids (docs/paper.md B.2, B.3, B.8).

The docstring of the package describes each function.
"""

import re

import numpy as np

from vit_tf.checkpoints.published import resnet
from vit_tf.checkpoints.published.vit_positions import (
    POSITION_KEYS,
    POSITIONS,
    RELATIVE,
    check_relative,
    patch_grid,
    position_key,
    read_sides,
    read_table,
    trained_injection,
    trained_positions,
)
from vit_tf.checkpoints.rule import Rule, kernel, layer_rules, reshaped
from vit_tf.checkpoints.shapes import build_config, shape_of, stage_depths, summarize, width_factor
from vit_tf.config import StemConfig, ViTConfig

MAP_HEAD = "MAPHead_0"
# Registers, a distillation token and its head are in no published file.
REGISTERS, DISTILLATION, DISTILLED_HEAD = "registers", "dist", "head_dist"
HEAD_PREFIXES = ("pre_logits/", "head/")
OPTIONAL_KEYS = ("cls", *POSITION_KEYS.values())
OPTIONAL_KEYS += tuple(f"{DISTILLED_HEAD}/{name}" for name in ("kernel", "bias"))
# Factors of a residual branch, in no published file -> the last layer of the branch; in a block.
SCALED_LAYERS = {
    "LayerScale_0/scale": "MultiHeadDotProductAttention_1/out",
    "LayerScale_1/scale": "MlpBlock_3/Dense_1",
}
# The gate of an MLP, in no published file, and the layer that it multiplies; in a block.
GATE, GATED = "MlpBlock_3/Gate_0", "MlpBlock_3/Dense_0"
# Name in newer files, written with Flax's Linen interface -> canonical name, within a block.
_LINEN_NAMES = {
    "LayerNorm_1": "LayerNorm_2",
    "MultiHeadDotProductAttention_0": "MultiHeadDotProductAttention_1",
    "MlpBlock_0": "MlpBlock_3",
}


def canonical_names(names) -> dict[str, str] | None:
    """Name -> canonical key, with the submodules of a block in pre-Linen numbering."""
    if "embedding/kernel" not in names:
        return None
    if not any("/MultiHeadDotProductAttention_0/" in name for name in names):
        return {name: name for name in names}
    pattern = rf"(?<=/)({'|'.join(_LINEN_NAMES)})(?=/)"
    return {
        name: re.sub(pattern, lambda match: _LINEN_NAMES[match[1]], name)
        if name.startswith("Transformer/")
        else name
        for name in names
    }


def config_from_shapes(shapes, path, grid=None) -> ViTConfig:
    """The configuration, from shapes; other fields are the paper's: tanh GELU, epsilon, no dropout.

    Args:
        shapes: canonical key -> shape.
        path: the file, for messages.
        grid: (rows, columns) of the patches; None means that the position table is square.

    Returns:
        A configuration whose image size is the grid times the patch size.

    Raises:
        ValueError: if vit_tf does not support a model with these arrays.
    """
    found = (re.match(r"Transformer/encoderblock_((row_|column_)?\d+)/", key) for key in shapes)
    blocks = {match[1] for match in found if match}
    axial = any(not name.isdigit() for name in blocks)
    layers = len(blocks) // (1 + axial)
    expected = _block_keys(layers, axial)
    if {f"Transformer/encoderblock_{name}" for name in blocks} != set(expected):
        raise ValueError(
            f"{path} does not hold a plain Vision Transformer: of its encoder blocks, numbered "
            f"{summarize(sorted(blocks))}, some are missing."
        )
    block = _block_keys(1, axial)[0]
    stem = None
    if "conv_root/kernel" in shapes:
        stem = build_config(
            StemConfig,
            path,
            width=width_factor(shapes, "conv_root/kernel", path),
            stage_depths=stage_depths(shapes, r"block(\d+)/unit(\d+)/", path),
        )
    embedding = shape_of(shapes, "embedding/kernel", 4, path)
    patch_size, width_patch, channels, hidden_size = embedding
    if (patch_size, channels) != (width_patch, stem.channels if stem else 3):
        raise ValueError(
            f"{path}: embedding/kernel must be (P, P, {stem.channels if stem else 3}, D). "
            f"Received: {embedding}."
        )
    (mlp_size,) = shape_of(shapes, f"{block}/MlpBlock_3/Dense_0/bias", 1, path)
    attention = f"{block}/MultiHeadDotProductAttention_1"
    fields = {
        "hidden_size": hidden_size,
        "mlp_size": mlp_size,
        "layers": layers,
        "axial": axial,
        "heads": shape_of(shapes, f"{attention}/query/kernel", 3, path)[1],
        "patch_size": patch_size,
        "layer_scale": float(f"{block}/LayerScale_0/scale" in shapes),
        "qk_norm": f"{attention}/query_ln/scale" in shapes,
        "key_bias": f"{attention}/key/bias" in shapes,
        "qkv_bias": f"{attention}/query/bias" in shapes,
        "classifier": "token" if "cls" in shapes else "gap",
        "register_tokens": 0,
        "num_classes": 0,
        "stem": stem,
    }
    if f"{block}/MlpBlock_3/Gate_0/bias" in shapes:
        fields["activation"] = "swiglu"
    if "head/bias" in shapes:
        (fields["num_classes"],) = shape_of(shapes, "head/bias", 1, path)
    if "pre_logits/bias" in shapes:
        (fields["representation_size"],) = shape_of(shapes, "pre_logits/bias", 1, path)
    if REGISTERS in shapes:
        fields["register_tokens"] = shape_of(shapes, REGISTERS, 3, path)[1]
    if DISTILLATION in shapes:
        fields["classifier"] = "token_distilled"
    if f"{MAP_HEAD}/probe" in shapes:
        fields["classifier"] = "map"
    grid = patch_grid(shapes, path, grid, "cls" in shapes, hidden_size)
    fields["position_embedding"] = trained_positions(shapes) or "sincos_2d"
    fields["position_injection"] = trained_injection(shapes)
    factor = stem.reduction if stem else 1
    fields["image_size"] = tuple(side * patch_size * factor for side in grid)
    return build_config(ViTConfig, path, **fields)


def array_fields(config) -> dict:
    """The fields that the arrays of a model show.

    These include the grid, which determines the rows of the position table, but not the image size:
    some pixels may be outside of all patches.
    """
    names = ("hidden_size", "mlp_size", "layers", "heads", "patch_size", "num_classes", "grid")
    names += ("axial", "register_tokens", "is_distilled", "qk_norm", "key_bias", "qkv_bias")
    fields = {name: getattr(config, name) for name in names}
    fields["layer_scale"] = config.layer_scale > 0
    if config.stem:
        fields |= {"stage_depths": config.stem.stage_depths, "width": config.stem.width}
    return fields


def trained_fields(config) -> dict:
    """The fields that the weights depend on, but that no array shows."""
    fields = {name: getattr(config, name) for name in ("activation", "layer_norm_epsilon")}
    # A dropped or missing table is noticed, but no array shows that positions were fixed.
    if config.position_embedding in ("sincos_2d", "rotary_2d", "none"):
        fields["position_embedding"] = config.position_embedding
    if config.rotary:
        fields["rotary_base"] = config.rotary_base
    elif config.position_embedding not in ("relative", "none"):
        fields["position_injection"] = config.position_injection
    if config.stem:
        of_stem = resnet.trained_fields(config.stem)
        fields |= {f"stem.{name}": value for name, value in of_stem.items()}
    return fields


def rules(model) -> list[Rule]:
    """All weights of a `VisionTransformer`."""
    width, heads = model.config.hidden_size, model.config.heads
    found = []
    if model.class_token is not None:
        found.append(reshaped(model.class_token.token, "cls", (1, 1, width)))
    if model.register_tokens is not None:
        tokens, is_distilled = model.register_tokens.tokens, model.config.is_distilled
        key = DISTILLATION if is_distilled else REGISTERS
        found.append(reshaped(tokens, key, (1, *tokens.shape)))
    if model.stem is not None:
        found += _stem(model.stem)
    found += layer_rules(model.patch_embedding, "embedding")
    for index, layer in enumerate(model.position_layers()):
        for variable in layer.weights:  # frozen ones too
            key = position_key(variable.name, index)
            found.append(reshaped(variable, key, (1, *variable.shape)))
    keys = _block_keys(model.config.layers, model.config.axial)
    for prefix, block in zip(keys, model.blocks, strict=True):
        attention = f"{prefix}/MultiHeadDotProductAttention_1"
        found += _norm(block.norm_attention, f"{prefix}/LayerNorm_0")
        found += _attention(block.attention, attention, width, heads)
        if block.attention.relative_positions:
            table = block.attention.relative.table
            found.append(reshaped(table, f"{attention}/relative_embedding", table.shape))
        if block.attention.qk_norm:
            found += _norm(block.attention.norm_query, f"{attention}/query_ln")
            found += _norm(block.attention.norm_key, f"{attention}/key_ln")
        found += _norm(block.norm_mlp, f"{prefix}/LayerNorm_2")
        found += _mlp(block.mlp, f"{prefix}/MlpBlock_3")
        if block.layer_scale:
            for key, layer in zip(
                SCALED_LAYERS, (block.attention_scale, block.mlp_scale), strict=True
            ):
                found.append(reshaped(layer.scale, f"{prefix}/{key}", (width,)))
    found += _norm(model.norm, "Transformer/encoder_norm")
    if (pooling := model.map_pooling) is not None:
        found.append(reshaped(pooling.probe, f"{MAP_HEAD}/probe", (1, 1, width)))
        attention = f"{MAP_HEAD}/MultiHeadDotProductAttention_0"
        found += _attention(pooling, attention, width, heads)
        found += _norm(pooling.norm, f"{MAP_HEAD}/LayerNorm_0")
        found += _mlp(pooling.mlp, f"{MAP_HEAD}/MlpBlock_0")
    if model.pre_logits is not None:
        found += layer_rules(model.pre_logits, "pre_logits")
    if model.head is not None:
        found += (
            _heads(model.head) if model.config.is_distilled else layer_rules(model.head, "head")
        )
    return found


def head_layer(model, key):
    """The layer of a model that a key with one of `HEAD_PREFIXES` belongs to."""
    return model.pre_logits if key.startswith("pre_logits/") else model.head


def read_positions(checkpoint, model, grid):
    """The position embeddings of a file on the grid of a model.

    Args:
        checkpoint: open, see `vit_tf.checkpoints`.
        model: the `VisionTransformer`.
        grid: (rows, columns) of the file's patches; None means those that the arrays show, or for
            one table the model's own grid if it has as many patches, else a square.

    Returns:
        The arrays that depend on the grid, key -> float32 value of the variable, and the (source,
        target) grids if they differ, else None.

    Raises:
        ValueError: if the file has other positions, or they do not fit the width or the grid.
    """
    kind = model.config.position_embedding
    if kind not in ("learned_1d", "learned_2d", "relative"):
        return {}, None
    if (trained := trained_positions(checkpoint.shapes)) != kind:
        choice = f"{trained!r}" if trained else "'sincos_2d' (big_vision) or 'none'"
        keys = {"learned_2d": POSITION_KEYS["y"], "relative": RELATIVE}
        raise ValueError(
            f"{checkpoint.path} has no {keys.get(kind, POSITIONS)}. Create the model with the "
            f"position_embedding that it was trained with: {choice}."
        )
    if kind == "relative":
        check_relative(checkpoint, model, grid)
        return {}, None
    read, arrays = read_table if kind == "learned_1d" else read_sides, {}
    for index in range(len(model.position_layers())):
        of_layer, grid = read(checkpoint, model, grid, index)
        arrays |= of_layer
    return arrays, (None if grid == model.grid else (grid, model.grid))


def _block_keys(layers, axial):
    """Starts of the keys of all blocks, in order."""
    kinds = ("row_", "column_") if axial else ("",)
    return [f"Transformer/encoderblock_{kind}{i}" for i in range(layers) for kind in kinds]


def _stem(stem):
    found = [kernel(stem.conv_root, "conv_root"), *_norm(stem.gn_root, "gn_root")]
    for unit in stem.unit_layers:
        prefix = unit.name.replace("_", "/")
        for conv, norm in (("conv1", "gn1"), ("conv2", "gn2"), ("conv3", "gn3")):
            found.append(kernel(getattr(unit, conv), f"{prefix}/{conv}"))
            found += _norm(getattr(unit, norm), f"{prefix}/{norm}")
        if unit.conv_proj is not None:
            found.append(kernel(unit.conv_proj, f"{prefix}/conv_proj"))
            found += _norm(unit.gn_proj, f"{prefix}/gn_proj")
    return found


def _norm(layer, prefix):
    return [
        reshaped(layer.gamma, f"{prefix}/scale", layer.gamma.shape),
        reshaped(layer.beta, f"{prefix}/bias", layer.beta.shape),
    ]


def _mlp(mlp, prefix):
    last = layer_rules(mlp.dense_1, f"{prefix}/Dense_1")
    if mlp.activation != "swiglu":
        return layer_rules(mlp.dense_0, f"{prefix}/Dense_0") + last
    parts = f"{prefix}/Gate_0", f"{prefix}/Dense_0"
    kernel, bias = mlp.dense_0.kernel, mlp.dense_0.bias
    of_kernel = _joined(
        kernel, [f"{part}/kernel" for part in parts], (kernel.shape[0], mlp.mlp_size)
    )
    return [of_kernel, _joined(bias, [f"{part}/bias" for part in parts], (mlp.mlp_size,)), *last]


def _attention(layer, prefix, width, heads):
    """Maps our q | k | v kernel `[D, 3 D]` to three published kernels `[D, heads, D / heads]`."""

    def joined(variable, name, shape):
        keys = [f"{prefix}/{part}/{name}" for part in ("query", "key", "value")]
        return _joined(variable, keys, shape)

    head_shape = (heads, width // heads)
    found = [joined(layer.qkv.kernel, "kernel", (width, *head_shape))]
    if layer.qkv.use_bias:
        found.append(joined(layer.qkv.bias, "bias", head_shape))
    elif layer.bias is not None:
        found.append(_bias_of_query_and_value(layer.bias, prefix, head_shape))
    return [
        *found,
        reshaped(layer.out.kernel, f"{prefix}/out/kernel", (*head_shape, width)),
        reshaped(layer.out.bias, f"{prefix}/out/bias", (width,)),
    ]


def _joined(variable, keys, shape):
    """A variable whose last axis joins published arrays of one shape."""
    of_part = *variable.shape[:-1], variable.shape[-1] // len(keys)
    return Rule(
        variable.path,
        tuple(variable.shape),
        {key: tuple(shape) for key in keys},
        to_arrays=lambda value: [
            part.reshape(shape) for part in np.split(value, len(keys), axis=-1)
        ],
        to_tensor=lambda arrays: np.concatenate(
            [array.reshape(of_part) for array in arrays], axis=-1
        ),
    )


def _heads(layer):
    """Maps the kernel `[2 D, K]` and bias `[2, K]` of two heads to the arrays of each."""
    return [
        Rule(
            variable.path,
            tuple(variable.shape),
            {f"{head}/{variable.name}": shape for head in ("head", DISTILLED_HEAD)},
            to_arrays=lambda value, shape=shape: [x.reshape(shape) for x in np.split(value, 2)],
            to_tensor=lambda arrays, whole=tuple(variable.shape): np.stack(arrays).reshape(whole),
        )
        for variable, shape in (
            (layer.kernel, (layer.kernel.shape[0] // 2, layer.units)),
            (layer.bias, (layer.units,)),
        )
    ]


def _bias_of_query_and_value(variable, prefix, shape):
    """Maps a bias `[2, D]` to two published arrays."""
    return Rule(
        variable.path,
        tuple(variable.shape),
        {f"{prefix}/{part}/bias": shape for part in ("query", "value")},
        to_arrays=lambda value: [part.reshape(shape) for part in value],
        to_tensor=lambda arrays: np.stack([array.reshape(-1) for array in arrays]),
    )
