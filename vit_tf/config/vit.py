"""What a model is made of: a frozen dataclass for each family.

Imports nothing but the standard library, so that every level can read a configuration without
starting TensorFlow.
"""

import dataclasses
import difflib
import math
from typing import Any

CLASSIFIERS = ("token", "gap", "map", "unpooled")
POSITION_EMBEDDINGS = ("learned_1d", "sincos_2d", "none")
ACTIVATIONS = ("gelu_tanh", "gelu_erf")
IMPLEMENTATIONS = ("auto", "compiled", "reference")


# Every ResNet here normalises groups of channels: 32 groups, whatever the width.
GROUPS = 32


class _Config:
    """What the dataclasses below share: checked names, and dictionaries for JSON."""

    def replace(self, **fields):
        """Returns a copy with other values in `fields`."""
        self._check_names(fields)
        return dataclasses.replace(self, **fields)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able fields; `from_dict` reads them back."""
        return {key: _jsonable(value) for key, value in dataclasses.asdict(self).items()}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]):
        """Inverse of `to_dict`.

        Raises:
            ValueError: if a field is unknown, missing or illegal.
            TypeError: if a field has the wrong type.
        """
        cls._check_names(fields)
        required = {
            field.name for field in dataclasses.fields(cls) if field.default is dataclasses.MISSING
        }
        if missing := sorted(required - fields.keys()):
            raise ValueError(
                f"A {cls.__name__} needs the fields {missing}. Received: {sorted(fields)}."
            )
        return cls(**fields)

    @classmethod
    def _check_names(cls, fields):
        if not isinstance(fields, dict):
            raise ValueError(
                f"A {cls.__name__} is made of a dictionary of its fields. Received: {fields!r}."
            )
        known = [field.name for field in dataclasses.fields(cls)]
        for name in fields:
            if name not in known:
                near = difflib.get_close_matches(str(name), known, n=2)
                hint = f" Did you mean {' or '.join(near)}?" if near else ""
                raise ValueError(f"Unknown model field {name!r}.{hint} Known fields: {known}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StemConfig(_Config):
    """The ResNet of a hybrid (paper, section 3.1): a root that divides the sides by 4, then stages.

    Raises:
        ValueError: for a value that is out of range.
        TypeError: for a value of the wrong type.
    """

    # Residual units of each stage; () is the root alone. All stages but the first halve the sides.
    stage_depths: tuple[int, ...] = (3, 4, 9)
    # Multiplies the channels: 64 in the root, 256 * 2^i after stage i.
    width: float = 1.0
    group_norm_epsilon: float = 1e-6
    # Kernels are standardised as (w - mean) / (sqrt(variance + variance_epsilon) +
    # deviation_epsilon); published codes differ in which of the two they use.
    variance_epsilon: float = 0.0
    deviation_epsilon: float = 1e-5

    def __post_init__(self):
        _check_residual(self)

    @property
    def channels(self) -> int:
        """Channels of the feature map."""
        return _residual_channels(self)

    def feature_size(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """(height, width) of the feature map of images of `image_size`; every step rounds up."""
        return tuple(-(-side // self.reduction) for side in image_size)

    @property
    def reduction(self) -> int:
        """How many pixels of an image a pixel of the feature map is high and wide."""
        return 2 ** (1 + max(len(self.stage_depths), 1))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ViTConfig(_Config):
    """A Vision Transformer, or a hybrid (Dosovitskiy et al., 2021, section 3.1).

    Raises:
        ValueError: for a value that is out of range or does not fit another field.
        TypeError: for a value of the wrong type.
    """

    # Width D of every token.
    hidden_size: int
    # Width of the hidden layer of each MLP block.
    mlp_size: int
    # Number of encoder blocks L.
    layers: int
    # Number of attention heads; must divide `hidden_size`.
    heads: int
    # Side P of a square patch, in pixels or, with a stem, in pixels of its feature map; what is
    # right of and below the last patch is unread.
    patch_size: int
    # (height, width) in pixels; an int means a square.
    image_size: tuple[int, int] = (224, 224)
    # Number of logits K; 0 builds no head and the model returns what the head would read.
    num_classes: int = 1000
    # token: the class token; the others have none. gap: mean over the patches; map: attention of
    # a learned query to the patches (big_vision); unpooled: every patch.
    classifier: str = "token"
    # Width R of the tanh layer before the head ("pre-logits"), or None for a linear head.
    representation_size: int | None = None
    # learned_1d: one vector per token in raster order, class token included; sincos_2d: fixed
    # sines and cosines of row and column (big_vision); none: bag of patches.
    position_embedding: str = "learned_1d"
    # The published weights were trained with the tanh form of GELU.
    activation: str = "gelu_tanh"
    # Drop rate after the position embedding and after every dense layer except the qkv projection.
    dropout: float = 0.0
    # Drop rate of the attention weights. Above 0, training stores the N x N weights.
    attention_dropout: float = 0.0
    # Drop rate of the last block's residual branches; rises linearly from 0 at the first block.
    stochastic_depth: float = 0.0
    layer_norm_epsilon: float = 1e-6
    # Initial value of the head's bias; -10 for sigmoid pre-training on ImageNet-21k.
    head_bias: float = 0.0
    # The ResNet of a hybrid, whose feature map is cut into patches instead of the image.
    stem: StemConfig | None = None
    # Which custom op implementation runs. A property of this process, never of a saved model.
    implementation: str = "auto"

    def __post_init__(self):
        object.__setattr__(self, "image_size", _height_width(self.image_size))
        object.__setattr__(self, "stem", _stem(self.stem))
        for name in ("hidden_size", "mlp_size", "layers", "heads", "patch_size"):
            _check_int(name, getattr(self, name), minimum=1)
        _check_int("num_classes", self.num_classes, minimum=0)
        if self.representation_size is not None:
            _check_int("representation_size", self.representation_size, minimum=1)
        for name in ("dropout", "attention_dropout", "stochastic_depth"):
            rate = _check_float(name, getattr(self, name))
            if not 0.0 <= rate < 1.0:
                raise ValueError(f"{name} must be in [0, 1). Received: {name}={rate}.")
        if _check_float("layer_norm_epsilon", self.layer_norm_epsilon) <= 0:
            raise ValueError(
                f"layer_norm_epsilon must be above 0. Received: {self.layer_norm_epsilon}."
            )
        _check_float("head_bias", self.head_bias)
        _check_choice("classifier", self.classifier, CLASSIFIERS)
        _check_choice("position_embedding", self.position_embedding, POSITION_EMBEDDINGS)
        _check_choice("activation", self.activation, ACTIVATIONS)
        _check_choice("implementation", self.implementation, IMPLEMENTATIONS)
        if self.hidden_size % self.heads:
            raise ValueError(
                f"hidden_size={self.hidden_size} is not a multiple of heads={self.heads}."
            )
        if self.position_embedding == "sincos_2d" and (
            self.hidden_size % 4 or self.hidden_size < 8
        ):
            raise ValueError(
                "position_embedding=sincos_2d needs a hidden_size that is a multiple of 4, from 8 "
                f"on. Received: {self.hidden_size}."
            )
        if min(self.feature_size) < self.patch_size:
            of_what = "the feature map of " if self.stem else ""
            raise ValueError(
                f"{of_what}image_size={self.image_size} is smaller than one patch: "
                f"patch_size={self.patch_size}."
            )

    @property
    def feature_size(self) -> tuple[int, int]:
        """(height, width) of what is cut into patches: the image, or the stem's feature map."""
        return self.stem.feature_size(self.image_size) if self.stem else self.image_size

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of whole patches in an image."""
        height, width = self.feature_size
        return height // self.patch_size, width // self.patch_size

    @property
    def pooled(self) -> bool:
        """Whether there is one result per image."""
        return self.classifier != "unpooled"

    @property
    def num_prefix_tokens(self) -> int:
        """Tokens before the patches: 1 with a class token, else 0."""
        return int(self.classifier == "token")

    def summary(self) -> str:
        """What it is made of, for a person."""
        stem = f"a stem of {_stages(self.stem)}, " if self.stem else ""
        height, width = self.feature_size
        return (
            f"{stem}{self.layers} layers, width {self.hidden_size}, "
            f"patches of {self.patch_size} on {height} x {width}"
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-able fields. `implementation` is always written as "auto"."""
        return super().to_dict() | {"implementation": "auto"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResNetConfig(_Config):
    """The paper's "ResNet (BiT)" (section 4.1): pre-activation, GroupNorm, standardised kernels.

    Raises:
        ValueError: for a value that is out of range.
        TypeError: for a value of the wrong type.
    """

    # Residual units of each stage. All stages but the first halve the sides.
    stage_depths: tuple[int, ...]
    # Multiplies the channels: 64 in the root, 256 * 2^i after stage i.
    width: float = 1.0
    # (height, width) in pixels; an int means a square.
    image_size: tuple[int, int] = (224, 224)
    # Number of logits K; 0 builds no head and the model returns the pooled features.
    num_classes: int = 1000
    # Initial value of the head's bias; -10 for sigmoid pre-training on ImageNet-21k.
    head_bias: float = 0.0
    group_norm_epsilon: float = 1e-5
    # See `StemConfig`.
    variance_epsilon: float = 1e-10
    deviation_epsilon: float = 0.0

    def __post_init__(self):
        object.__setattr__(self, "image_size", _height_width(self.image_size))
        _check_residual(self)
        if not self.stage_depths:
            raise ValueError("stage_depths must name at least one stage. Received: ().")
        _check_int("num_classes", self.num_classes, minimum=0)
        _check_float("head_bias", self.head_bias)

    @property
    def channels(self) -> int:
        """Channels that the head reads."""
        return _residual_channels(self)

    @property
    def pooled(self) -> bool:
        """Whether there is one result per image."""
        return True

    def summary(self) -> str:
        """What it is made of, for a person."""
        return f"{_stages(self)} on {self.image_size[0]} x {self.image_size[1]}"

    def to_dict(self) -> dict[str, Any]:
        """JSON-able fields, and `family`, by which `config_from_dict` knows them."""
        return {"family": "resnet"} | super().to_dict()

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "ResNetConfig":
        if isinstance(fields, dict):
            fields = {key: value for key, value in fields.items() if key != "family"}
        return super().from_dict(fields)


ModelConfig = ViTConfig | ResNetConfig


def config_from_dict(fields) -> ModelConfig:
    """The configuration that its `to_dict` wrote, of whatever family.

    A file does not decide which implementation of the ops runs here: that is "auto".

    Raises:
        ValueError, TypeError: as `from_dict` of the family.
    """
    family = fields.get("family") if isinstance(fields, dict) else None
    if family not in (None, "resnet"):
        raise ValueError(
            f"Unknown family of models {family!r}. Expected resnet, or none for a ViT."
        )
    if family:
        return ResNetConfig.from_dict(fields)
    config = ViTConfig.from_dict(fields)
    return config.replace(implementation="auto")


def _jsonable(value):
    if isinstance(value, dict):
        return {key: _jsonable(item) for key, item in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _stem(stem) -> StemConfig | None:
    """What a caller or a JSON file gave as a stem; stage depths alone will do."""
    if stem is None or isinstance(stem, StemConfig):
        return stem
    return StemConfig.from_dict(stem if isinstance(stem, dict) else {"stage_depths": stem})


def _check_residual(config):
    """Checks the fields that StemConfig and ResNetConfig share; `stage_depths` becomes a tuple."""
    if not isinstance(config.stage_depths, tuple | list):
        raise TypeError(
            f"stage_depths must be one number for each stage, such as (3, 4, 9). Received: "
            f"{config.stage_depths!r}."
        )
    object.__setattr__(config, "stage_depths", tuple(config.stage_depths))
    for count in config.stage_depths:
        _check_int("stage_depths", count, minimum=1)
    if len(config.stage_depths) > 5:
        raise ValueError(
            f"stage_depths must name at most 5 stages. Received: {config.stage_depths}."
        )
    root = 64 * _check_float("width", config.width)
    if root < GROUPS or root % GROUPS:
        raise ValueError(
            f"width must be a positive multiple of {GROUPS / 64}, so that {GROUPS} groups divide "
            f"the channels. Received: {config.width}."
        )
    for name in ("group_norm_epsilon", "variance_epsilon", "deviation_epsilon"):
        if _check_float(name, getattr(config, name)) < 0:
            raise ValueError(f"{name} must be at least 0. Received: {getattr(config, name)}.")


def _stages(config):
    units = " + ".join(map(str, config.stage_depths)) or "no"
    return f"{units} residual units, width factor {config.width:g}"


def root_channels(config) -> int:
    """Channels after the first convolution of whatever has a `width` factor."""
    return round(64 * config.width)


def _residual_channels(config):
    return root_channels(config) * (
        4 * 2 ** (len(config.stage_depths) - 1) if config.stage_depths else 1
    )


def _height_width(image_size) -> tuple[int, int]:
    size = (image_size, image_size) if isinstance(image_size, int) else image_size
    if not isinstance(size, tuple | list) or len(size) != 2:
        raise ValueError(
            f"image_size must be an int or (height, width), in pixels. Received: {image_size!r}."
        )
    for side in size:
        _check_int("image_size", side, minimum=1)
    return tuple(size)


def _check_int(name, value, minimum):
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an int. Received: {value!r} ({type(value).__name__}).")
    if not minimum <= value < 2**40:
        shown = value if abs(value) < 2**64 else "a longer number"
        raise ValueError(f"{name} must be at least {minimum} and below 2^40. Received: {shown}.")


def _check_float(name, value) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(
            f"{name} must be a number. Received: {value!r} of type {type(value).__name__}."
        )
    # Integers may be too long for a float, and for a message.
    if abs(value) > 1e300 or not math.isfinite(value):
        raise ValueError(f"{name} must be finite and below 1e300.")
    return float(value)


def _check_choice(name, value, choices):
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}. Received: {value!r}.")
