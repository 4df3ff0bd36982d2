"""What a model is made of: a frozen dataclass for each family. Loads no framework."""

from vit_tf.config.vit import (
    GROUPS,
    ModelConfig,
    ResNetConfig,
    StemConfig,
    ViTConfig,
    config_from_dict,
    root_channels,
)

__all__ = [
    "GROUPS",
    "ModelConfig",
    "ResNetConfig",
    "StemConfig",
    "ViTConfig",
    "config_from_dict",
    "root_channels",
]
