"""Attention weights of a Vision Transformer, computed without storing `N x N` weights.

`B` images, `T` tokens: the prefix, then `N` patches on `rows x columns`.
"""

import math

import tensorflow as tf

import custom_ops


def class_rows(model, inputs):
    """Attention weights from the class token to all tokens, in every layer and head.

    Args:
        model: a `VisionTransformer` or `PackedModel` with a class token.
        inputs: float `[B, h, w, 3]` in [-1, 1].

    Returns:
        float32 `[B, layers, heads, T]`; rows sum to 1.

    Raises:
        ValueError: for a model without patches.
    """
    check_patches(model)
    return _stack_layers([x["class_row"] for x in model.attention_taps(inputs, ("class_row",))])


def attention_maps(model, inputs):
    """How much attention each patch gets, in every layer and head.

    With a class token: the softmax weights from the class token to the patches. They are not
    normalized again: together with its weights for itself and the registers they sum to 1. Without
    a class token: the mean over the queries of all patches. In an axial model, the row and column
    attention of a layer count as one attention, the product of their matrices in each head.

    Args:
        model: a `VisionTransformer` or `PackedModel`; of packed weights, one block at a time is
            unpacked.
        inputs: float `[B, h, w, 3]` in [-1, 1].

    Returns:
        float32 `[B, layers, heads, rows, columns]`.

    Raises:
        ValueError: for a model without patches.
    """
    check_patches(model)
    maps = (class_rows if model.config.has_class_token else _mean_rows)(model, inputs)
    maps = maps[..., model.num_prefix_tokens :]
    return tf.reshape(maps, [-1, *maps.shape[1:3], *model.grid])


def attention_rollout(model, images):
    """Attention traced back through all blocks to the patches (docs/paper.md J.4).

    The paper's figures 6 and 14; Abnar & Zuidema (2020). In each block the weights A are averaged
    over the heads, and the residual connection counts as much as the attention: (A + I) / 2. The
    result is the class token's row of the product of these matrices of all blocks, without the
    weights of itself and the registers, so that a map sums to at most 1. Without a class token it
    is the mean over the rows of all patches. An axial model has two blocks in a layer, which attend
    within rows and within columns.

    Memory grows with the number of tokens, and not with its square: from the last block down,
    u <- (u + A^T u) / 2, where A^T u is the gradient of attention with respect to its values.

    Args:
        model: a `VisionTransformer` or `PackedModel`.
        images: float `[B, h, w, 3]` in [-1, 1], or uint8.

    Returns:
        float32 `[B, rows, columns]`, at least 0.

    Raises:
        ValueError: for a model without patches.
    """
    check_patches(model)
    heads, blocks = model.config.heads, list(model.attention_inputs(images))
    weights = _read_tokens(blocks[-1][0], model.config)
    while blocks:
        qkv, bias, axis = blocks.pop()
        in_heads = tf.repeat(weights[..., None], heads, axis=-1)
        attended = tf.reduce_mean(pulled_back(heads, qkv, in_heads, bias, axis), axis=-1)
        weights = (weights + attended) / 2
    return model.on_grid(weights[..., None])[..., 0]


def _read_tokens(tokens, config):
    """Weight 1 for the class token, or equal ones for patches: `[B, ...]` for `[B, ..., D]`."""
    if not config.has_class_token:
        return uniform_weights(tokens, 1, config.num_prefix_tokens)[..., 0]
    batch, count = tf.unstack(tf.shape(tokens)[:2])
    return tf.one_hot(tf.zeros([batch], tf.int32), count)


def check_patches(model):
    """Raises `ValueError` for a model without patches."""
    if model.config.grid is None:
        raise ValueError(
            f"Attention maps belong to models with patches, such as ViT-B/16. Received: a model of "
            f"the family {model.config.family!r}."
        )


def _mean_rows(model, inputs):
    """Attention weights averaged over the queries of patches, float32 `[B, layers, heads, T]`."""
    heads, prefix = model.config.heads, model.num_prefix_tokens
    places = prefix + math.prod(model.grid)
    found, layer = [], []
    for block in model.attention_inputs(inputs):
        layer.append(block)
        if len(layer) == (2 if model.config.axial else 1):
            weights = uniform_weights(block[0], heads, prefix)
            for qkv, bias, axis in reversed(layer):
                weights = pulled_back(heads, qkv, weights, bias, axis)
            found.append(tf.transpose(tf.reshape(weights, [-1, places, heads]), [0, 2, 1]))
            layer = []
    return _stack_layers(found)


def uniform_weights(tokens, heads, left_out=0):
    """The mean over all tokens `[B, ..., D]` as weights, float32 `[B, ..., heads]`.

    Args:
        tokens: only their shape matters.
        heads: number of heads.
        left_out: leading tokens that have weight 0, of `[B, T, D]`.
    """
    places = tf.shape(tokens)[:-1]
    count = tf.cast(tf.reduce_prod(places[1:]) - left_out, tf.float32)
    weights = tf.fill(tf.concat([places, [heads]], axis=0), 1 / count)
    if not left_out:
        return weights
    return tf.pad(weights[:, left_out:], [[0, 0], [left_out, 0], [0, 0]])


def pulled_back(heads, qkv, weights, bias, axis):
    """`A^T u` in every head for the attention weights A of a block and u = `weights`.

    Since attention is `A v`, this is the gradient of the sum of `u A v` with respect to v. It is
    the same in every column of v. The op computes this gradient without storing A.

    Args:
        heads: number of heads.
        qkv, bias: see `MultiHeadAttention.project`.
        weights: float32 `[B, ..., heads]`.
        axis: see `MultiHeadAttention`.

    Returns:
        float32 `[B, ..., heads]`.
    """
    qkv = tf.cast(qkv, tf.float32)  # otherwise bfloat16 would round the weights to 8 bits
    width = qkv.shape[-1] // 3
    size = width // heads
    with tf.GradientTape() as tape:
        tape.watch(qkv)
        if axis is None:
            attended = custom_ops.attention(qkv, heads, bias=bias)
        else:
            attended = custom_ops.axial_attention(qkv, heads, axis)
    gradient = tape.gradient(attended, qkv, output_gradients=tf.repeat(weights, size, axis=-1))
    return gradient[..., 2 * width :: size]


def _stack_layers(rows):
    return tf.cast(tf.stack(rows, axis=1), tf.float32)
