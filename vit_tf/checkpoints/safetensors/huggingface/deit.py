"""Tensors of Hugging Face's DeiT (`model_type` deit; Touvron et al., 2021) <-> published arrays.

Checked against transformers 5.24.0. All its models have a distillation token, whose position
becomes part of it when it is read; the position that is written is zero. The model with a teacher
has two heads, and the mean of their logits is that of `classifier="token_distilled"`. The heads of
the others read the class token alone, so that their distillation token is a register here.

Published DeiT models without distillation are of the layout of `vit.py`.
"""

import functools

from vit_tf.checkpoints.safetensors import infer_config
from vit_tf.checkpoints.safetensors.huggingface import config_json, vit
from vit_tf.checkpoints.safetensors.rules import WriteRules

read = functools.partial(vit.read, is_distilled=True)


def recognizes(names) -> bool:
    """Whether tensors with these names are a Vision Transformer of this layout."""
    return any(name.endswith(vit.DISTILLATION_TOKEN) for name in names)


def write(config, preprocessing, classes) -> WriteRules:
    """Plans how to write a model; see `vit.write`."""
    if reason := infer_config.inexpressible(config):
        raise _cannot(reason)
    if config.layer_scale or config.stem is not None:
        raise _cannot("it has neither layer scale nor a ResNet stem; write the timm layout")
    if not config.has_class_token or config.unplaced_tokens != 1:
        raise _cannot(
            "it has a class token and one more, but classifier is "
            f"{config.classifier!r} and register_tokens is {config.register_tokens}"
        )
    if config.is_distilled and not config.num_classes:
        raise _cannot("its features are of the class token alone; write a model with its heads")
    if config.representation_size and config.num_classes:
        raise _cannot(
            "it has either a tanh layer or a head, but this model has both; drop one of them: "
            "num_classes=0 or representation_size=None"
        )
    notes = []
    extra = infer_config.written_positions(config, notes)
    name = "DeiTModel"
    if config.num_classes:
        name = "DeiTForImageClassification" + "WithTeacher" * config.is_distilled
    settings = config_json.model_json(config, classes)
    settings |= {"architectures": [name], "model_type": "deit"}
    files = config_json.files(settings, preprocessing, notes)
    rules = vit.rules(config, "deit." if config.num_classes else "", has_distillation_token=True)
    return WriteRules(rules, files, notes, extra)


def _cannot(reason):
    return ValueError(f"This model cannot be written in the DeiT layout: {reason}.")
