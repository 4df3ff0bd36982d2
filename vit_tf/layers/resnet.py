"""Residual networks: the stem of hybrids (post-activation) and BiT's units (pre-activation).

`B` images, `H x W` pixels, `C` channels, `f` the width of a unit's bottleneck; a unit returns `4 f`
channels.
"""

import keras
import tensorflow as tf

from vit_tf.config import StemConfig
from vit_tf.config.spatial import QUADRATIC, REDUCTION
from vit_tf.images.value_range import OFFSET, SCALE
from vit_tf.layers.normalization import GroupNorm
from vit_tf.layers.related_work import SqueezeExcite
from vit_tf.layers.related_work.kinds import spatial_layer
from vit_tf.layers.standardized_conv import StandardizedConv


class _ResidualUnit(keras.layers.Layer):
    """Base of both kinds of units: creates their convolutions and norms.

    Args: see `BottleneckUnit`.
    """

    def __init__(
        self,
        filters,
        strides,
        group_norm_epsilon,
        variance_epsilon,
        deviation_epsilon,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.filters = filters
        self.strides = strides
        self.group_norm_epsilon = group_norm_epsilon
        self.variance_epsilon = variance_epsilon
        self.deviation_epsilon = deviation_epsilon

    def _conv(self, name, filters, kernel_size, strides, padding):
        return StandardizedConv(
            filters,
            kernel_size,
            strides,
            padding,
            name=name,
            dtype=self.dtype_policy,
            **standardization(self),
        )

    def _norm(self, name, scale=1.0):
        return GroupNorm(
            epsilon=self.group_norm_epsilon, scale=scale, name=name, dtype=self.dtype_policy
        )

    def compute_output_shape(self, input_shape):
        sides = (None if side is None else -(-side // self.strides) for side in input_shape[1:3])
        return (input_shape[0], *sides, 4 * self.filters)

    def get_config(self):
        return super().get_config() | {
            "filters": self.filters,
            "strides": self.strides,
            "group_norm_epsilon": self.group_norm_epsilon,
            "variance_epsilon": self.variance_epsilon,
            "deviation_epsilon": self.deviation_epsilon,
        }


@keras.saving.register_keras_serializable(package="vit_tf")
class BottleneckUnit(_ResidualUnit):
    """The post-activation unit of hybrids: three times convolution, norm, ReLU.

    The shortcut is projected and normalized if the channels or the sides change. The last norm
    starts with scale 0, so that a new unit computes ReLU(shortcut).

    Args:
        filters: `f`.
        strides: of the 3 x 3 convolution and the projection.
        group_norm_epsilon, variance_epsilon, deviation_epsilon: see `StemConfig`.

    Call arguments:
        inputs: `[B, H, W, C]`.

    Returns:
        `[B, ceil(H / strides), ceil(W / strides), 4 f]`.
    """

    def build(self, input_shape):
        inside, outside = self.filters, 4 * self.filters
        narrow, small = (*input_shape[:-1], inside), (None, None, None, inside)
        self.conv1 = self._conv("conv1", inside, 1, 1, "same")
        self.gn1 = self._norm("gn1")
        self.conv2 = self._conv("conv2", inside, 3, self.strides, "same")
        self.gn2 = self._norm("gn2")
        self.conv3 = self._conv("conv3", outside, 1, 1, "same")
        self.gn3 = self._norm("gn3", scale=0.0)
        self.conv_proj = self.gn_proj = None
        self.conv1.build(input_shape)
        for layer in (self.gn1, self.conv2):
            layer.build(narrow)
        for layer in (self.gn2, self.conv3):
            layer.build(small)
        self.gn3.build((None, None, None, outside))
        if input_shape[-1] != outside or self.strides != 1:
            self.conv_proj = self._conv("conv_proj", outside, 1, self.strides, "same")
            self.gn_proj = self._norm("gn_proj")
            self.conv_proj.build(input_shape)
            self.gn_proj.build((None, None, None, outside))

    def standardized_convs(self):
        """The `StandardizedConv` layers of the unit, which must be built."""
        convs = [self.conv1, self.conv2, self.conv3]
        return convs if self.conv_proj is None else [*convs, self.conv_proj]

    def call(self, inputs):
        shortcut = inputs if self.conv_proj is None else self.gn_proj(self.conv_proj(inputs))
        x = tf.nn.relu(self.gn1(self.conv1(inputs)))
        x = tf.nn.relu(self.gn2(self.conv2(x)))
        return tf.nn.relu(self.gn3(self.conv3(x)) + shortcut)


@keras.saving.register_keras_serializable(package="vit_tf")
class PreActivationUnit(_ResidualUnit):
    """BiT's unit: three times norm, ReLU, convolution (Kolesnikov et al., 2020).

    If the channels or the sides change, the shortcut is a projection of the output of the first
    ReLU. Sides are padded with one zero before and after, not by TensorFlow's SAME rule.

    With another `spatial`, a layer of that kind takes the place of the 3 x 3 convolution. Strides
    above 1 are then the mean over windows of `strides x strides` pixels, after the layer or, for
    layers of quadratic cost, before it (docs/paper.md C.4).

    Args:
        filters, strides, group_norm_epsilon, variance_epsilon, deviation_epsilon: see
            `BottleneckUnit`.
        spatial: see `ResNetConfig`.
        squeeze_excite: whether squeeze-and-excitation scales the result of the last convolution.

    Shapes: see `BottleneckUnit`.
    """

    def __init__(
        self,
        filters,
        strides,
        group_norm_epsilon,
        variance_epsilon,
        deviation_epsilon,
        spatial="convolution",
        squeeze_excite=False,
        **kwargs,
    ):
        super().__init__(
            filters, strides, group_norm_epsilon, variance_epsilon, deviation_epsilon, **kwargs
        )
        self.spatial = spatial
        self.squeeze_excite = squeeze_excite

    def build(self, input_shape):
        inside, outside = self.filters, 4 * self.filters
        narrow = (None, None, None, inside)
        self.gn_a = self._norm("gn_a")
        self.conv_a = self._conv("conv_a", inside, 1, 1, 0)
        self.gn_b = self._norm("gn_b")
        self.conv_b = self.spatial_b = self.scale = self.proj = None
        is_pooled = self.spatial in QUADRATIC
        sides = (self.compute_output_shape(input_shape) if is_pooled else input_shape)[1:3]
        if self.spatial == "convolution":
            middle = self.conv_b = self._conv("conv_b", inside, 3, self.strides, 1)
        else:
            middle = self.spatial_b = spatial_layer(
                self.spatial,
                inside,
                sides,
                standardization(self),
                name=self.spatial,
                dtype=self.dtype_policy,
            )
        self.gn_c = self._norm("gn_c")
        self.conv_c = self._conv("conv_c", outside, 1, 1, 0)
        for layer in (self.gn_a, self.conv_a):
            layer.build(input_shape)
        self.gn_b.build(narrow)
        middle.build((None, *sides, inside))
        for layer in (self.gn_c, self.conv_c):
            layer.build(narrow)
        if self.squeeze_excite:
            self.scale = SqueezeExcite(REDUCTION, name="squeeze_excite", dtype=self.dtype_policy)
            self.scale.build((None, None, None, outside))
        if input_shape[-1] != outside or self.strides != 1:
            self.proj = self._conv("proj", outside, 1, self.strides, 0)
            self.proj.build(input_shape)

    def standardized_convs(self):
        """See `BottleneckUnit`."""
        middle = [self.conv_b] if self.conv_b else self.spatial_b.standardized_convs()
        convs = [self.conv_a, *middle, self.conv_c]
        return convs if self.proj is None else [*convs, self.proj]

    def call(self, inputs):
        x = tf.nn.relu(self.gn_a(inputs))
        shortcut = inputs if self.proj is None else self.proj(x)
        x = tf.nn.relu(self.gn_b(self.conv_a(x)))
        x = self.conv_b(x) if self.conv_b else self._replace_conv_b(x)
        x = self.conv_c(tf.nn.relu(self.gn_c(x)))
        return (self.scale(x) if self.scale else x) + shortcut

    def _replace_conv_b(self, x):
        if self.strides == 1:
            return self.spatial_b(x)
        if self.spatial in QUADRATIC:
            return self.spatial_b(tf.nn.avg_pool2d(x, self.strides, self.strides, "SAME"))
        return tf.nn.avg_pool2d(self.spatial_b(x), self.strides, self.strides, "SAME")

    def get_config(self):
        return super().get_config() | {
            "spatial": self.spatial,
            "squeeze_excite": self.squeeze_excite,
        }


@keras.saving.register_keras_serializable(package="vit_tf")
class ResNetStem(keras.layers.Layer):
    """The ResNet of a hybrid: images to a feature map (docs/paper.md C.1).

    Args:
        config: `StemConfig`, or the dictionary of its `to_dict`.

    Call arguments:
        images: `[B, H, W, 3]` float in [-1, 1], or uint8 0..255, which is mapped to [-1, 1].

    Returns:
        `[B, h, w, C]` in the compute dtype, where `(h, w)` is `StemConfig.feature_size` and `C` is
        `StemConfig.channels`.
    """

    def __init__(self, config, **kwargs):
        super().__init__(**kwargs)
        self.config = config = StemConfig.coerce(config)
        policy = {"dtype": self.dtype_policy}
        self.conv_root = StandardizedConv(
            config.root_channels,
            kernel_size=7,
            strides=2,
            padding="same",
            name="conv_root",
            **standardization(config),
            **policy,
        )
        self.gn_root = GroupNorm(epsilon=config.group_norm_epsilon, name="gn_root", **policy)
        self.unit_layers = residual_units(BottleneckUnit, config, **policy)

    def build(self, input_shape):
        self.conv_root.build(input_shape)
        shape = (None, None, None, self.conv_root.filters)
        self.gn_root.build(shape)
        for unit in self.unit_layers:
            unit.build(shape)
            shape = unit.compute_output_shape(shape)

    def compute_output_shape(self, input_shape):
        sides = (side and -(-side // self.config.reduction) for side in input_shape[1:3])
        return (input_shape[0], *sides, self.config.channels)

    def standardized_convs(self):
        """All `StandardizedConv` layers, also the layers of the units."""
        return [
            self.conv_root,
            *(conv for x in self.unit_layers for conv in x.standardized_convs()),
        ]

    def call(self, images):
        x = self._root(images)
        for unit in self.unit_layers:
            x = unit(x)
        return x

    def unit_outputs(self, images):
        """The output of every unit by its name, in order; the last one is the stem's output."""
        x, outputs = self._root(images), {}
        for unit in self.unit_layers:
            outputs[unit.name] = x = unit(x)
        return outputs

    def _root(self, images):
        x = self.gn_root(self.conv_root(rescale_uint8(images, self.compute_dtype)))
        return keras.ops.max_pool(
            keras.ops.relu(x), 3, 2, padding="same", data_format="channels_last"
        )

    def get_config(self):
        return super().get_config() | {"config": self.config.to_dict()}


def residual_units(unit, config, **kwargs):
    """The units of all stages, named by stage and unit: `block1_unit1`, ...

    Args:
        unit: the class of the units.
        config: a `StemConfig` or `ResNetConfig`.
        **kwargs: further arguments of each unit.
    """
    return [
        unit(
            config.root_channels * 2**stage,
            strides=2 if stage and not index else 1,
            group_norm_epsilon=config.group_norm_epsilon,
            name=f"block{stage + 1}_unit{index + 1}",
            **standardization(config),
            **config.unit_fields(stage),
            **kwargs,
        )
        for stage, count in enumerate(config.stage_depths)
        for index in range(count)
    ]


def standardization(config):
    """The arguments of `StandardizedConv` that come from a configuration."""
    return {
        "variance_epsilon": config.variance_epsilon,
        "deviation_epsilon": config.deviation_epsilon,
    }


def rescale_uint8(images, dtype):
    """Casts images to `dtype`; uint8 is mapped to [-1, 1] first."""
    if keras.backend.standardize_dtype(images.dtype) == "uint8":
        images = keras.ops.cast(images, "float32") * SCALE + OFFSET
    return keras.ops.cast(images, dtype)
