"""The families of models, one entry for each: everything that differs from family to family.

The public functions (`create.py`, `weights.py`, `cost.py`) look the entry up by the class of a
configuration, and hand what they find down as arguments. A new family is a new entry.
"""

import dataclasses
import importlib

from vit_tf.config import ResNetConfig, ViTConfig


@dataclasses.dataclass(frozen=True)
class Family:
    """One family; modules are imported when they are first asked for.

    Attributes:
        name: the value of "family" in the JSON of a configuration.
        config: the class of its configurations.
    """

    name: str
    config: type
    _model: str
    _cost: str
    _published: str
    _safetensors: dict[str, str]

    @property
    def model(self) -> type:
        """The Keras model."""
        return _resolve(self._model)

    @property
    def cost(self):
        """Costs of an image by part: a function of the configuration; see `cost.py`."""
        return _resolve(self._cost)

    @property
    def published(self):
        """The module of the published layout, see `vit_tf.checkpoints.published`."""
        return importlib.import_module(self._published)

    @property
    def safetensors(self) -> dict:
        """Layout -> its module, see `vit_tf.checkpoints.safetensors`; only layouts that have it."""
        return {layout: importlib.import_module(name) for layout, name in self._safetensors.items()}


def _resolve(path):
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


FAMILIES = (
    Family(
        name="vit",
        config=ViTConfig,
        _model="vit_tf.models.vit:VisionTransformer",
        _cost="vit_tf.analysis.vit_cost:parts",
        _published="vit_tf.checkpoints.published.vit",
        _safetensors={
            "huggingface": "vit_tf.checkpoints.safetensors.huggingface.vit",
            "timm": "vit_tf.checkpoints.safetensors.timm.vit",
        },
    ),
    Family(
        name="resnet",
        config=ResNetConfig,
        _model="vit_tf.models.resnet:ResNet",
        _cost="vit_tf.analysis.resnet_cost:parts",
        _published="vit_tf.checkpoints.published.resnet",
        _safetensors={"timm": "vit_tf.checkpoints.safetensors.timm.resnet"},
    ),
)


def family_of(config) -> Family:
    """The family of a configuration.

    Raises:
        TypeError: if it is no configuration of ours.
    """
    for family in FAMILIES:
        if isinstance(config, family.config):
            return family
    raise TypeError(f"Expected a configuration of a model. Received: {config!r}.")
