"""Keras models and the function that creates them by name."""

from vit_tf.models.create import Model, create_model, list_models
from vit_tf.models.resnet import ResNet
from vit_tf.models.vit import VisionTransformer

__all__ = ["Model", "ResNet", "VisionTransformer", "create_model", "list_models"]
