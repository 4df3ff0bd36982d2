"""AxialResNet as a Keras model (paper, appendix D.6; docs/paper.md E.2)."""

import keras

from vit_tf.config import AxialResNetConfig
from vit_tf.layers.axial_resnet import AxialResidualUnit, convolution, norm_layer
from vit_tf.layers.resnet import rescale_uint8
from vit_tf.models.head import MapClassifier, classification_head
from vit_tf.models.image_model import ImageModel
from vit_tf.models.inputs import check_images


@keras.saving.register_keras_serializable(package="vit_tf")
class AxialResNet(MapClassifier, ImageModel):
    """Images to logits: root, axial units, mean over the pixels, head.

    `B` images, `C` channels of the last stage, `K` classes. All variables exist once the model is
    constructed; with BatchNorm also moving averages, which are not trainable.

    Args:
        config: `AxialResNetConfig`, or the dictionary of its `to_dict`.

    Call arguments:
        images: `[B, H, W, 3]` float in [-1, 1] or uint8 0..255, of the configured size.
        training: bool; BatchNorm uses the statistics of the batch in training, and its moving
            averages otherwise.

    Returns:
        float32 logits `[B, K]`; with `num_classes=0` the pooled features `[B, C]`.
    """

    def __init__(self, config, name="axial_resnet", **kwargs):
        super().__init__(name=name, **kwargs)
        self.config = config = AxialResNetConfig.coerce(config)
        policy = {"dtype": self.dtype_policy}
        norm = (config.norm, config.epsilon, config.batch_norm_momentum)
        self.root = convolution(config.root_channels, 7, 2, name="root", **policy)
        self.root_norm = norm_layer(*norm, groups=config.heads, name="root_norm", **policy)
        self.unit_layers = [
            AxialResidualUnit(
                config.root_channels * 2 ** (stage + 1),
                config.heads,
                2 if stage and not index else 1,
                *norm,
                name=f"block{stage + 1}_unit{index + 1}",
                **policy,
            )
            for stage, count in enumerate(config.stage_depths)
            for index in range(count)
        ]
        self.head = classification_head(config)
        self.build((None, *config.image_size, 3))
        self.record_graph()

    def build(self, input_shape):
        self.root.build(input_shape)
        shape = (None, *self.config.root_size, self.config.root_channels)
        self.root_norm.build(shape)
        for unit in self.unit_layers:
            unit.build(shape)
            shape = unit.compute_output_shape(shape)
        if self.head is not None:
            self.head.build((None, self.config.channels))
        self.built = True

    def depth_groups(self):
        """See `ImageModel.depth_groups`; one group for each stage."""
        top = [self.head] if self.head else []
        return [[self.root, self.root_norm], *self.config.by_stage(self.unit_layers), top]

    def standardized_convs(self):
        """No layers: the kernels are not standardized; see `StandardizedKernels`."""
        return []

    def call(self, images, training=False):
        features = self.features(images, training=training)
        return features if self.head is None else self.head(features)

    def stages(self, images, training=False):
        """The feature map after every stage, `[B, h, w, channels]`."""
        check_images(self, images)
        x = _pad(self._normalized(rescale_uint8(images, self.compute_dtype)), 3)
        x = keras.ops.relu(self.root_norm(self.root(x), training=training))
        # After the ReLU, zeros in the padding have the effect of minus infinity.
        x = keras.ops.max_pool(_pad(x, 1), 3, 2, data_format="channels_last")
        feature_maps, units = [], iter(self.unit_layers)
        for count in self.config.stage_depths:
            for _ in range(count):
                x = next(units)(x, training=training)
            feature_maps.append(x)
        return feature_maps

    def _normalized(self, images):
        """Maps [-1, 1] to the pixels that the root reads; see `pixel_mean` of the configuration."""
        mean, deviation = self.config.pixel_mean, self.config.pixel_deviation
        if (*mean, *deviation) == (0.5,) * 6:
            return images
        offset = keras.ops.convert_to_tensor([2 * value - 1 for value in mean], images.dtype)
        scale = keras.ops.convert_to_tensor([2 * value for value in deviation], images.dtype)
        return (images - offset) / scale

    def final_map(self, images, training=False):
        """What pooling reads, the last feature map: `[B, h, w, C]`."""
        return self.stages(images, training=training)[-1]

    def first_kernel(self):
        """See `ImageModel.first_kernel`."""
        return self.root.kernel.value


def _pad(x, pixels):
    return keras.ops.pad(x, [[0, 0], [pixels, pixels], [pixels, pixels], [0, 0]])
