"""Tensors of Hugging Face's Vision Transformers <-> published arrays.

The encoder of a masked autoencoder (`model_type` vit_mae; He et al., 2022) has the same tensors. It
is read without its decoder; its fixed positions are a table in the file. `deit.py` is DeiT with a
distillation token.
"""

import os
import re
import typing

from vit_tf.checkpoints.published.vit import DISTILLATION, DISTILLED_HEAD, REGISTERS
from vit_tf.checkpoints.published.vit_positions import POSITIONS
from vit_tf.checkpoints.safetensors import infer_config
from vit_tf.checkpoints.safetensors.huggingface import config_json
from vit_tf.checkpoints.safetensors.rules import (
    ReadRules,
    WriteRules,
    convolution,
    linear,
    norm,
    registers,
    renamed,
    with_register_slots,
)
from vit_tf.checkpoints.shapes import build_config
from vit_tf.classes import Classes
from vit_tf.config import ViTConfig
from vit_tf.files.json_object import read_json_object

PATCHES = "embeddings.patch_embeddings.projection"
TABLE = "embeddings.position_embeddings"
DISTILLATION_TOKEN = "embeddings.distillation_token"
# The heads of a model with one head, and of DeiT with a head for each of two tokens.
_HEADS, _DISTILLED_HEADS = (
    {"classifier": "head"},
    {"cls_classifier": "head", "distillation_classifier": DISTILLED_HEAD},
)


class LayerNames(typing.NamedTuple):
    """The names of the layers of a block that differ between the models.

    With `is_gated`, the first layer of an MLP is gate and value.
    """

    norm_attention: str
    norm_mlp: str
    dense_0: str
    dense_1: str
    is_gated: bool = False


_LAYERS = LayerNames("layernorm_before", "layernorm_after", "intermediate.dense", "output.dense")
# Names of version 5 in memory -> names in files.
NEW_ATTENTION_NAMES = [
    (r"\.attention\.q_proj\.", ".attention.attention.query."),
    (r"\.attention\.k_proj\.", ".attention.attention.key."),
    (r"\.attention\.v_proj\.", ".attention.attention.value."),
    (r"\.attention\.o_proj\.", ".attention.output.dense."),
]
_NEW_NAMES = [
    (r"^layers\.(?=\d)", "encoder.layer."),
    *NEW_ATTENTION_NAMES,
    (r"\.mlp\.fc1\.", ".intermediate.dense."),
    (r"\.mlp\.fc2\.", ".output.dense."),
]
_INEXPRESSIBLE_TENSORS = [
    (r"(layer_scale1|lambda_1)", "it has layer scale"),
    (r"embeddings\.register_tokens$", "it has register tokens"),
    (r"embeddings\.patch_embeddings\.backbone\.", "its stem is a ResNet (ViT hybrid)"),
    (r"relative_position", "it has relative positions"),
]
_OF_TEACHER = (
    r"^(cls|distillation)_classifier\.",
    "its heads read two tokens (DeiT with a teacher), but it has no distillation token",
)


def recognizes(names) -> bool:
    """Whether tensors with these names are a Vision Transformer of this layout."""
    return any(
        re.match(r"((vit|deit)\.)?embeddings\.(patch_embeddings|cls_token)", name) for name in names
    )


def read(path, shapes, folder, own_grid, is_distilled=False) -> ReadRules:
    """Plans how to read a file.

    Args:
        path: the file, for messages.
        shapes: tensor name -> shape.
        folder: where its `config.json` and `preprocessor_config.json` are, if there are any.
        own_grid: see `infer_config.image_size`.
        is_distilled: whether there is a distillation token.

    Raises:
        ValueError: if vit_tf does not support the model in the file; the message states why.
    """
    notes, settings = [], read_json_object(os.path.join(folder, "config.json"))
    kinds = ("deit",) if is_distilled else ("vit", "vit_mae")
    if settings and (kind := settings.text("model_type", kinds[0])) not in kinds:
        expected = f"{' or '.join(map(repr, kinds))}, whose tensors have these names"
        if kind == "deit":
            expected += "; DeiT models without distillation, such as "
            expected += "facebook/deit-base-patch16-224, are of this type"
        raise settings.unsupported("model_type", expected)
    aliases = file_names(shapes, path, f"{kinds[0]}.", _NEW_NAMES)
    shapes = {name: shapes[alias] for name, alias in aliases.items()}
    reasons = [*_INEXPRESSIBLE_TENSORS, *([] if is_distilled else [_OF_TEACHER])]
    infer_config.check_tensor_names(path, shapes, reasons)
    if settings is None:
        notes.append("there is no config.json: erf GELU and epsilon 1e-12, the layout's defaults")
    config = _config(path, shapes, settings, notes, own_grid)
    labels = config_json.read_labels(settings, config.num_classes, notes) if settings else ()
    problem = settings.text("problem_type") if settings else None
    preprocessing = config_json.read_preprocessing(
        read_json_object(os.path.join(folder, "preprocessor_config.json")),
        config.image_size,
        notes,
    )
    classes = Classes(
        labels=labels,
        activation="sigmoid" if problem == "multi_label_classification" else "softmax",
    )
    ignored = {"embeddings.mask_token": "mask token", "decoder.": "decoder"}
    if config.num_classes:
        # ViTForImageClassification has no pooler, so a pooler in the file is not used.
        ignored["pooler."] = "pooler"
    dropped = {name: what for name in shapes for start, what in ignored.items() if _is(name, start)}
    notes += [f"{what} dropped" for what in dict.fromkeys(dropped.values())]
    return ReadRules(
        config=config,
        preprocessing=preprocessing,
        classes=classes,
        notes=notes,
        rules=rules(config, has_distillation_token=is_distilled),
        aliases=aliases,
        ignored=frozenset(aliases[name] for name in dropped),
    )


def write(config, preprocessing, classes) -> WriteRules:
    """Plans how to write a model.

    Raises:
        ValueError: if the layout cannot express the model; the message states why.
    """
    if reason := infer_config.inexpressible(config):
        raise _cannot(reason)
    if config.layer_scale:
        raise _cannot("it has no layer scale; write the layout dinov2")
    if config.is_distilled:
        raise _cannot("it has no distillation token; write the layout deit or timm")
    if config.register_tokens:
        raise _cannot("it has no register tokens; write the layout dinov2_with_registers or timm")
    if config.stem is not None:
        raise _cannot("it has no models with a ResNet stem; write the timm layout")
    if config.classifier != "token":
        raise _cannot(f"its heads read the class token, but classifier is {config.classifier!r}")
    if config.representation_size and config.num_classes:
        raise _cannot(
            "it has either a tanh layer (ViTModel) or a head (ViTForImageClassification), but this "
            "model has both; drop one of them: num_classes=0, or representation_size=None and "
            'load_npz(..., head="reset")'
        )
    notes = []
    extra = infer_config.written_positions(config, notes)
    files = config_json.files(config_json.model_json(config, classes), preprocessing, notes)
    prefix = "vit." if config.num_classes else ""
    return WriteRules(rules(config, prefix), files, notes, extra)


def rules(config, prefix="", layers=_LAYERS, has_distillation_token=False):
    """Rules for all tensors of a model but registers without positions.

    Args:
        config: a `ViTConfig`.
        prefix: before the names of all tensors but those of the head.
        layers: the `LayerNames` of a block.
        has_distillation_token: whether the model's token without a position, be it a register, is
            the distillation token of DeiT.
    """
    width, heads = (config.hidden_size,), (config.heads, config.hidden_size // config.heads)
    hidden, patch = (config.mlp_size,), config.patch_size
    kernel = (patch, patch, 3, config.hidden_size)
    table = f"{prefix}{TABLE}", POSITIONS, (1, 1 + config.grid[0] * config.grid[1], *width)
    token = (1, 1, *width)
    found = [renamed(f"{prefix}embeddings.cls_token", "cls", token)]
    if has_distillation_token:
        name = f"{prefix}{DISTILLATION_TOKEN}"
        key = DISTILLATION if config.is_distilled else REGISTERS
        found.append(registers(name, key, token, table=table[0], first=1))
        found.append(with_register_slots(*table, count=1, first=1))
    else:
        found.append(renamed(*table))
    found += [
        convolution(f"{prefix}{PATCHES}.weight", "embedding/kernel", kernel),
        renamed(f"{prefix}{PATCHES}.bias", "embedding/bias", width),
    ]
    for index in range(config.layers):
        name, key = f"{prefix}encoder.layer.{index}", f"Transformer/encoderblock_{index}"
        attention = f"{key}/MultiHeadDotProductAttention_1"
        found += norm(f"{name}.{layers.norm_attention}", f"{key}/LayerNorm_0", *width)
        for part in ("query", "key", "value"):
            found += linear(
                f"{name}.attention.attention.{part}", f"{attention}/{part}", width, heads
            )
        found += linear(f"{name}.attention.output.dense", f"{attention}/out", heads, width)
        found += norm(f"{name}.{layers.norm_mlp}", f"{key}/LayerNorm_2", *width)
        mlp = f"{key}/MlpBlock_3"
        first = [f"{mlp}/Gate_0", f"{mlp}/Dense_0"][config.activation != "swiglu" :]
        found += linear(f"{name}.{layers.dense_0}", first, width, hidden)
        found += linear(f"{name}.{layers.dense_1}", f"{mlp}/Dense_1", hidden, width)
    found += norm(f"{prefix}layernorm", "Transformer/encoder_norm", *width)
    if config.representation_size:
        found += linear(f"{prefix}pooler.dense", "pre_logits", width, (config.representation_size,))
    if config.num_classes:
        for name, key in (_DISTILLED_HEADS if config.is_distilled else _HEADS).items():
            found += linear(name, key, width, (config.num_classes,))
    return found


def file_names(shapes, path, prefix, new_names):
    """Name in a rule -> name in the file, with or without the prefix, old or new."""
    aliases = {}
    for name in shapes:
        short = name.removeprefix(prefix)
        for pattern, replacement in new_names:
            short = re.sub(pattern, replacement, short)
        if short in aliases:
            raise ValueError(f"{path} holds {name} and {aliases[short]}, two names of one tensor.")
        aliases[short] = name
    return aliases


def _is(name, start):
    return name.startswith(start) if start.endswith(".") else name == start


def _config(path, shapes, settings, notes, own_grid):
    num_classes, representation_size = 0, None
    heads = [f"{name}.weight" for name in (*_HEADS, *_DISTILLED_HEADS)]
    heads = [name for name in heads if name in shapes]
    if heads:
        num_classes = infer_config.sizes(shapes, heads[0], 2, path)[0]
    elif "pooler.dense.weight" in shapes:
        representation_size = infer_config.sizes(shapes, "pooler.dense.weight", 2, path)[0]
    fields = encoder_fields(
        path, shapes, settings, notes, own_grid, _LAYERS, 1e-12, representation_size
    )
    if heads and heads[0].removesuffix(".weight") in _DISTILLED_HEADS:
        fields |= {"classifier": "token_distilled", "register_tokens": 0}
    return build_config(
        ViTConfig, path, num_classes=num_classes, representation_size=representation_size, **fields
    )


def encoder_fields(
    path,
    shapes,
    settings,
    notes,
    own_grid,
    layers,
    epsilon,
    representation_size=None,
) -> dict:
    """The fields of a configuration without head, for the images of the table of positions.

    Args:
        path, shapes, own_grid: see `read`; the names are those of the rules.
        settings: the `config.json`, or None.
        notes: gets sentences about assumptions.
        layers: the `LayerNames` of a block.
        epsilon: that of the layout's files by default.
        representation_size: width of the pooler, or None.
    """
    patch, width = infer_config.patch_kernel(shapes, f"{PATCHES}.weight", path)
    depth = infer_config.how_many(shapes, r"encoder\.layer\.(\d+)\.")
    mlp_size = infer_config.sizes(shapes, f"encoder.layer.0.{layers.dense_1}.weight", 2, path)[1]
    prefix = 1 + (DISTILLATION_TOKEN in shapes)
    rows = infer_config.sizes(shapes, TABLE, 3, path)[1] - prefix
    if settings is None:
        heads, stated = max(1, width // 64), None
        activation = "swiglu" if layers.is_gated else "gelu_erf"
        notes.append(f"the number of heads is assumed: {heads}, of 64 channels each")
    else:
        heads, activation, epsilon, stated = config_json.read_fields(
            settings, width, representation_size, epsilon, is_gated=layers.is_gated
        )
        infer_config.check_stated(settings, "hidden_size", width)
        infer_config.check_stated(settings, "num_hidden_layers", depth)
        infer_config.check_stated(settings, "intermediate_size", mlp_size)
    size = infer_config.image_size(max(0, rows), patch, 1, stated, path, notes, own_grid)
    return {
        "register_tokens": prefix - 1,
        "hidden_size": width,
        "mlp_size": mlp_size,
        "layers": depth,
        "heads": heads,
        "patch_size": patch,
        "image_size": size,
        "activation": activation,
        "layer_norm_epsilon": epsilon,
    }


def _cannot(reason):
    return ValueError(f"This model cannot be written in the Hugging Face layout: {reason}.")
