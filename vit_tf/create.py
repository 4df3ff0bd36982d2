"""Creates a model from a name or a configuration."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from vit_tf.config import ModelConfig
from vit_tf.config.dtypes import check_dtype
from vit_tf.config.size_notes import one_patch
from vit_tf.config.variants import VARIANTS, get_variant
from vit_tf.families import family_of

if TYPE_CHECKING:
    import keras


def create_model(name, *, dtype=None, **fields) -> keras.Model:
    """Builds a model with fresh weights.

    Args:
        name: a name of `list_models`, such as "ViT-B/16" (or "ViT-B_16"), or a `ViTConfig`,
            `ResNetConfig` or `AxialResNetConfig`.
        dtype: Keras dtype policy, such as "mixed_bfloat16"; None is the global policy.
        **fields: new values of fields of the configuration; None keeps the variant's value.

    Returns:
        A built `keras.Model`: a `VisionTransformer`, a `ResNet` for the names "BiT-..." and those
        of docs/paper.md C.4, or an `AxialResNet`.

    Warns:
        UserWarning: if an image is a single patch.

    Raises:
        ValueError: for an unknown name, field or dtype policy, or values that do not fit together.

    Example:
        >>> model = create_model("ViT-Ti/16", num_classes=10, image_size=(64, 48))
        >>> model.grid
        (4, 3)
    """
    check_dtype(dtype)
    config = name if isinstance(name, ModelConfig) else get_variant(name)
    config = config.replace(**{key: value for key, value in fields.items() if value is not None})
    if note := one_patch(config):
        warnings.warn(note, stacklevel=2)
    return family_of(config).model(config, dtype=dtype)


def list_models() -> list[str]:
    """Names that `create_model` accepts."""
    return list(VARIANTS)
