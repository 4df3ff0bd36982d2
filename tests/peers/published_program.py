"""Computes outputs of published weights elsewhere: `PYTHON published_program.py FOLDER`.

timm has a copy of the weights of its own, converted by its authors: it finds a file that is not the
right one. The code of the paper's authors, `vit_jax`, reads the same file: it finds mistakes of the
code alone. The first that can compute outputs is taken. Neither is told how this project computes:
they use the tanh form of GELU and the epsilons of the published models.

Reads `settings.json` and `images.npy` in the folder, and writes `outputs.npy` and `answer.json`, or
only reasons into the latter. It imports nothing of this project.
"""

import json
import os
import sys

import numpy as np

os.environ["JAX_PLATFORMS"] = "cpu"

# Weights whose address timm does not state. Its copies of the paper's ImageNet-21k weights have
# neither pre-logits nor head.
_COPIES = {
    "imagenet21k/ViT-B_16": "vit_base_patch16_224.orig_in21k",
    "imagenet21k/ViT-B_32": "vit_base_patch32_224.orig_in21k",
    "imagenet21k/ViT-L_16": "vit_large_patch16_224.orig_in21k",
    "imagenet21k/ViT-L_32": "vit_large_patch32_224.orig_in21k",
    "imagenet21k/ViT-H_14": "vit_huge_patch14_224.orig_in21k",
    "imagenet21k/R50+ViT-B_16": "vit_base_r50_s16_224.orig_in21k",
    "imagenet21k+imagenet2012/ViT-B_16": "vit_base_patch16_384.orig_in21k_ft_in1k",
    "imagenet21k+imagenet2012/ViT-B_16-224": "vit_base_patch16_224.orig_in21k_ft_in1k",
    "imagenet21k+imagenet2012/ViT-L_32": "vit_large_patch32_384.orig_in21k_ft_in1k",
    "imagenet21k+imagenet2012/R50+ViT-B_16": "vit_base_r50_s16_384.orig_in21k_ft_in1k",
    "bit_models/BiT-M-R50x1": "resnetv2_50x1_bit.goog_in21k",
    "bit_models/BiT-M-R101x1": "resnetv2_101x1_bit.goog_in21k",
    "bit_models/BiT-M-R50x3": "resnetv2_50x3_bit.goog_in21k",
    "bit_models/BiT-M-R101x3": "resnetv2_101x3_bit.goog_in21k",
    "bit_models/BiT-M-R152x4": "resnetv2_152x4_bit.goog_in21k",
    "bit_models/BiT-M-R50x1-ILSVRC2012": "resnetv2_50x1_bit.goog_in21k_ft_in1k",
    "bit_models/BiT-M-R101x1-ILSVRC2012": "resnetv2_101x1_bit.goog_in21k_ft_in1k",
    "bit_models/BiT-M-R50x3-ILSVRC2012": "resnetv2_50x3_bit.goog_in21k_ft_in1k",
    "bit_models/BiT-M-R101x3-ILSVRC2012": "resnetv2_101x3_bit.goog_in21k_ft_in1k",
    "bit_models/BiT-M-R152x4-ILSVRC2012": "resnetv2_152x4_bit.goog_in21k_ft_in1k",
    "bit_models/distill/R50x1_224": "resnetv2_50x1_bit.goog_distilled_in1k",
}


def ask_timm(settings, images):
    """`(answer as a dictionary, outputs or None)`."""
    try:
        import timm
        import torch
    except ImportError as error:
        return {"reason": str(error)}, None
    name = _COPIES.get(settings["name"]) or _by_address(timm, settings["url"])
    if name is None:
        return {"reason": f"version {timm.__version__} has no copy of these weights"}, None
    # The form of GELU of the published models; "url": the copy on the hub, not the same file.
    fields = {"pretrained_cfg_overlay": {"url": ""}}
    if name.startswith("vit_"):
        fields["act_layer"] = "gelu_tanh"
    try:
        model = timm.create_model(name, pretrained=True, **fields).eval()
    except Exception as error:  # Whatever timm and the hub raise without a network.
        said = " ".join(str(error).split())[:200]
        return {"reason": f"cannot load its copy {name}: {said or type(error).__name__}"}, None
    if model.num_classes not in (0, settings["num_classes"]):
        return {"reason": f"its copy {name} has {model.num_classes} classes"}, None
    _standardize_as_published(timm, torch, model, is_hybrid=name.startswith("vit_"))
    mean, std = (np.array(model.pretrained_cfg[key]) for key in ("mean", "std"))
    pixels = ((images + 1) / 2 - mean) / std
    with torch.no_grad():
        given = torch.from_numpy(pixels.transpose(0, 3, 1, 2).astype(np.float32))
        outputs = model(given).numpy()
    part = "logits" if model.num_classes else "features"
    return {"name": f"timm {timm.__version__} {name}", "part": part}, outputs


def ask_vit_jax(settings, images):
    """`(answer as a dictionary, outputs or None)`."""
    try:
        import jax
        from vit_jax import checkpoint, models_vit
        from vit_jax.configs.models import MODEL_CONFIGS
    except ImportError as error:
        return {"reason": str(error)}, None
    name = settings["model"].replace("/", "_")
    if name not in MODEL_CONFIGS:
        return {"reason": f"it has no {settings['model']}"}, None
    fields = dict(MODEL_CONFIGS[name])
    fields["representation_size"] = fields["hidden_size"] if settings["has_pre_logits"] else None
    model = models_vit.VisionTransformer(num_classes=settings["num_classes"], **fields)
    params = checkpoint.load(settings["path"])
    outputs = model.apply({"params": params}, images, train=False)
    return {"name": f"vit_jax {name}, jax {jax.__version__}", "part": "logits"}, outputs


def _standardize_as_published(timm, torch, model, is_hybrid):
    """Sets the epsilons of convolutions: timm has other ones (docs/paper.md C.1 and C.2)."""
    for module in model.modules():
        if isinstance(module, torch.nn.GroupNorm) and is_hybrid:
            module.eps = 1e-6
        if isinstance(module, timm.layers.StdConv2d):
            module.eps = 1e-10
        if isinstance(module, timm.layers.StdConv2dSame):
            kernel, sides = module.weight.data, (1, 2, 3)
            deviation = kernel.std(sides, correction=0, keepdim=True)
            kernel = (kernel - kernel.mean(sides, keepdim=True)) / (deviation + 1e-5)
            module.weight.data, module.__class__ = kernel, timm.layers.Conv2dSame


def _by_address(timm, url):
    """The name of timm's copy of the file at an address, or None."""
    for name in timm.list_pretrained():
        if timm.get_pretrained_cfg(name).url == url:
            return name
    return None


def main(folder):
    with open(os.path.join(folder, "settings.json")) as stream:
        settings = json.load(stream)
    images, reasons = np.load(os.path.join(folder, "images.npy")), []
    for name, ask in (("timm", ask_timm), ("vit_jax", ask_vit_jax)):
        answer, outputs = ask(settings, images)
        if outputs is not None:
            np.save(os.path.join(folder, "outputs.npy"), np.asarray(outputs))
            break
        reasons.append(f"{name}: {answer['reason']}")
    else:
        answer = {"reason": "; ".join(reasons)}
    with open(os.path.join(folder, "answer.json"), "w") as stream:
        json.dump(answer, stream)


if __name__ == "__main__":
    main(sys.argv[1])
