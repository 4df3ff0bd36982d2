"""Every op in plain TensorFlow: the definition, the fallback, the oracle.

Inputs are tensors that `custom_ops.attention`, `patch_embed` and `training` have checked; gradients
are TensorFlow's own. Shapes: `B` batch, `N` tokens (or patches), `H` heads, `D` width,
`d = D / H`, `P` patch size, `C` channels, `T` prefix tokens. Any of `B`, `N` and the image's sides
may be unknown when a function is traced, or zero.
"""

import math
from typing import Any

import tensorflow as tf

# Axes of the packed [*outer, 3, H, d] in the order [3, B, (lines,) H, n, d], by `axis`.
_SPLIT = {None: (2, 0, 3, 1, 4), 1: (3, 0, 2, 4, 1, 5), 2: (3, 0, 1, 4, 2, 5)}
# Axes of [B, (lines,) H, n, d] in the order [*outer, H, d].
_MERGE = {None: (0, 2, 1, 3), 1: (0, 3, 1, 2, 4), 2: (0, 1, 3, 2, 4)}


def attention(qkv, num_heads, bias=None, scale=None):
    """Multi-head attention; `custom_ops.attention` documents it."""
    return _attend(qkv, num_heads, bias, scale)[0]


def attention_with_taps(qkv, num_heads, taps, bias=None, scale=None, grid=None):
    """Multi-head attention and what it attended to; see `custom_ops.attention_with_taps`."""
    out, weights, empty = _attend(qkv, num_heads, bias, scale)
    if not taps:
        return out, {}
    weights = tf.stop_gradient(_zero_empty(weights, empty))
    return out, {name: _TAPS[name](weights, grid) for name in taps}


def axial_attention(qkv, num_heads, axis, bias=None, scale=None):
    """Attention along one axis of a grid; `custom_ops.axial_attention` documents it."""
    return _attend(qkv, num_heads, bias, scale, axis)[0]


def attention_weights(qkv, num_heads, bias=None, scale=None, axis=None):
    """Returns the softmax weights of `attention`, for code that needs them (attention dropout).

    With `split_heads` and `apply_weights` this is `attention` in three steps.

    Args:
        qkv: `[B, N, 3 D]`, or `[B, R, C, 3 D]` with an axis; see `custom_ops.axial_attention`.
        num_heads: number of heads `H`.
        bias: optional, broadcastable to the result.
        scale: see `custom_ops.attention`.
        axis: None, 1 or 2.

    Returns:
        `[B, H, N, N]` (`[B, lines, H, n, n]` with an axis) in the dtype of `qkv`, the softmax
        itself computed in float32 or float64. Rows sum to 1; a row whose bias is all -inf is zero.
    """
    query, key, _ = split_heads(qkv, num_heads, axis)
    weights, empty = _softmax(_logits(query, key, scale), bias)
    return tf.cast(_zero_empty(weights, empty), qkv.dtype)


def apply_weights(weights, value, axis=None):
    """Returns weights times values, heads merged: `[B, N, D]`, or `[B, R, C, D]` with an axis.

    Args:
        weights: `[B, H, N, N]`, cast to the dtype of the values.
        value: `[B, H, N, d]`, the third result of `split_heads`.
        axis: None, 1 or 2, as given to `split_heads`.
    """
    return merge_heads(tf.matmul(tf.cast(weights, value.dtype), value), axis)


def split_heads(qkv, num_heads, axis=None):
    """Splits the packed projection.

    Args:
        qkv: `[B, N, 3 D]` (`[B, R, C, 3 D]` with an axis), q | k | v, each `[H, d]`.
        num_heads: number of heads `H`.
        axis: None, or the axis of `qkv` along which tokens attend, 1 or 2. The other one then
            counts the lines.

    Returns:
        Query, key and value, each `[B, H, N, d]` (`[B, lines, H, n, d]` with an axis).
    """
    # One transpose of the packed tensor is faster than one for each of q, k and v, and than einsum:
    # the attention around it takes 5.8, 9.6 and 11.8 ms, and 23.8, 24.4 and 36.1 ms with gradients
    # (2 threads of a Zen 5, float32, [8, 197, 3 * 768], 12 heads).
    *outer, width = _dims(qkv)
    packed = tf.reshape(qkv, [*outer, 3, num_heads, width // (3 * num_heads)])
    return tf.unstack(tf.transpose(packed, _SPLIT[axis]), num=3)


def merge_heads(heads, axis=None):
    """The inverse of `split_heads` for one of q, k and v: `[B, H, N, d]` to `[B, N, D]`."""
    merged = tf.transpose(heads, _MERGE[axis])
    *outer, num_heads, size = _dims(merged)
    return tf.reshape(merged, [*outer, num_heads * size])


def extract_patches(images, patch_size):
    """Non-overlapping patches; `custom_ops.extract_patches` documents it."""
    batch, height, width, channels = _dims(images)
    rows, columns = height // patch_size, width // patch_size
    # The rows of a patch stay contiguous, so the transpose moves blocks of P * C values.
    # `tf.image.extract_patches` computes the same; its gradient builds a sparse matrix.
    images = images[:, : rows * patch_size, : columns * patch_size]
    blocks = tf.reshape(images, [batch * rows, patch_size, columns, patch_size * channels])
    blocks = tf.transpose(blocks, (0, 2, 1, 3))
    return tf.reshape(blocks, [batch, rows * columns, patch_size * patch_size * channels])


def patch_embed(images, kernel, bias, scale=1.0, offset=0.0, prefix=None, position=None):
    """Patch embedding; `custom_ops.patch_embed` documents it."""
    # Flatten and multiply is the strided convolution (docs/paper.md A.3) and measured faster than
    # `tf.nn.conv2d` with its gradients (2 threads of a Zen 5, 8 images of 224 x 224, P = 16,
    # D = 768, forward + backward: 9.0 + 8.9 against 9.8 + 12.9 ms in float32, 5.4 + 3.9 against
    # 7.7 + 28.3 ms in bfloat16; the gradient of the images costs 8.5 against 71 ms more).
    patch_size, _, channels, width = _dims(kernel)
    patches = extract_patches(_rescale(images, scale, offset, kernel.dtype), patch_size)
    batch, count, length = _dims(patches)
    weights = tf.reshape(kernel, [patch_size * patch_size * channels, width])
    tokens = tf.matmul(tf.reshape(patches, [batch * count, length]), weights)

    bias = tf.cast(bias, kernel.dtype)
    if prefix is not None:
        prefix = tf.cast(prefix, kernel.dtype)
    if position is None:
        tokens = tf.reshape(tf.nn.bias_add(tokens, bias), [batch, count, width])
    else:
        position = tf.cast(position, kernel.dtype)
        prefix_size = 0 if prefix is None else _dims(prefix)[0]
        table = position[prefix_size:]
        if None in (table.shape[0], patches.shape[1]):
            # Sizes are unknown at tracing. Without the check a table of one row would broadcast.
            message = "position has another number of rows than there are tokens"
            tf.debugging.assert_equal(_dims(table)[0], count, message)
        tokens = tf.reshape(tokens, [batch, count, width]) + (table + bias)
        if prefix is not None:
            prefix = prefix + position[:prefix_size]
    if prefix is None:
        return tokens
    prefix = tf.broadcast_to(prefix, [batch, _dims(prefix)[0], width])
    return tf.concat([prefix, tokens], axis=1)


def _attend(qkv, num_heads, bias, scale, axis=None):
    """Returns `(output, weights, empty)`; see `_softmax` for the last two."""
    query, key, value = split_heads(qkv, num_heads, axis)
    weights, empty = _softmax(_logits(query, key, scale), bias)
    attended = tf.matmul(tf.cast(weights, value.dtype), value)
    if empty is not None:
        attended = tf.where(empty, tf.zeros([], attended.dtype), attended)
    return merge_heads(attended, axis), weights, empty


def _logits(query, key, scale):
    """Scaled `q k^T`, multiplied in the dtype of the input, as float32 or float64."""
    size = _dims(query)[-1]
    if scale is None and isinstance(size, int):
        scale = 1 / math.sqrt(size)
    elif scale is None:
        scale = tf.math.rsqrt(tf.cast(size, query.dtype))
    # Scaling q before the product touches N d values instead of N^2, and keeps float16 in range.
    logits = tf.matmul(query * scale, key, transpose_b=True)
    return tf.cast(logits, _compute_dtype(logits.dtype))


def _softmax(logits, bias):
    """Returns `(softmax(logits + bias), empty)`.

    `empty` is None without a bias, else bool and broadcastable to `[..., N, 1]`: rows whose bias
    is all -inf. Their weights here are arbitrary but finite. The caller sets them to zero,
    because that costs less on the output than on the weights.
    """
    if bias is None:
        return tf.nn.softmax(logits), None
    bias = tf.cast(bias, logits.dtype)
    if bias.shape.rank == 0:
        bias = tf.reshape(bias, [1])
    empty = tf.reduce_all(tf.equal(bias, -math.inf), axis=-1, keepdims=True)
    bias = tf.where(empty, tf.zeros([], bias.dtype), bias)
    return tf.nn.softmax(logits + bias), empty


def _zero_empty(weights, empty):
    return weights if empty is None else tf.where(empty, tf.zeros([], weights.dtype), weights)


def _class_row(weights, grid):
    """Weights from token 0 to all tokens, `[B, H, N]`."""
    del grid
    # Indexing would fail without tokens; a sum over at most one row does not.
    return tf.reduce_sum(weights[:, :, :1], axis=2)


def _distance(weights, grid):
    """Mean attention distance in grid units, `[B, H]` (docs/paper.md J.3)."""
    rows, columns = grid
    count = _dims(weights)[-1]
    index = tf.range(rows * columns)
    row, column = index // columns, index % columns
    squared = (row[:, None] - row) ** 2 + (column[:, None] - column) ** 2
    distance = tf.sqrt(tf.cast(squared, weights.dtype))
    # Zero distances for the prefix tokens leave them out without copying the weights.
    prefix = count - rows * columns
    distance = tf.pad(distance, [[prefix, 0], [prefix, 0]])
    return tf.einsum("bhqk,qk->bh", weights, distance) / (rows * columns)


def _entropy(weights, grid):
    """Mean entropy of the rows in nats, `[B, H]`."""
    del grid
    count = tf.cast(tf.maximum(_dims(weights)[-1], 1), weights.dtype)
    return -tf.reduce_sum(tf.math.xlogy(weights, weights), axis=(2, 3)) / count


_TAPS = {"class_row": _class_row, "distance": _distance, "entropy": _entropy}


def _rescale(images, scale, offset, dtype):
    """Returns `images * scale + offset` in `dtype`, computed in float32 or wider."""
    if scale != 1 or offset != 0:
        wide = tf.float64 if tf.float64 in (images.dtype, dtype) else tf.float32
        images = tf.cast(images, wide) * scale + offset
    return tf.cast(images, dtype)


def _compute_dtype(dtype):
    return tf.float64 if dtype == tf.float64 else tf.float32


def _dims(tensor) -> list[Any]:
    """The shape as a list: ints where they are known, scalar tensors elsewhere."""
    if tensor.shape.is_fully_defined():
        return tensor.shape.as_list()
    dynamic = tf.shape(tensor)
    return [dynamic[i] if n is None else n for i, n in enumerate(tensor.shape.as_list())]


# What a training step computes between its products -----------------------------------------------

# sqrt(2 / pi), and 0.044715 times that.
GELU_TANH = (0.7978845608028654, 0.035677408136300125)


def gelu_tanh(x):
    """The tanh form of GELU, which the published weights were trained with (docs/paper.md A.6).

    Computes `x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2`. In this order of operations few
    tensors are kept for the gradient, and x^2, which overflows in float16 from 256 on, is never
    computed alone.
    """
    linear, cubic = GELU_TANH
    inner = x * (linear + cubic * x * x)
    return x * (0.5 + 0.5 * tf.tanh(inner))


def gelu_erf(x):
    """The exact GELU, x times the normal distribution function.

    `tf.nn.gelu` gives the same bits, but in float64 its root of 1/2 is that of float32.
    """
    return 0.5 * x * tf.math.erfc(-x * math.sqrt(0.5))


GELU = {"gelu_tanh": gelu_tanh, "gelu_erf": gelu_erf}


def bias_gelu(x, bias, activation, keep_slope=False):
    """Bias and GELU; `custom_ops.bias_gelu` documents it."""
    return (_KEPT_SLOPE if keep_slope else GELU)[activation](
        tf.nn.bias_add(x, tf.cast(bias, x.dtype))
    )


@tf.custom_gradient
def _kept_gelu_tanh(x):
    linear, cubic = GELU_TANH
    # Beyond 16 tanh is 1; in float16 the cube would overflow, and 0 times it is no number.
    near = tf.clip_by_value(x, -16.0, 16.0)
    square = cubic * near * near
    tanh = tf.tanh(near * (linear + square))
    share = 0.5 + 0.5 * tanh
    slope = share + (0.5 * near) * (1.0 - tanh * tanh) * (linear + 3.0 * square)
    return x * share, lambda upstream: upstream * slope


@tf.custom_gradient
def _kept_gelu_erf(x):
    share = 0.5 * (1.0 + tf.math.erf(x * math.sqrt(0.5)))
    slope = share + x * (tf.exp(-0.5 * x * x) / math.sqrt(2 * math.pi))
    return x * share, lambda upstream: upstream * slope


_KEPT_SLOPE = {"gelu_tanh": _kept_gelu_tanh, "gelu_erf": _kept_gelu_erf}


def layer_norm(x, scale, bias, epsilon):
    """LayerNorm in the order of operations of Keras; see `custom_ops.layer_norm`."""
    wide = x.dtype if x.dtype == tf.float64 else tf.float32
    scale, bias = (tf.cast(table, wide) for table in (scale, bias))
    number = tf.cast(x, wide)
    mean, variance = tf.nn.moments(number, axes=[-1], keepdims=True)
    factor = tf.math.rsqrt(variance + epsilon) * scale
    return tf.cast(number * factor + (-mean * factor + bias), x.dtype)


def sgd_update(weight, gradient, momentum, scalars, *, momentum_decay, weight_decay):
    """An update by SGD with momentum; `custom_ops.sgd_update` documents it."""
    gradient_scale, rate = tf.unstack(scalars)
    gradient = gradient * tf.cast(gradient_scale, gradient.dtype)
    new = momentum_decay * tf.cast(momentum, gradient.dtype) + gradient
    return _moved(weight, new, rate, weight_decay), tf.cast(new, momentum.dtype)


def adamw_update(  # noqa: PLR0913 - as in `custom_ops.adamw_update`
    weight, gradient, momentum, variance, scalars, *, beta_1, beta_2, epsilon, weight_decay
):
    """An update by AdamW; `custom_ops.adamw_update` documents it."""
    gradient_scale, rate, correction_1, correction_2 = tf.unstack(scalars)
    gradient = gradient * tf.cast(gradient_scale, gradient.dtype)
    first = beta_1 * tf.cast(momentum, gradient.dtype) + (1 - beta_1) * gradient
    second = beta_2 * variance + (1 - beta_2) * gradient**2
    direction = (first / correction_1) / (tf.sqrt(second / correction_2) + epsilon)
    new_weight = _moved(weight, direction, rate, weight_decay)
    return new_weight, tf.cast(first, momentum.dtype), second


def _moved(weight, direction, rate, weight_decay):
    if weight_decay:
        direction += weight_decay * weight
    return weight - rate * direction
