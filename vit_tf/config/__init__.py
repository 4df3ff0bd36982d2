"""Configurations of models: a frozen dataclass for each family. Loads no framework."""

from vit_tf.config import ablations
from vit_tf.config.axial_resnet import AxialResNetConfig
from vit_tf.config.model_config import ModelConfig
from vit_tf.config.resnet import GROUPS, ResNetConfig, StemConfig
from vit_tf.config.variants import VARIANTS, get_variant
from vit_tf.config.vit import ViTConfig

__all__ = [
    "GROUPS",
    "VARIANTS",
    "AxialResNetConfig",
    "ModelConfig",
    "ResNetConfig",
    "StemConfig",
    "ViTConfig",
    "ablations",
    "get_variant",
]
