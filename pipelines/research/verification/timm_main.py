"""Computes outputs with timm and its own copy of published weights: `PYTHON timm_main.py FOLDER`.

Reads `settings.json` and `images.npy` in the folder, and writes `outputs.npy` and `answer.json`, or
only a reason into the latter. It imports nothing of this project, so it runs in any Python.
"""

import json
import os
import sys

import numpy as np

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


def answer(settings, images):
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


if __name__ == "__main__":
    FOLDER = sys.argv[1]
    with open(os.path.join(FOLDER, "settings.json")) as stream:
        SETTINGS = json.load(stream)
    ANSWER, OUTPUTS = answer(SETTINGS, np.load(os.path.join(FOLDER, "images.npy")))
    if OUTPUTS is not None:
        np.save(os.path.join(FOLDER, "outputs.npy"), OUTPUTS)
    with open(os.path.join(FOLDER, "answer.json"), "w") as stream:
        json.dump(ANSWER, stream)
