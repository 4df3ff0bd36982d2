"""Name or configuration to model."""

from vit_tf.config import VARIANTS, ViTConfig, get_variant
from vit_tf.models.vit import VisionTransformer


def create_model(name, *, dtype=None, **fields) -> VisionTransformer:
    """Builds a model with fresh weights.

    Args:
        name: a name of `list_models`, such as "ViT-B/16" (or "ViT-B_16"), or a `ViTConfig`.
        dtype: Keras dtype policy, such as "mixed_bfloat16"; None is the global policy.
        **fields: fields of `ViTConfig` that replace the variant's own; None keeps the variant's.

    Returns:
        A built `keras.Model` with the stages `embed`, `encode` and `classify`.

    Raises:
        ValueError: for an unknown name or field, or values that do not fit together.

    Example:
        >>> model = create_model("ViT-Ti/16", num_classes=10, image_size=(64, 48))
        >>> model.grid
        (4, 3)
    """
    config = name if isinstance(name, ViTConfig) else get_variant(name)
    config = config.replace(**{key: value for key, value in fields.items() if value is not None})
    return VisionTransformer(config, dtype=dtype)


def list_models() -> list[str]:
    """Names that `create_model` knows."""
    return list(VARIANTS)
