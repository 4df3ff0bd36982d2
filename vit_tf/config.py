"""What a Vision Transformer is made of: one frozen dataclass and the table of published variants.

Imports nothing but the standard library, so that every level can read a configuration without
starting TensorFlow.
"""

import dataclasses
import difflib
import math
from typing import Any

CLASSIFIERS = ("token", "gap", "unpooled")
POSITION_EMBEDDINGS = ("learned_1d", "none")
ACTIVATIONS = ("gelu_tanh", "gelu_erf")
IMPLEMENTATIONS = ("auto", "compiled", "reference")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ViTConfig:
    """A Vision Transformer (Dosovitskiy et al., 2021, section 3.1).

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
    # Side P of a square patch in pixels; pixels right of and below the last patch are unread.
    patch_size: int
    # (height, width) in pixels; an int means a square.
    image_size: tuple[int, int] = (224, 224)
    # Number of logits K; 0 builds no head and the model returns what the head would read.
    num_classes: int = 1000
    # token: the class token; gap: mean over the patches (no class token); unpooled: every patch.
    classifier: str = "token"
    # Width R of the tanh layer before the head ("pre-logits"), or None for a linear head.
    representation_size: int | None = None
    # learned_1d: one vector per token in raster order, class token included; none: bag of patches.
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
    # Which custom op implementation runs. A property of this process, never of a saved model.
    implementation: str = "auto"

    def __post_init__(self):
        object.__setattr__(self, "image_size", _height_width(self.image_size))
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
        if min(self.image_size) < self.patch_size:
            raise ValueError(
                f"image_size={self.image_size} is smaller than one patch: "
                f"patch_size={self.patch_size}."
            )

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of whole patches in an image."""
        height, width = self.image_size
        return height // self.patch_size, width // self.patch_size

    @property
    def num_prefix_tokens(self) -> int:
        """Tokens before the patches: 1 with a class token, else 0."""
        return int(self.classifier == "token")

    def replace(self, **fields) -> "ViTConfig":
        """Returns a copy with other values in `fields`."""
        _check_names(fields)
        return dataclasses.replace(self, **fields)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able fields. `implementation` is always written as "auto"."""
        fields = dataclasses.asdict(self) | {"implementation": "auto"}
        return fields | {"image_size": list(self.image_size)}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "ViTConfig":
        """Inverse of `to_dict`.

        Raises:
            ValueError: if a field is unknown, missing or illegal.
        """
        _check_names(fields)
        required = {
            field.name for field in dataclasses.fields(cls) if field.default is dataclasses.MISSING
        }
        if missing := sorted(required - fields.keys()):
            raise ValueError(f"A ViTConfig needs the fields {missing}. Received: {sorted(fields)}.")
        return cls(**fields)


def _height_width(image_size) -> tuple[int, int]:
    size = (image_size, image_size) if isinstance(image_size, int) else image_size
    if not isinstance(size, tuple | list) or len(size) != 2:
        raise ValueError(
            f"image_size must be an int or (height, width), in pixels. Received: {image_size!r}."
        )
    for side in size:
        _check_int("image_size", side, minimum=1)
    return tuple(size)


def _check_names(fields):
    if not isinstance(fields, dict):
        raise ValueError(
            f"A ViTConfig is made of a dictionary of its fields. Received: {fields!r}."
        )
    known = [field.name for field in dataclasses.fields(ViTConfig)]
    for name in fields:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=2)
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            raise ValueError(f"Unknown model field {name!r}.{hint} Known fields: {known}.")


def _check_int(name, value, minimum):
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an int. Received: {value!r} ({type(value).__name__}).")
    if value < minimum:
        raise ValueError(f"{name} must be at least {minimum}. Received: {value}.")


def _check_float(name, value) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(
            f"{name} must be a number. Received: {value!r} of type {type(value).__name__}."
        )
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite. Received: {value}.")
    return float(value)


def _check_choice(name, value, choices):
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}. Received: {value!r}.")


# name -> (hidden_size, mlp_size, layers, heads). B, L, H: table 1 of the paper; Ti, S: AugReg.
_SIZES = {
    "Ti": (192, 768, 12, 3),
    "S": (384, 1536, 12, 6),
    "B": (768, 3072, 12, 12),
    "L": (1024, 4096, 24, 16),
    "H": (1280, 5120, 32, 16),
}

VARIANTS: dict[str, ViTConfig] = {
    f"ViT-{size}/{patch_size}": ViTConfig(
        hidden_size=hidden_size,
        mlp_size=mlp_size,
        layers=layers,
        heads=heads,
        patch_size=patch_size,
    )
    for size, (hidden_size, mlp_size, layers, heads) in _SIZES.items()
    for patch_size in (8, 14, 16, 32)
}


def get_variant(name: str) -> ViTConfig:
    """Returns the configuration named `name`; `ViT-B_16` is read as `ViT-B/16`.

    Raises:
        ValueError: for an unknown name; the message offers the nearest ones.
    """
    if not isinstance(name, str):
        raise ValueError(
            f"A model is a name such as 'ViT-B/16', or a ViTConfig. Received: {name!r} "
            f"({type(name).__name__})."
        )
    config = VARIANTS.get(name) or VARIANTS.get(name.replace("_", "/"))
    if config is None:
        lowered = {known.lower(): known for known in VARIANTS}
        near = difflib.get_close_matches(name.replace("_", "/").lower(), lowered, n=3, cutoff=0.3)
        near = [lowered[match] for match in near]
        raise ValueError(
            f"Unknown model {name!r}. Did you mean {' or '.join(near) or 'one of these'}? "
            f"vit_tf.list_models() returns all {len(VARIANTS)} names."
        )
    return config
