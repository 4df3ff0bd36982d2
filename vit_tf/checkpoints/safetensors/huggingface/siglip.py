"""Tensors of Hugging Face's SigLIP image encoders <-> published arrays.

Checked against `SiglipVisionModel` of transformers 5.24.0; the published SigLIP 2 models of one
resolution are of the same class. Their result is that of the attention pooling ("map"). A file of a
whole SigLIP model is read without its text encoder.
"""

import os

from vit_tf.checkpoints.published.vit import MAP_HEAD
from vit_tf.checkpoints.published.vit_positions import POSITIONS
from vit_tf.checkpoints.rule import Rule
from vit_tf.checkpoints.safetensors import infer_config
from vit_tf.checkpoints.safetensors.huggingface import config_json, vit
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

_PREFIX = "vision_model."
_PATCHES = "embeddings.patch_embedding"
_TABLE = "embeddings.position_embedding.weight"
_PROBE = "head.probe"
_EPSILON = 1e-6
_MODEL_TYPES = ("siglip", "siglip_vision_model")
# Starts of the names of what belongs to texts.
_OF_TEXTS = ("text_model.", "logit_")
_INEXPRESSIBLE_TENSORS = [
    (r"^embeddings\.class_embedding$", "it has a class token of another kind (CLIP)"),
    (r"^classifier\.", "its head reads the mean of the patches beside an unused attention pooling"),
]


def recognizes(names) -> bool:
    """Whether tensors with these names are a Vision Transformer of this layout."""
    return any(name.removeprefix(_PREFIX) == _PROBE for name in names)


def read(path, shapes, folder, own_grid) -> ReadRules:
    """Plans how to read a file; see `vit.read`."""
    notes, settings = [], read_json_object(os.path.join(folder, "config.json"))
    kind = (settings.text("model_type") if settings else None) or _MODEL_TYPES[0]
    if settings and kind not in _MODEL_TYPES:
        expected = " or ".join(map(repr, _MODEL_TYPES))
        if kind.startswith("siglip2"):
            expected += "; models for images of any size (NaFlex) are not read"
        raise settings.unsupported("model_type", expected)
    if settings and "vision_config" in settings:
        settings = settings.section("vision_config")
    aliases = vit.file_names(shapes, path, _PREFIX, [])
    shapes = {name: shapes[alias] for name, alias in aliases.items()}
    infer_config.check_tensor_names(path, shapes, _INEXPRESSIBLE_TENSORS)
    if settings is None:
        notes.append(f"there is no config.json: tanh GELU and epsilon {_EPSILON}, as published")
    config = _config(path, shapes, settings, notes, own_grid)
    processor = read_json_object(os.path.join(folder, "preprocessor_config.json"))
    if processor is None:
        notes.append(
            "there is no preprocessor_config.json: direct bicubic resize, pixels in [-1, 1]"
        )
        size = dict(zip(("height", "width"), config.image_size, strict=True))
        processor = JsonObject("preprocessor_config.json", {"size": size, "resample": 3})
    ignored = [name for name in shapes if name.startswith(_OF_TEXTS)]
    if ignored:
        notes.append("text encoder dropped")
    return ReadRules(
        config=config,
        preprocessing=config_json.read_preprocessing(processor, config.image_size, notes),
        classes=Classes(),
        notes=notes,
        rules=_rules(config),
        aliases=aliases,
        ignored=frozenset(aliases[name] for name in ignored),
        position_resize="bicubic",
    )


def write(config, preprocessing, classes) -> WriteRules:
    """Plans how to write a model; see `vit.write`."""
    del classes  # It has none.
    height, width = config.image_size
    if reason := infer_config.inexpressible(config):
        raise _cannot(reason)
    if config.classifier != "map" or config.num_classes or config.representation_size:
        raise _cannot(
            "its result is that of attention pooling; write a model with classifier='map', "
            "num_classes=0 and representation_size=None"
        )
    if config.stem is not None or config.layer_scale or config.register_tokens:
        raise _cannot("it has neither a stem nor layer scale nor register tokens")
    if height != width:
        raise _cannot(f"its images are squares, but image_size is {config.image_size}")
    notes = []
    extra = infer_config.written_positions(config, notes)
    settings = config_json.transformer_json(config) | {
        "architectures": ["SiglipVisionModel"],
        "model_type": "siglip_vision_model",
        "intermediate_size": config.mlp_size,
    }
    files = config_json.files(settings, preprocessing, notes)
    return WriteRules(_rules(config), files, notes, extra)


def _rules(config):
    """Rules for all tensors of a model."""
    width, heads = (config.hidden_size,), (config.heads, config.hidden_size // config.heads)
    patch, patches = config.patch_size, config.grid[0] * config.grid[1]
    table = Rule(
        _TABLE,
        (patches, *width),
        {POSITIONS: (1, patches, *width)},
        to_arrays=lambda tensor: [tensor[None]],
        to_tensor=lambda arrays: arrays[0][0],
    )
    found = [
        convolution(f"{_PATCHES}.weight", "embedding/kernel", (patch, patch, 3, *width)),
        renamed(f"{_PATCHES}.bias", "embedding/bias", width),
        table,
    ]
    for index in range(config.layers):
        name, key = f"encoder.layers.{index}", f"Transformer/encoderblock_{index}"
        attention = f"{key}/MultiHeadDotProductAttention_1"
        found += norm(f"{name}.layer_norm1", f"{key}/LayerNorm_0", *width)
        for letter, part in (("q", "query"), ("k", "key"), ("v", "value")):
            found += linear(f"{name}.self_attn.{letter}_proj", f"{attention}/{part}", width, heads)
        found += linear(f"{name}.self_attn.out_proj", f"{attention}/out", heads, width)
        found += norm(f"{name}.layer_norm2", f"{key}/LayerNorm_2", *width)
        found += _mlp(config, f"{name}.mlp", f"{key}/MlpBlock_3")
    found += norm("post_layernorm", "Transformer/encoder_norm", *width)
    found.append(renamed(_PROBE, f"{MAP_HEAD}/probe", (1, 1, *width)))
    attention = f"{MAP_HEAD}/MultiHeadDotProductAttention_0"
    parts = [f"{attention}/{part}" for part in ("query", "key", "value")]
    found += linear("head.attention.in_proj", parts, width, heads, separator="_")
    found += linear("head.attention.out_proj", f"{attention}/out", heads, width)
    found += norm("head.layernorm", f"{MAP_HEAD}/LayerNorm_0", *width)
    return found + _mlp(config, "head.mlp", f"{MAP_HEAD}/MlpBlock_0")


def _mlp(config, name, key):
    width, hidden = (config.hidden_size,), (config.mlp_size,)
    first = linear(f"{name}.fc1", f"{key}/Dense_0", width, hidden)
    return first + linear(f"{name}.fc2", f"{key}/Dense_1", hidden, width)


def _config(path, shapes, settings, notes, own_grid):
    patch, width = infer_config.patch_kernel(shapes, f"{_PATCHES}.weight", path)
    depth = infer_config.how_many(shapes, r"encoder\.layers\.(\d+)\.")
    (mlp_size,) = infer_config.sizes(shapes, "encoder.layers.0.mlp.fc1.bias", 1, path)
    rows = infer_config.sizes(shapes, _TABLE, 2, path)[0]
    heads, activation, epsilon, stated = max(1, width // 64), "gelu_tanh", _EPSILON, None
    if width == 1152:
        heads = 16  # so400m
    if settings is None:
        notes.append(f"the number of heads is assumed: {heads}, of {width // heads} channels each")
    else:
        heads, activation, epsilon, stated = config_json.read_fields(
            settings, width, None, _EPSILON, default_activation="gelu_pytorch_tanh"
        )
        infer_config.check_stated(settings, "hidden_size", width)
        infer_config.check_stated(settings, "num_hidden_layers", depth)
        infer_config.check_stated(settings, "intermediate_size", mlp_size)
        infer_config.check_stated(settings, "patch_size", patch)
    return build_config(
        ViTConfig,
        path,
        hidden_size=width,
        mlp_size=mlp_size,
        layers=depth,
        heads=heads,
        patch_size=patch,
        image_size=infer_config.image_size(rows, patch, 1, stated, path, notes, own_grid),
        num_classes=0,
        classifier="map",
        activation=activation,
        layer_norm_epsilon=epsilon,
    )


def _cannot(reason):
    return ValueError(f"This model cannot be written in the SigLIP layout: {reason}.")
