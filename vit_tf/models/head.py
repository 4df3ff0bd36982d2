"""The classifier at the end of every model."""

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
