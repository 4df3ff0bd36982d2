"""The encoder over packed weights: packing, values of both implementations, graphs and errors."""

import dataclasses
import math
import weakref

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import custom_ops
from custom_ops import encoder_reference, loader, packing, reference
from tests.custom_ops import oracle
from tests.custom_ops.compare import compiled_ops, draw, each_isa, exact
from tests.tolerances import EPSILON, assert_as_good

PRECISIONS = ("float32", "bfloat16")
ATTENTION, MLP = "MultiHeadDotProductAttention_1", "MlpBlock_3"


def published(width, heads, mlp_size, seed=0):
    """Random arrays of a block, float32, by their published keys."""
    generator = np.random.default_rng([seed, width, heads, mlp_size])
    head = (heads, width // heads)

    def normal(*shape, size=0.3):
        return (size * generator.normal(size=shape)).astype(np.float32)

    block = {}
    for name in ("LayerNorm_0", "LayerNorm_2"):
        block |= {f"{name}/scale": 1 + normal(width), f"{name}/bias": normal(width)}
    for part in ("query", "key", "value"):
        block[f"{ATTENTION}/{part}/kernel"] = normal(width, *head, size=width**-0.5)
        block[f"{ATTENTION}/{part}/bias"] = normal(*head)
    block[f"{ATTENTION}/out/kernel"] = normal(*head, width, size=width**-0.5)
    block[f"{ATTENTION}/out/bias"] = normal(width)
    block[f"{MLP}/Dense_0/kernel"] = normal(width, mlp_size, size=width**-0.5)
    block[f"{MLP}/Dense_0/bias"] = normal(mlp_size)
    block[f"{MLP}/Dense_1/kernel"] = normal(mlp_size, width, size=mlp_size**-0.5)
    block[f"{MLP}/Dense_1/bias"] = normal(width)
    return block


def stack(width=12, heads=3, mlp_size=7, layers=2):
    return [published(width, heads, mlp_size, seed) for seed in range(layers)]


def small_plan(precision="float32", **options):
    return custom_ops.pack_encoder(stack(), 3, precision, **options)


def plain_layers(tokens, blocks, heads, activation, epsilon, dtype):
    """The blocks as layers of plain TensorFlow, everything in the dtype."""
    tokens = tf.cast(tokens, dtype)
    count, width = tokens.shape[1:]

    def norm(x, block, name):
        scale, bias = (tf.cast(block[f"{name}/{part}"], dtype) for part in ("scale", "bias"))
        mean, variance = tf.nn.moments(x, axes=[-1], keepdims=True)
        return tf.nn.batch_normalization(x, mean, variance, bias, scale, epsilon)

    def dense(x, block, name, rows, columns):
        kernel = tf.reshape(tf.cast(block[f"{name}/kernel"], dtype), [rows, columns])
        bias = tf.reshape(tf.cast(block[f"{name}/bias"], dtype), [columns])
        x = tf.matmul(tf.reshape(x, [-1, rows]), kernel) + bias
        return tf.reshape(x, [-1, count, columns])

    for block in blocks:
        mlp_size = block[f"{MLP}/Dense_0/bias"].size
        y = norm(tokens, block, "LayerNorm_0")
        parts = ("query", "key", "value")
        qkv = [dense(y, block, f"{ATTENTION}/{part}", width, width) for part in parts]
        y = reference.attention(tf.concat(qkv, axis=-1), heads)
        tokens += dense(y, block, f"{ATTENTION}/out", width, width)
        y = dense(norm(tokens, block, "LayerNorm_2"), block, f"{MLP}/Dense_0", width, mlp_size)
        y = tf.nn.gelu(y, approximate=activation == "gelu_tanh")
        tokens += dense(y, block, f"{MLP}/Dense_1", mlp_size, width)
    return tokens


def as_float64(blocks):
    return [{key: array.astype(np.float64) for key, array in block.items()} for block in blocks]


# Values -------------------------------------------------------------------------------------------

# (tokens [B, N, D], heads, MLP size, layers, activation, epsilon, mean of the tokens)
CASES = {
    "usual": ([2, 17, 128], 2, 256, 2, "gelu_tanh", 1e-6, 0.0),
    "exact gelu, sizes beside panels": ([3, 5, 70], 5, 130, 2, "gelu_erf", 1e-6, 0.0),
    "odd sizes, large epsilon": ([1, 10, 27], 3, 65, 3, "gelu_tanh", 0.5, 0.0),
    "one token": ([1, 1, 9], 1, 3, 2, "gelu_erf", 1e-6, 0.0),
    "one head of width 1": ([2, 3, 1], 1, 1, 1, "gelu_tanh", 1e-2, 0.0),
    "mean far from 0": ([1, 33, 96], 1, 64, 1, "gelu_tanh", 1e-6, 100.0),
    "no image": ([0, 5, 12], 3, 7, 1, "gelu_tanh", 1e-6, 0.0),
}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("case", CASES)
def test_values(case, precision, each_implementation):
    """Both results have at most twice the error of plain layers in the dtype, plus rounding."""
    shape, heads, mlp_size, layers, activation, epsilon, mean = CASES[case]
    blocks = stack(shape[2], heads, mlp_size, layers)
    tokens = draw(shape) + mean
    expected, _ = oracle.encoder(exact(tokens), as_float64(blocks), heads, activation, epsilon)
    plain = plain_layers(tokens, blocks, heads, activation, epsilon, precision)
    plan = custom_ops.pack_encoder(blocks, heads, precision, activation, epsilon)
    for _ in each_isa() if each_implementation == "compiled" else [None]:
        out = custom_ops.encoder(tokens, plan)
        first = custom_ops.encoder(tokens, plan, first_row_only=True)
        assert out.dtype == first.dtype == "float32"
        assert_as_good(out, plain, expected, precision)
        assert_as_good(first, plain[:, :1], expected[:, :1], precision)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_is_rounded_to_bfloat16(precision, each_implementation):
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
    tokens = draw([5, 2100, 12])
    for first in (False, True):

        def run(tokens, first=first):
            return custom_ops.encoder(
                tokens, plan, first_row_only=first, implementation="compiled"
            ).numpy()

        images = [run(tokens[i : i + 1]) for i in range(5)]
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


# Packing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("sizes", [(6, 2, 5), (27, 3, 65), (66, 1, 128)])
def test_every_element_is_where_the_layout_says(sizes, precision):
    width, heads, mlp_size = sizes
    block = published(*sizes)
    plan = custom_ops.pack_encoder([block], heads, precision)
    [weights], [biases] = plan.weights, plan.biases
    assert weights.dtype == precision and biases.dtype == "float32"
    assert not weights.trainable and not biases.trainable
    k = 1 if precision == "float32" else 2
    packed, at = exact(weights), 0
    unpacked = encoder_reference.unpack_block(plan, 0)
    for layer, (kernel, _) in folded(block).items():
        rows, columns = kernel.shape
        steps, panels = math.ceil(rows / k), math.ceil(columns / 64)
        rounded = exact(tf.cast(tf.constant(kernel), precision))
        expected = np.zeros([panels, steps, 64, k])
        for row in range(rows):
            for column in range(columns):
                expected[column // 64, row // k, column % 64, row % k] = rounded[row, column]
        np.testing.assert_array_equal(packed[at : at + expected.size], expected.ravel())
        at += expected.size
        assert unpacked[f"{layer}/kernel"].dtype == precision
        np.testing.assert_array_equal(exact(unpacked[f"{layer}/kernel"]), rounded)
    assert at == packed.size == packing.weights_size(width, mlp_size, precision)
    expected = np.concatenate([bias for _, bias in folded(block).values()])
    np.testing.assert_allclose(biases, expected, rtol=1e-6, atol=1e-7)
    split = [unpacked[f"{layer}/bias"] for layer in ("qkv", "out", "fc1", "fc2")]
    np.testing.assert_array_equal(tf.concat(split, axis=0), biases)


def folded(block):
    """The dense layers with the LayerNorms before them folded, in float64."""
    [block] = as_float64([block])
    width = block["LayerNorm_0/scale"].size

    def fold(norm, kernel, bias):
        scale, shift = block[f"{norm}/scale"], block[f"{norm}/bias"]
        return np.diag(scale) @ kernel, bias + shift @ kernel

    parts = [f"{ATTENTION}/{part}" for part in ("query", "key", "value")]
    kernel = np.concatenate([block[f"{x}/kernel"].reshape(width, -1) for x in parts], axis=1)
    bias = np.concatenate([block[f"{x}/bias"].ravel() for x in parts])
    out = block[f"{ATTENTION}/out/kernel"].reshape(-1, width), block[f"{ATTENTION}/out/bias"]
    first, second = (
        (block[f"{MLP}/Dense_{i}/kernel"], block[f"{MLP}/Dense_{i}/bias"]) for i in (0, 1)
    )
    return {
        "qkv": fold("LayerNorm_0", kernel, bias),
        "out": out,
        "fc1": fold("LayerNorm_2", *first),
        "fc2": second,
    }


def test_packing_needs_no_library_and_takes_tensors_of_any_float(monkeypatch):
    monkeypatch.setattr(loader, "library", lambda: pytest.fail("loaded"))
    halves = [{key: array.astype(np.float16) for key, array in b.items()} for b in stack()]
    tensors = [{key: tf.constant(array) for key, array in block.items()} for block in halves]
    expected = [{key: array.astype(np.float64) for key, array in b.items()} for b in halves]
    found, expected = (custom_ops.pack_encoder(blocks, 3) for blocks in (tensors, expected))
    pairs = zip(found.weights + found.biases, expected.weights + expected.biases, strict=True)
    for one, other in pairs:
        np.testing.assert_array_equal(one, other)


def test_blocks_are_read_one_at_a_time():
    arrays = []

    def read():
        for seed in range(5):
            block = published(12, 3, 7, seed)
            arrays.append(weakref.ref(block[f"{MLP}/Dense_0/kernel"]))
            assert sum(array() is not None for array in arrays) <= 2
            yield block

    assert len(custom_ops.pack_encoder(read(), 3).weights) == 5


# Errors -------------------------------------------------------------------------------------------


def changed(key, array):
    return [stack()[0], published(12, 3, 7) | {key: array}]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"precision": "int8"}, 'precision="int8" is not supported. Use "bfloat16"'),
        ({"precision": "float16"}, "precision='float16' is unknown. Use \"float32\" or"),
        ({"activation": "relu"}, "activation='relu' is unknown. Use \"gelu_tanh\" or"),
        ({"epsilon": 0}, "epsilon=0 must be a number in"),
        ({"epsilon": 1e-40}, "epsilon=1e-40 must be"),
        ({"epsilon": float("nan")}, "epsilon=nan must be"),
        ({"epsilon": "1e-6"}, "epsilon='1e-6' must be"),
        ({"num_heads": 0}, "num_heads must be a positive integer. Received: 0"),
        ({"num_heads": 5}, "width of the tokens is 12, which num_heads=5 does not divide"),
        ({"num_heads": 4}, r"query/kernel has shape \(12, 3, 4\).* \(12, 4, 3\).*num_heads=4"),
        ({"blocks": []}, "blocks is empty"),
        ({"blocks": stack()[0]}, r"blocks\[0\] is a str, but it must be a dict"),
        ({"blocks": [{}]}, r"blocks\[0\] has no array 'LayerNorm_0/scale'.*B.2"),
        ({"blocks": [stack()[0], stack(width=15)[0]]}, r"blocks\[1\].*\(15,\).*\(12,\): width 12"),
        (
            {"blocks": changed(f"{MLP}/Dense_1/kernel", np.zeros([12, 7], "float32"))},
            r"blocks\[1\]: MlpBlock_3/Dense_1/kernel has shape \(12, 7\), .* \(7, 12\).*mlp_size 7",
        ),
        ({"blocks": changed("rel_pos", np.zeros(3))}, r"blocks\[1\] has the array 'rel_pos'"),
        ({"blocks": changed("LayerNorm_2/bias", np.zeros(12, int))}, "bias has dtype int64. Cast"),
        ({"blocks": [stack()[0] | {"LayerNorm_0/scale": np.ones([1, 12])}]}, r"\(1, 12\).*1 dim"),
    ],
)
def test_illegal_arguments_of_packing_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        custom_ops.pack_encoder(**({"blocks": stack(), "num_heads": 3} | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layout": 2}, "packed in layout 2, but this version of custom_ops reads layout 1"),
        ({"weights": []}, "Received: 0 weights and 2 biases"),
        ({"biases": [tf.zeros(67)]}, "Received: 2 weights and 1 biases"),
        ({"precision": "bfloat16"}, r"weights\[0\] has dtype float32, but it must be bfloat16"),
        ({"weights": [np.zeros(9)] * 2}, r"weights\[0\] is a ndarray. Make it a tf.Variable"),
        ({"weights": [tf.zeros(2751)] * 2}, r"weights\[0\] has shape \(2751,\).*\(2752,\) for"),
        ({"biases": [tf.zeros([67]), tf.zeros([66])]}, r"biases\[1\] has shape \(66,\).*\(67,\)"),
        ({"biases": [tf.zeros([67], "float64")] * 2}, r"biases\[0\] has dtype float64"),
        ({"mlp_size": 8}, r"weights\[0\].*mlp_size=8.*truncated, or packed for another"),
        ({"width": 15}, r"weights\[0\].*width=15"),
        ({"width": 13}, "width of the tokens is 13, which num_heads=3"),
        ({"mlp_size": 0}, "mlp_size must be a positive integer"),
        ({"activation": None}, "activation=None is unknown"),
    ],
)
def test_variables_that_are_no_plan_are_refused(changes, message):
    fields = vars(small_plan())
    assert custom_ops.EncoderPlan(**fields).width == 12
    with pytest.raises(ValueError, match=message):
        custom_ops.EncoderPlan(**(fields | changes))


@pytest.mark.parametrize(
    ("tokens", "options", "message"),
    [
        (np.zeros([2, 5, 12]), {}, "tokens have dtype float64. Cast them to float32"),
        (tf.zeros([5, 12]), {}, r"shape \(5, 12\).*\[B, N, D\]"),
        (tf.zeros([2, 5, 15]), {}, r"\(2, 5, 15\).*\[B, N, 12\]"),
        (tf.zeros([2, 0, 12]), {"first_row_only": True}, r"\(2, 0, 12\): first_row_only"),
        (tf.zeros([2, 5, 12]), {"first_row_only": None}, "first_row_only=None must be True or"),
        (tf.zeros([2, 5, 12]), {"plan": stack()}, "plan is a list, but .*pack_encoder"),
        (tf.zeros([2, 5, 12]), {"implementation": "fast"}, "implementation='fast' is unknown"),
    ],
)
def test_illegal_arguments_of_the_call_are_named(tokens, options, message):
    with pytest.raises(ValueError, match=message):
        custom_ops.encoder(tokens, **({"plan": small_plan()} | options))


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
    with pytest.raises(Exception, match="custom_ops.encoder is for inference.*pack them again"):
        gradient(draw([2, 5, 12]))


# Graphs and saved models --------------------------------------------------------------------------


@pytest.mark.parametrize("jit", [False, True])
def test_in_graphs(jit, each_implementation):
    """With `jit_compile=True` the compiled op runs too, in the library for XLA."""
    plan = small_plan("bfloat16")

    @tf.function(jit_compile=jit)
    def run(tokens):
        return [custom_ops.encoder(tokens, plan, first_row_only=row) for row in (False, True)]

    both = run.get_concrete_function(tf.TensorSpec([None, None, 12])).outputs
    assert [x.shape.as_list() for x in both] == [[None, None, 12], [None, 1, 12]]
    compiled = each_implementation == "compiled"
    for shape in ([2, 5, 12], [0, 5, 12], [1, 1, 12], [3, 9, 12]):
        tokens = draw(shape)
        assert compiled_ops(run, tokens) == ({"VitEncoder"} if compiled else set())
        for actual, expected in zip(run(tokens), run.python_function(tokens), strict=True):
            if compiled:
                np.testing.assert_array_equal(actual, expected)
            else:
                # XLA may keep float32 where TensorFlow rounds to bfloat16.
                np.testing.assert_allclose(actual, expected, rtol=0, atol=0.02)


@pytest.mark.usefixtures("each_implementation")
def test_sizes_known_only_at_run_time_are_checked():
    plan = small_plan()

    @tf.function(input_signature=[tf.TensorSpec(None)])
    def run(tokens):
        return custom_ops.encoder(tf.reshape(tokens, [2, -1, 12]), plan, first_row_only=True)

    @tf.function(input_signature=[tf.TensorSpec([None, None, None])])
    def any_width(tokens):
        return custom_ops.encoder(tokens, plan)

    assert run(tf.zeros([2, 3, 12])).shape == [2, 1, 12]
    assert any_width(tf.zeros([2, 3, 12])).shape == [2, 3, 12]
    with pytest.raises(tf.errors.InvalidArgumentError):
        run(tf.zeros([2, 0, 12]))
    with pytest.raises(tf.errors.InvalidArgumentError):
        any_width(tf.zeros([2, 3, 9]))


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


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        ("layout", 2, "packed in layout 2, but this version of custom_ops reads layout 1. Pack"),
        ("mlp_size", 8, r"weights\[0\] has shape \[2752\], .* \[2816\].*truncated, or"),
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
