"""Numbers about the attention and the tokens of every layer, as means over images.

`B` images, `L` layers, `H` heads, `T` tokens: the prefix, then `N` patches on `rows x columns`. In
an axial model, the row and column attention of a layer count as one attention, the product of
their matrices in each head.
"""

import tensorflow as tf

from custom_ops import reference
from vit_tf.analysis import inspection
from vit_tf.analysis.attention_maps import check_patches, pulled_back, uniform_weights


def attention_distance(model, images, renormalize=False):
    """Mean attention distance of each head (figures 7, right, and 11; docs/paper.md J.3).

    The Euclidean distance between the patch of a query and the patch of a key, weighted by
    attention, summed over the keys and averaged over queries and images. As in the paper's code,
    the class token is left out as query and as key, and the other weights are not normalized again.
    Registers are left out in the same way.

    Args:
        model: a `VisionTransformer` or `PackedModel`.
        images: float `[B, h, w, 3]` in [-1, 1], or uint8. The paper takes 128 of 224 x 224.
        renormalize: whether the weights of the patches are divided by their sum. This stores the
            weights of a layer, `[B, H, T, T]`; otherwise memory grows with `T` only (axial models:
            `N` times the rows).

    Returns:
        float32 `[L, H]`, in pixels of the image.

    Raises:
        ValueError: for a model without patches.
    """
    check_patches(model)
    if model.config.axial:
        blocks = iter(model.attention_inputs(images))
        found = [
            _axial_distance(row[0], column[0], model.config.heads)
            for row, column in zip(blocks, blocks, strict=True)
        ]
    elif renormalize and model.num_prefix_tokens:
        found = [
            _renormalized_distance(qkv, bias, model)
            for qkv, bias, _ in model.attention_inputs(images)
        ]
    else:
        return tapped_statistics(model, images, ("distance",))["distance"]
    return _mean_over_images(found) * model.config.patch_pixels


def tapped_statistics(model, images, names):
    """`attention_distance` and `attention_entropy` in one pass through a model that is not axial.

    Args:
        model: a `VisionTransformer` or `PackedModel` without axial attention.
        images: float `[B, h, w, 3]` in [-1, 1], or uint8.
        names: of "distance" and "entropy".

    Returns:
        The float32 `[L, H]` of each name.
    """
    layers = list(model.attention_taps(images, names))
    found = {name: _mean_over_images([layer[name] for layer in layers]) for name in names}
    if "distance" in found:
        found["distance"] *= model.config.patch_pixels
    return found


def _axial_distance(row, column, heads):
    """Distance in the product of column and row attention: `[B, H]`, in grid units.

    Args:
        row, column: q | k | v of the two blocks of a layer, `[B, R, C, 3 D]`.
        heads: number of heads.
    """
    rows, columns = row.shape[1:3]
    within_rows, within_columns = (
        tf.cast(reference.attention_weights(qkv, heads, axis=axis), tf.float32)
        for qkv, axis in ((row, 2), (column, 1))
    )
    # From (r, c), column attention leads to (s, c), whose row attention has read (s, d).
    distance = tf.constant(inspection.distances((rows, columns)), tf.float32)
    from_row = tf.einsum("bshcd,rcsd->bshrc", within_rows, distance)
    summed = tf.einsum("bchrs,bshrc->bh", within_columns, from_row)
    return summed / (rows * columns)


def _renormalized_distance(qkv, bias, model):
    """Distance where the weights of the patches sum to 1 for each query: `[B, H]`."""
    weights = reference.attention_weights(tf.cast(qkv, tf.float32), model.config.heads, bias)
    first = model.num_prefix_tokens
    weights = weights[..., first:, first:]
    weights /= tf.reduce_sum(weights, axis=-1, keepdims=True)
    count = weights.shape[-1]
    distance = tf.constant(inspection.distances(model.grid).reshape(count, count), tf.float32)
    return tf.einsum("bhqk,qk->bh", weights, distance) / count


def attention_entropy(model, images):
    """Entropy of the attention weights of each head, mean over queries and images.

    A head that attends to one token has entropy 0, one that attends to all equally log `T`.

    Args:
        model: a `VisionTransformer` or `PackedModel` without axial attention.
        images: float `[B, h, w, 3]` in [-1, 1], or uint8.

    Returns:
        float32 `[L, H]`, in nats.

    Raises:
        ValueError: for a model without patches, and for an axial model.
    """
    check_patches(model)
    if model.config.axial:
        raise ValueError("The entropy of attention is defined here for full attention, not axial.")
    return tapped_statistics(model, images, ("entropy",))["entropy"]


def class_token_share(model, images):
    """The part of the attention that goes to the class token, mean over queries and images.

    Equal attention to all tokens gives it 1 / `T`.

    Args:
        model: a `VisionTransformer` or `PackedModel` with a class token.
        images: float `[B, h, w, 3]` in [-1, 1], or uint8.

    Returns:
        float32 `[L, H]`, in [0, 1].

    Raises:
        ValueError: for a model without a class token.
    """
    if not model.config.has_class_token:
        raise ValueError("The model has no class token, so there is no share of it.")
    heads = model.config.heads
    return _mean_over_images(
        [
            pulled_back(heads, qkv, uniform_weights(qkv, heads), bias, axis)[:, 0]
            for qkv, bias, axis in model.attention_inputs(images)
        ]
    )


def token_norms(model, images):
    """Euclidean norms of the tokens before each block and behind the last, mean over images.

    Args:
        model: a `VisionTransformer` or `PackedModel`.
        images: float `[B, h, w, 3]` in [-1, 1], or uint8.

    Returns:
        A dict of float32 arrays `[blocks + 1]`, an axial model has two blocks in a layer:
        "patches", the mean over the patches; "largest", the largest patch of each image;
        "class_token" if the model has one; and "registers", the mean over them, if it has some.

    Raises:
        ValueError: for a model without patches.
    """
    check_patches(model)
    first, prefix = int(model.config.has_class_token), model.num_prefix_tokens
    others = {"class_token": slice(0, first), "registers": slice(first, prefix)}
    others = {name: part for name, part in others.items() if part.stop > part.start}
    found = {name: [] for name in ("patches", "largest", *others)}
    for tokens in model.block_tokens(images):
        tokens = tf.cast(tokens, tf.float32)
        patches = tf.norm(model.on_grid(tokens), axis=-1)
        found["patches"].append(tf.reduce_mean(patches))
        found["largest"].append(tf.reduce_mean(tf.reduce_max(patches, axis=[1, 2])))
        for name, part in others.items():
            found[name].append(tf.reduce_mean(tf.norm(tokens[:, part], axis=-1)))
    return {name: tf.stack(values) for name, values in found.items()}


def _mean_over_images(layers):
    """`[L, H]` from `[B, H]` of each layer."""
    return tf.stack([tf.reduce_mean(tf.cast(x, tf.float32), axis=0) for x in layers])
