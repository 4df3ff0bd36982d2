"""Tensors of Hugging Face's DINOv2 backbones (`model_type` dinov2) <-> published arrays.

Checked against `Dinov2Model` of transformers 5.23.0. Its features are those of a model without a
head. The table of positions of published files is for other images than their processor makes, and
is resized, as there: bicubic, without antialiasing.
"""

import os
import re

from vit_tf.checkpoints.published.vit import SCALED_LAYERS
from vit_tf.checkpoints.safetensors import infer_config
from vit_tf.checkpoints.safetensors.huggingface import config_json, vit
from vit_tf.checkpoints.safetensors.rules import ReadRules, WriteRules, renamed
from vit_tf.checkpoints.shapes import build_config
from vit_tf.classes import Classes
from vit_tf.config import ViTConfig
from vit_tf.files.json_object import JsonObject, read_json_object

_LAYERS = vit.LayerNames("norm1", "norm2", "mlp.fc1", "mlp.fc2")
_SCALES = ("layer_scale1.lambda1", "layer_scale2.lambda1")
_EPSILON = 1e-6
# The processor of the published models.
_PROCESSOR = {
    "size": {"shortest_edge": 256},
    "do_center_crop": True,
    "crop_size": {"height": 224, "width": 224},
    "resample": 3,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}
_INEXPRESSIBLE_TENSORS = [
    (r"embeddings\.register_tokens$", "it has register tokens"),
    (r"\.mlp\.(weights_(in|out)|gate_proj|up_proj|down_proj)\.", "its MLP is gated (SwiGLU)"),
    (r"^classifier\.", "its head reads the class token and the mean of the patches"),
]


def recognizes(names) -> bool:
    """Whether tensors with these names are a Vision Transformer of this layout."""
    pattern = r"(dinov2\.)?encoder\.layer\.\d+\.layer_scale1\.lambda1$"
    return any(re.match(pattern, name) for name in names)


def read(path, shapes, folder, own_grid) -> ReadRules:
    """Plans how to read a file; see `vit.read`."""
    notes, settings = [], read_json_object(os.path.join(folder, "config.json"))
    if settings and settings.text("model_type", "dinov2") != "dinov2":
        raise settings.unsupported("model_type", "'dinov2', as in the tensors")
    if settings and settings.flag("use_swiglu_ffn", False):
        raise settings.unsupported("use_swiglu_ffn", "false")
    aliases = vit.file_names(shapes, path, "dinov2.", vit.NEW_ATTENTION_NAMES)
    shapes = {name: shapes[alias] for name, alias in aliases.items()}
    infer_config.check_tensor_names(path, shapes, _INEXPRESSIBLE_TENSORS)
    if settings is None:
        notes.append(f"there is no config.json: erf GELU and epsilon {_EPSILON}, as published")
    processor = read_json_object(os.path.join(folder, "preprocessor_config.json"))
    if processor is None:
        notes.append(
            "there is no preprocessor_config.json: assumed the processor of the published models"
        )
        processor = JsonObject("preprocessor_config.json", _PROCESSOR)
    config = _config(path, shapes, settings, notes, own_grid)
    table = config
    if (size := config_json.image_size(processor, config.image_size)) != config.image_size:
        config = build_config(ViTConfig, path, **vars(config) | {"image_size": size})
    ignored = {"embeddings.mask_token"} & shapes.keys()
    notes += ["mask token dropped"] * len(ignored)
    return ReadRules(
        config=config,
        preprocessing=config_json.read_preprocessing(processor, size, notes),
        classes=Classes(),
        notes=notes,
        rules=_rules(table),
        aliases=aliases,
        ignored=frozenset(aliases[name] for name in ignored),
        grid=table.grid,
        position_resize="bicubic",
    )


def write(config, preprocessing, classes) -> WriteRules:
    """Plans how to write a model; see `vit.write`."""
    del classes  # It has none.
    height, width = config.image_size
    if reason := infer_config.inexpressible(config):
        raise _cannot(reason)
    if config.stem is not None or config.representation_size:
        raise _cannot("it has neither a stem nor a tanh layer before the head")
    if config.classifier != "token" or config.num_classes:
        raise _cannot(
            "a head there reads the class token and the mean of the patches; write a model with "
            "classifier='token' and num_classes=0"
        )
    if not config.layer_scale:
        raise _cannot("it has no layer scale; write the layout huggingface")
    if height != width:
        raise _cannot(f"its positions are for squares, but image_size is {config.image_size}")
    if config.mlp_size % config.hidden_size:
        raise _cannot(
            f"mlp_size={config.mlp_size} is no multiple of hidden_size={config.hidden_size}"
        )
    notes = []
    extra = infer_config.written_positions(config, notes)
    settings = config_json.transformer_json(config) | {
        "architectures": ["Dinov2Model"],
        "model_type": "dinov2",
        "mlp_ratio": config.mlp_size // config.hidden_size,
        "layerscale_value": config.layer_scale,
        "use_swiglu_ffn": False,
        "use_mask_token": False,
    }
    files = {
        "config.json": settings,
        "preprocessor_config.json": config_json.preprocessor_json(preprocessing, notes),
    }
    return WriteRules(_rules(config), files, notes, extra)


def _rules(config):
    rules = vit.rules(config, layers=_LAYERS)
    for index in range(config.layers):
        rules += [
            renamed(
                f"encoder.layer.{index}.{name}",
                f"Transformer/encoderblock_{index}/{key}",
                (config.hidden_size,),
            )
            for name, key in zip(_SCALES, SCALED_LAYERS, strict=True)
        ]
    return rules


def _config(path, shapes, settings, notes, own_grid):
    """The configuration of the model for the images of its table of positions."""
    scale = 1.0
    if settings is not None:
        scale = settings.number("layerscale_value", 1.0)
        if not scale > 0:
            raise settings.error("layerscale_value", "a number above 0")
        height, width = settings.sides("image_size", (224, 224))
        if height != width:
            raise settings.unsupported("image_size", "a square")
    fields = vit.encoder_fields(path, shapes, settings, notes, own_grid, _LAYERS, _EPSILON)
    return build_config(ViTConfig, path, num_classes=0, layer_scale=scale, **fields)


def _cannot(reason):
    return ValueError(f"This model cannot be written in the DINOv2 layout: {reason}.")
