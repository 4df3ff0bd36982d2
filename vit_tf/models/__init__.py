"""Keras models of each family."""

from vit_tf.models.axial_resnet import AxialResNet
from vit_tf.models.masked_patches import MaskedPatchModel
from vit_tf.models.packed import PackedModel
from vit_tf.models.resnet import ResNet
from vit_tf.models.vit import VisionTransformer

__all__ = ["AxialResNet", "MaskedPatchModel", "PackedModel", "ResNet", "VisionTransformer"]
