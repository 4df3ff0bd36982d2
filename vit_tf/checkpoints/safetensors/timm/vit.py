"""Tensors of timm's Vision Transformers and hybrids <-> published arrays: reading and writing."""

import math
import re

from vit_tf.checkpoints.published.vit import DISTILLED_HEAD
from vit_tf.checkpoints.published.vit_positions import POSITIONS
from vit_tf.checkpoints.safetensors import infer_config
from vit_tf.checkpoints.safetensors.rules import ReadRules, WriteRules
from vit_tf.checkpoints.safetensors.timm import residual
from vit_tf.checkpoints.safetensors.timm.config_json import (
    INEXPRESSIBLE_TENSORS,
    cannot,
    cannot_state,
    pretrained_json,
    read_config_json,
)
from vit_tf.checkpoints.safetensors.timm.residual import EPSILONS, stage_depths
from vit_tf.checkpoints.safetensors.timm.vit_rules import BACKBONE, rules
from vit_tf.checkpoints.shapes import build_config, square_grid
from vit_tf.config import StemConfig, ViTConfig

LAYER_NORM_EPSILON = 1e-6
# classifier -> timm's global_pool.
_POOLS = {"token": "token", "gap": "avg", "map": "map", "unpooled": ""}
# timm's name of the only architectures with a distillation token; `model_args` holds the rest.
_DISTILLED = "deit_base_distilled_patch16_224"
# Pattern of the architectures with known activation, epsilons and padding, and an example; first
# without a stem, then with one.
_PLAIN = (
    r"(vit|deit)_[a-z0-9]+_patch\d+(_siglip)?(_gap)?_\d+(_in21k)?|flexivit_[a-z]+|test_vit|"
    r"deit_[a-z]+_distilled_patch\d+_\d+|vit_(small|base|large)_patch14(_reg4)?_dinov2",
    "vit_base_patch16_224",
)
_HYBRID = (
    r"vit_[a-z]+_r\d*_s\d+(_p\d+)?_\d+(_in21k)?|vit_base_resnet50_\d+(_in21k)?|vit_custom_hybrid",
    "vit_base_r50_s16_224",
)
# stage_depths of the stem -> an architecture with that stem; `model_args` holds everything else.
_HYBRIDS = {
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_small_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}
_HEADS = {"tiny": 3, "small": 6, "base": 12, "large": 16, "huge": 16, "giant": 16, "gigantic": 16}
_HEADS |= {"medium": 8, "betwixt": 10, "so400m": 16, "giantopt": 16, "test": 2}
# Width -> heads, if a head does not have 64 channels; for files without an architecture.
_WIDE = {1152: 16, 1280: 16, 1408: 16, 1536: 16, 1664: 16}
# The models of SigLIP 2; timm runs the other SigLIP models with the erf form.
_TANH = re.compile(
    r"vit_(base_patch32|so400m_patch16|giantopt_patch16)_siglip|vit_large_patch16_siglip_(gap_)?512"
)
_ACTIVATIONS = {"gelu": "gelu_erf", "gelu_erf": "gelu_erf", "gelu_tanh": "gelu_tanh"}


def recognizes(names) -> bool:
    """Whether tensors with these names are a Vision Transformer of this layout."""
    return "patch_embed.proj.weight" in names


def read(path, shapes, folder, own_grid) -> ReadRules:
    """Plans how to read a file.

    Args:
        path: the file, for messages.
        shapes: tensor name -> shape.
        folder: where its `config.json` is, if there is one.
        own_grid: see `infer_config.image_size`.

    Raises:
        ValueError: if vit_tf does not support the model in the file; the message states why.
    """
    infer_config.check_tensor_names(path, shapes, INEXPRESSIBLE_TENSORS)
    first, second = (shapes.get(f"blocks.0.mlp.fc{i}.weight", ()) for i in (1, 2))
    if first[:1] and first[0] == 2 * sum(second[1:]):
        raise ValueError(f"{path} cannot be expressed in vit_tf: its MLP is gated (SwiGLU).")
    is_hybrid = any(name.startswith(f"{BACKBONE}.") for name in shapes)
    notes, stated = [], read_config_json(folder)
    width = infer_config.sizes(shapes, "patch_embed.proj.weight", 4, path)[0]
    heads, activation = heads_and_activation(stated, width, is_hybrid, notes)
    config, slots = _config(path, shapes, heads, activation, stated, notes, own_grid)
    infer_config.check_stated_classes(stated.settings, config.num_classes, "head")
    return ReadRules(
        config=config,
        preprocessing=stated.preprocessing(config, notes),
        classes=stated.classes(config.num_classes),
        notes=notes,
        rules=rules(config, slots),
        # timm resizes all tables so. The paper's are resized as its own code does.
        position_resize="bicubic_antialias" if _is_dinov2(stated) else "bilinear",
    )


def write(config, preprocessing, classes) -> WriteRules:
    """Plans how to write a model.

    Raises:
        ValueError: if the layout cannot express the model; the message states why.
    """
    notes, extra, stem = [], {}, config.stem
    _check_vit_writable(config)
    architecture, arguments = _PLAIN[1], _arguments(config)
    if config.is_distilled:
        architecture, extra = _DISTILLED, infer_config.written_positions(config, notes)
    elif config.position_embedding == "sincos_2d":
        extra[POSITIONS] = infer_config.sincos_table(config)
        notes.append("sincos_2d positions: written as a table")
    if stem:
        residual.check_writable(stem, "stem.")
        custom = "vit_custom_hybrid"
        architecture = _HYBRIDS.get(stem.stage_depths if stem.width == 1 else None, custom)
        if architecture == custom:
            residual.note_unknown(stem, custom, notes)
    first = "patch_embed.proj"
    if stem:
        first = f"{BACKBONE}.{'stem.conv' if stem.stage_depths else 'conv'}"
    settings = {
        "architecture": architecture,
        "num_classes": config.num_classes,
        "global_pool": arguments["global_pool"],
        "model_args": arguments,
        "pretrained_cfg": pretrained_json(
            config,
            preprocessing,
            classes,
            notes,
            first_conv=first,
            classifier=["head", DISTILLED_HEAD] if config.is_distilled else "head",
            fixed_size=True,
        ),
    }
    return WriteRules(rules(config), {"config.json": settings}, notes, extra)


def heads_and_activation(stated, width, is_hybrid, notes) -> tuple[int, str]:
    """Number of heads and activation, which no tensor shows.

    Args:
        stated: the `ConfigJson`.
        width: D.
        is_hybrid: whether there is a stem.
        notes: list to which a sentence is added for each assumption.

    Raises:
        ValueError: if heads and activation of the architecture are not known here.
    """
    known = _HYBRID if is_hybrid else _PLAIN
    architecture = stated.architecture(*known, notes, assumed=", erf GELU") or ""
    heads = _heads(stated.arguments, architecture, width, notes)
    return heads, _activation(stated.arguments, architecture)


def _is_dinov2(stated):
    return (stated.settings.text("architecture") or "").split(".")[0].endswith("_dinov2")


def _heads(arguments, architecture, width, notes):
    if "num_heads" in arguments:
        return arguments.integer("num_heads")
    if architecture == "vit_base_patch16_gap_224":
        return 16  # of 48 channels, unlike other base models
    for word in architecture.split("_"):
        if word in _HEADS:
            return _HEADS[word]
    heads = _WIDE.get(width, max(1, width // 64))
    notes.append(f"the number of heads is assumed: {heads}, of {width // heads} channels each")
    return heads


def _activation(arguments, architecture):
    if "act_layer" in arguments:
        activation = _ACTIVATIONS.get(arguments.text("act_layer"))
        if activation is None:
            raise arguments.unsupported("act_layer", f"one of {', '.join(_ACTIVATIONS)}")
        return activation
    return "gelu_tanh" if _TANH.match(architecture) else "gelu_erf"


def _config(path, shapes, heads, activation, stated, notes, own_grid):
    """The configuration, and whether the position table has rows for the prefix."""
    stem = _stem(path, shapes)
    patch, width = infer_config.patch_kernel(
        shapes, "patch_embed.proj.weight", path, stem and stem.channels
    )
    (mlp_size,) = infer_config.sizes(shapes, "blocks.0.mlp.fc1.bias", 1, path)
    qkv_bias = "blocks.0.attn.qkv.bias" in shapes
    if stated.arguments.flag("qkv_bias", qkv_bias) != qkv_bias:
        raise stated.arguments.error("qkv_bias", f"{qkv_bias}, as in the tensors".lower())
    representation_size, num_classes = None, 0
    if "pre_logits.fc.weight" in shapes:
        representation_size = infer_config.sizes(shapes, "pre_logits.fc.weight", 2, path)[0]
    if "head.weight" in shapes:
        num_classes = infer_config.sizes(shapes, "head.weight", 2, path)[0]
    elif "dist_token" in shapes:
        notes.append("there are no heads: the result has both tokens, and timm's is their mean")
    reduction = stem.reduction if stem else 1
    has_token, registers, is_distilled = "cls_token" in shapes, 0, "dist_token" in shapes
    if "reg_token" in shapes:
        registers = infer_config.sizes(shapes, "reg_token", 3, path)[1]
    rows, slots, prefix = None, False, has_token + is_distilled + registers
    if "pos_embed" in shapes:
        rows = infer_config.sizes(shapes, "pos_embed", 3, path)[1]
        if prefix:
            grid = own_grid
            if stated.image_size is not None:
                grid = tuple(-(-side // reduction) // patch for side in stated.image_size)
            slots = _has_slots(rows, prefix, grid, stated.image_size is not None, notes)
            rows = max(0, rows - prefix * slots)
    classifier = _classifier(path, shapes, has_token, registers, stated.global_pool)
    config = build_config(
        ViTConfig,
        path,
        hidden_size=width,
        mlp_size=mlp_size,
        layers=infer_config.how_many(shapes, r"blocks\.(\d+)\."),
        heads=heads,
        patch_size=patch,
        image_size=infer_config.image_size(
            rows, patch, reduction, stated.image_size, path, notes, own_grid
        ),
        num_classes=num_classes,
        classifier="token_distilled" if is_distilled else classifier,
        register_tokens=registers,
        representation_size=representation_size,
        layer_scale=_layer_scale(shapes, stated.arguments),
        position_embedding="none" if rows is None else "learned_1d",
        activation=activation,
        layer_norm_epsilon=LAYER_NORM_EPSILON,
        key_bias=qkv_bias,
        qkv_bias=qkv_bias,
        stem=stem,
    )
    return config, slots


def _layer_scale(shapes, arguments):
    """The initial value of the factors, 1 if it is not stated; 0 without factors."""
    if "blocks.0.ls1.gamma" not in shapes:
        return 0.0
    return arguments.number("init_values", 1.0) or 1.0


def _has_slots(rows, prefix, grid, is_stated, notes):
    """Whether a table of `rows` rows has some for the prefix; those of flexivit have none.

    Args:
        rows: number of rows of the table.
        prefix: number of tokens before the patches.
        grid: (rows, columns) of the patches, or None.
        is_stated: whether the file states the grid of the table.
        notes: list to which a sentence is added if the result is assumed.
    """
    if is_stated or (grid is not None and rows - math.prod(grid) in (0, prefix)):
        return rows != math.prod(grid)
    slots = square_grid(rows) is None
    if not slots:
        notes.append("the class token is assumed to have no position: the table's size is a square")
    return slots


def _classifier(path, shapes, has_token, registers, stated):
    if stated is None:
        pooled = "map" if "attn_pool.latent" in shapes else "avg"
        stated = "token" if has_token else pooled
    classifier = {theirs: ours for ours, theirs in _POOLS.items()}.get(stated)
    if classifier is None or has_token != (classifier == "token"):
        token = "a class token" if has_token else "no class token"
        raise ValueError(
            f"{path} cannot be expressed in vit_tf: it has {token} and global_pool {stated!r}. "
            f"Expected 'token' with a class token, else one of {list(_POOLS.values())[1:]}."
        )
    if registers and classifier == "unpooled":
        raise ValueError(f"{path} cannot be expressed in vit_tf: its head reads the registers too.")
    return classifier


def _stem(path, shapes):
    roots = [f"{BACKBONE}.stem.conv.weight", f"{BACKBONE}.conv.weight"]
    root = next((name for name in roots if name in shapes), None)
    if root is None:
        if any(name.startswith(f"{BACKBONE}.") for name in shapes):
            raise ValueError(
                f"{path} cannot be expressed in vit_tf: its stem is not a ResNet with a 7 x 7 "
                f"convolution first: it has no {roots[0]}."
            )
        return None
    width = infer_config.sizes(shapes, root, 4, path)[0] / 64
    depths = stage_depths(shapes, f"{BACKBONE}.stages")
    return build_config(StemConfig, path, stage_depths=depths, width=width, **EPSILONS)


def _check_vit_writable(config):
    if reason := infer_config.inexpressible(config, has_qkv_bias=False):
        raise cannot(reason)
    if (value := config.layer_norm_epsilon) != LAYER_NORM_EPSILON:
        raise cannot_state("layer_norm_epsilon", LAYER_NORM_EPSILON, value, "LayerNorm")
    if config.representation_size:
        raise cannot(
            "timm has no tanh layer before the head (representation_size); create the model with "
            'representation_size=None and load the weights with head="reset"'
        )
    if config.register_tokens and config.classifier == "unpooled":
        raise cannot("its head would read the registers too (classifier='unpooled')")
    if config.is_distilled and (config.stem or not config.num_classes):
        raise cannot("a model with a distillation token has two heads and no stem there")
    if config.stem and any(side % config.patch_size for side in config.feature_size):
        raise cannot(
            f"patches of {config.patch_size} must fill the feature map {config.feature_size}"
        )


def _arguments(config):
    """Arguments of timm's VisionTransformer."""
    width, ratio = config.hidden_size, config.mlp_size / config.hidden_size
    while int(width * ratio) < config.mlp_size:
        ratio = math.nextafter(ratio, math.inf)  # timm rounds the product down
    scale = {"init_values": config.layer_scale} if config.layer_scale else {}
    registers = {"reg_tokens": config.register_tokens} if config.register_tokens else {}
    # A model with a distillation token always has a table.
    has_table = config.position_embedding != "none" or config.is_distilled
    return {
        "img_size": list(config.image_size),
        "patch_size": config.patch_size,
        "embed_dim": width,
        "depth": config.layers,
        "num_heads": config.heads,
        "mlp_ratio": ratio,
        **({} if config.qkv_bias else {"qkv_bias": False}),
        "class_token": config.has_class_token,
        **registers,
        "global_pool": "token" if config.is_distilled else _POOLS[config.classifier],
        "fc_norm": False,
        **scale,
        "act_layer": "gelu_tanh" if config.activation == "gelu_tanh" else "gelu",
        "pos_embed": "learn" if has_table else "none",
    }
