"""Attention weights of a Vision Transformer, computed without storing `N x N` weights.

`B` images, `T` tokens: the prefix, then `N` patches on `rows x columns`.
"""

import tensorflow as tf

import custom_ops


def class_rows(model, inputs):
    """Attention weights from the class token to all tokens, in every layer and head.

    Args:
        model: a `VisionTransformer` with a class token.
        inputs: float `[B, h, w, 3]` in [-1, 1].

    Returns:
        float32 `[B, layers, heads, T]`; rows sum to 1.

    Raises:
        ValueError: for a model without patches.
    """
    _check_patches(model)
    _, taps = model.encode(model.embed(inputs), taps=("class_row",))
    return _stack_layers([block["class_row"] for block in taps])


def attention_maps(model, inputs):
    """How much attention each patch gets, in every layer and head.

    With a class token: the softmax weights from the class token to the patches. They are not
    normalised again: together with the class token's weight for itself they sum to 1. Without a
    class token: the mean over the queries of all patches.

    Args:
        model: a `VisionTransformer`.
        inputs: float `[B, h, w, 3]` in [-1, 1].

    Returns:
        float32 `[B, layers, heads, rows, columns]`.

    Raises:
        ValueError: for a model without patches.
    """
    _check_patches(model)
    if model.class_token is not None:
        maps = class_rows(model, inputs)[..., model.num_prefix_tokens :]
    else:
        maps = _mean_rows(model, inputs)
    return tf.reshape(maps, [-1, *maps.shape[1:3], *model.grid])


def _check_patches(model):
    if model.config.grid is None:
        raise ValueError(
            f"Attention maps belong to models with patches, such as ViT-B/16. Received: a model of "
            f"the family {model.config.family!r}."
        )


def _mean_rows(model, inputs):
    """Attention weights averaged over the queries, float32 `[B, layers, heads, N]`."""
    tokens = model.position_embedding(model.embed(inputs), grid=model.grid)
    rows = []
    for block in model.blocks:
        rows.append(_mean_row(block.attention.qkv(block.norm_attention(tokens)), block.heads))
        tokens, _ = block(tokens)
    return _stack_layers(rows)


def _mean_row(qkv, heads):
    """`A^T u` with u = 1 / N in every head, `[B, heads, N]` float32, for attention weights A.

    Since attention is `A v`, this is the gradient of its mean over the tokens with respect to v. It
    is the same in every column of v. The op computes this gradient without storing A.
    """
    qkv = tf.cast(qkv, tf.float32)  # otherwise bfloat16 would round the weights to 8 bits
    with tf.GradientTape() as tape:
        tape.watch(qkv)
        mean = tf.reduce_mean(custom_ops.attention(qkv, heads), axis=1)
    gradient = tape.gradient(mean, qkv)
    _, tokens, width = qkv.shape
    by_part = tf.reshape(gradient, [-1, tokens, 3, heads, width // (3 * heads)])
    return tf.transpose(by_part[:, :, 2, :, 0], [0, 2, 1])


def _stack_layers(rows):
    return tf.cast(tf.stack(rows, axis=1), tf.float32)
