"""AxialResNet: a residual network with axial attention instead of its 3 x 3 convolutions."""

import dataclasses
from typing import ClassVar

from vit_tf.config.checks import (
    MAX_CLASSES,
    MAX_WIDTH,
    check_choice,
    check_float,
    check_int,
    height_width,
)
from vit_tf.config.model_config import ModelConfig
from vit_tf.config.resnet import Stages

NORMS = ("batch", "group")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AxialResNetConfig(Stages, ModelConfig):
    """The paper's AxialResNet (appendix D.6; docs/paper.md E.2), as in its public implementation.

    Attributes:
        stage_depths: residual units of each stage. All stages but the first halve the sides.
        width: multiplies the channels: 64 in the root, 256 * 2^i after stage i.
        heads: number of heads of every attention; must divide 64 * width.
        image_size: (height, width) in pixels; an int means a square. The feature map of the root
            has a quarter of the sides, which every later stage must be able to halve.
        num_classes: number of logits K; 0 builds no head and the model returns the pooled features.
        head_bias: initial value of the head's bias; -10 for sigmoid pre-training on ImageNet-21k.
        pixel_mean, pixel_deviation: for each color, the root reads (v - mean) / deviation, where v
            is 0 to 1. With 0.5 this is the model's input in [-1, 1] itself.
        norm: "batch" normalizes over the batch, as published; "group" each image alone, which also
            works with gradient accumulation.
        batch_norm_epsilon: added to the variance in every BatchNorm.
        batch_norm_momentum: share of the old value in each update of the moving averages.
        group_norm_epsilon: added to the variance in every GroupNorm.

    Raises:
        ValueError: for a value that is out of range.
        TypeError: for a value of the wrong type.
    """

    family: ClassVar[str] = "axial_resnet"
    size_fields: ClassVar[tuple[str, ...]] = ("stage_depths", "width")

    stage_depths: tuple[int, ...]
    width: float = 1.0
    heads: int = 8
    image_size: tuple[int, int] = (224, 224)
    num_classes: int = 1000
    head_bias: float = 0.0
    pixel_mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    pixel_deviation: tuple[float, float, float] = (0.5, 0.5, 0.5)
    norm: str = "batch"
    batch_norm_epsilon: float = 1e-5
    batch_norm_momentum: float = 0.9
    group_norm_epsilon: float = 1e-4

    def __post_init__(self):
        object.__setattr__(self, "image_size", height_width(self.image_size))
        check_int("heads", self.heads, 1, MAX_WIDTH)
        self.check_stages(self.heads, "heads")
        check_int("num_classes", self.num_classes, 0, MAX_CLASSES)
        check_float("head_bias", self.head_bias)
        self._check_pixels()
        self._check_norms()
        factor = 2 ** (len(self.stage_depths) - 1)
        if any(side % factor for side in self.root_size):
            raise ValueError(
                f"image_size={self.image_size} gives the root a feature map of {self.root_size}, "
                f"which {len(self.stage_depths)} stages cannot halve to whole pixels. Set sides "
                f"that are multiples of {4 * factor}."
            )

    def _check_pixels(self):
        """Checks the constants of the three colors, and makes them tuples."""
        for name in ("pixel_mean", "pixel_deviation"):
            values = getattr(self, name)
            if not isinstance(values, tuple | list) or len(values) != 3:
                raise ValueError(f"{name} must be three numbers. Received: {values!r}.")
            object.__setattr__(self, name, tuple(check_float(name, value) for value in values))
        if min(self.pixel_deviation) <= 0:
            raise ValueError(f"pixel_deviation must be above 0. Received: {self.pixel_deviation}.")

    def _check_norms(self):
        check_choice("norm", self.norm, NORMS)
        for name in ("batch_norm_epsilon", "group_norm_epsilon"):
            if check_float(name, getattr(self, name)) < 0:
                raise ValueError(f"{name} must be at least 0. Received: {getattr(self, name)}.")
        if not 0 <= check_float("batch_norm_momentum", self.batch_norm_momentum) < 1:
            raise ValueError(
                f"batch_norm_momentum must be in [0, 1). Received: {self.batch_norm_momentum}."
            )

    @property
    def root_size(self) -> tuple[int, int]:
        """(height, width) of the feature map of the root: convolution and pooling round up."""
        height, width = (-(-side // 4) for side in self.image_size)
        return height, width

    @property
    def epsilon(self) -> float:
        """Added to the variance in every norm of the chosen kind."""
        return self.batch_norm_epsilon if self.norm == "batch" else self.group_norm_epsilon

    @property
    def uses_batch_statistics(self) -> bool:
        """Whether images of a batch change each other's outputs in training."""
        return self.norm == "batch"

    def summary(self) -> str:
        """One line of text that describes the model."""
        return f"{self.units_summary('axial')}, on {self.image_size[0]} x {self.image_size[1]}"
