"""The section of masked patch prediction, and which models can learn by it."""

import dataclasses
import math
from typing import Literal

from pipelines.config.fields import check_choices, check_fraction
from pipelines.errors import UserError
from vit_tf.config import ModelConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Masking:
    """Masked patch prediction, for task=masked_patches (docs/paper.md G).

    Attributes:
        target: the prediction for each corrupted patch. "color": its mean color, one of 512;
            "downsample": the colors of 4 x 4 cells; "pixels": all pixels, with the squared error.
        fraction: the part of the patches that is corrupted, above 0 to 1; 80 % of these become
            the mask embedding, 10 % become another patch and 10 % stay as they are.
    """

    target: Literal["color", "downsample", "pixels"] = "color"
    fraction: float = 0.5

    def __post_init__(self):
        check_choices(self, "masking.")
        check_fraction("masking.fraction", self.fraction)


def check_masking(name: str, config: ModelConfig, fraction: float):
    """Raises `UserError` if a model cannot learn by masked patch prediction.

    Args:
        name: name of the model, for messages.
        config: its configuration without a head.
        fraction: corrupted part of the patches.
    """
    task = "task=masked_patches"
    if config.grid is None or config.patch_pixels is None:
        raise UserError(
            f"{name} has no patches to mask. {task} needs a ViT, a hybrid or an Axial-ViT: set "
            "model.name."
        )
    classifier = getattr(config, "classifier", None)
    if classifier not in ("token", "gap"):
        raise UserError(
            f"{task} does not train what model.classifier={classifier} reads. Set "
            "model.classifier=token or gap; fine-tuning may choose another one."
        )
    if size := getattr(config, "representation_size", None):
        raise UserError(
            f"{task} does not train the {size} pre-logits. Set model.representation_size=none."
        )
    side = config.patch_pixels
    covered = [count * side for count in config.grid]
    if any(part > whole for part, whole in zip(covered, config.image_size, strict=True)):
        raise UserError(
            f"The last patches of {side} x {side} pixels reach beyond the image of "
            f"{config.image_size}, so {task} cannot predict them. Set model.image_size to a "
            f"multiple of {side}."
        )
    patches = math.prod(config.grid)
    if patches * fraction < 0.5:
        least = math.ceil(0.5 / patches * 1e6) / 1e6  # Rounded up, so that it is accepted.
        raise UserError(
            f"masking.fraction={fraction} corrupts none of the {patches} patches. Set at least "
            f"{least:g}."
        )
