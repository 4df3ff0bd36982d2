"""The families of models: one entry for each, with everything in which families differ.

The public functions (`create.py`, `weights.py`, `cost.py`) find the entry by the class of a
configuration, and pass parts of it as arguments. To add a family, add an entry.
"""

import dataclasses
import importlib

from vit_tf.config import AxialResNetConfig, ModelConfig, ResNetConfig, ViTConfig
from vit_tf.config.model_config import family_name


@dataclasses.dataclass(frozen=True)
class Family:
    """One family of models. Its modules are imported when they are first used.

    Attributes:
        config: the configuration class, which holds the name of the family.
        model_path, cost_path: "module:name" of `model` and `cost`.
        published_path: name of the module `published`.
        safetensors_paths: layout -> name of its module; see `safetensors`.
    """

    config: type[ModelConfig]
    model_path: str
    cost_path: str
    published_path: str
    safetensors_paths: dict[str, str]

    @property
    def model(self) -> type:
        """The class of the Keras model."""
        return _resolve(self.model_path)

    @property
    def cost(self):
        """The function `parts(config, size, compiled)`: costs of an image by part."""
        return _resolve(self.cost_path)

    @property
    def published(self):
        """The module of the published layout, see `vit_tf.checkpoints.published`."""
        return importlib.import_module(self.published_path)

    @property
    def safetensors(self) -> dict:
        """Layouts that support the family -> module; see `vit_tf.checkpoints.safetensors`."""
        paths = self.safetensors_paths
        return {layout: importlib.import_module(path) for layout, path in paths.items()}


def _resolve(path):
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


FAMILIES = (
    Family(
        config=ViTConfig,
        model_path="vit_tf.models.vit:VisionTransformer",
        cost_path="vit_tf.analysis.vit_cost:parts",
        published_path="vit_tf.checkpoints.published.vit",
        safetensors_paths={
            "deit": "vit_tf.checkpoints.safetensors.huggingface.deit",
            "dinov2": "vit_tf.checkpoints.safetensors.huggingface.dinov2",
            "dinov2_with_registers": (
                "vit_tf.checkpoints.safetensors.huggingface.dinov2_with_registers"
            ),
            "dinov3": "vit_tf.checkpoints.safetensors.huggingface.dinov3",
            "huggingface": "vit_tf.checkpoints.safetensors.huggingface.vit",
            "siglip": "vit_tf.checkpoints.safetensors.huggingface.siglip",
            "timm": "vit_tf.checkpoints.safetensors.timm.vit",
        },
    ),
    Family(
        config=ResNetConfig,
        model_path="vit_tf.models.resnet:ResNet",
        cost_path="vit_tf.analysis.resnet_cost:parts",
        published_path="vit_tf.checkpoints.published.resnet",
        safetensors_paths={"timm": "vit_tf.checkpoints.safetensors.timm.resnet"},
    ),
    Family(
        config=AxialResNetConfig,
        model_path="vit_tf.models.axial_resnet:AxialResNet",
        cost_path="vit_tf.analysis.axial_resnet_cost:parts",
        published_path="vit_tf.checkpoints.published.axial_resnet",
        safetensors_paths={
            "axial_deeplab": "vit_tf.checkpoints.safetensors.axial_deeplab",
        },
    ),
)


def family_of(config: ModelConfig) -> Family:
    """The family of a configuration.

    Raises:
        TypeError: if `config` is not a configuration of a model.
    """
    for family in FAMILIES:
        if isinstance(config, family.config):
            return family
    raise TypeError(f"Expected a configuration of a model. Received: {config!r}.")


def layout_module(config: ModelConfig, layout: str):
    """The module of a safetensors layout for the family of a configuration.

    Raises:
        ValueError: if the layout is unknown or does not support the family.
    """
    known = dict.fromkeys(name for family in FAMILIES for name in family.safetensors_paths)
    if layout not in known:
        raise ValueError(f"layout={layout!r} is unknown. Expected one of {', '.join(known)}.")
    modules = family_of(config).safetensors
    if layout not in modules:
        raise ValueError(
            f"This model cannot be written in the {layout} layout, which does not support the "
            f"family {config.family!r}. Write the {' or '.join(modules)} layout."
        )
    return modules[layout]


def config_from_dict(fields) -> ModelConfig:
    """Restores a configuration of any family from the result of its `to_dict`.

    Raises:
        ValueError, TypeError: as `from_dict` of the family.
    """
    name = family_name(fields)
    for family in FAMILIES:
        if family.config.family == name:
            return family.config.from_dict(fields)
    names = ", ".join(family.config.family for family in FAMILIES)
    raise ValueError(f"Unknown family of models {name!r}. Expected one of {names}.")
