"""The encoder over packed weights: values of both implementations, graphs and saved models."""

import dataclasses
import math

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import custom_ops
from custom_ops import encoder_reference, reference
from custom_ops import model as model_op
from tests.custom_ops import oracle
from tests.custom_ops.compare import compiled_ops, draw, each_isa, exact
from tests.custom_ops.encoder_blocks import (
    ATTENTION,
    MLP,
    as_float64,
    published,
    rotary_table,
    small_plan,
    stack,
)
from tests.pairwise import pairwise
from tests.tolerances import EPSILON, assert_as_good

PRECISIONS = ("float32", "bfloat16")


def plain_layers(tokens, blocks, heads, activation, epsilon, dtype, rotary=None):
    """The blocks as layers of plain TensorFlow, everything in the dtype."""
    tokens = tf.cast(tokens, dtype)
    count, width = tokens.shape[1:]

    def norm(x, block, name):
        scale, bias = (tf.cast(block[f"{name}/{part}"], dtype) for part in ("scale", "bias"))
        mean, variance = tf.nn.moments(x, axes=[-1], keepdims=True)
        return tf.nn.batch_normalization(x, mean, variance, bias, scale, epsilon)

    def dense(x, block, name, rows, columns):
        kernel = tf.reshape(tf.cast(block[f"{name}/kernel"], dtype), [rows, columns])
        bias = tf.reshape(tf.cast(block.get(f"{name}/bias", np.zeros(columns)), dtype), [columns])
        x = tf.matmul(tf.reshape(x, [-1, rows]), kernel) + bias
        return tf.reshape(x, [-1, count, columns])

    def turned(x):
        """Complex numbers of element i and element i + d / 2, times those of the table."""
        first = count - len(rotary)
        parts = tf.split(tf.cast(x[:, first:], tf.float32), 2, axis=-1)
        patches = tf.complex(*parts) * tf.complex(rotary[:, None, 0], rotary[:, None, 1])
        patches = tf.concat([tf.math.real(patches), tf.math.imag(patches)], axis=-1)
        return tf.concat([x[:, :first], tf.cast(patches, dtype)], axis=1)

    for block in blocks:
        mlp_size, hidden = (
            block[f"{MLP}/Dense_1/kernel"].shape[0],
            block[f"{MLP}/Dense_0/bias"].size,
        )
        y = norm(tokens, block, "LayerNorm_0")
        parts = ("query", "key", "value")
        qkv = [dense(y, block, f"{ATTENTION}/{part}", width, width) for part in parts]
        for i, norm_name in enumerate(["query_ln", "key_ln"]):
            head = tf.reshape(qkv[i], [-1, count, heads, width // heads])
            if f"{ATTENTION}/{norm_name}/scale" in block:
                head = norm(head, block, f"{ATTENTION}/{norm_name}")
            if rotary is not None:
                head = turned(head)
            qkv[i] = tf.reshape(head, [-1, count, width])
        y = reference.attention(tf.concat(qkv, axis=-1), heads)
        tokens += dense(y, block, f"{ATTENTION}/out", width, width)
        y = dense(norm(tokens, block, "LayerNorm_2"), block, f"{MLP}/Dense_0", width, hidden)
        if activation == "swiglu":
            y = tf.nn.silu(y[..., :mlp_size]) * y[..., mlp_size:]
        else:
            y = tf.nn.gelu(y, approximate=activation == "gelu_tanh")
        tokens += dense(y, block, f"{MLP}/Dense_1", mlp_size, width)
    return tokens


# (tokens [B, N, D], heads, MLP size, layers, activation, epsilon, mean of the tokens)
CASES = {
    "usual": ([2, 17, 128], 2, 256, 2, "gelu_tanh", 1e-6, 0.0),
    "exact gelu, sizes beside panels": ([3, 5, 70], 5, 130, 2, "gelu_erf", 1e-6, 0.0),
    "odd sizes, large epsilon": ([1, 10, 27], 3, 65, 3, "gelu_tanh", 0.5, 0.0),
    "an MLP whose second product has two parts": ([2, 3, 9], 1, 1100, 1, "gelu_tanh", 1e-6, 0.0),
    "one token": ([1, 1, 9], 1, 3, 2, "gelu_erf", 1e-6, 0.0),
    "one head of width 1": ([2, 3, 1], 1, 1, 1, "gelu_tanh", 1e-2, 0.0),
    "mean far from 0": ([1, 33, 96], 1, 64, 1, "gelu_tanh", 1e-6, 100.0),
    "no image": ([0, 5, 12], 3, 7, 1, "gelu_tanh", 1e-6, 0.0),
}


@pytest.mark.parametrize(
    ("case", "precision", "each_implementation"),
    pairwise(list(CASES), PRECISIONS, ["reference", "compiled"]),
    indirect=["each_implementation"],
)
@pytest.mark.usefixtures("each_implementation")
def test_values_are_as_good_as_plain_layers(case, precision):
    """Both results have at most twice the error of plain layers in the dtype, plus rounding.

    tests/cc has the sizes with every instruction set.
    """
    shape, heads, mlp_size, layers, activation, epsilon, mean = CASES[case]
    blocks = stack(shape[2], heads, mlp_size, layers)
    tokens = draw(shape) + mean
    expected, _ = oracle.encoder(exact(tokens), as_float64(blocks), heads, activation, epsilon)
    plain = plain_layers(tokens, blocks, heads, activation, epsilon, precision)
    plan = custom_ops.pack_encoder(blocks, heads, precision, activation, epsilon)
    out = custom_ops.encoder(tokens, plan)
    first = custom_ops.encoder(tokens, plan, first_row_only=True)
    assert out.dtype == first.dtype == "float32"
    assert_as_good(out, plain, expected, precision)
    assert_as_good(first, plain[:, :1], expected[:, :1], precision)


# (tokens [B, N, D], heads, MLP size, features of the blocks, tokens without a rotary position)
MODERN = {
    "swiglu": ([2, 5, 24], 3, 70, {"swiglu": True}, None),
    "swiglu of whole panels": ([2, 5, 64], 1, 64, {"swiglu": True}, None),
    "no bias of keys": ([2, 5, 24], 3, 10, {"key_bias": False}, None),
    "no bias of queries, keys and values": ([2, 5, 24], 3, 10, {"qkv_bias": False}, None),
    "rotary, whole heads in a panel": ([2, 9, 128], 2, 10, {}, 5),
    "rotary, a panel of queries and keys": ([1, 6, 96], 3, 10, {}, 0),
    "rotary, parts of heads": ([2, 7, 144], 2, 10, {}, 1),
    "rotary, no patch": ([1, 3, 12], 2, 5, {}, 3),
    "norm": ([2, 5, 64], 1, 10, {"qk_norm": True}, None),
    "norm, parts of heads": ([2, 5, 27], 3, 10, {"qk_norm": True}, None),
    "all": ([2, 6, 48], 3, 33, {"swiglu": True, "qk_norm": True, "key_bias": False}, 1),
    "all, parts of heads": ([2, 6, 36], 3, 31, {"swiglu": True, "qk_norm": True}, 1),
    "all, one token": ([1, 1, 16], 2, 3, {"swiglu": True, "qk_norm": True}, 0),
}


@pytest.mark.parametrize(
    ("case", "precision", "each_implementation"),
    pairwise(list(MODERN), PRECISIONS, ["reference", "compiled"]),
    indirect=["each_implementation"],
)
def test_blocks_of_modern_models_are_as_good_as_plain_layers(case, precision, each_implementation):
    shape, heads, mlp_size, features, prefix = MODERN[case]
    blocks = stack(shape[2], heads, mlp_size, **features)
    activation = "swiglu" if "swiglu" in features else "gelu_erf"
    rotary = None if prefix is None else rotary_table(shape[1] - prefix, shape[2] // heads)
    tokens, options = draw(shape), {"activation": activation, "epsilon": 1e-5}
    expected, _ = oracle.encoder(exact(tokens), as_float64(blocks), heads, **options, rotary=rotary)
    plain = plain_layers(tokens, blocks, heads, **options, dtype=precision, rotary=rotary)
    plan = custom_ops.pack_encoder(blocks, heads, precision, **options)
    assert plan.mlp_size == mlp_size and plan.qk_norm == ("qk_norm" in features)
    for _ in each_isa() if each_implementation == "compiled" else ["the reference"]:
        out = custom_ops.encoder(tokens, plan, rotary=rotary)
        first = custom_ops.encoder(tokens, plan, rotary=rotary, first_row_only=True)
        assert_as_good(out, plain, expected, precision)
        assert_as_good(first, plain[:, :1], expected[:, :1], precision)


@pytest.mark.parametrize("pooling", ["none", "token", "mean"])
def test_a_model_turns_the_queries_and_keys_of_its_patches(pooling):
    """The op of a whole model computes what its parts compute one after the other."""
    plan = custom_ops.pack_encoder(
        stack(swiglu=True, qk_norm=True, key_bias=False), 3, activation="swiglu"
    )
    images, kernel, bias, prefix = (
        draw(shape, seed=i) for i, shape in enumerate([[2, 9, 12, 3], [4, 4, 3, 12], [12], [2, 12]])
    )
    rotary, norm = tf.constant(rotary_table(6, 4)), (draw([12], seed=5), draw([12], seed=6))
    tokens = custom_ops.patch_embed(images, kernel, bias, prefix=prefix)
    tokens = custom_ops.encoder(tokens, plan, rotary=rotary)
    mean, variance = tf.nn.moments(tokens, axes=[-1], keepdims=True)
    expected = tf.nn.batch_normalization(tokens, mean, variance, norm[1], norm[0], plan.epsilon)
    if pooling != "none":
        expected = expected[:, 0] if pooling == "token" else tf.reduce_mean(expected, axis=1)
    packed = model_op.pack_model(plan, kernel, bias, prefix, None, norm, None, rotary)
    for _ in each_isa():
        found = model_op.model(images, 1.0, 0.0, packed, pooling=pooling, has_head=False)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_activations_are_rounded_to_bfloat16_where_products_of_it_are_fast(
    precision, each_implementation
):
    """Kernels are identities, and one token attends to itself alone."""
    block = {key: np.zeros_like(array) for key, array in published(8, 1, 8).items()}
    block |= {f"LayerNorm_{i}/scale": np.ones(8, "float32") for i in (0, 2)}
    identity = np.eye(8, dtype="float32")
    block[f"{ATTENTION}/value/kernel"] = identity[:, None]
    block[f"{ATTENTION}/out/kernel"] = identity[None]
    block |= {f"{MLP}/Dense_{i}/kernel": identity for i in (0, 1)}
    value, hidden = exact(draw([8], seed=1)), exact(draw([8], seed=2))
    block[f"{ATTENTION}/value/bias"] = value[None].astype("float32")
    block[f"{MLP}/Dense_0/bias"] = hidden.astype("float32")

    plan = custom_ops.pack_encoder([block], 1, precision, "gelu_erf")
    tokens = draw([1, 1, 8])
    for isa in each_isa() if each_implementation == "compiled" else ["the reference"]:
        # Other sets multiply bfloat16 weights with float32.
        rounds = isa in ("the reference", "avx512_bf16", "amx")

        def rounded(x, dtype=precision if rounds else "float32"):
            return exact(tf.cast(tf.constant(x), dtype))

        def norm(x, rounded=rounded):
            return rounded((x - x.mean()) / np.sqrt(x.var() + 1e-6))

        x = exact(tokens)
        x += rounded(norm(x) + value)
        y = norm(x) + hidden
        expected = x + rounded(y * (1 + np.vectorize(math.erf)(y / math.sqrt(2))) / 2)
        np.testing.assert_allclose(custom_ops.encoder(tokens, plan), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("activation", ["gelu_tanh", "gelu_erf"])
@pytest.mark.parametrize("hidden", [np.inf, -np.inf])
def test_an_infinite_activation_gives_what_the_reference_gives(activation, precision, hidden):
    block = {key: np.zeros_like(array) for key, array in published(8, 1, 8).items()}
    block[f"{MLP}/Dense_0/bias"] += hidden
    block[f"{MLP}/Dense_1/kernel"] += 1
    plan = custom_ops.pack_encoder([block], 1, precision, activation)
    tokens = draw([1, 2, 8])
    expected = encoder_reference.encoder(tokens, plan)
    for _ in each_isa():
        found = custom_ops.encoder(tokens, plan, implementation="compiled")
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_near_the_reference(precision):
    """The stream of tokens is not rounded: the bound is far below bfloat16's error of a stream."""
    plan = custom_ops.pack_encoder([published(48, 3, 96, i) for i in range(6)], 3, precision)
    tokens = draw([2, 37, 48])
    expected = encoder_reference.encoder(tokens, plan)
    scale = np.abs(expected).max()
    for _ in each_isa():
        error = np.abs(custom_ops.encoder(tokens, plan, implementation="compiled") - expected)
        assert error.max() < (1e-5 if precision == "float32" else 0.02) * scale
        assert np.sqrt(np.mean(error**2)) < (1e-6 if precision == "float32" else 4e-3) * scale


def test_slices_of_images():
    """More than 8192 tokens are computed in slices of images, which changes no bit."""
    plan = small_plan()
    tokens = draw([9, 1000, 12])
    for first in (False, True):

        def run(tokens, first=first):
            return custom_ops.encoder(
                tokens, plan, first_row_only=first, implementation="compiled"
            ).numpy()

        images = [run(tokens[i : i + 1]) for i in range(9)]
        np.testing.assert_array_equal(run(tokens), np.concatenate(images))


@pytest.mark.usefixtures("each_implementation")
def test_no_token():
    plan = small_plan()
    assert custom_ops.encoder(tf.zeros([2, 0, 12]), plan).shape == [2, 0, 12]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_attention_of_every_block(precision):
    """The projection that `run_block` attends with gives the weights from the class token."""
    blocks, tokens = stack(), draw([2, 5, 12])
    _, weights = oracle.encoder(exact(tokens), as_float64(blocks), 3, "gelu_tanh", 1e-6)
    plan = custom_ops.pack_encoder(blocks, 3, precision)
    rows = []

    def attention(qkv, num_heads):
        attended, taps = custom_ops.attention_with_taps(qkv, num_heads, ("class_row",))
        rows.append(taps["class_row"])
        return attended

    for i, expected in enumerate(weights):
        tokens = encoder_reference.run_block(tokens, plan, i, attention=attention)
        bound = 20 * EPSILON[precision]
        np.testing.assert_allclose(rows[i], expected[:, :, 0], rtol=bound, atol=bound)


@pytest.mark.usefixtures("each_implementation")
@pytest.mark.parametrize("in_graph", [False, True])
def test_a_gradient_is_refused(in_graph):
    plan = small_plan()

    def gradient(tokens):
        with tf.GradientTape() as tape:
            tape.watch(tokens)
            loss = tf.reduce_sum(custom_ops.encoder(2 * tokens, plan))
        return tape.gradient(loss, tokens)

    gradient = tf.function(gradient) if in_graph else gradient
    # AutoGraph replaces the LookupError by an error of its own with the same message.
    with pytest.raises(Exception, match="inference.*pack them"):
        gradient(draw([2, 5, 12]))


@pytest.mark.parametrize("jit", [False, True])
def test_in_graphs(jit, each_implementation):
    """With `jit_compile=True` the compiled op runs too, in the library for XLA."""
    plan, rotary = small_plan("bfloat16"), rotary_table(1, 4)

    @tf.function(jit_compile=jit)
    def run(tokens):
        plain = [custom_ops.encoder(tokens, plan, first_row_only=row) for row in (False, True)]
        return [*plain, custom_ops.encoder(tokens, plan, rotary=rotary)]

    found = run.get_concrete_function(tf.TensorSpec([None, None, 12])).outputs
    every = [None, None, 12]
    assert [x.shape.as_list() for x in found] == [every, [None, 1, 12], every]
    compiled = each_implementation == "compiled"
    for shape in ([2, 5, 12], [0, 1, 12]):
        tokens = draw(shape)
        assert compiled_ops(run, tokens) == (
            {"VitEncoder", "VitRotaryEncoder"} if compiled else set()
        )
        for actual, expected in zip(run(tokens), run.python_function(tokens), strict=True):
            if compiled:
                np.testing.assert_array_equal(actual, expected)
            else:
                # XLA may keep float32 where TensorFlow rounds to bfloat16.
                np.testing.assert_allclose(actual, expected, rtol=0, atol=0.02)


def test_sizes_known_only_at_run_time_are_checked(each_implementation):
    plan = small_plan()

    @tf.function(input_signature=[tf.TensorSpec(None)])
    def run(tokens):
        return custom_ops.encoder(tf.reshape(tokens, [2, -1, 12]), plan, first_row_only=True)

    @tf.function(input_signature=[tf.TensorSpec([None, None, None])])
    def any_width(tokens):
        return custom_ops.encoder(tokens, plan)

    assert run(tf.zeros([2, 3, 12])).shape == [2, 1, 12]
    assert any_width(tf.zeros([2, 3, 12])).shape == [2, 3, 12]

    @tf.function(input_signature=[tf.TensorSpec([None, None, None])])
    def any_rotary(rotary):
        return custom_ops.encoder(tf.zeros([2, 3, 12]), plan, rotary=rotary)

    assert any_rotary(tf.zeros([3, 2, 2])).shape == [2, 3, 12]
    no_row, wrong_width = {
        "compiled": (r"\[2, 0, 12\].*first row", r"weights\[0\] .*width 9"),
        "reference": (r"\[2,0,12\]", r"\[2,3,9\]"),
    }[each_implementation]
    with pytest.raises(tf.errors.InvalidArgumentError, match=no_row):
        run(tf.zeros([2, 0, 12]))
    with pytest.raises(tf.errors.InvalidArgumentError, match=wrong_width):
        any_width(tf.zeros([2, 3, 9]))
    with pytest.raises(tf.errors.InvalidArgumentError):
        any_rotary(tf.zeros([4, 2, 2]))


class Served(tf.Module):
    """A SavedModel of a plan."""

    def __init__(self, plan):
        super().__init__()
        self.weights, self.biases, self.plan = plan.weights, plan.biases, lambda: plan

    @tf.function(input_signature=[tf.TensorSpec([None, None, 12])])
    def __call__(self, tokens):
        return custom_ops.encoder(tokens, self.plan())


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_saved_model_computes_the_same(precision, each_implementation, tmp_path):
    plan, tokens = small_plan(precision), draw([2, 5, 12])
    expected = custom_ops.encoder(tokens, plan)
    tf.saved_model.save(Served(plan), str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    np.testing.assert_allclose(loaded(tokens), expected, rtol=1e-5, atol=1e-5)
    again = dataclasses.replace(plan, weights=loaded.weights, biases=loaded.biases)
    np.testing.assert_array_equal(custom_ops.encoder(tokens, again), expected)
    names = nodes(read_model(tmp_path)).keys()
    assert ("VitEncoder" in names) == (each_implementation == "compiled")


@pytest.mark.usefixtures("auto")
def test_a_saved_model_of_before_lacks_newer_attributes(tmp_path):
    plan, tokens = small_plan(), draw([2, 5, 12])
    with custom_ops.implementation("compiled"):
        tf.saved_model.save(Served(plan), str(tmp_path))
    model = read_model(tmp_path)
    for node in nodes(model)["VitEncoder"]:
        node.attr.pop("qk_norm", None)
    (tmp_path / "saved_model.pb").write_bytes(model.SerializeToString())
    loaded = tf.saved_model.load(str(tmp_path))
    np.testing.assert_array_equal(loaded(tokens), custom_ops.encoder(tokens, plan))


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        ("layout", 2, "layout 2, .*layout 1"),
        ("mlp_size", 8, r"weights\[0\].*2752.*2816"),
        ("num_heads", 5, "multiple of num_heads = 5"),
    ],
)
def test_a_saved_model_that_does_not_fit_is_refused(attribute, value, message, tmp_path):
    with custom_ops.implementation("compiled"):
        tf.saved_model.save(Served(small_plan()), str(tmp_path))
    model = read_model(tmp_path)
    [node] = nodes(model)["VitEncoder"]
    node.attr[attribute].i = value
    (tmp_path / "saved_model.pb").write_bytes(model.SerializeToString())
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=message):
        tf.saved_model.load(str(tmp_path))


def read_model(folder):
    return saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())


def nodes(model):
    """The nodes of a SavedModel by the name of their op."""
    graph = model.meta_graphs[0].graph_def
    found = {}
    for node in (*graph.node, *(n for f in graph.library.function for n in f.node_def)):
        found.setdefault(node.op, []).append(node)
    return found
