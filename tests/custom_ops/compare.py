"""Compares the compiled ops and plain TensorFlow with the float64 oracle."""

import numpy as np
import tensorflow as tf

import custom_ops
from custom_ops import loader
from tests.custom_ops import oracle
from tests.tolerances import EPSILON, assert_as_good


def each_isa(monkeypatch):
    """Forces each instruction set of this build and processor in turn; yields its name."""
    names = custom_ops.describe()["isas"]["available"]
    assert "baseline" in names
    for name in names:
        loader.library().choose_isa(name)
        assert custom_ops.describe()["isas"]["chosen"] == name
        yield name


def draw(shape, dtype="float32", seed=0):
    """Random normal values that `dtype` represents exactly, as a tensor of `dtype`."""
    values = np.random.default_rng([seed, *shape]).normal(size=shape)
    return tf.cast(tf.constant(values), dtype)


def draw_uint8(shape):
    return tf.constant(np.random.default_rng(list(shape)).integers(0, 256, shape), "uint8")


def exact(tensor):
    return tensor.numpy().astype(np.float64)


def compiled_ops(function, *arguments):
    """Names of the compiled ops in a function and in the functions that it calls."""
    definition = function.get_concrete_function(*arguments).graph.as_graph_def()
    nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
    return {node.op for node in nodes if node.op.startswith("Vit")}


def call_attention(qkv, num_heads, axis=None, taps=None, grid=None, **options):
    """Calls the function of `custom_ops` that accepts these arguments."""
    if axis is not None:
        return custom_ops.axial_attention(qkv, num_heads, axis, **options)
    if taps is not None:
        return custom_ops.attention_with_taps(qkv, num_heads, taps, grid=grid, **options)
    return custom_ops.attention(qkv, num_heads, **options)


def attend(implementation, qkv, num_heads, cotangent, bias=None, axis=None, scale=None):
    """Returns the output, the gradient of qkv and, with a bias, the gradient of the bias."""
    sources = [qkv] if bias is None else [qkv, bias]
    with tf.GradientTape() as tape:
        tape.watch(sources)
        out = call_attention(
            qkv, num_heads, axis, bias=bias, scale=scale, implementation=implementation
        )
    return [out, *tape.gradient(out, sources, cotangent)]


def check_attention(qkv, num_heads, bias=None, axis=None, magnitude=0.0, scale=None):
    """Compares the output and all gradients.

    Args:
        qkv, num_heads, bias, axis, scale: as in `custom_ops.axial_attention`.
        magnitude: magnitude of the terms of the gradient of qkv, if they may cancel.
    """
    dtype = qkv.dtype.name
    cotangent = draw([*qkv.shape[:-1], qkv.shape[-1] // 3], dtype, seed=1)
    actual = attend("compiled", qkv, num_heads, cotangent, bias, axis, scale)
    plain = attend("reference", qkv, num_heads, cotangent, bias, axis, scale)
    exact_bias = None if bias is None else exact(bias)
    if axis is None:
        out, _, backward = oracle.attention(exact(qkv), num_heads, exact_bias, scale)
    else:
        out, backward = oracle.axial_attention(exact(qkv), num_heads, axis, exact_bias, scale)
    d_qkv, d_bias = backward(exact(cotangent))
    assert actual[0].dtype == actual[1].dtype == qkv.dtype
    assert_as_good(actual[0], plain[0], out, dtype)
    assert_as_good(actual[1], plain[1], d_qkv, dtype, magnitude)
    if bias is not None:
        assert actual[2].dtype == bias.dtype
        # A bias that is the same for all keys has no effect: its gradient cancels to zero. The
        # remaining rounding error grows with the number of terms of the sum.
        magnitude = np.abs(d_qkv).max(initial=0)
        if d_bias.size and (d_bias.shape or (1,))[-1] == 1:
            heads = out.size // (qkv.shape[-1] // 3) * num_heads
            magnitude *= np.sqrt(heads * qkv.shape[axis or 1] / d_bias.size)
        coarse = max(dtype, bias.dtype.name, key=EPSILON.get)
        assert_as_good(actual[2], plain[2], d_bias, coarse, magnitude)


def tables(image_shape, patch_size, dtype, width=10, prefix_size=1):
    """Kernel, bias, prefix and position that fit the images."""
    count = (image_shape[1] // patch_size) * (image_shape[2] // patch_size)
    return {
        "kernel": draw([patch_size, patch_size, image_shape[3], width], dtype),
        "bias": draw([width], dtype, seed=1),
        "prefix": draw([prefix_size, width], dtype, seed=2),
        "position": draw([prefix_size + count, width], dtype, seed=3),
    }


def embed(implementation, images, weights, rescaling, cotangent):
    """Returns the tokens, and a dict of all gradients by name."""
    watched = dict(weights)
    if images.dtype.is_floating:
        watched["images"] = images
    with tf.GradientTape() as tape:
        tape.watch(watched)
        tokens = custom_ops.patch_embed(
            images, **weights, **rescaling, implementation=implementation
        )
    if cotangent is None:
        cotangent = draw(tokens.shape, tokens.dtype, seed=4)
    return tokens, tape.gradient(tokens, watched, cotangent), cotangent


def check_patch_embed(images, weights, **rescaling):
    """Compares the tokens and all gradients."""
    kernel = weights["kernel"]
    coarse = max(kernel.dtype.name, _float_name(images), key=EPSILON.get)
    tokens, gradients, cotangent = embed("compiled", images, weights, rescaling, None)
    plain, plain_gradients, _ = embed("reference", images, weights, rescaling, cotangent)
    expected, backward = oracle.patch_embed(
        exact(images), **{name: exact(table) for name, table in weights.items()}, **rescaling
    )
    assert tokens.dtype == kernel.dtype
    assert_as_good(tokens, plain, expected, coarse)
    expected = backward(exact(cotangent))
    for name, gradient in gradients.items():
        assert gradient.dtype == plain_gradients[name].dtype, name
        assert_as_good(gradient, plain_gradients[name], expected[name], coarse)


def _float_name(images):
    return images.dtype.name if images.dtype.is_floating else "float64"
