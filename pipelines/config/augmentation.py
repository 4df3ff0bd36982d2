"""Settings of the random changes to training images; `data/transforms` applies them."""

import dataclasses
import math
from typing import Literal

# Twice the largest magnitude of AugReg; much larger ones would rotate by a full turn.
MAX_MAGNITUDE = 40

# The seven levels of AugReg as fields of `Augmentation`, weakest first (docs/paper.md F.7).
AUGREG_LEVELS = {
    name: {"randaugment_layers": layers, "randaugment_magnitude": magnitude, "mixup": mixup}
    for name, layers, magnitude, mixup in (
        ("none", 0, 0.0, 0.0),
        ("light1", 2, 0.0, 0.0),
        ("light2", 2, 10.0, 0.2),
        ("medium1", 2, 15.0, 0.2),
        ("medium2", 2, 15.0, 0.5),
        ("strong1", 2, 20.0, 0.5),
        ("strong2", 2, 20.0, 0.8),
    )
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Augmentation of training images, by default as in the paper's own code.

    Attributes:
        crop: "inception": a window of random place, area and aspect ratio, resized; "random": the
            image is resized to `crop_resize_to` by the rule `data.resize` (with direct: both
            sides), then a random window of the model's size is taken; "none": no random window, the
            image is resized as in evaluation.
        crop_resize_to: side before the window of crop="random", in pixels; none for other crops.
        crop_area: range of the crop's area, as a fraction of the image area.
        flip: whether to mirror left to right with probability 0.5.
        vertical_flip: whether to mirror top to bottom with probability 0.5.
        color_jitter: strength of brightness, contrast, saturation (0 to 1) and hue (0 to 0.5).
        randaugment_layers: RandAugment operations per image; 0 turns it off, AugReg uses 2.
        randaugment_magnitude: magnitude of these operations, 0 to 20 in AugReg (docs/paper.md F.7).
        randaugment_rules: "exact": the operations as defined; "published": as AugReg computes
            them, where Solarize, Posterize and Contrast differ (docs/paper.md F.7).
        random_erasing: probability of erasing a rectangle.
        random_erasing_area: range of the rectangle's area, as a fraction of the image area.
        random_erasing_aspect: range of the rectangle's height over width.
        random_erasing_fill: content of the rectangle, "noise" or "grey".
        mixup: `a` of Beta(a, a), from which the weight of an image in its mixture with another is
            drawn once per batch; 0 turns MixUp off. If cutmix is on too, each batch uses one of
            the two.
        cutmix: `a` of Beta(a, a), from which the area of a rectangle pasted from another image is
            drawn once per batch; 0 turns CutMix off.
        mixing_steps: number of first steps with MixUp and CutMix; later batches are not mixed. none
            is the whole run.
        mixing_epochs: the same in epochs; the run replaces it by steps.

    Raises:
        ValueError: if a field is out of range.
    """

    crop: Literal["inception", "random", "none"] = "inception"
    crop_resize_to: int | None = None
    crop_area: tuple[float, float] = (0.05, 1.0)
    flip: bool = True
    vertical_flip: bool = False
    color_jitter: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    randaugment_layers: int = 0
    randaugment_magnitude: float = 10.0
    randaugment_rules: Literal["exact", "published"] = "exact"
    random_erasing: float = 0.0
    random_erasing_area: tuple[float, float] = (0.02, 0.4)
    random_erasing_aspect: tuple[float, float] = (0.3, 1 / 0.3)
    random_erasing_fill: Literal["noise", "grey"] = "noise"
    mixup: float = 0.0
    cutmix: float = 0.0
    mixing_steps: int | None = None
    mixing_epochs: float | None = None

    def __post_init__(self):
        for name, limit in (
            ("crop_area", 1),
            ("random_erasing_area", 1),
            ("random_erasing_aspect", 100),
        ):
            low, high = getattr(self, name)
            if not 0 < low <= high <= limit:
                raise ValueError(
                    f"{name}={(low, high)} is not a range. Expected 0 < low <= high <= {limit}."
                )
        limits = (1, 1, 1, 0.5)
        if len(self.color_jitter) != 4 or not all(
            0 <= strength <= limit
            for strength, limit in zip(self.color_jitter, limits, strict=True)
        ):
            raise ValueError(
                f"color_jitter={self.color_jitter} is out of range. Expected four strengths, of "
                f"brightness, contrast, saturation and hue, from 0 to {limits}."
            )
        if self.randaugment_layers < 0 or not 0 <= self.randaugment_magnitude <= MAX_MAGNITUDE:
            raise ValueError(
                f"randaugment_layers={self.randaugment_layers} with randaugment_magnitude="
                f"{self.randaugment_magnitude} is out of range. Expected layers from 0 and a "
                f"magnitude from 0 to {MAX_MAGNITUDE}."
            )
        if (self.crop == "random") != (self.crop_resize_to is not None):
            raise ValueError(
                f"crop={self.crop} with crop_resize_to={self.crop_resize_to}: a random crop is a "
                "window of an image of that size, and no other crop has one. Set both or neither."
            )
        for name in ("mixing_steps", "mixing_epochs"):
            if (length := getattr(self, name)) is not None and length < 0:
                raise ValueError(f"{name}={length} is negative. Expected at least 0, or none.")
        if not 0 <= self.random_erasing <= 1:
            raise ValueError(
                f"random_erasing={self.random_erasing} is not a probability. Expected 0 (off) to 1."
            )
        for name in ("mixup", "cutmix"):
            if not 0 <= (alpha := getattr(self, name)) < math.inf:
                raise ValueError(
                    f"{name}={alpha} is not a parameter of Beta(a, a). Expected 0 (off) "
                    f"or a positive number."
                )
