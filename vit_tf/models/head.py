"""The classifier at the end of every model."""

import collections
import itertools
import math
from typing import Any

import keras

from vit_tf.models.image_features import ImageFeatures, layer_indices


def classification_head(config, layer=keras.layers.Dense):
    """Returns a dense layer to `config.num_classes` logits, None for 0 classes.

    Its kernel is zero, so that training starts from the bias alone (`config.head_bias`;
    docs/paper.md A.9), and it computes in float32 under any dtype policy.

    Args:
        config: configuration of the model.
        layer: class of the layer.
    """
    if not config.num_classes:
        return None
    return layer(
        config.num_classes,
        kernel_initializer="zeros",
        bias_initializer=keras.initializers.Constant(config.head_bias),
        name="head",
        dtype="float32",
    )


@keras.saving.register_keras_serializable(package="vit_tf")
class DistilledHead(keras.layers.Layer):
    """The mean of two linear heads, of the class token and of the distillation token (DeiT).

    Args:
        units: number of classes `K`.
        kernel_initializer, bias_initializer: as of `keras.layers.Dense`.

    Call arguments:
        inputs: `[B, 2 D]`, the class token, then the distillation token.

    Returns:
        Logits `[B, K]`.

    Attributes:
        kernel: `[2 D, K]`: the kernel of the first head above that of the second one.
        bias: `[2, K]`: the bias of each.
    """

    def __init__(self, units, kernel_initializer="zeros", bias_initializer="zeros", **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)

    def build(self, input_shape):
        self.kernel = self.add_weight(
            name="kernel",
            shape=(input_shape[-1], self.units),
            initializer=self.kernel_initializer,
        )
        self.bias = self.add_weight(
            name="bias", shape=(2, self.units), initializer=self.bias_initializer
        )

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], self.units)

    def call(self, inputs):
        return (keras.ops.matmul(inputs, self.kernel) + keras.ops.sum(self.bias, axis=0)) / 2

    def get_config(self):
        return super().get_config() | {
            "units": self.units,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
        }


class TokenClassifier:
    """From tokens to logits: the last stage of a `VisionTransformer`, as a base class.

    `B` images, `N` patches, `T` tokens, `D` width, `R` representation size, `K` classes. A subclass
    sets `config`, a `ViTConfig`, `grid`, `num_prefix_tokens` and the layers `norm`, `map_pooling`,
    `pre_logits` and `head`, None for a layer that the model lacks. It defines `block_tokens`,
    `block_outputs` and `run_last_block`.
    """

    config: Any
    grid: tuple[int, int]
    num_prefix_tokens: int
    norm: Any
    map_pooling: Any
    pre_logits: Any
    head: Any

    def pool(self, features):
        """Pools the features `[B, T, D]` to `[B, D]`, or to `[B, N, D]` unpooled.

        The first token is the class token or, in an axial model, the patch in row 0 and column 0.
        Registers are left out. With a distillation token: `[B, 2 D]`, the class token, then it.
        """
        if self.config.classifier == "token":
            return features[:, 0]
        if self.config.is_distilled:
            return keras.ops.reshape(features[:, :2], [-1, 2 * features.shape[-1]])
        if self.num_prefix_tokens:
            features = features[:, self.num_prefix_tokens :]
        if self.config.classifier == "map":
            return self.map_pooling(features)
        if self.config.classifier == "gap":
            mean = keras.ops.mean(keras.ops.cast(features, "float32"), axis=1)
            return keras.ops.cast(mean, features.dtype)
        return features

    def head_inputs(self, features, training=False):
        """The input of the head: `[B, D, R or 2 D]`, or `[B, N, D or R]` unpooled."""
        del training
        pooled = self.pool(features)
        return pooled if self.pre_logits is None else self.pre_logits(pooled)

    def classify(self, features, training=False):
        """Applies pooling, optional tanh pre-logits and head to `[B, T, D]`."""
        inputs = self.head_inputs(features, training=training)
        return inputs if self.head is None else self.head(inputs)

    def final_map(self, images):
        """The tokens of the patches behind the final norm: `[B, rows, columns, D]`."""
        return self.on_grid(self._normed(_last(self.block_tokens(images))))

    def image_features(self, images, layers=None, norm=True):
        """The tokens behind some layers, with or without the final norm: a list for `layers`.

        Args:
            images: see the call.
            layers: indices, see `layer_indices`; None: the last layer alone.
            norm: whether the final norm is applied, also behind a layer that is not the last.

        Returns:
            A list of one `ImageFeatures` for each of `layers`, of tensors in the dtype of the
            tokens.

        Raises:
            ValueError: for a layer that the model does not have.
        """
        indices = layer_indices([-1] if layers is None else layers, self.config.layers)
        blocks = 2 if self.config.axial else 1
        numbers = [(index + 1) * blocks for index in indices]
        outputs = itertools.islice(self.block_outputs(images), max(numbers, default=0) + 1)
        found = {
            number: self._split(self._normed(tokens) if norm else tokens)
            for number, tokens in enumerate(outputs)
            if number in numbers
        }
        return [found[number] for number in numbers]

    def _split(self, tokens):
        """The `ImageFeatures` of tokens `[B, T, D]`, in an axial model `[B, rows, columns, D]`."""
        prefix = self.num_prefix_tokens
        first = int(self.config.has_class_token)
        return ImageFeatures(
            class_token=tokens[:, 0] if first else None,
            registers=tokens[:, first:prefix] if first < prefix else None,
            patches=self.on_grid(tokens),
        )

    def class_stages(self, images):
        """The tokens that the last block reads, and the rest of the model as a function of them.

        The tokens are `[B, T, D]`, in an axial model `[B, rows, columns, D]`.
        """
        count = self.config.layers * (2 if self.config.axial else 1)
        tokens = _last(itertools.islice(self.block_tokens(images), count))
        return tokens, lambda read: self.classify(self._normed(self.run_last_block(read)))

    def on_grid(self, tokens):
        """Tokens of the patches, without the prefix: `[B, rows, columns, D]`."""
        if len(tokens.shape) == 3:
            tokens = tokens[:, self.num_prefix_tokens :]
        return keras.ops.reshape(tokens, [-1, *self.grid, tokens.shape[-1]])

    def _normed(self, tokens):
        """The final norm of the tokens behind the last block, `[B, T, D]`."""
        if len(tokens.shape) == 4:
            tokens = keras.ops.reshape(tokens, [-1, math.prod(self.grid), tokens.shape[-1]])
        return self.norm(tokens)


def _last(items):
    """The last item of an iterator; the others are not kept."""
    return collections.deque(items, maxlen=1).pop()


class MapClassifier:
    """From a feature map to logits: the last stage of the residual networks, as a base class.

    `B` images, `C` channels, `K` classes. A subclass sets `head`, None without classes, and defines
    `final_map(images, training)`: what pooling reads, `[B, rows, columns, C]`.
    """

    head: Any

    def features(self, images, training=False):
        """The input of the head: `[B, C]`, float32."""
        return self._pool(self.final_map(images, training=training))

    def class_stages(self, images):
        """The last feature map `[B, rows, columns, C]`, and the function from it to the result."""
        return self.final_map(images), self._classify

    def image_features(self, images, layers=None, norm=True):
        """The last feature map as `patches`: a list of one `ImageFeatures`.

        Raises:
            ValueError: if other layers, or values before the norm, are asked for.
        """
        if layers is not None or not norm:
            asked = f"layers={layers!r}" if layers is not None else f"norm={norm!r}"
            raise ValueError(
                f"{asked} is for models of tokens, and {self.name} has stages. Leave it out for "
                "the last feature map; vit_tf.feature_model(model, ['stage2']) gives that of a "
                "stage."
            )
        return [ImageFeatures(class_token=None, registers=None, patches=self.final_map(images))]

    def on_grid(self, feature_map):
        """The feature map as it is."""
        return feature_map

    def _pool(self, feature_map):
        return keras.ops.mean(keras.ops.cast(feature_map, "float32"), axis=[1, 2])

    def _classify(self, feature_map):
        pooled = self._pool(feature_map)
        return pooled if self.head is None else self.head(pooled)
