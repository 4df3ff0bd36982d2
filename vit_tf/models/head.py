"""The classifier at the end of every model."""

from typing import Any

import keras


def classification_head(config):
    """Returns a dense layer to `config.num_classes` logits, None for 0 classes.

    Its kernel is zero, so that training starts from the bias alone (`config.head_bias`;
    docs/paper.md A.9), and it computes in float32 under any dtype policy.
    """
    if not config.num_classes:
        return None
    return keras.layers.Dense(
        config.num_classes,
        kernel_initializer="zeros",
        bias_initializer=keras.initializers.Constant(config.head_bias),
        name="head",
        dtype="float32",
    )


class TokenClassifier:
    """From tokens to logits: the last stage of a `VisionTransformer`, as a base class.

    `B` images, `N` patches, `T` tokens, `D` width, `R` representation size, `K` classes. A subclass
    sets `config`, a `ViTConfig`, and the layers `map_pooling`, `pre_logits` and `head`, None for
    those that the model does not have.
    """

    config: Any
    map_pooling: Any
    pre_logits: Any
    head: Any

    def pool(self, features):
        """Pools the features `[B, T, D]` to `[B, D]`, or to `[B, N, D]` unpooled.

        The first token is the class token or, in an axial model, the patch in row 0 and column 0.
        """
        if self.config.classifier == "token":
            return features[:, 0]
        if self.config.classifier == "map":
            return self.map_pooling(features)
        if self.config.classifier == "gap":
            mean = keras.ops.mean(keras.ops.cast(features, "float32"), axis=1)
            return keras.ops.cast(mean, features.dtype)
        return features

    def head_inputs(self, features, training=False):
        """The input of the head: `[B, D or R]`, or `[B, N, D or R]` unpooled."""
        del training
        pooled = self.pool(features)
        return pooled if self.pre_logits is None else self.pre_logits(pooled)

    def classify(self, features, training=False):
        """Applies pooling, optional tanh pre-logits and head to `[B, T, D]`."""
        inputs = self.head_inputs(features, training=training)
        return inputs if self.head is None else self.head(inputs)
