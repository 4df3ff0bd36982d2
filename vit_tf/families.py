"""The families of models, one entry for each: everything that differs from family to family.

The public functions (`create.py`, `weights.py`, `cost.py`) look the entry up by the class of a
configuration, and hand what they need of it down as arguments. A new family is a new entry.
"""

import dataclasses
import importlib

from vit_tf.config import ModelConfig, ResNetConfig, ViTConfig


@dataclasses.dataclass(frozen=True)
class Family:
    """One family; modules are imported when they are first asked for.

    Attributes:
        config: the class of its configurations, which says the name of the family.
    """

    config: type[ModelConfig]
    _model: str
    _cost: str
    _published: str

    @property
    def model(self) -> type:
        """The Keras model."""
        return _resolve(self._model)

    @property
    def cost(self):
        """The function `parts(config, size, fused)`: costs of an image by part; see `cost.py`."""
        return _resolve(self._cost)

    @property
    def published(self):
        """The module that maps its variables to the published checkpoint layout."""
        return importlib.import_module(self._published)


def _resolve(path):
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


FAMILIES = (
    Family(
        config=ViTConfig,
        _model="vit_tf.models.vit:VisionTransformer",
        _cost="vit_tf.analysis.vit_cost:parts",
        _published="vit_tf.checkpoints.published_vit",
    ),
    Family(
        config=ResNetConfig,
        _model="vit_tf.models.resnet:ResNet",
        _cost="vit_tf.analysis.resnet_cost:parts",
        _published="vit_tf.checkpoints.published_resnet",
    ),
)


def family_of(config: ModelConfig) -> Family:
    """The family of a configuration.

    Raises:
        TypeError: if it is no configuration of a model.
    """
    for family in FAMILIES:
        if isinstance(config, family.config):
            return family
    raise TypeError(f"Expected a configuration of a model. Received: {config!r}.")


def config_from_dict(fields) -> ModelConfig:
    """The configuration that its `to_dict` wrote, of whatever family.

    Raises:
        ValueError, TypeError: as `from_dict` of the family.
    """
    name = fields.get("family", "vit") if isinstance(fields, dict) else "vit"
    for family in FAMILIES:
        if family.config.family == name:
            return family.config.from_dict(fields)
    names = ", ".join(family.config.family for family in FAMILIES)
    raise ValueError(f"Unknown family of models {name!r}. Expected one of {names}.")
