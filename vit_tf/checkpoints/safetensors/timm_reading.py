"""Reads what PyTorch Image Models (timm) keeps: Vision Transformers, hybrids and BiT ResNets.

Checked against timm 1.0.31 (`vision_transformer.py`, `vision_transformer_hybrid.py`,
`resnetv2.py`, `layers/`). Its `config.json` names an architecture and the arguments that deviate
from it; activation, epsilons and paddings are not in the file and follow from the architecture:

- Vision Transformers: erf GELU (some SigLIP: tanh), LayerNorm epsilon 1e-6.
- Hybrids: SAME padding, GroupNorm epsilon 1e-5, kernels standardised with 1e-8 in the variance.
- BiT: the same epsilons, explicit zeros around the images and the first max pooling.
"""

import math
import re

from vit_tf.checkpoints.published_config import build
from vit_tf.checkpoints.safetensors import structure
from vit_tf.checkpoints.safetensors.rules import Reading
from vit_tf.checkpoints.safetensors.settings import Settings, read_settings
from vit_tf.checkpoints.safetensors.timm_rules import (
    BACKBONE,
    EPSILONS,
    LAYER_NORM_EPSILON,
    POOLS,
    rules,
)
from vit_tf.config import ResNetConfig, StemConfig, ViTConfig

# Structure -> the architectures of which the above is known, and one to name in place of others.
_ARCHITECTURES = {
    "vit": (
        r"(vit|deit)_[a-z0-9]+_patch\d+(_siglip)?(_gap)?_\d+(_in21k)?|flexivit_[a-z]+|test_vit",
        "vit_base_patch16_224",
    ),
    "hybrid": (
        r"vit_[a-z]+_r\d*_s\d+(_p\d+)?_\d+(_in21k)?|vit_base_resnet50_\d+(_in21k)?"
        r"|vit_custom_hybrid",
        "vit_base_r50_s16_224",
    ),
    "bit": (r"resnetv2_(\d+x\d+|custom)_bitm?(_\w+)?", "resnetv2_50x1_bit"),
}
_HEADS = {"tiny": 3, "small": 6, "base": 12, "large": 16, "huge": 16, "giant": 16, "gigantic": 16}
_HEADS |= {"medium": 8, "betwixt": 10, "so400m": 16, "giantopt": 16, "test": 2}
# Widths whose heads are not of 64 channels, for files without an architecture.
_WIDE = {1152: 16, 1280: 16, 1408: 16, 1536: 16, 1664: 16}
# The SigLIP models that came with its second version; timm runs the others with the erf form.
_TANH = re.compile(
    r"vit_(base_patch32|so400m_patch16|giantopt_patch16)_siglip|vit_large_patch16_siglip_(gap_)?512"
)
_ACTIVATIONS = {"gelu": "gelu_erf", "gelu_erf": "gelu_erf", "gelu_tanh": "gelu_tanh"}

_REASONS = [
    (r"\.(ls[12]\.gamma|gamma_[12])$", "it has layer scale"),
    (r"\.[qk]_norm\.", "it normalises queries and keys"),
    (r"^reg_token$", "it has register tokens"),
    (r"^(dist_token|head_dist\.)", "it has a distillation token"),
    (r"^fc_norm\.", "it normalises the mean of the tokens, and vit_tf averages normalised tokens"),
    (r"^norm_pre\.", "it normalises the tokens before the first block (CLIP)"),
    (r"^patch_embed\.norm\.", "it normalises the patch embeddings"),
    (r"\.(attn|mlp)\.norm\.", "it has norms inside its blocks"),
    (r"\.mlp\.(w12|w3|fc1_[gx])\.", "its MLP is gated (SwiGLU)"),
    (r"\.attn\.(gate\.|q_proj\.|q_bias|v_bias)", "its attention is not of qkv with a bias"),
    (r"(rel_pos|relative_position|rope)", "it has relative or rotary positions"),
    (r"running_mean$", "it has BatchNorm"),
    (r"^(stem|patch_embed\.backbone(\.stem)?)\.conv[123]\.", "its stem has several convolutions"),
    (r"^patch_embed\.backbone\.(bn1|layer\d)\.", "its stem is a ResNet of another kind"),
    (r"^patch_embed\.backbone\.\d", "its stem is of convolutions without residuals"),
]
# Arguments that shapes tell, or that change nothing after training.
_HARMLESS = set(
    "img_size patch_size in_chans num_classes global_pool embed_dim depth num_heads mlp_ratio "
    "qkv_bias proj_bias qk_norm init_values class_token pos_embed no_embed_class reg_tokens "
    "pre_norm final_norm fc_norm act_layer layers width_factor zero_init_last weight_init fix_init "
    "dynamic_img_size strict_img_size drop_rate pos_drop_rate patch_drop_rate proj_drop_rate "
    "attn_drop_rate drop_path_rate".split()
)
# Arguments that no tensor shows, and the value that vit_tf computes.
_ONLY = {
    "padding_same": True,
    "dynamic_img_pad": False,
    "output_stride": 32,
    "avg_down": False,
    "pool_include_prefix": False,
}


def recognises(names) -> bool:
    """Whether tensors with these names are a model of this layout."""
    return bool({"patch_embed.proj.weight", "stem.conv.weight", "stem.conv1.weight"} & set(names))


def read(path, shapes, folder) -> Reading:
    """What a file holds.

    Args:
        path: the file, for messages.
        shapes: tensor name -> shape.
        folder: where its `config.json` is, if there is one.

    Raises:
        ValueError: if it is not a model that vit_tf has; the message says why.
    """
    structure.check_expressible(path, shapes, _REASONS)
    kind = "bit" if "stem.conv.weight" in shapes else "vit"
    if any(name.startswith(f"{BACKBONE}.") for name in shapes):
        kind = "hybrid"

    notes, settings = [], read_settings(folder / "config.json")
    if settings is None:
        settings = Settings(str(folder / "config.json"), {})
    arguments = settings.section("model_args")
    _check_arguments(arguments)
    # Older files have the contents of this section beside the architecture.
    pretrained = settings.section("pretrained_cfg") if "pretrained_cfg" in settings else settings
    stated = _image_size(arguments, pretrained)
    class_slot = True
    pool = arguments.text("global_pool", settings.text("global_pool"))
    if kind == "bit":
        _architecture(settings, kind, notes)
        if "act_layer" in arguments:
            raise arguments.wrong("act_layer", "none: vit_tf's ResNets have ReLU")
        if pool not in (None, "", "avg"):
            raise ValueError(
                f"{path} cannot be expressed in vit_tf: its global_pool is {pool!r}. "
                "Expected 'avg'."
            )
        config = _bit_config(path, shapes, stated, notes)
    else:
        width = structure.sizes(shapes, "patch_embed.proj.weight", 4, path)[0]
        heads, activation = facts(settings, width, kind, notes)
        config, class_slot = _vit_config(path, shapes, heads, activation, pool, stated, notes)
    structure.check_stated(settings, "num_classes", config.num_classes)
    return Reading(
        config=config,
        preprocessing=_preprocessing(settings, pretrained, config, notes),
        notes=notes,
        rules=rules(config, class_slot),
        input_map=_input_map(pretrained, kind),
    )


def facts(settings, width, kind, notes) -> tuple[int, str]:
    """Heads and activation, which no tensor shows, of a Vision Transformer or hybrid.

    Args:
        settings: of `config.json`.
        width: D.
        kind: "vit" or "hybrid".
        notes: gets a sentence for each that was assumed.

    Raises:
        ValueError: if the architecture is not one of which they are known here.
    """
    arguments, architecture = settings.section("model_args"), _architecture(settings, kind, notes)
    return (
        _heads(arguments, architecture or "", width, notes),
        _activation(arguments, architecture or ""),
    )


def _check_arguments(arguments):
    for name in arguments:
        if arguments.raw(name) == _ONLY.get(name):
            continue  # among them null, which is timm's own value
        if name in _ONLY:
            raise arguments.wrong(name, f"{_ONLY[name]}, which vit_tf computes")
        if name not in _HARMLESS:
            raise arguments.wrong(name, "no such argument: vit_tf does not know its effect")


def _architecture(settings, kind, notes):
    """The architecture without its tag, checked; None if it is not stated."""
    pattern, example = _ARCHITECTURES[kind]
    architecture = settings.text("architecture")
    if architecture is None:
        assumed = ", erf GELU" if kind != "bit" else ""
        notes.append(f"the architecture is not stated: taken for a {example}{assumed}")
        return None
    name = architecture.split(".")[0]
    if not re.fullmatch(pattern, name):
        raise settings.wrong(
            "architecture",
            "one whose activation, epsilons and padding are known here; if they are those of "
            f"{example}, write that",
        )
    return name


def _image_size(arguments, pretrained):
    """(height, width) as stated, or None."""
    if "img_size" in arguments:
        return arguments.sides("img_size")
    if "input_size" not in pretrained:
        return None
    channels, *sides = pretrained.numbers("input_size", 3)
    if channels != 3 or not all(type(side) is int for side in sides):
        raise pretrained.wrong("input_size", "[3, height, width]")
    return tuple(sides)


def _heads(arguments, architecture, width, notes):
    if "num_heads" in arguments:
        return arguments.integer("num_heads")
    if architecture == "vit_base_patch16_gap_224":
        return 16  # of 48 channels, unlike its namesakes
    for word in architecture.split("_"):
        if word in _HEADS:
            return _HEADS[word]
    heads = _WIDE.get(width, max(1, width // 64))
    notes.append(f"the number of heads is assumed: {heads}, of {width // heads} channels")
    return heads


def _activation(arguments, architecture):
    if "act_layer" in arguments:
        activation = _ACTIVATIONS.get(arguments.text("act_layer"))
        if activation is None:
            raise arguments.wrong("act_layer", f"one of {', '.join(_ACTIVATIONS)}")
        return activation
    return "gelu_tanh" if _TANH.match(architecture) else "gelu_erf"


def _vit_config(path, shapes, heads, activation, pool, stated, notes):
    """A Vision Transformer or hybrid, and whether its class token has a position."""
    stem = _stem(path, shapes)
    patch, width = structure.patch_kernel(
        shapes, "patch_embed.proj.weight", path, stem and stem.channels
    )
    (mlp_size,) = structure.sizes(shapes, "blocks.0.mlp.fc1.bias", 1, path)
    if "blocks.0.attn.qkv.bias" not in shapes and "blocks.0.attn.qkv.weight" in shapes:
        raise ValueError(
            f"{path} cannot be expressed in vit_tf: queries, keys and values have no biases."
        )
    representation_size, num_classes = None, 0
    if "pre_logits.fc.weight" in shapes:
        representation_size = structure.sizes(shapes, "pre_logits.fc.weight", 2, path)[0]
    if "head.weight" in shapes:
        num_classes = structure.sizes(shapes, "head.weight", 2, path)[0]
    reduction = stem.reduction if stem else 1
    rows, slot, has_token = None, True, "cls_token" in shapes
    if "pos_embed" in shapes:
        rows = structure.sizes(shapes, "pos_embed", 3, path)[1]
        if has_token:
            slot = _has_slot(rows, stated, patch, reduction, notes)
            rows -= slot
    config = build(
        ViTConfig,
        path,
        hidden_size=width,
        mlp_size=mlp_size,
        layers=structure.how_many(shapes, r"blocks\.(\d+)\."),
        heads=heads,
        patch_size=patch,
        image_size=structure.image_size(rows, patch, reduction, stated, path, notes),
        num_classes=num_classes,
        classifier=_classifier(path, shapes, has_token, pool),
        representation_size=representation_size,
        position_embedding="none" if rows is None else "learned_1d",
        activation=activation,
        layer_norm_epsilon=LAYER_NORM_EPSILON,
        stem=stem,
    )
    return config, slot


def _has_slot(rows, stated, patch, reduction, notes):
    """Whether a table of `rows` has one for the class token; flexivit's have none."""
    if stated is not None:
        grid = [-(-side // reduction) // patch for side in stated]
        return rows != math.prod(grid)
    slot = math.isqrt(rows) ** 2 != rows
    if not slot:
        notes.append("positions are taken for those of patches alone: they are a square number")
    return slot


def _classifier(path, shapes, has_token, stated):
    if stated is None:
        pooled = "map" if "attn_pool.latent" in shapes else "avg"
        stated = "token" if has_token else pooled
    classifier = {theirs: ours for ours, theirs in POOLS.items()}.get(stated)
    if classifier is None or has_token != (classifier == "token"):
        token = "a class token" if has_token else "no class token"
        raise ValueError(
            f"{path} cannot be expressed in vit_tf: it has {token} and global_pool {stated!r}. "
            f"Expected 'token' with a class token, else one of {list(POOLS.values())[1:]}."
        )
    return classifier


def _stem(path, shapes):
    roots = [f"{BACKBONE}.stem.conv.weight", f"{BACKBONE}.conv.weight"]
    root = next((name for name in roots if name in shapes), None)
    if root is None:
        if any(name.startswith(f"{BACKBONE}.") for name in shapes):
            raise ValueError(
                f"{path} cannot be expressed in vit_tf: its stem is no ResNet with a 7 x 7 "
                f"convolution first, it has no {roots[0]}."
            )
        return None
    width = structure.sizes(shapes, root, 4, path)[0] / 64
    depths = _stage_depths(shapes, rf"{re.escape(BACKBONE)}\.stages")
    return build(StemConfig, path, stage_depths=depths, width=width, **EPSILONS)


def _bit_config(path, shapes, stated, notes):
    if stated is None:
        stated = (224, 224)
        notes.append("the image size is not stated: 224 x 224")
    structure.check_image_size(stated, path)
    num_classes = 0
    if "head.fc.weight" in shapes:
        num_classes = structure.sizes(shapes, "head.fc.weight", 4, path)[0]
    return build(
        ResNetConfig,
        path,
        stage_depths=_stage_depths(shapes, "stages"),
        width=structure.sizes(shapes, "stem.conv.weight", 4, path)[0] / 64,
        image_size=stated,
        num_classes=num_classes,
        **EPSILONS,
    )


def _stage_depths(shapes, prefix):
    """How many residual units each stage has."""
    stages = structure.how_many(shapes, rf"{prefix}\.(\d+)\.")
    return tuple(
        structure.how_many(shapes, rf"{prefix}\.{stage}\.blocks\.(\d+)\.")
        for stage in range(stages)
    )


def _input_map(pretrained, kind):
    mean, std = (pretrained.numbers(name, 3, (0.5,) * 3) for name in ("mean", "std"))
    found = structure.input_map(pretrained, mean, std)
    if found and kind != "vit":
        raise pretrained.wrong(
            "mean",
            "0.5, and std 0.5: the padded and standardised convolutions of a ResNet cannot take "
            "over another range of pixels",
        )
    return found


def _preprocessing(settings, pretrained, config, notes):
    """Our preprocessing for timm's evaluation transform; its ranges are in `_input_map`."""
    size, labels = config.image_size, ()
    for section in (settings, pretrained):
        names = section.raw("label_names")
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            labels = tuple(names) if len(names) == config.num_classes else ()
    for name in ("mean", "std", "crop_pct"):
        if name not in pretrained:
            assumed = "1, resized directly" if name == "crop_pct" else "0.5"
            notes.append(f"{name} is not stated: {assumed}")
    resize_to, resampling = None, pretrained.text("interpolation")
    share = pretrained.number("crop_pct")
    mode = pretrained.text("crop_mode", "center")
    if share is not None:
        if not 0 < share <= 1:
            raise pretrained.wrong("crop_pct", "a share above 0, up to 1")
        if mode == "center" and size[0] == size[1]:
            resize_to = min(math.floor(size[0] / share), structure.MAX_SIDE + 1)
        elif mode != "squash" or share != 1:
            notes.append(
                f"crop_mode {mode!r} with crop_pct {share} and images of {size[0]} x {size[1]} is "
                "not available here: resized directly"
            )
    path = settings.path
    return structure.preprocessing(path, size, notes, resize_to, resampling, labels=labels)
