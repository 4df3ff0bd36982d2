"""The paper's baseline as a Keras model: "ResNet (BiT)" (section 4.1; Kolesnikov et al., 2020)."""

import keras

from vit_tf.config import ResNetConfig
from vit_tf.config.spatial import PATCH
from vit_tf.layers.normalization import GroupNorm
from vit_tf.layers.resnet import (
    PreActivationUnit,
    rescale_uint8,
    residual_units,
    standardization,
)
from vit_tf.layers.standardized_conv import StandardizedConv
from vit_tf.models.head import MapClassifier, classification_head
from vit_tf.models.image_model import ImageModel
from vit_tf.models.inputs import check_images


@keras.saving.register_keras_serializable(package="vit_tf")
class ResNet(MapClassifier, ImageModel):
    """Images to logits: root, pre-activation units, norm, ReLU, mean over the pixels, head.

    `B` images, `C` channels of the last stage, `K` classes. All variables exist once the model is
    constructed.

    Args:
        config: `ResNetConfig`, or the dictionary of its `to_dict`.

    Call arguments:
        images: `[B, H, W, 3]` float in [-1, 1] or uint8 0..255, of the configured size.
        training: bool; changes nothing.

    Returns:
        float32 logits `[B, K]`; with `num_classes=0` the pooled features `[B, C]`.
    """

    def __init__(self, config, name="resnet", **kwargs):
        super().__init__(name=name, **kwargs)
        self.config = config = ResNetConfig.coerce(config)
        policy = {"dtype": self.dtype_policy}
        kernel_size, padding = (PATCH, 0) if config.has_patch_root else (7, 3)
        self.root = StandardizedConv(
            config.root_channels,
            kernel_size,
            strides=2,
            padding=padding,
            name="root",
            **standardization(config),
            **policy,
        )
        self.unit_layers = residual_units(PreActivationUnit, config, **policy)
        self.norm = GroupNorm(epsilon=config.group_norm_epsilon, name="norm", **policy)
        self.head = classification_head(config)
        self.build((None, *config.image_size, 3))
        self.record_graph()

    def build(self, input_shape):
        self.root.build(input_shape)
        shape = self.root.compute_output_shape(input_shape)
        if not self.config.has_patch_root:
            shape = (None, *(-(-side // 2) for side in shape[1:3]), shape[-1])
        for unit in self.unit_layers:
            unit.build(shape)
            shape = unit.compute_output_shape(shape)
        self.norm.build(shape)
        if self.head is not None:
            self.head.build((None, self.config.channels))
        self.built = True

    def depth_groups(self):
        """See `ImageModel.depth_groups`; one group for each stage."""
        top = [layer for layer in (self.norm, self.head) if layer]
        return [[self.root], *self.config.by_stage(self.unit_layers), top]

    def standardized_convs(self):
        """All `StandardizedConv` layers; see `StandardizedKernels`."""
        of_units = (conv for unit in self.unit_layers for conv in unit.standardized_convs())
        return [self.root, *of_units]

    def call(self, images, training=False):
        features = self.features(images, training=training)
        return features if self.head is None else self.head(features)

    def stages(self, images, training=False):
        """The feature map after every stage, `[B, h, w, channels]`, before norm and ReLU."""
        del training
        check_images(self, images)
        x = self.root(rescale_uint8(images, self.compute_dtype))
        if not self.config.has_patch_root:
            # Padding with zeros, not minus infinity: the published weights were trained with zeros.
            x = keras.ops.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]])
            x = keras.ops.max_pool(x, 3, 2, data_format="channels_last")
        feature_maps, units = [], iter(self.unit_layers)
        for count in self.config.stage_depths:
            for _ in range(count):
                x = next(units)(x)
            feature_maps.append(x)
        return feature_maps

    def final_map(self, images, training=False):
        """What pooling reads, the last feature map behind norm and ReLU: `[B, h, w, C]`."""
        return keras.ops.relu(self.norm(self.stages(images, training=training)[-1]))

    def first_kernel(self):
        """See `ImageModel.first_kernel`."""
        return self.root.standardized()
