"""Residual networks: the stem of a hybrid, and the paper's "ResNet (BiT)"."""

import dataclasses
import itertools
from typing import ClassVar

from vit_tf.config.checks import (
    MAX_CLASSES,
    MAX_DEPTH,
    MAX_WIDTH,
    check_choice,
    check_float,
    check_int,
    height_width,
)
from vit_tf.config.model_config import Config, ModelConfig
from vit_tf.config.spatial import PATCH, SPATIAL

# Every ResNet here normalizes groups of channels: 32 groups, whatever the width.
GROUPS = 32


class Stages:
    """Base of every residual network: `stage_depths` and `width`."""

    stage_depths: tuple[int, ...]
    width: float

    @property
    def root_channels(self) -> int:
        """Channels after the first convolution."""
        return round(64 * self.width)

    @property
    def channels(self) -> int:
        """Channels of the last feature map, which a head or the patch embedding reads."""
        if not self.stage_depths:
            return self.root_channels
        return self.root_channels * 4 * 2 ** (len(self.stage_depths) - 1)

    def units_summary(self, kind="residual") -> str:
        """Units of each stage and the width factor, as text."""
        units = " + ".join(map(str, self.stage_depths)) or "no"
        return f"{units} {kind} units, width factor {self.width:g}"

    def by_stage(self, units) -> list[list]:
        """The units of each stage, from a list of all units in order."""
        ends = list(itertools.accumulate(self.stage_depths))
        return [
            units[end - count : end] for end, count in zip(ends, self.stage_depths, strict=True)
        ]

    def check_stages(self, count, what, fewest=1):
        """Checks the fields, and makes `stage_depths` a tuple.

        Args:
            count, what: the number that must divide the channels of the root, and its unit.
            fewest: the smallest number of stages.
        """
        if not isinstance(self.stage_depths, tuple | list):
            raise TypeError(
                f"stage_depths must be one number for each stage, such as (3, 4, 9). Received: "
                f"{self.stage_depths!r}."
            )
        object.__setattr__(self, "stage_depths", tuple(self.stage_depths))
        for units in self.stage_depths:
            check_int("stage_depths", units, 1, MAX_DEPTH)
        if not fewest <= len(self.stage_depths) <= 5:
            raise ValueError(
                f"stage_depths must name {fewest} to 5 stages. Received: {self.stage_depths}."
            )
        root = 64 * check_float("width", self.width)
        if not count <= root <= MAX_WIDTH or root % count:
            raise ValueError(
                f"width must be a multiple of {count / 64:g} from {count / 64:g} to "
                f"{MAX_WIDTH // 64}, so that {count} {what} divide the channels. Received: "
                f"{self.width}."
            )


class _StandardizedStages(Stages):
    """Base of `StemConfig` and `ResNetConfig`: stages and three epsilons."""

    def unit_fields(self, stage) -> dict:
        """Arguments of the units of a stage that only some networks have."""
        del stage
        return {}

    def _check_resnet_fields(self, fewest_stages):
        self.check_stages(GROUPS, "groups", fewest_stages)
        for name in ("group_norm_epsilon", "variance_epsilon", "deviation_epsilon"):
            if check_float(name, getattr(self, name)) < 0:
                raise ValueError(f"{name} must be at least 0. Received: {getattr(self, name)}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StemConfig(_StandardizedStages, Config):
    """The ResNet of a hybrid (docs/paper.md C.1): a root that divides the sides by 4, then stages.

    Kernels are standardized as (w - mean) / (sqrt(variance + variance_epsilon) +
    deviation_epsilon). Published implementations differ in which epsilon they use.

    Attributes:
        stage_depths: residual units of each stage; () means the root only. All stages but the first
            halve the sides.
        width: multiplies the channels: 64 in the root, 256 * 2^i after stage i.
        group_norm_epsilon: added to the variance in every GroupNorm.
        variance_epsilon: added to the variance in the standardization of kernels.
        deviation_epsilon: added to the standard deviation in the standardization of kernels.

    Raises:
        ValueError: for a value that is out of range.
        TypeError: for a value of the wrong type.
    """

    stage_depths: tuple[int, ...] = (3, 4, 9)
    width: float = 1.0
    group_norm_epsilon: float = 1e-6
    variance_epsilon: float = 0.0
    deviation_epsilon: float = 1e-5

    def __post_init__(self):
        self._check_resnet_fields(fewest_stages=0)

    def feature_size(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """(height, width) of the feature map of images of `image_size`; every step rounds up."""
        height, width = (-(-side // self.reduction) for side in image_size)
        return height, width

    @property
    def reduction(self) -> int:
        """Side of one pixel of the feature map, in pixels of the image."""
        return 2 ** (1 + max(len(self.stage_depths), 1))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResNetConfig(_StandardizedStages, ModelConfig):
    """The paper's "ResNet (BiT)" (docs/paper.md C.2): pre-activation, GroupNorm.

    With `spatial` or `squeeze_excite`, the same network with a layer of related work
    (docs/paper.md C.4).

    Attributes:
        stage_depths: residual units of each stage. All stages but the first halve the sides.
        width: multiplies the channels: 64 in the root, 256 * 2^i after stage i.
        image_size: (height, width) in pixels; an int means a square.
        num_classes: number of logits K; 0 builds no head and the model returns the pooled features.
        head_bias: initial value of the head's bias; -10 for sigmoid pre-training on ImageNet-21k.
        group_norm_epsilon: added to the variance in every GroupNorm.
        variance_epsilon: added to the variance in the standardization of kernels.
        deviation_epsilon: added to the standard deviation in the standardization of kernels.
        spatial: the layer of each unit between its two 1 x 1 convolutions: a 3 x 3 "convolution",
            attention that is "local_1d", "local_2d", "stand_alone", "sparse" or "full", or an
            "augmented" convolution. "augmented" leaves the first stage as it is; "full" also has a
            root of 2 x 2 patches.
        squeeze_excite: whether squeeze-and-excitation scales the result of each unit.

    Raises:
        ValueError: for a value that is out of range.
        TypeError: for a value of the wrong type.
    """

    family: ClassVar[str] = "resnet"
    size_fields: ClassVar[tuple[str, ...]] = (
        "stage_depths",
        "width",
        "spatial",
        "squeeze_excite",
    )

    stage_depths: tuple[int, ...]
    width: float = 1.0
    image_size: tuple[int, int] = (224, 224)
    num_classes: int = 1000
    head_bias: float = 0.0
    group_norm_epsilon: float = 1e-5
    variance_epsilon: float = 1e-10
    deviation_epsilon: float = 0.0
    spatial: str = "convolution"
    squeeze_excite: bool = False

    def __post_init__(self):
        object.__setattr__(self, "image_size", height_width(self.image_size))
        self._check_resnet_fields(fewest_stages=1)
        check_int("num_classes", self.num_classes, 0, MAX_CLASSES)
        check_float("head_bias", self.head_bias)
        check_choice("spatial", self.spatial, SPATIAL)
        if not isinstance(self.squeeze_excite, bool):
            raise TypeError(
                f"squeeze_excite must be true or false. Received: {self.squeeze_excite!r}."
            )
        if self.spatial == "augmented" and len(self.stage_depths) == 1:
            raise ValueError(
                "spatial='augmented' changes the stages after the first. Received: stage_depths="
                f"{self.stage_depths}; add a stage."
            )
        if self.has_patch_root and min(self.image_size) < PATCH:
            raise ValueError(
                f"spatial='full' reads patches of {PATCH} x {PATCH} pixels. Received: image_size="
                f"{self.image_size}."
            )

    @property
    def has_patch_root(self) -> bool:
        """Whether the root is a linear map of patches, instead of a convolution and a maximum."""
        return self.spatial == "full"

    @property
    def mutual_places(self) -> int:
        """Pixels of the largest map that all attend to one another; 0 without such a layer."""
        height, width = self.image_size
        if self.spatial == "full":
            return (height // PATCH) * (width // PATCH)
        # "augmented" begins in the second stage, after three steps that round up.
        return -(-height // 8) * -(-width // 8) if self.spatial == "augmented" else 0

    def spatial_of(self, stage) -> str:
        """The value of `spatial` that holds for a stage; stages are numbered from 0."""
        return "convolution" if self.spatial == "augmented" and stage == 0 else self.spatial

    def unit_fields(self, stage) -> dict:
        """See the base class."""
        return {"spatial": self.spatial_of(stage), "squeeze_excite": self.squeeze_excite}

    def summary(self) -> str:
        """One line of text that describes the model."""
        parts = [self.units_summary(), *([self.spatial] if self.spatial != "convolution" else [])]
        if self.squeeze_excite:
            parts.append("squeeze-and-excitation")
        return f"{', '.join(parts)} on {self.image_size[0]} x {self.image_size[1]}"
