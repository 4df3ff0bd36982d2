"""Creates a model from a name or a configuration."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from vit_tf.config import ModelConfig
from vit_tf.config.checks import check_dtype
from vit_tf.config.size_notes import one_patch
from vit_tf.config.variants import VARIANTS, get_variant
from vit_tf.families import family_of
from vit_tf.pretrained.records import sizes
from vit_tf.size_checks import check_file, check_memory

if TYPE_CHECKING:
    import keras


def create_model(name, *, weights=None, dtype=None, **fields) -> keras.Model:
    """Builds a model, with fresh or with trained weights.

    Args:
        name: a name of `list_models`, such as "ViT-B/16" (or "ViT-B_16"), or a `ViTConfig`,
            `ResNetConfig` or `AxialResNetConfig`.
        weights: None for fresh weights; a `.npz` or `.safetensors` file or a folder of
            safetensors, or the URL of one; a name of `list_weights` or of any file of AugReg, which
            is downloaded once (docs/weights.md); or a collection such as "augreg", if one of its
            files fits the model. Fields that are not given, `num_classes` and `image_size` among
            them, are then taken from the file. Positions are resized to a given `image_size`; for
            other `num_classes` the head, and the layer before it that `representation_size`
            describes, get fresh initial values.
        dtype: Keras dtype policy, such as "mixed_bfloat16"; None is the global policy.
        **fields: new values of fields of the configuration; None keeps the value of the variant or
            of the file.

    Returns:
        A built `keras.Model`: a `VisionTransformer`, a `ResNet` for the names "BiT-..." and those
        of docs/paper.md C.4, or an `AxialResNet`.

    Warns:
        UserWarning: if an image is a single patch.

    Raises:
        ValueError: for an unknown name, field or dtype policy, or values that do not fit together;
            if no weights or several have this name, or they do not fit the model; if a file
            describes a far larger model than it can hold, or the memory is too small.
        vit_tf.pretrained.download.DownloadError: if weights cannot be downloaded.

    Example:
        >>> model = create_model("ViT-Ti/16", num_classes=10, image_size=(64, 48))
        >>> model.grid
        (4, 3)
    """
    check_dtype(dtype)
    config = name if isinstance(name, ModelConfig) else get_variant(name)
    given = {key: value for key, value in fields.items() if value is not None}
    if weights is None:
        return _build(config.replace(**given), dtype)

    from vit_tf.weights import find_weights, load_checkpoint, open_checkpoint  # imports TensorFlow

    with open_checkpoint(find_weights(weights, config.replace(**given))) as checkpoint:
        if config is not name:
            _check_sizes(name, config.replace(**given), checkpoint)
            check_file(checkpoint)
            config = checkpoint.config
        model = _build(config.replace(**given), dtype)
        load_checkpoint(model, checkpoint, head="auto")
    return model


def _build(config, dtype):
    check_memory(config)
    if note := one_patch(config):
        warnings.warn(note, stacklevel=3)
    return family_of(config).model(config, dtype=dtype)


def _check_sizes(name, config, checkpoint):
    """Raises if a file holds another model than the requested one."""
    wanted, found = sizes(config), sizes(checkpoint.config)
    for field in wanted | found:
        if wanted.get(field) != found.get(field):
            named = [other for other in VARIANTS if sizes(VARIANTS[other]) == found]
            hint = f" Create a {named[0]}." if named else ""
            raise ValueError(
                f"{checkpoint.path} holds another model than {name}: {field} is "
                f"{found.get(field)} in the file and {wanted.get(field)} in the model.{hint}"
            )


def list_models() -> list[str]:
    """Names that `create_model` accepts."""
    return list(VARIANTS)
