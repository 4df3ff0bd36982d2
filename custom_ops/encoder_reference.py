"""The encoder over packed weights in plain TensorFlow: the definition, the fallback, the oracle.

Inputs have been checked by `custom_ops.encoder`. Shapes: `B` batch, `N` tokens, `D` width, `M` MLP
width; `B` and `N` may be unknown when a function is traced. No gradient is meant to be used.
"""

import tensorflow as tf

from custom_ops import packing, reference


def encoder(tokens, plan, first_row_only=False):
    """Runs all blocks; `custom_ops.encoder` documents it."""
    tokens = tf.ensure_shape(tokens, [None, None, plan.width])
    for index in range(len(plan.weights)):
        is_last = index == len(plan.weights) - 1
        tokens = run_block(tokens, plan, index, first_row_only and is_last)
    # Tokens without a row 0, of a size that is known only at run time, are an error here.
    return tf.ensure_shape(tokens, [None, 1, None]) if first_row_only else tokens


def run_block(tokens, plan, index, first_row_only=False, attention=reference.attention):
    """Runs one block.

    Args:
        tokens: `[B, N, D]` float32.
        plan: `custom_ops.EncoderPlan`.
        index: of the block.
        first_row_only: whether to compute only row 0 of the tokens.
        attention: function of the packed projection q | k | v, `[B, N, 3 D]` float32, and the
            number of heads, that returns `[B, N, D]`: another implementation, or one that keeps
            statistics.

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

    qkv = _rounded(dense(_normalised(tokens, plan.epsilon), "qkv"), plan)
    attended = attention(qkv, plan.num_heads)
    if first_row_only:
        tokens, attended = tokens[:, :1], attended[:, :1]
    tokens += dense(attended, "out")
    hidden = dense(_normalised(tokens, plan.epsilon), "fc1")
    hidden = tf.nn.gelu(hidden, approximate=plan.activation == "gelu_tanh")
    return tokens + dense(hidden, "fc2")


def unpack_block(plan, index):
    """Unpacks one block.

    Args:
        plan: `custom_ops.EncoderPlan`.
        index: of the block.

    Returns:
        Dict of tensors, with the LayerNorms folded into qkv and fc1: `qkv/kernel` `[D, 3 D]` (q |
        k | v, each `[H, d]`), `out/kernel` `[D, D]`, `fc1/kernel` `[D, M]` and `fc2/kernel`
        `[M, D]` in the dtype of the plan, `qkv/bias` and so on `[columns]` float32.
    """
    shapes = packing.layer_shapes(plan.width, plan.mlp_size)
    panels = [packing.panels_shape(shape, plan.precision) for shape in shapes.values()]
    weights = tf.split(plan.weights[index], [_product(shape) for shape in panels])
    biases = tf.split(plan.biases[index], [columns for _, columns in shapes.values()])
    layers = {}
    for i, (layer, (rows, columns)) in enumerate(shapes.items()):
        groups, steps, width, together = panels[i]
        kernel = tf.transpose(tf.reshape(weights[i], panels[i]), (1, 3, 0, 2))
        kernel = tf.reshape(kernel, [steps * together, groups * width])
        layers[f"{layer}/kernel"] = kernel[:rows, :columns]
        layers[f"{layer}/bias"] = biases[i]
    return layers


def _normalised(tokens, epsilon):
    """LayerNorm without scale and bias."""
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
