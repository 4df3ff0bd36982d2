"""Compares both implementations of the ops with the float64 oracle."""

import numpy as np
import tensorflow as tf

import custom_ops
from custom_ops import loader
from tests.custom_ops import instruction_sets, oracle
from tests.tolerances import EPSILON, assert_as_good, assert_close


def each_isa():
    """Chooses each instruction set of this build and processor in turn; yields its name.

    On a GPU it yields once.
    """
    if "GPU" in current_device():
        yield "GPU"
        return
    names = custom_ops.describe()["isas"]["available"]
    assert names == instruction_sets.here()
    for name in names:
        loader.library().choose_isa(name)
        assert custom_ops.describe()["isas"]["chosen"] == name
        yield name


def current_device():
    """The device that `tf.device` names, or TensorFlow's choice."""
    return tf.zeros([]).device


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


def asks_for_compiled(how, monkeypatch):
    """A function of qkv that asks for the compiled op: by argument, context or environment."""
    if how == "environment":
        monkeypatch.setenv("VIT_OPS", "compiled")

    def call(qkv):
        if how == "context":
            with custom_ops.implementation("compiled"):
                return custom_ops.attention(qkv, 3)
        return custom_ops.attention(
            qkv, 3, implementation="compiled" if how == "argument" else None
        )

    return call


def attend(implementation, qkv, num_heads, cotangent, bias=None, axis=None, scale=None):
    """Returns the output, the gradient of qkv and, with a bias, the gradient of the bias."""
    sources = [qkv] if bias is None else [qkv, bias]
    with tf.GradientTape() as tape:
        tape.watch(sources)
        out = call_attention(
            qkv, num_heads, axis, bias=bias, scale=scale, implementation=implementation
        )
    # Without a kernel for the device, TensorFlow takes another device's kernel.
    assert implementation != "compiled" or out.device == current_device()
    return [out, *tape.gradient(out, sources, cotangent)]


def check_attention(
    qkv, num_heads, bias=None, axis=None, *, scale=None, magnitude=0.0, bounded=True, isas=(None,)
):
    """Compares the output and all gradients of both implementations with the oracle.

    Args:
        qkv, num_heads, bias, axis, scale: as in `custom_ops.axial_attention`.
        magnitude: magnitude of the terms of the gradient of qkv, if they may cancel.
        bounded: whether errors are within the bounds of the table. Not so for long sums and for
            inputs that amplify rounding: then only the two implementations are compared.
        isas: `each_isa()` to repeat the compiled op with each instruction set.
    """
    dtype = qkv.dtype.name
    cotangent = draw([*qkv.shape[:-1], qkv.shape[-1] // 3], dtype, seed=1)
    plain = attend("reference", qkv, num_heads, cotangent, bias, axis, scale)
    exact_bias = None if bias is None else exact(bias)
    if axis is None:
        out, _, backward = oracle.attention(exact(qkv), num_heads, exact_bias, scale)
    else:
        out, backward = oracle.axial_attention(exact(qkv), num_heads, axis, exact_bias, scale)
    d_qkv, d_bias = backward(exact(cotangent))
    # (expected, dtype, kind, magnitude) of every result.
    expected = [
        (out, dtype, "attention", 0.0),
        (d_qkv, dtype, "attention gradient", magnitude),
    ]
    if bias is not None:
        # A bias that is the same for all keys has no effect: its gradient cancels to zero. The
        # remaining rounding error grows with the number of terms of the sum.
        terms = np.abs(d_qkv).max(initial=0)
        if d_bias.size and (d_bias.shape or (1,))[-1] == 1:
            heads = out.size // (qkv.shape[-1] // 3) * num_heads
            terms *= np.sqrt(heads * qkv.shape[axis or 1] / d_bias.size)
        coarse = max(dtype, bias.dtype.name, key=EPSILON.get)
        expected.append((d_bias, coarse, "attention gradient", terms))
    for _ in isas:
        actual = attend("compiled", qkv, num_heads, cotangent, bias, axis, scale)
        for one, other, source in zip(actual, plain, (qkv, qkv, bias), strict=False):
            assert one.dtype == other.dtype == source.dtype
        for one, other, (array, *arguments) in zip(actual, plain, expected, strict=True):
            _check(one, other, array, bounded, *arguments)


def _check(compiled, plain, expected, bounded, dtype, kind, magnitude=0.0):
    """Compares one result of both implementations with the oracle."""
    assert_as_good(compiled, plain, expected, dtype, magnitude)
    if bounded:
        assert_close(compiled, expected, dtype, kind, magnitude)
        assert_close(plain, expected, dtype, kind, magnitude)


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
    """Returns the tokens, a dict of all gradients by name, and the cotangent that gave them."""
    watched = dict(weights)
    if images.dtype.is_floating:
        watched["images"] = images
    with tf.GradientTape() as tape:
        tape.watch(watched)
        tokens = custom_ops.patch_embed(
            images, **weights, **rescaling, implementation=implementation
        )
    assert implementation != "compiled" or tokens.device == current_device()
    if cotangent is None:
        cotangent = draw(tokens.shape, tokens.dtype, seed=4)
    return tokens, tape.gradient(tokens, watched, cotangent), cotangent


def check_patch_embed(images, weights, *, bounded=True, isas=(None,), **rescaling):
    """Compares the tokens and all gradients of both implementations with the oracle.

    Args:
        images, weights, rescaling: as in `custom_ops.patch_embed`; `tables` makes the weights.
        bounded, isas: as in `check_attention`.
    """
    kernel = weights["kernel"]
    coarse = kernel.dtype.name
    if images.dtype.is_floating:
        coarse = max(coarse, images.dtype.name, key=EPSILON.get)
    plain, plain_gradients, cotangent = embed("reference", images, weights, rescaling, None)
    tokens, backward = oracle.patch_embed(
        exact(images), **{name: exact(table) for name, table in weights.items()}, **rescaling
    )
    gradients = backward(exact(cotangent))
    for _ in isas:
        actual, actual_gradients, _ = embed("compiled", images, weights, rescaling, cotangent)
        assert actual.dtype == plain.dtype == kernel.dtype
        _check(actual, plain, tokens, bounded, coarse, "patch_embed")
        for name, gradient in actual_gradients.items():
            other = plain_gradients[name]
            source = images if name == "images" else weights[name]
            assert gradient.dtype == other.dtype == source.dtype, name
            _check(gradient, other, gradients[name], bounded, coarse, "patch_embed gradient")
