"""Keras models and the function that creates them by name."""

from vit_tf.models.create import create_model, list_models
from vit_tf.models.vit import VisionTransformer

__all__ = ["VisionTransformer", "create_model", "list_models"]
