"""Tensors of Hugging Face's DINOv2 backbones (`model_type` dinov2) <-> published arrays.

Checked against `Dinov2Model` of transformers 5.24.0. Its features are those of a model without a
head. The table of positions of published files is for other images than their processor makes, and
is resized, as there: bicubic, without antialiasing. `dinov2_with_registers.py` has the models with
register tokens.
"""

import os
import re
import typing

import numpy as np

from vit_tf.checkpoints.published.vit import REGISTERS, SCALED_LAYERS
from vit_tf.checkpoints.safetensors import infer_config
from vit_tf.checkpoints.safetensors.huggingface import config_json, vit
from vit_tf.checkpoints.safetensors.rules import ReadRules, WriteRules, renamed
from vit_tf.checkpoints.shapes import build_config
from vit_tf.classes import Classes
from vit_tf.config import ViTConfig
from vit_tf.files.json_object import JsonObject, read_json_object

_REGISTERS = "embeddings.register_tokens"
MASK = "embeddings.mask_token"


class Kind(typing.NamedTuple):
    """What differs between the layouts with and without register tokens.

    Attributes:
        model_type, architecture: values of `config.json`.
        position_resize: see `resize_position_table`.
        has_registers: whether there are register tokens.
    """

    model_type: str
    architecture: str
    position_resize: str
    has_registers: bool

    def recognizes(self, names) -> bool:
        """Whether tensors with these names are a Vision Transformer of this layout."""
        name = rf"({self.model_type}\.)?encoder\.layer\.\d+\.layer_scale1\.lambda1$"
        is_dinov2 = any(re.match(name, each) for each in names)
        return is_dinov2 and self.has_registers == any(each.endswith(_REGISTERS) for each in names)


_PLAIN = Kind("dinov2", "Dinov2Model", "bicubic", has_registers=False)
_LAYERS = vit.LayerNames("norm1", "norm2", "mlp.fc1", "mlp.fc2")
_GATED = _LAYERS._replace(dense_0="mlp.weights_in", dense_1="mlp.weights_out", is_gated=True)
SCALES = ("layer_scale1.lambda1", "layer_scale2.lambda1")
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
    (
        r"\.mlp\.(gate_proj|up_proj|down_proj)\.",
        "its gated MLP has the names that it has in memory",
    ),
    (r"^classifier\.", "its head reads the class token and the mean of the patches"),
]


recognizes = _PLAIN.recognizes


def read(path, shapes, folder, own_grid, kind=_PLAIN) -> ReadRules:
    """Plans how to read a file; see `vit.read`."""
    notes, settings = [], read_json_object(os.path.join(folder, "config.json"))
    if settings and settings.text("model_type", kind.model_type) != kind.model_type:
        raise settings.unsupported("model_type", f"'{kind.model_type}', as in the tensors")
    aliases = vit.file_names(shapes, path, f"{kind.model_type}.", vit.NEW_ATTENTION_NAMES)
    shapes = {name: shapes[alias] for name, alias in aliases.items()}
    infer_config.check_tensor_names(path, shapes, _INEXPRESSIBLE_TENSORS)
    if settings and settings.flag("use_swiglu_ffn", False) != _is_gated(shapes):
        raise settings.error("use_swiglu_ffn", f"{_is_gated(shapes)}, as in the tensors".lower())
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
    ignored = {MASK} & shapes.keys()
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
        position_resize=kind.position_resize,
    )


def write(config, preprocessing, classes, kind=_PLAIN) -> WriteRules:
    """Plans how to write a model; see `vit.write`."""
    del classes  # It has none.
    height, width = config.image_size
    if reason := infer_config.inexpressible(config, has_gate=True):
        raise _cannot(reason)
    if config.stem is not None or config.representation_size:
        raise _cannot("it has neither a stem nor a tanh layer before the head")
    if config.classifier != "token" or config.num_classes:
        raise _cannot(
            "a head there reads the class token and the mean of the patches; write a model with "
            "classifier='token' and num_classes=0"
        )
    if not config.layer_scale:
        raise _cannot("it has no layer scale; write the layout huggingface or timm")
    if bool(config.register_tokens) != kind.has_registers:
        other = "dinov2" if kind.has_registers else "dinov2_with_registers"
        raise _cannot(f"it has {config.register_tokens} register tokens; write the layout {other}")
    if height != width:
        raise _cannot(f"its positions are for squares, but image_size is {config.image_size}")
    is_gated = config.activation == "swiglu"
    ratio = round(config.mlp_size / config.hidden_size * (1.5 if is_gated else 1))
    if config.mlp_size != (size := _mlp_size(ratio, config.hidden_size, is_gated)):
        raise _cannot(
            f"mlp_size={config.mlp_size} is no whole mlp_ratio of hidden_size="
            f"{config.hidden_size}: with {ratio} it is {size}"
        )
    notes = []
    extra = infer_config.written_positions(config, notes)
    registers = {"num_register_tokens": config.register_tokens} if kind.has_registers else {}
    settings = config_json.transformer_json(config) | {
        "architectures": [kind.architecture],
        "model_type": kind.model_type,
        "mlp_ratio": ratio,
        "layerscale_value": config.layer_scale,
        "use_swiglu_ffn": is_gated,
        "use_mask_token": False,
        **registers,
    }
    files = config_json.files(settings, preprocessing, notes)
    rules = _rules(config)
    if kind.has_registers:  # This class always has one; `use_mask_token` is of the other.
        rules.append(renamed(MASK, MASK, (1, config.hidden_size)))
        extra[MASK] = np.zeros([1, config.hidden_size], np.float32)
    return WriteRules(rules, files, notes, extra)


def _mlp_size(ratio, width, is_gated):
    """Width of an MLP: two thirds of the ratio, as a multiple of 8, for gate and value each."""
    return (ratio * width * 2 // 3 + 7) // 8 * 8 if is_gated else ratio * width


def _is_gated(shapes):
    return any(".mlp.weights_in." in name for name in shapes)


def _rules(config):
    rules = vit.rules(config, layers=_GATED if config.activation == "swiglu" else _LAYERS)
    if config.register_tokens:
        shape = (1, config.register_tokens, config.hidden_size)
        rules.append(renamed(_REGISTERS, REGISTERS, shape))
    for index in range(config.layers):
        rules += [
            renamed(
                f"encoder.layer.{index}.{name}",
                f"Transformer/encoderblock_{index}/{key}",
                (config.hidden_size,),
            )
            for name, key in zip(SCALES, SCALED_LAYERS, strict=True)
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
    layers = _GATED if _is_gated(shapes) else _LAYERS
    fields = vit.encoder_fields(path, shapes, settings, notes, own_grid, layers, _EPSILON)
    if _REGISTERS in shapes:
        fields["register_tokens"] = infer_config.sizes(shapes, _REGISTERS, 3, path)[1]
        if settings is not None:
            infer_config.check_stated(settings, "num_register_tokens", fields["register_tokens"])
    return build_config(ViTConfig, path, num_classes=0, layer_scale=scale, **fields)


def _cannot(reason):
    return ValueError(f"This model cannot be written in the DINOv2 layout: {reason}.")
