"""The encoder over packed weights in plain TensorFlow: the definition, the fallback, the oracle.

Inputs have been checked by `custom_ops.encoder`. Shapes: `B` batch, `N` tokens, `D` width, `M` MLP
width; `B` and `N` may be unknown when a function is traced. No gradient is meant to be used.
"""

import tensorflow as tf

from custom_ops import packing, reference


def encoder(tokens, plan, first_row_only=False, rotary=None):
    """Runs all blocks; `custom_ops.encoder` documents it."""
    tokens = tf.ensure_shape(tokens, [None, None, plan.width])
    for index in range(len(plan.weights)):
        is_last = index == len(plan.weights) - 1
        tokens = run_block(tokens, plan, index, first_row_only and is_last, rotary=rotary)
    # Tokens without a row 0, of a size that is known only at run time, are an error here.
    return tf.ensure_shape(tokens, [None, 1, None]) if first_row_only else tokens


def run_block(
    tokens, plan, index, first_row_only=False, attention=reference.attention, rotary=None
):
    """Runs one block.

    Args:
        tokens: `[B, N, D]` float32.
        plan: `custom_ops.EncoderPlan`.
        index: of the block.
        first_row_only: whether to compute only row 0 of the tokens.
        attention: function of the packed projection q | k | v, `[B, N, 3 D]` float32, and the
            number of heads, that returns `[B, N, D]`: another implementation, or one that keeps
            statistics.
        rotary: table of rotary positions, or None; see `custom_ops.encoder`.

    Returns:
        The tokens behind the block, `[B, N, D]` or `[B, 1, D]` float32.
    """
    # A graph would otherwise unpack all blocks at once, and hold all weights twice.
    with tf.control_dependencies([tokens]):
        layers = unpack_block(plan, index)

    def dense(x, layer):
        # Products of two bfloat16 are exact in float32.
        kernel = tf.cast(layers[f"{layer}/kernel"], tf.float32)
        return tf.matmul(_rounded(x, plan), kernel) + layers[f"{layer}/bias"]

    qkv = dense(_normalised(tokens, plan.epsilon), "qkv")
    qkv = _rounded(_with_heads(qkv, layers.get("qk_norm"), rotary, plan), plan)
    attended = attention(qkv, plan.num_heads)
    if first_row_only:
        tokens, attended = tokens[:, :1], attended[:, :1]
    tokens += dense(attended, "out")
    hidden = dense(_normalised(tokens, plan.epsilon), "fc1")
    if plan.activation == "swiglu":
        gate, up = tf.split(hidden, 2, axis=-1)
        hidden = tf.nn.silu(gate) * up
    else:
        hidden = tf.nn.gelu(hidden, approximate=plan.activation == "gelu_tanh")
    return tokens + dense(hidden, "fc2")


def unpack_block(plan, index):
    """Unpacks one block.

    Args:
        plan: `custom_ops.EncoderPlan`.
        index: of the block.

    Returns:
        Dict of tensors, with the LayerNorms folded into qkv and fc1: `qkv/kernel` `[D, 3 D]` (q |
        k | v, each `[H, d]`), `out/kernel` `[D, D]`, `fc1/kernel` `[D, M]` (gate | up
        `[D, 2 M]` for "swiglu") and `fc2/kernel` `[M, D]` in the dtype of the plan, `qkv/bias` and
        so on `[columns]` float32, and `qk_norm` `[4, d]` float32 if the plan has one: scale and
        bias of queries, scale and bias of keys.
    """
    shapes = packing.layer_shapes(plan.width, plan.mlp_size, plan.activation)
    panels = [packing.panels_shape(shape, plan.precision) for shape in shapes.values()]
    weights = tf.split(plan.weights[index], [_product(shape) for shape in panels])
    counts = [columns for _, columns in shapes.values()]
    counts.append(packing.qk_norm_size(plan.head_size) if plan.qk_norm else 0)
    *biases, norm = tf.split(plan.biases[index], counts)
    layers = {"qk_norm": tf.reshape(norm, [4, plan.head_size])} if plan.qk_norm else {}
    for i, (layer, (rows, columns)) in enumerate(shapes.items()):
        groups, steps, width, together = panels[i]
        kernel = tf.transpose(tf.reshape(weights[i], panels[i]), (1, 3, 0, 2))
        kernel = tf.reshape(kernel, [steps * together, groups * width])
        if layer == "fc1" and plan.activation == "swiglu":
            kernel = _gate_and_up(kernel, plan.mlp_size)
        layers[f"{layer}/kernel"] = kernel[:rows, :columns]
        layers[f"{layer}/bias"] = biases[i]
    return layers


def _gate_and_up(kernel, size):
    """The columns of panels of gate and up as gate | up, each `size`."""
    rows, half = kernel.shape[0], packing.PANEL_COLUMNS // 2
    both = tf.transpose(tf.reshape(kernel, [rows, -1, 2, half]), (0, 2, 1, 3))
    return tf.reshape(tf.reshape(both, [rows, 2, -1])[:, :, :size], [rows, 2 * size])


def _with_heads(qkv, norm, rotary, plan):
    """A projection `[B, N, 3 D]`, queries and keys normalized by `norm` `[4, d]` and rotated."""
    if norm is None and rotary is None:
        return qkv
    heads = reference.split_heads(qkv, plan.num_heads)
    for part in range(2):
        if norm is not None:
            scale, bias = norm[2 * part], norm[2 * part + 1]
            heads[part] = _normalised(heads[part], plan.epsilon) * scale + bias
        if rotary is not None:
            heads[part] = _rotated(heads[part], rotary)
    return tf.concat([reference.merge_heads(x) for x in heads], axis=-1)


def _rotated(x, table):
    """Heads `[B, H, N, d]` of which the last tokens are turned by the table `[P, 2, d / 2]`."""
    rows = tf.shape(table)[0] if table.shape[0] is None else table.shape[0]
    # With fewer tokens than rows, the split is an error.
    prefix, patches = tf.split(x, [-1, rows], axis=2)
    cosines, sines = table[:, 0], table[:, 1]
    first, second = tf.split(patches, 2, axis=-1)
    turned = [first * cosines - second * sines, second * cosines + first * sines]
    return tf.concat([prefix, tf.concat(turned, axis=-1)], axis=2)


def _normalised(tokens, epsilon):
    """LayerNorm of the last dimension, without scale and bias."""
    mean, variance = tf.nn.moments(tokens, axes=[-1], keepdims=True)
    return (tokens - mean) * tf.math.rsqrt(variance + epsilon)


def _rounded(x, plan):
    """Float32 numbers that the precision of the plan can hold."""
    return tf.cast(tf.cast(x, plan.precision), tf.float32)


def _product(shape):
    product = 1
    for n in shape:
        product *= n
    return product
