"""Writes Vision Transformers, hybrids and BiT ResNets as PyTorch Image Models (timm) keeps them.

`timm.create_model("local-dir:<folder>", pretrained=True)` loads what is written, except stems and
ResNets of which timm has no architecture; those load into a model that is put together by hand.
"""

import math

from vit_tf.checkpoints.published_layout import POSITIONS
from vit_tf.checkpoints.safetensors import structure
from vit_tf.checkpoints.safetensors.rules import Writing
from vit_tf.checkpoints.safetensors.timm_rules import EPSILONS, LAYER_NORM_EPSILON, POOLS, rules
from vit_tf.config import ResNetConfig

# Units of the stem -> an architecture with it; all the rest is in the arguments.
_HYBRIDS = {
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_small_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}
_RESNETS = {
    ((3, 4, 6, 3), 1): "resnetv2_50x1_bit",
    ((3, 4, 6, 3), 3): "resnetv2_50x3_bit",
    ((3, 4, 23, 3), 1): "resnetv2_101x1_bit",
    ((3, 4, 23, 3), 3): "resnetv2_101x3_bit",
    ((3, 8, 36, 3), 2): "resnetv2_152x2_bit",
    ((3, 8, 36, 3), 4): "resnetv2_152x4_bit",
}


def write(config, preprocessing) -> Writing:
    """How a model is written.

    Raises:
        ValueError: if the layout cannot express it; the message says why.
    """
    notes, extra, arguments = [], {}, {}
    if isinstance(config, ResNetConfig):
        residual, name = config, "resnetv2_custom_bit"
        architecture = _RESNETS.get((config.stage_depths, config.width), name)
    else:
        residual, name = config.stem, "vit_custom_hybrid"
        _check_vit(config)
        architecture, arguments = "vit_base_patch16_224", _arguments(config)
        if config.stem:
            depths = config.stem.stage_depths if config.stem.width == 1 else None
            architecture = _HYBRIDS.get(depths, name)
        if config.position_embedding == "sincos_2d":
            extra[POSITIONS] = structure.sincos_table(config)
            notes.append("sincos_2d positions: written as a table")
    if residual:
        _check_residual(residual)
    if architecture == name:
        notes.append(
            f"timm has no architecture with stage_depths {residual.stage_depths} and width "
            f"{residual.width}, here called {name}: load it into a timm.models.ResNetV2 of these "
            "layers"
        )
    if preprocessing.probabilities == "sigmoid":
        notes.append("that probabilities are sigmoids is not kept")
    pretrained = _pretrained(config, preprocessing, notes)
    settings = {
        "architecture": architecture,
        "num_classes": config.num_classes,
        **({"global_pool": arguments["global_pool"]} if arguments else {}),
        **({"model_args": arguments} if arguments else {}),
        "pretrained_cfg": pretrained,
    }
    return Writing(rules(config), {"config.json": settings}, notes, extra)


def _check_vit(config):
    if config.layer_norm_epsilon != LAYER_NORM_EPSILON:
        raise _cannot(
            f"its layer_norm_epsilon is {LAYER_NORM_EPSILON}, here {config.layer_norm_epsilon}; "
            "write the Hugging Face layout, which states it"
        )
    if config.representation_size:
        raise _cannot(
            "it has no tanh layer before the head (representation_size); create the model with "
            'representation_size=None and load the weights with head="reset"'
        )
    if config.stem and any(side % config.patch_size for side in config.feature_size):
        raise _cannot(
            f"patches of {config.patch_size} must fill the feature map {config.feature_size}"
        )


def _check_residual(config):
    wanted = EPSILONS["group_norm_epsilon"]
    if config.group_norm_epsilon != wanted:
        raise _cannot(
            f"its group_norm_epsilon is {wanted}, here {config.group_norm_epsilon}; create the "
            "model with that epsilon, load the weights and compare its logits before writing it"
        )
    if not config.variance_epsilon and not config.deviation_epsilon:
        raise _cannot("it standardises kernels with an epsilon, and this model without")
    if len(config.stage_depths) > 4:
        raise _cannot(f"its ResNets have at most 4 stages, here {len(config.stage_depths)}")


def _arguments(config):
    """Arguments of timm's VisionTransformer."""
    width, ratio = config.hidden_size, config.mlp_size / config.hidden_size
    while int(width * ratio) < config.mlp_size:
        ratio = math.nextafter(ratio, math.inf)  # timm rounds the product down
    return {
        "img_size": list(config.image_size),
        "patch_size": config.patch_size,
        "embed_dim": width,
        "depth": config.layers,
        "num_heads": config.heads,
        "mlp_ratio": ratio,
        "class_token": bool(config.num_prefix_tokens),
        "global_pool": POOLS[config.classifier],
        "fc_norm": False,
        "act_layer": "gelu_tanh" if config.activation == "gelu_tanh" else "gelu",
        "pos_embed": "none" if config.position_embedding == "none" else "learn",
    }


def _pretrained(config, preprocessing, notes):
    height, width = config.image_size
    crop, mode = 1.0, "squash"
    if preprocessing.resize == "resize_small":
        if height == width:
            crop, mode = height / preprocessing.resize_to, "center"
            while math.floor(height / crop) < preprocessing.resize_to:
                crop = math.nextafter(crop, 0)
        else:
            notes.append("timm crops squares only: resized directly there")
    is_resnet = isinstance(config, ResNetConfig)
    first = "stem.conv" if is_resnet else "patch_embed.proj"
    if not is_resnet and config.stem:
        first = "patch_embed.backbone." + ("stem.conv" if config.stem.stage_depths else "conv")
    labels = structure.checked_labels(preprocessing, config.num_classes)
    return {
        "input_size": [3, height, width],
        "fixed_input_size": not is_resnet,
        "interpolation": "bilinear",
        "crop_pct": crop,
        "crop_mode": mode,
        "mean": [0.5] * 3,
        "std": [0.5] * 3,
        "num_classes": config.num_classes,
        "pool_size": None,
        "first_conv": first,
        "classifier": "head.fc" if is_resnet else "head",
        **({"label_names": list(labels)} if labels else {}),
    }


def _cannot(reason):
    return ValueError(f"This model cannot be written in the timm layout: {reason}.")
