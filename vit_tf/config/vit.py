"""The Vision Transformer and its hybrids (Dosovitskiy et al., 2021, section 3.1)."""

import dataclasses
import typing
from typing import Any, ClassVar, Literal

from custom_ops import dispatch
from vit_tf.config.checks import (
    MAX_CLASSES,
    MAX_DEPTH,
    MAX_SIDE,
    MAX_WIDTH,
    check_bool,
    check_choice,
    check_float,
    check_int,
    height_width,
)
from vit_tf.config.model_config import ModelConfig
from vit_tf.config.resnet import StemConfig

CLASSIFIERS = ("token", "token_distilled", "gap", "map", "unpooled")
POSITION_EMBEDDINGS = ("learned_1d", "learned_2d", "sincos_2d", "relative", "rotary_2d", "none")
POSITION_INJECTIONS = ("stem", "every_layer", "every_layer_shared")
ACTIVATIONS = ("gelu_tanh", "gelu_erf", "swiglu")
Recompute = Literal["none", "blocks"]
# The largest values of the sizes that have no default.
_MAXIMA = {
    "hidden_size": MAX_WIDTH,
    "mlp_size": 4 * MAX_WIDTH,
    "layers": MAX_DEPTH,
    "heads": MAX_WIDTH,
    "patch_size": MAX_SIDE,
}
# Fields that change how a process computes, but not the model.
_OF_PROCESS = {"implementation": "auto", "recompute": "none"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ViTConfig(ModelConfig):
    """A Vision Transformer, or a hybrid (Dosovitskiy et al., 2021, section 3.1).

    Attributes:
        hidden_size: width D of every token.
        mlp_size: width of the hidden layer of each MLP block; with "swiglu" that of gate and value
            each.
        layers: number of encoder blocks L; in an axial model, of pairs of blocks.
        heads: number of attention heads; divides `hidden_size`.
        patch_size: side P of a square patch, in pixels or, with a stem, in pixels of its feature
            map; pixels right of and below the last whole patch are not read.
        image_size: (height, width) in pixels; an int means a square.
        num_classes: number of logits K; 0 builds no head, and the model returns the head's
            input.
        classifier: input of the head. "token": the class token, or in an axial model, which has
            none, the patch in row 0 and column 0. "token_distilled": the class token and a
            distillation token behind it, each with a linear head of its own; the logits are the
            mean of the two (DeiT, Touvron et al., 2021). "gap": the mean over the patches; "map":
            the attention of a learned query to the patches (big_vision); "unpooled": every patch.
        register_tokens: learned tokens between the class token, if there is one, and the patches,
            without positions (Darcet et al., 2024). No classifier reads them: "gap", "map" and
            "unpooled" read the patches alone.
        representation_size: width R of the tanh layer before the head ("pre-logits"); none means no
            such layer.
        position_embedding: "learned_1d": one vector per token in raster order, class token
            included; "learned_2d": a vector per column beside a vector per row, each of half the
            width (a class token has its own vector); "sincos_2d": fixed sines and cosines of row
            and column (big_vision); "relative": one vector per offset of query and key in raster
            order, in the attention of every block; "rotary_2d": queries and keys of the patches are
            rotated by angles of row and column (DINOv3); "none": no positions (a bag of patches).
        rotary_base: the longest period of the rotations is just below it.
        position_injection: where the position table is added. "stem": once, before the first block;
            "every_layer": a learned table for each block, at its input; "every_layer_shared": one
            table for all blocks, at the input of each.
        activation: of the MLP blocks: "gelu_tanh", which the published weights were trained with,
            "gelu_erf", or "swiglu", SiLU of a gate times a value (Shazeer, 2020; DINOv2's giant).
        dropout: drop rate after the position embedding and after every dense layer except the qkv
            projection.
        attention_dropout: drop rate of the attention weights. Above 0, training stores the N x N
            weights.
        stochastic_depth: drop rate of the last block's residual branches; rises linearly from 0 at
            the first block, in an axial model over all 2 L blocks.
        layer_norm_epsilon: added to the variance in every LayerNorm.
        layer_scale: initial value of learned factors, one per channel, of both residual branches of
            each block (CaiT, Touvron et al., 2021), such as 1e-5; 0 means no factors.
        qk_norm: whether a LayerNorm over the channels of each head is applied to queries and keys
            (ViT-22B, Dehghani et al., 2023).
        key_bias: whether the projection to keys has a bias; not in DINOv3.
        qkv_bias: whether the projections to queries, values and, with `key_bias`, keys have one;
            not in DINOv3's 7B model.
        head_bias: initial value of the head's bias; -10 for sigmoid pre-training on ImageNet-21k.
        stem: the ResNet of a hybrid; its feature map is cut into patches instead of the image.
        axial: whether each layer is two blocks, one with attention within each row of the patches,
            then one with attention within each column.
        implementation: which implementation of the custom ops runs in this process. Saved models do
            not store it.
        recompute: "blocks": the backward pass of training computes the activations inside each
            encoder block again, instead of keeping them; "none": it keeps them. Saved models do not
            store it.

    Raises:
        ValueError: for a value that is out of range or does not fit another field.
        TypeError: for a value of the wrong type.
    """

    family: ClassVar[str] = "vit"
    size_fields: ClassVar[tuple[str, ...]] = (
        "patch_size",
        "hidden_size",
        "mlp_size",
        "layers",
        "heads",
        "representation_size",
        "stem",
        "axial",
    )

    hidden_size: int
    mlp_size: int
    layers: int
    heads: int
    patch_size: int
    image_size: tuple[int, int] = (224, 224)
    num_classes: int = 1000
    classifier: str = "token"
    register_tokens: int = 0
    representation_size: int | None = None
    position_embedding: str = "learned_1d"
    position_injection: str = "stem"
    rotary_base: float = 100.0
    activation: str = "gelu_tanh"
    dropout: float = 0.0
    attention_dropout: float = 0.0
    stochastic_depth: float = 0.0
    layer_norm_epsilon: float = 1e-6
    layer_scale: float = 0.0
    qk_norm: bool = False
    key_bias: bool = True
    qkv_bias: bool = True
    head_bias: float = 0.0
    stem: StemConfig | None = None
    axial: bool = False
    implementation: str = "auto"
    recompute: Recompute = "none"

    def __post_init__(self):
        object.__setattr__(self, "image_size", height_width(self.image_size))
        object.__setattr__(self, "stem", _stem(self.stem))
        for name, maximum in _MAXIMA.items():
            check_int(name, getattr(self, name), 1, maximum)
        check_int("num_classes", self.num_classes, 0, MAX_CLASSES)
        check_int("register_tokens", self.register_tokens, 0, MAX_WIDTH)
        if self.representation_size is not None:
            check_int("representation_size", self.representation_size, 1, MAX_WIDTH)
        for name in ("dropout", "attention_dropout", "stochastic_depth"):
            rate = check_float(name, getattr(self, name))
            if not 0.0 <= rate < 1.0:
                raise ValueError(f"{name} must be in [0, 1). Received: {name}={rate}.")
        if check_float("layer_norm_epsilon", self.layer_norm_epsilon) <= 0:
            raise ValueError(
                f"layer_norm_epsilon must be above 0. Received: {self.layer_norm_epsilon}."
            )
        if check_float("layer_scale", self.layer_scale) < 0:
            raise ValueError(f"layer_scale must not be below 0. Received: {self.layer_scale}.")
        check_float("head_bias", self.head_bias)
        if check_float("rotary_base", self.rotary_base) <= 1:
            raise ValueError(f"rotary_base must be above 1. Received: {self.rotary_base}.")
        for name in ("axial", "qk_norm", "key_bias", "qkv_bias"):
            check_bool(name, getattr(self, name))
        if self.key_bias and not self.qkv_bias:
            raise ValueError(
                "qkv_bias=false leaves out the bias of keys too: set key_bias=false. Received: "
                "key_bias=True."
            )
        check_choice("classifier", self.classifier, CLASSIFIERS)
        check_choice("position_embedding", self.position_embedding, POSITION_EMBEDDINGS)
        check_choice("position_injection", self.position_injection, POSITION_INJECTIONS)
        _check_positions(self.position_embedding, self.position_injection, self.axial)
        if self.unplaced_tokens:
            _check_unplaced(self)
        if self.is_distilled:
            _check_distilled(self)
        check_choice("activation", self.activation, ACTIVATIONS)
        check_choice("implementation", self.implementation, dispatch.CHOICES)
        check_choice("recompute", self.recompute, typing.get_args(Recompute))
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
        if self.position_embedding == "learned_2d" and self.hidden_size % 2:
            raise ValueError(
                f"position_embedding=learned_2d needs an even hidden_size: {self.hidden_size}."
            )
        if self.rotary and self.hidden_size // self.heads % 4:
            raise ValueError(
                "position_embedding=rotary_2d needs heads of a multiple of 4 channels. Received: "
                f"hidden_size={self.hidden_size}, heads={self.heads}."
            )
        if min(self.feature_size) < self.patch_size:
            of_what = "the feature map of " if self.stem else ""
            raise ValueError(
                f"{of_what}image_size={self.image_size} is smaller than one patch: "
                f"patch_size={self.patch_size}. Set a larger image_size or a smaller patch_size."
            )

    @property
    def feature_size(self) -> tuple[int, int]:
        """(height, width) of the input that is cut into patches: image or stem's feature map."""
        return self.stem.feature_size(self.image_size) if self.stem else self.image_size

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of whole patches in an image."""
        height, width = self.feature_size
        return height // self.patch_size, width // self.patch_size

    @property
    def patch_pixels(self) -> int:
        """Side of a patch in pixels of the image."""
        return self.patch_size * (self.stem.reduction if self.stem else 1)

    @property
    def pooled(self) -> bool:
        """Whether the model returns one result per image."""
        return self.classifier != "unpooled"

    @property
    def has_class_token(self) -> bool:
        """Whether token 0 is a class token."""
        return self.classifier in ("token", "token_distilled") and not self.axial

    @property
    def is_distilled(self) -> bool:
        """Whether token 1 is a distillation token."""
        return self.classifier == "token_distilled"

    @property
    def unplaced_tokens(self) -> int:
        """Learned tokens without positions: the distillation token, or the registers."""
        return self.is_distilled + self.register_tokens

    @property
    def num_prefix_tokens(self) -> int:
        """Tokens before the patches: the class token, if there is one, then `unplaced_tokens`."""
        return self.has_class_token + self.unplaced_tokens

    @property
    def rotary(self) -> tuple[int, int, float] | None:
        """(rows, columns, base) of rotary positions; None without."""
        if self.position_embedding != "rotary_2d":
            return None
        return *self.grid, self.rotary_base

    @property
    def mutual_places(self) -> int:
        """Tokens that all attend to one another; 0 in an axial model."""
        return 0 if self.axial else self.grid[0] * self.grid[1] + self.num_prefix_tokens

    def summary(self) -> str:
        """One line of text that describes the model."""
        stem = f"a stem of {self.stem.units_summary()}, " if self.stem else ""
        height, width = self.feature_size
        registers = f", {self.register_tokens} registers" if self.register_tokens else ""
        registers += ", a distillation token" * self.is_distilled
        return (
            f"{stem}{self.layers} {'axial ' * self.axial}layers, width {self.hidden_size}, "
            f"patches of {self.patch_size} on {height} x {width}{registers}"
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-able fields; the fields in `_OF_PROCESS` have their defaults."""
        return super().to_dict() | _OF_PROCESS

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "ViTConfig":
        """Inverse of `to_dict`. A file cannot choose the fields of `_OF_PROCESS`."""
        return super().from_dict(fields).replace(**_OF_PROCESS)


def _check_positions(kind, injection, axial):
    """Raises for positions, injections and attention that do not exist together."""
    if axial and (kind in ("relative", "rotary_2d") or injection != "stem"):
        raise ValueError(
            "An axial model adds positions in the stem only, not in its attention. Received: "
            f"position_embedding={kind}, position_injection={injection}. Change them, or set "
            "axial=false."
        )
    if kind in ("none", "relative", "rotary_2d") and injection != "stem":
        raise ValueError(
            f"position_embedding={kind} adds no table to the tokens: leave position_injection at "
            f"stem. Received: {injection}."
        )
    if kind == "sincos_2d" and injection == "every_layer":
        raise ValueError(
            "position_embedding=sincos_2d is the same table in every layer: set position_injection="
            "every_layer_shared. Received: every_layer."
        )


def _check_unplaced(config):
    """Raises for fields that do not exist together with tokens without positions."""
    reason = None
    if config.axial:
        reason = "an axial model has only patches in its rows and columns: set axial=false"
    elif config.position_embedding == "relative":
        reason = "position_embedding=relative has an offset for every token: choose another"
    elif config.position_injection != "stem":
        reason = (
            f"position_injection={config.position_injection} is not available: leave it at stem"
        )
    if not reason:
        return
    if config.is_distilled:
        raise ValueError(
            f"The distillation token of classifier=token_distilled has no position, and {reason}, "
            "or set classifier=token."
        )
    raise ValueError(
        f"register_tokens={config.register_tokens} are tokens without positions, and {reason}, "
        "or set register_tokens=0."
    )


def _check_distilled(config):
    """Raises for fields that do not exist together with a distillation token."""
    for name, value in (("register_tokens", 0), ("representation_size", None)):
        if (given := getattr(config, name)) != value:
            raise ValueError(
                "classifier=token_distilled has one token beside the class token, and linear heads "
                f"alone: set {name}={str(value).lower()}. Received: {given}."
            )


def _stem(stem) -> StemConfig | None:
    """Converts a stem from a caller or a JSON file; a list of stage depths is enough."""
    if stem is None or isinstance(stem, StemConfig):
        return stem
    return StemConfig.from_dict(stem if isinstance(stem, dict) else {"stage_depths": stem})
