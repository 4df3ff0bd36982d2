"""Finds variants by their names in other projects, for messages. Loads no framework."""

import re

_SIZES = {"tiny": "Ti", "small": "S", "base": "B", "large": "L", "huge": "H"}
_SIZES |= {size.lower(): size for size in _SIZES.values()}

# Suffixes for how a model was trained; names of variants do not have them.
_TRAINING = (
    r"(?:_(?:imagenet(?:1k|21k|_1k|_21k)?|i?n?1k|i?n?2[12]k|i1k|i21k|ft|augreg2?|sam|miil|mil"
    r"|dino|teacher|goog))*"
)
_SIZE, _PATCH = rf"(?P<size>{'|'.join(sorted(_SIZES, key=len, reverse=True))})", r"(?P<patch>\d+)"
_END = rf"{_TRAINING}(?:_(?P<image_size>\d{{2,4}}))?{_TRAINING}"

_VIT = re.compile(
    # vit_base_patch16_224, vit_b_16, ViT-H14, axial_vit_b_16.
    rf"(?:(?P<axial>axial_)?vit_?)?{_SIZE}_?(?:patch_?)?{_PATCH}{_END}"
)
_HYBRIDS = (
    # R50-ViT-B_16, r26+vit-s/32.
    re.compile(rf"r(?P<depth>26|50)?_?vit_?{_SIZE}_?{_PATCH}{_END}"),
    # vit_base_r50_s16_224, vit_tiny_r_s16_p8_224.
    re.compile(rf"vit_{_SIZE}_r(?P<depth>26|50)?_s{_PATCH}(?:_p8)?{_END}"),
)
# google/vit-hybrid-base-bit-384, vit_base_resnet50_384: both are R50+ViT-B/16.
_R50_B16 = re.compile(rf"vit_(?:hybrid_base_bit|base_resnet50){_END}")
_BIT = (
    # resnetv2_50x1_bitm_in21k, BiT-M-R50x1.
    re.compile(
        rf"(?:resnetv2_|bit_?)(?:[msl]_)?r?(?P<depth>\d+)x(?P<width>\d)(?:_bit[msl]?)?{_END}"
    ),
    re.compile(rf"bit_r?(?P<depth>\d+){_END}"),  # google/bit-50
)
# axial26s, the public PyTorch implementation of AxialResNet.
_AXIAL_RESNET = re.compile(rf"axial_?(?:resnet_?)?(?P<depth>\d+)_?(?P<size>[sml]){_END}")


def other_spelling(name: str) -> tuple[str, int | None] | None:
    """The variant that torchvision, timm, Hugging Face, Keras or big_vision call `name`.

    Case, `_`, `-`, the owner ("google/") and the training ("_in21k") do not matter.

    Returns:
        `(variant, image size)`, where the size is None if `name` does not contain it. None if
        `name` has no known form. The caller must check that the variant exists.
    """
    # Removes the owner in "google/vit-base". In "vit-b/16" the slash is followed by a digit.
    model = re.sub(r"^.*/(?=[a-z])", "", name.lower()).partition(".")[0]
    model = re.sub(r"[^a-z0-9]+", "_", model).strip("_")
    if found := _VIT.fullmatch(model):
        axial = "Axial-" if found["axial"] else ""
        return f"{axial}ViT-{_SIZES[found['size']]}/{found['patch']}", _image_size(found)
    if found := _R50_B16.fullmatch(model):
        return "R50+ViT-B/16", _image_size(found)
    for pattern in _HYBRIDS:
        if found := pattern.fullmatch(model):
            variant = f"R{found['depth'] or ''}+ViT-{_SIZES[found['size']]}/{found['patch']}"
            return variant, _image_size(found)
    for pattern in _BIT:
        if found := pattern.fullmatch(model):
            width = found.groupdict().get("width", "1")
            return f"BiT-R{found['depth']}x{width}", _image_size(found)
    if found := _AXIAL_RESNET.fullmatch(model):
        return f"AxialResNet-{found['depth']}{found['size'].upper()}", _image_size(found)
    return None


def named_size(name: str) -> str | None:
    """The size in a name of a ViT, such as "B" in "vit_base" or "vit_base_patch16_clip_224"."""
    model = re.sub(r"[^a-z0-9]+", "_", name.lower().rpartition("/")[2])
    found = re.match(rf"vit_{_SIZE}(?:_|$)", model)
    return _SIZES[found["size"]] if found else None


def _image_size(found):
    return int(found["image_size"]) if found["image_size"] else None
