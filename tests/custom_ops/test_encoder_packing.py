"""The weights of the encoder: how they are packed, and what is refused."""

import math
import weakref

import numpy as np
import pytest
import tensorflow as tf

import custom_ops
from custom_ops import encoder_reference, loader, packing
from tests.custom_ops.compare import exact
from tests.custom_ops.encoder_blocks import ATTENTION, MLP, as_float64, published, small_plan, stack


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
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


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("mlp_size", [1, 32, 70])
def test_a_panel_of_swiglu_has_gates_and_what_they_multiply(mlp_size, precision):
    width = 6
    block = published(width, 2, mlp_size, swiglu=True)
    block |= {"LayerNorm_2/scale": np.ones(width), "LayerNorm_2/bias": np.zeros(width)}
    plan = custom_ops.pack_encoder([block], 2, precision, "swiglu")
    assert (plan.width, plan.mlp_size) == (width, mlp_size)
    kernel = exact(tf.cast(tf.constant(block[f"{MLP}/Dense_0/kernel"]), precision))
    k = 1 if precision == "float32" else 2
    panels = math.ceil(mlp_size / 32)
    packed = exact(plan.weights[0])[2 * width // k * 64 * k :]  # behind qkv and out
    packed = packed[: panels * width * 64].reshape(panels, width // k, 64, k)
    for panel in range(panels):
        for column in range(64):
            number = 32 * panel + column % 32
            expected = np.zeros(width)
            if number < mlp_size:
                expected = kernel[:, number + (column >= 32) * mlp_size]
            np.testing.assert_array_equal(packed[panel, :, column].ravel(), expected)
    unpacked = encoder_reference.unpack_block(plan, 0)
    np.testing.assert_array_equal(exact(unpacked["fc1/kernel"]), kernel)
    np.testing.assert_array_equal(unpacked["fc1/bias"], block[f"{MLP}/Dense_0/bias"])


def test_the_norm_of_queries_and_keys_follows_the_biases():
    block = published(12, 3, 7, qk_norm=True)
    [biases] = custom_ops.pack_encoder([block], 3).biases
    norms = [block[f"{ATTENTION}/{x}_ln/{y}"] for x in ("query", "key") for y in ("scale", "bias")]
    np.testing.assert_array_equal(biases[67:], np.concatenate(norms))


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


def changed(key, array):
    return [stack()[0], published(12, 3, 7) | {key: array}]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"precision": "int8"}, 'precision="int8"'),
        ({"precision": "float16"}, "precision='float16'"),
        ({"activation": "relu"}, "activation='relu'"),
        ({"epsilon": 0}, "epsilon=0 "),
        ({"epsilon": 1e-40}, "epsilon=1e-40 must be"),
        ({"epsilon": float("nan")}, "epsilon=nan must be"),
        ({"epsilon": "1e-6"}, "epsilon='1e-6' must be"),
        ({"num_heads": 0}, "num_heads.*: 0"),
        ({"num_heads": 5}, "12.*num_heads=5"),
        ({"num_heads": 4}, r"\(12, 4, 3\).*num_heads=4"),
        ({"blocks": []}, "blocks is empty"),
        ({"blocks": stack()[0]}, r"blocks\[0\] is a str"),
        ({"blocks": [{}]}, r"\[0\] has no .*Norm_0/scale"),
        ({"blocks": [stack()[0], stack(width=15)[0]]}, r"blocks\[1\].*15.*12.*width"),
        (
            {"blocks": changed(f"{MLP}/Dense_1/kernel", np.zeros([12, 7], "float32"))},
            r"\[1\].*kernel .*12, 7.*7, 12",
        ),
        ({"blocks": changed("rel_pos", np.zeros(3))}, r"blocks\[1\].*'rel_pos'"),
        ({"blocks": changed("LayerNorm_2/bias", np.zeros(12, int))}, "bias.*int64"),
        ({"blocks": [stack()[0] | {"LayerNorm_0/scale": np.ones([1, 12])}]}, r"\(1, 12\).*1 dim"),
        ({"activation": "swiglu"}, r"blocks\[0\].*7 columns.*gate and up"),
        (
            {"blocks": changed(f"{ATTENTION}/query_ln/scale", np.ones(4, "float32"))},
            r"blocks\[1\].*query_ln/scale.*does not have",
        ),
        (
            {"blocks": [*stack(layers=1, qk_norm=True), *stack(layers=1)]},
            r"blocks\[1\] has no array .*query_ln/scale",
        ),
    ],
)
def test_illegal_arguments_of_packing_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        custom_ops.pack_encoder(**({"blocks": stack(), "num_heads": 3} | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layout": 2}, "layout 2, .*layout 1"),
        ({"weights": []}, "0 weights and 2 biases"),
        ({"biases": [tf.zeros(67)]}, "2 weights and 1 biases"),
        ({"precision": "bfloat16"}, r"\[0\].*float32.*bfloat16"),
        ({"weights": [np.zeros(9)] * 2}, r"weights\[0\].*ndarray"),
        ({"weights": [tf.zeros(2751)] * 2}, r"weights\[0\].*2751.*2752"),
        ({"biases": [tf.zeros([67]), tf.zeros([66])]}, r"biases\[1\].*66.*67"),
        ({"biases": [tf.zeros([67], "float64")] * 2}, r"biases\[0\].*float64"),
        ({"mlp_size": 8}, r"weights\[0\].*mlp_size=8"),
        ({"width": 15}, r"weights\[0\].*width=15"),
        ({"width": 13}, "13.*num_heads=3"),
        ({"mlp_size": 0}, "mlp_size.*positive"),
        ({"activation": None}, "activation=None"),
        ({"activation": "swiglu"}, r"biases\[0\].*67.*74.*swiglu"),
        ({"qk_norm": True}, r"biases\[0\].*67.*83.*qk_norm=True"),
        ({"qk_norm": None}, "qk_norm=None"),
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
        (np.zeros([2, 5, 12]), {}, "tokens.*float64.*float32"),
        (tf.zeros([5, 12]), {}, r"\(5, 12\).*\[B, N, D\]"),
        (tf.zeros([2, 5, 15]), {}, r"\(2, 5, 15\).*N, 12"),
        (tf.zeros([2, 0, 12]), {"first_row_only": True}, r"\(2, 0, 12\).*first_row"),
        (tf.zeros([2, 5, 12]), {"first_row_only": None}, "first_row_only=None"),
        (tf.zeros([2, 5, 12]), {"plan": stack()}, "plan.*list.*pack_encoder"),
        (tf.zeros([2, 5, 12]), {"implementation": "fast"}, "implementation='fast'"),
        (tf.zeros([2, 5, 12]), {"rotary": np.zeros([4, 2, 2])}, "rotary.*float64"),
        (tf.zeros([2, 5, 12]), {"rotary": tf.zeros([4, 4])}, r"rotary.*\(4, 4\).*\(P, 2, 2\)"),
        (tf.zeros([2, 5, 12]), {"rotary": tf.zeros([4, 2, 4])}, r"\(4, 2, 4\).*\(P, 2, 2\)"),
        (tf.zeros([2, 5, 12]), {"rotary": tf.zeros([6, 2, 2])}, "6 rows.*5 tokens"),
        (
            tf.zeros([2, 5, 9]),
            {"rotary": tf.zeros([5, 2, 2]), "plan": custom_ops.pack_encoder(stack(9), 3)},
            "heads have 3 elements",
        ),
    ],
)
def test_illegal_arguments_of_the_call_are_named(tokens, options, message):
    with pytest.raises(ValueError, match=message):
        custom_ops.encoder(tokens, **({"plan": small_plan()} | options))
