"""Tensors of Hugging Face's DINOv3 backbones (`model_type` dinov3_vit) <-> published arrays.

Checked against `DINOv3ViTModel` of transformers 5.24.0. Its features are those of a model without a
head. Positions are rotations, which no tensor holds: a model has those of its image size. Its
processor rescales before it resizes, so that pixels differ from ours by up to one level of 255.
"""

import os
import re

import numpy as np

from vit_tf.checkpoints.published.vit import REGISTERS, SCALED_LAYERS
from vit_tf.checkpoints.safetensors import infer_config
from vit_tf.checkpoints.safetensors.huggingface import config_json, vit
from vit_tf.checkpoints.safetensors.huggingface.dinov2 import MASK, SCALES
from vit_tf.checkpoints.safetensors.rules import (
    ReadRules,
    WriteRules,
    convolution,
    linear,
    norm,
    renamed,
)
from vit_tf.checkpoints.shapes import build_config
from vit_tf.classes import Classes
from vit_tf.config import ViTConfig
from vit_tf.files.json_object import JsonObject, read_json_object

_TYPE = "dinov3_vit"
_PATCHES = "embeddings.patch_embeddings.weight"
_REGISTERS = "embeddings.register_tokens"
_GATE = "layer.0.mlp.gate_proj.weight"
_EPSILON = 1e-5
_BASE = 100.0
# The processor of the published models.
_PROCESSOR = {
    "size": {"height": 224, "width": 224},
    "resample": 2,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}
# Of queries and values, whose biases the 7B model lacks.
_QKV_BIASES = ("query_bias", "value_bias")
_BIASES = {"key_bias": False, "proj_bias": True, "mlp_bias": True}


def recognizes(names) -> bool:
    """Whether tensors with these names are a Vision Transformer of this layout."""
    return any(re.match(r"(model\.)?layer\.\d+\.layer_scale1\.lambda1$", name) for name in names)


def read(path, shapes, folder, own_grid) -> ReadRules:
    """Plans how to read a file; see `vit.read`. Without positions, `own_grid` has no use."""
    del own_grid
    notes = []
    settings = read_json_object(os.path.join(folder, "config.json"))
    processor = read_json_object(os.path.join(folder, "preprocessor_config.json"))
    if settings is None:
        raise ValueError(
            f"{path} has no config.json beside it, which states the number of heads and the "
            "rotations. Copy it from the folder that the file is from."
        )
    if settings.text("model_type", _TYPE) != _TYPE:
        raise settings.unsupported("model_type", f"'{_TYPE}', as in the tensors")
    qkv_bias = settings.flag(_QKV_BIASES[0], True)
    for name, value in (_BIASES | dict.fromkeys(_QKV_BIASES, qkv_bias)).items():
        if settings.flag(name, name not in _BIASES or value) != value:
            raise settings.unsupported(name, str(value).lower())
    if processor is None:
        notes.append(
            "there is no preprocessor_config.json: assumed the processor of the published models"
        )
        processor = JsonObject("preprocessor_config.json", _PROCESSOR)
    aliases = vit.file_names(shapes, path, "model.", [])
    shapes = {name: shapes[alias] for name, alias in aliases.items()}
    config = _config(path, shapes, settings, processor)
    ignored = {MASK} & shapes.keys()
    notes += ["mask token dropped"] * len(ignored)
    if not config.register_tokens:
        ignored |= {_REGISTERS} & shapes.keys()  # It is empty.
    return ReadRules(
        config=config,
        preprocessing=config_json.read_preprocessing(processor, config.image_size, notes),
        classes=Classes(),
        notes=notes,
        rules=_rules(config),
        aliases=aliases,
        ignored=frozenset(aliases[name] for name in ignored),
    )


def write(config, preprocessing, classes) -> WriteRules:
    """Plans how to write a model; see `vit.write`."""
    del classes  # It has none.
    height, width = config.image_size
    if not config.rotary or config.axial or config.stem or config.qk_norm:
        raise _cannot("its positions are rotary_2d, without a stem or norms of queries and keys")
    if config.key_bias:
        raise _cannot("its keys have no bias, but key_bias is True")
    if config.classifier != "token" or config.num_classes or config.representation_size:
        raise _cannot("it has no head; write a model with classifier='token' and num_classes=0")
    if not config.layer_scale:
        raise _cannot("it has layer scale, but layer_scale is 0")
    if height != width:
        raise _cannot(f"it states one side for squares, but image_size is {config.image_size}")
    is_gated = config.activation == "swiglu"
    settings = config_json.transformer_json(config) | {
        "architectures": ["DINOv3ViTModel"],
        "model_type": _TYPE,
        "intermediate_size": config.mlp_size,
        "attention_dropout": 0.0,
        "num_register_tokens": config.register_tokens,
        "layerscale_value": config.layer_scale,
        "rope_theta": config.rotary_base,
        "use_gated_mlp": is_gated,
        **({"hidden_act": "silu"} if is_gated else {}),
        **_BIASES,
        **dict.fromkeys(_QKV_BIASES, config.qkv_bias),
    }
    notes = []
    files = config_json.files(settings, preprocessing, notes)
    # The class always has both, also without registers.
    shapes = {MASK: (1, 1, config.hidden_size)}
    if not config.register_tokens:
        shapes[_REGISTERS] = (1, 0, config.hidden_size)
    rules = [*_rules(config), *(renamed(name, name, shape) for name, shape in shapes.items())]
    extra = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    return WriteRules(rules, files, notes, extra)


def _rules(config):
    width, heads = (config.hidden_size,), (config.heads, config.hidden_size // config.heads)
    hidden, patch = (config.mlp_size,), config.patch_size
    found = [renamed("embeddings.cls_token", "cls", (1, 1, *width))]
    if config.register_tokens:
        found.append(renamed(_REGISTERS, REGISTERS, (1, config.register_tokens, *width)))
    found += [
        convolution(_PATCHES, "embedding/kernel", (patch, patch, 3, *width)),
        renamed("embeddings.patch_embeddings.bias", "embedding/bias", width),
    ]
    for index in range(config.layers):
        name, key = f"layer.{index}", f"Transformer/encoderblock_{index}"
        attention, mlp = f"{key}/MultiHeadDotProductAttention_1", f"{key}/MlpBlock_3"
        found += norm(f"{name}.norm1", f"{key}/LayerNorm_0", *width)
        for part in ("query", "key", "value"):
            has_bias = config.qkv_bias and part != "key"
            layer = linear(f"{name}.attention.{part[0]}_proj", f"{attention}/{part}", width, heads)
            found += layer[: 1 + has_bias]
        found += linear(f"{name}.attention.o_proj", f"{attention}/out", heads, width)
        found += norm(f"{name}.norm2", f"{key}/LayerNorm_2", *width)
        if config.activation == "swiglu":
            found += linear(f"{name}.mlp.gate_proj", f"{mlp}/Gate_0", width, hidden)
        found += linear(f"{name}.mlp.up_proj", f"{mlp}/Dense_0", width, hidden)
        found += linear(f"{name}.mlp.down_proj", f"{mlp}/Dense_1", hidden, width)
        found += [
            renamed(f"{name}.{scale}", f"{key}/{scaled}", width)
            for scale, scaled in zip(SCALES, SCALED_LAYERS, strict=True)
        ]
    return found + norm("norm", "Transformer/encoder_norm", *width)


def _config(path, shapes, settings, processor):
    patch, width = infer_config.patch_kernel(shapes, _PATCHES, path)
    depth = infer_config.how_many(shapes, r"layer\.(\d+)\.")
    (mlp_size,) = infer_config.sizes(shapes, "layer.0.mlp.up_proj.bias", 1, path)
    registers = 0
    if 0 not in shapes.get(_REGISTERS, [0]):
        registers = infer_config.sizes(shapes, _REGISTERS, 3, path)[1]
    is_gated = _GATE in shapes
    if is_gated and settings.text("hidden_act", "gelu") != "silu":
        raise settings.unsupported("hidden_act", "'silu' with a gated MLP")
    for name, value in (
        ("hidden_size", width),
        ("num_hidden_layers", depth),
        ("intermediate_size", mlp_size),
        ("num_register_tokens", registers),
    ):
        infer_config.check_stated(settings, name, value)
    if settings.flag("use_gated_mlp", False) != is_gated:
        raise settings.error("use_gated_mlp", f"{is_gated}, as in the tensors".lower())
    scale, base = settings.number("layerscale_value", 1.0), settings.number("rope_theta", _BASE)
    for name, value, least in (("layerscale_value", scale, 0), ("rope_theta", base, 1)):
        if not value > least:
            raise settings.error(name, f"a number above {least}")
    heads, activation, epsilon, stated = config_json.read_fields(
        settings, width, None, _EPSILON, is_gated=is_gated
    )
    size = config_json.image_size(processor, stated)
    infer_config.check_image_size(size, path)
    return build_config(
        ViTConfig,
        path,
        hidden_size=width,
        mlp_size=mlp_size,
        layers=depth,
        heads=heads,
        patch_size=patch,
        image_size=size,
        num_classes=0,
        register_tokens=registers,
        position_embedding="rotary_2d",
        rotary_base=base,
        activation=activation,
        layer_norm_epsilon=epsilon,
        layer_scale=scale,
        key_bias=False,
        qkv_bias=settings.flag(_QKV_BIASES[0], True),
    )


def _cannot(reason):
    return ValueError(f"This model cannot be written in the DINOv3 layout: {reason}.")
