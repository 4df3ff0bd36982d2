"""Inputs that the compiled ops reject, in eager calls and in traced functions.

`custom_ops.attention` and `patch_embed` check their arguments first, so these tests call the ops
directly, as a SavedModel does. When a function is traced, only known shapes are checked.
"""

import numpy as np
import pytest
import tensorflow as tf

import custom_ops
from tests.custom_ops.compare import draw


def zeros(*shape, dtype="float32"):
    return tf.zeros(shape, dtype)


ATTENTION = {"qkv": zeros(2, 5, 36), "bias": [], "num_heads": 3}
OUT, STATISTICS = zeros(2, 5, 12), zeros(2, 3, 2, 5)
GRADIENT = ATTENTION | {"out": OUT, "statistics": STATISTICS, "d_out": OUT}
TAPS = ATTENTION | {"statistics": STATISTICS, "taps": ["entropy"]}
DISTANCE = TAPS | {"taps": ["distance"], "grid_rows": 2, "grid_columns": 2}
EMBED = {
    "images": zeros(2, 8, 9, 3),
    "kernel": zeros(4, 4, 3, 10),
    "bias": zeros(10),
    "prefix": [zeros(1, 10)],
    "position": [zeros(5, 10)],
}
TOKENS = zeros(2, 5, 10)
PART = {"images": EMBED["images"], "kernel": EMBED["kernel"], "d_tokens": TOKENS}
TABLES = {"d_tokens": TOKENS, "prefix": [zeros(1, 10)], "position": [zeros(5, 10)]}
ENCODER = {
    "tokens": zeros(2, 5, 12),
    "weights": [zeros(2752)] * 2,
    "biases": [zeros(67)] * 2,
    "num_heads": 3,
    "mlp_size": 7,
    "activation": "gelu_erf",
}
MODEL = {name: value for name, value in ENCODER.items() if name != "tokens"} | {
    "images": zeros(2, 8, 9, 3),
    "kernel": zeros(3072),
    "bias": zeros(12),
    "prefix": [zeros(1, 12)],
    "position": [zeros(5, 12)],
    "norm_scale": zeros(12),
    "norm_bias": zeros(12),
    "head": [zeros(768)],
    "head_bias": [zeros(5)],
    "patch_size": 4,
    "pooling": "token",
}
ROTARY = {"rotary": zeros(4, 2, 2)}
CUT = {"images": EMBED["images"], "patch_size": 4}
RESTORE = {
    "d_patches": zeros(2, 4, 48),
    "image_shape": [2, 8, 9, 3],
    "patch_size": 4,
}

# (op, valid arguments, changes, message)
CASES = [
    ("vit_attention", ATTENTION, {"qkv": zeros(5, 36)}, r"qkv.*N, 3 D\].*\[5, 36\]"),
    ("vit_attention", ATTENTION, {"qkv": zeros(2, 5, 35)}, r"\[2, 5, 35\].*heads = 3"),
    ("vit_attention", ATTENTION, {"qkv": zeros(2, 5, 0)}, r"\[2, 5, 0\].*positive"),
    ("vit_attention", ATTENTION, {"num_heads": 5}, r"\[2, 5, 36\].*heads = 5"),
    ("vit_attention", ATTENTION, {"num_heads": 2**62}, "= 4611686018427387904"),
    ("vit_attention", ATTENTION, {"axis": 1}, r"C, 3 D\].*\[2, 5, 36\]"),
    ("vit_attention", ATTENTION, {"axis": 3}, "axis .*Received: 3"),
    ("vit_attention", ATTENTION, {"axis": -1}, "axis .*Received: -1"),
    ("vit_attention", ATTENTION, {"bias": [zeros(5, 4)]}, r"\[5, 4\].*\[2, 3, 5, 5\]"),
    ("vit_attention", ATTENTION, {"bias": [zeros(0)]}, r"\[0\], .*not broadcast"),
    ("vit_attention", ATTENTION, {"bias": [zeros(1, 1, 1, 1, 5)]}, "does not broadcast"),
    ("vit_attention", ATTENTION, {"bias": [zeros(5)] * 2}, "one tensor.*float32"),
    ("vit_attention", ATTENTION, {"bias": [zeros(5, dtype="float64")]}, "Tacc = float32.*float64"),
    ("vit_attention", ATTENTION, {"Tacc": tf.float64}, "float32, Tacc = float64"),
    ("vit_attention", ATTENTION, {"scale": [0.5, -0.5]}, "scale.*Received: 0"),
    ("vit_attention", ATTENTION, {"scale": [-2.5]}, "above 0.*Received: -2.5"),
    ("vit_attention", ATTENTION, {"scale": [float("inf")]}, "scale.*Received: inf"),
    ("vit_attention", ATTENTION, {"scale": [float("nan")]}, "scale.*Received: nan"),
    ("vit_attention", ATTENTION, {"scale": [2.0**127]}, "scale.*Received: 1.7"),
    ("vit_attention_grad", GRADIENT, {"scale": [-1.0]}, "scale.*Received: -1"),
    ("vit_attention_taps", TAPS, {"scale": [-1.0]}, "scale.*Received: -1"),
    ("vit_attention_grad", GRADIENT, {"out": zeros(2, 5, 36)}, r"out has .*\[2, 5, 12\]"),
    ("vit_attention_grad", GRADIENT, {"d_out": zeros(2, 4, 12)}, "d_out.*2, 4, 12.*like out"),
    ("vit_attention_grad", GRADIENT, {"statistics": zeros(2, 3, 5)}, r"2, 3, 5\].*2, 3, 2, 5"),
    ("vit_attention_bias_grad", GRADIENT | {"bias": [zeros(5)]}, {"bias": []}, "no bias"),
    ("vit_attention_taps", TAPS, {"statistics": zeros(2, 5)}, r"\[2, 5\].*\[B, H, 2, N\]"),
    ("vit_attention_taps", TAPS, {"taps": ["distance"]}, "1. Received: 0 and 0"),
    ("vit_attention_taps", DISTANCE, {"grid_rows": 3}, "3 x 2.*patches.*tokens, 5"),
    ("vit_attention_taps", DISTANCE, {"grid_rows": 2**62}, r"grid.*2\^63 - 1"),
    ("vit_encoder", ENCODER, {"layout": 2}, "layout 2, .*layout 1"),
    ("vit_encoder", ENCODER, {"tokens": zeros(5, 12)}, "tokens.*B, N, D.*5, 12"),
    ("vit_encoder", ENCODER, {"tokens": zeros(2, 5, 13)}, "2, 5, 13.*heads = 3"),
    ("vit_encoder", ENCODER, {"tokens": zeros(2, 5, 0)}, r"\[2, 5, 0\].*positive"),
    ("vit_encoder", ENCODER, {"tokens": zeros(0, 0, 2**30)}, "wider than 2.28"),
    ("vit_encoder", ENCODER, {"tokens": zeros(2, 5, 15)}, r"weights\[0\].*3328.*15"),
    ("vit_encoder", ENCODER, {"mlp_size": 2**62}, r"mlp_size.*1, 2\^28"),
    ("vit_encoder", ENCODER, {"epsilon": 0.0}, "epsilon.*Received: 0"),
    ("vit_encoder", ENCODER, {"epsilon": float("nan")}, "epsilon must be in .*nan"),
    ("vit_encoder", ENCODER, {"weights": [zeros(2752), zeros(2751)]}, r"weights\[1\].*2751.*2752"),
    ("vit_encoder", ENCODER, {"weights": [zeros(1, 2752)] * 2}, r"weights\[0\].*1, 2752"),
    ("vit_encoder", ENCODER, {"biases": [zeros(68)] * 2}, r"biases\[0\] .*68.*67"),
    ("vit_encoder", ENCODER, {"weights": [zeros(2752, dtype="bfloat16")] * 2}, "T = bfloat16"),
    (
        "vit_encoder",
        ENCODER,
        {"tokens": zeros(2, 0, 12), "first_row_only": True},
        r"\[2, 0, 12\], .*first row",
    ),
    ("vit_encoder", ENCODER, {"qk_norm": True}, r"biases\[0\] .*67.*83"),
    ("vit_encoder", ENCODER, {"activation": "swiglu"}, r"biases\[0\] .*67.*74"),
    ("vit_rotary_encoder", ENCODER | ROTARY, {"rotary": zeros(6, 2, 2)}, "6 rows.*5 tokens"),
    ("vit_rotary_encoder", ENCODER | ROTARY, {"rotary": zeros(4, 2, 3)}, r"4, 2, 3\].*4, 2, 2\]"),
    ("vit_rotary_encoder", ENCODER | ROTARY, {"rotary": zeros(4, 4)}, r"rotary.*P, 2, d / 2.*4, 4"),
    ("vit_rotary_encoder", ENCODER | ROTARY, {"num_heads": 4}, "heads have 3"),
    ("vit_rotary_model", MODEL | ROTARY, {"rotary": zeros(6, 2, 2)}, "6 rows.*5 tokens"),
    ("vit_rotary_model", MODEL | ROTARY, {"rotary": zeros(4, 2, 3)}, r"4, 2, 3\].*4, 2, 2\]"),
    ("vit_model", MODEL, {"layout": 2}, "layout 2, .*layout 1"),
    ("vit_model", MODEL, {"images": zeros(8, 9, 3)}, "images.*B, H, W, C"),
    ("vit_model", MODEL, {"images": zeros(2, 8, 9, 4)}, "kernel has .*3072.*4096"),
    ("vit_model", MODEL, {"images": zeros(2, 8, 4, 3)}, "position.*5, 12.*3, 12"),
    ("vit_model", MODEL, {"kernel": zeros(48, 64)}, "kernel has .*48, 64.*3072"),
    ("vit_model", MODEL, {"bias": zeros(1, 12)}, r"bias.*\[D\].*\[1, 12\]"),
    ("vit_model", MODEL, {"prefix": [zeros(1, 11)]}, r"prefix .*\[1, 11\].*12\]"),
    ("vit_model", MODEL, {"position": [zeros(4, 12)]}, r"\[4, 12\].*\[5, 12\]"),
    ("vit_model", MODEL, {"norm_bias": zeros(11)}, "norm_bias.*11.*12"),
    ("vit_model", MODEL, {"weights": [zeros(2751)] * 2}, r"weights\[0\].*\[2751\].*truncated"),
    ("vit_model", MODEL, {"head": [zeros(767)]}, "head has .*767.*768"),
    ("vit_model", MODEL, {"head_bias": [zeros(65)]}, "head has .*768.*1536"),
    (
        "vit_model",
        MODEL,
        {"head": [zeros(768)] * 2, "head_bias": [zeros(5)] * 2},
        "num_head.*Received: 2",
    ),
    ("vit_model", MODEL, {"num_heads": 5}, "num_heads = 5"),
    ("vit_model", MODEL, {"patch_size": 2**62}, r"4611686018427387904.*2\^63"),
    ("vit_model", MODEL, {"images": zeros(2, 8, 9, 0)}, "2, 8, 9, 0.*channels"),
    ("vit_model", MODEL, {"images": zeros(2, 3, 9, 3)}, "3 x 9 .*4 x 4"),
    ("vit_patch_embed", EMBED, {"images": zeros(8, 9, 3)}, "images.*B, H, W, C"),
    ("vit_patch_embed", EMBED, {"images": zeros(2, 8, 9, 4)}, "2, 8, 9, 4.*3 channels"),
    ("vit_patch_embed", EMBED, {"kernel": zeros(4, 48, 10)}, "kernel.*P, P, C, D"),
    ("vit_patch_embed", EMBED, {"kernel": zeros(4, 2, 3, 10)}, "4, 2, 3, 10.*one patch"),
    ("vit_patch_embed", EMBED, {"kernel": zeros(0, 0, 3, 10)}, "of at least 1"),
    ("vit_patch_embed", EMBED, {"bias": zeros(9)}, r"bias.*\[9\].*\[10\]"),
    ("vit_patch_embed", EMBED, {"bias": zeros(1, 10)}, r"bias .*\[1, 10\]"),
    ("vit_patch_embed", EMBED, {"prefix": [zeros(1, 9)]}, r"prefix .*\[1, 9\].*10\]"),
    ("vit_patch_embed", EMBED, {"prefix": [zeros(10)]}, r"prefix .*\[10\]"),
    ("vit_patch_embed", EMBED, {"prefix": [zeros(1, 10)] * 2}, "(0 or 1|none or one).*: 2"),
    ("vit_patch_embed", EMBED, {"position": [zeros(4, 10)]}, r"\[4, 10\].*\[5, 10\]"),
    ("vit_patch_embed", EMBED, {"position": [zeros(5, 9)]}, r"position .*\[5, 9\].*10\]"),
    (
        "vit_patch_embed_kernel_grad",
        PART,
        {"d_tokens": zeros(2, 3, 10)},
        r"\[2, 3, 10\], with fewer",
    ),
    ("vit_patch_embed_kernel_grad", PART, {"d_tokens": zeros(2, 5, 9)}, r"\[2, 5, 9\]"),
    ("vit_patch_embed_images_grad", PART, {"d_tokens": zeros(3, 5, 10)}, r"\[3, 5, 10\]"),
    ("vit_patch_embed_images_grad", PART, {"kernel": zeros(4, 4, 2, 10)}, "2 channels"),
    ("vit_patch_embed_tables_grad", TABLES, {"d_tokens": zeros(5, 10)}, r"d_tokens .*\[5, 10\]"),
    ("vit_patch_embed_tables_grad", TABLES, {"prefix": [zeros(1, 9)]}, r"\[1, 9\]"),
    (
        "vit_patch_embed_tables_grad",
        TABLES,
        {"prefix": [zeros(6, 10)]},
        r"\[6, 10\], with more rows",
    ),
    ("vit_patch_embed_tables_grad", TABLES, {"position": [zeros(4, 10)]}, r"\[4, 10\].*5, 10\]"),
    ("vit_extract_patches", CUT, {"images": zeros(8, 9, 3)}, r"images.*\[8, 9, 3\]"),
    ("vit_extract_patches", CUT, {"patch_size": 2**62}, r"4611686018427387904.*2\^63"),
    ("vit_extract_patches_grad", RESTORE, {"d_patches": zeros(2, 3, 48)}, r"\[2, 3, 48\].*4, 48"),
    ("vit_extract_patches_grad", RESTORE, {"image_shape": [2, 8, -9, 3]}, "-9"),
]


@pytest.mark.each_device
@pytest.mark.parametrize(("op", "legal", "changes", "message"), CASES)
def test_named_when_run(op, legal, changes, message):
    function = getattr(custom_ops.load(), op)
    function(**legal)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        function(**(legal | changes))


@pytest.mark.parametrize(("op", "legal", "changes", "message"), CASES)
def test_named_when_traced(op, legal, changes, message):
    def trace(arguments):
        with tf.Graph().as_default():
            symbols = {name: symbolic(value) for name, value in arguments.items()}
            getattr(custom_ops.load(), op)(**symbols)

    trace(legal)
    with pytest.raises(ValueError, match=message):
        trace(legal | changes)


def symbolic(value):
    """The argument of an op with placeholders in place of tensors."""
    if isinstance(value, list):
        return [symbolic(item) for item in value]
    return tf.compat.v1.placeholder(value.dtype, value.shape) if tf.is_tensor(value) else value


def changes_shapes_only(legal, changes):
    return all(
        types(value) and types(value) == types(legal[name]) for name, value in changes.items()
    )


def types(value):
    """The dtypes of a tensor or a list of tensors; an empty list for other arguments."""
    return [x.dtype for x in tf.nest.flatten(value) if tf.is_tensor(x)]


# The checks of `test_named_when_run`: one case of each op.
UNKNOWN = {case[0]: case for case in CASES if changes_shapes_only(*case[1:3])}


@pytest.mark.each_device
@pytest.mark.parametrize(("op", "legal", "changes", "message"), UNKNOWN.values(), ids=UNKNOWN)
def test_named_when_run_in_a_graph_that_knew_no_shape(op, legal, changes, message):
    tensors = {name: value for name, value in legal.items() if types(value)}
    others = {name: value for name, value in legal.items() if name not in tensors}
    function = tf.function(
        lambda tensors: getattr(custom_ops.load(), op)(**tensors, **others),
        input_signature=[tf.nest.map_structure(lambda x: tf.TensorSpec(None, x.dtype), tensors)],
    )
    function(tensors)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        function(tensors | changes)


@pytest.mark.each_device
@pytest.mark.parametrize("dtype", ["int32", "bool", "string", "float8_e5m2"])
def test_types_without_a_kernel(dtype):
    if dtype == "string":
        qkv = tf.constant("", shape=[1, 2, 6])
    else:
        qkv = tf.cast(tf.zeros([1, 2, 6]), dtype)
    with pytest.raises(tf.errors.InvalidArgumentError, match="values: float, bfloat16"):
        custom_ops.load().vit_attention(qkv, [], num_heads=1)


def test_images_of_integers_have_no_gradient():
    images = zeros(2, 8, 9, 3, dtype="uint8")
    with pytest.raises(tf.errors.InvalidArgumentError, match="uint8 is not in the list"):
        custom_ops.load().vit_patch_embed_images_grad(**(PART | {"images": images}))


# Tensors without elements can have any dimensions, but results computed from them may have
# elements.
@pytest.mark.parametrize(
    ("op", "arguments", "message"),
    [
        (
            "vit_attention_taps",
            {"qkv": [2**40, 0, 6], "bias": None, "statistics": [2**40, 2, 2, 0]},
            r"entropy.*776, 2\].*memory",
        ),
        (
            "vit_patch_embed",
            {"images": [2**20, 2**20, 2**20, 0], "kernel": [1, 1, 0, 8], "bias": [8]},
            r"1048576, .*776, 8\].*2\^63",
        ),
        (
            "vit_patch_embed",
            {"images": [1, 2**20, 2**20, 0], "kernel": [1, 1, 0, 8], "bias": [8]},
            r"\[1, .*776, 8\].*memory",
        ),
        (
            "vit_patch_embed",
            {"images": [0, 2**40, 2**40, 3], "kernel": [1, 1, 3, 8], "bias": [8]},
            r"1099511627776, 1099.*2\^63",
        ),
        ("vit_extract_patches", {"images": [0, 2**40, 2**40, 3]}, r"549755813888\].*2\^63"),
        (
            "vit_extract_patches_grad",
            {"d_patches": [2**45, 0, 12], "image_shape": None},
            r"d_images.*\[35184372088832",
        ),
    ],
)
def test_sizes_that_no_machine_has(op, arguments, message):
    tensors = {name: zeros(*shape) for name, shape in arguments.items() if shape is not None}
    others = {
        "vit_attention_taps": {"bias": [], "num_heads": 2, "taps": ["entropy"]},
        "vit_patch_embed": {"prefix": [], "position": []},
        "vit_extract_patches": {"patch_size": 2},
        "vit_extract_patches_grad": {"image_shape": [2**45, 1, 4, 3], "patch_size": 2},
    }[op]
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        getattr(custom_ops.load(), op)(**tensors, **others)


@pytest.mark.each_device
def test_sizes_of_nothing():
    """Any product of dimensions is allowed if one of them is zero."""
    ops = custom_ops.load()
    out, statistics = ops.vit_attention(zeros(0, 2**60, 6), [], num_heads=2)
    assert out.shape == [0, 2**60, 2] and statistics.shape == [0, 2, 2, 2**60]
    out, statistics = ops.vit_attention(zeros(2**60, 0, 6), [], num_heads=2)
    assert out.shape == [2**60, 0, 2] and statistics.shape == [2**60, 2, 2, 0]
    tokens = ops.vit_patch_embed(zeros(0, 2**30, 2**30, 3), zeros(1, 1, 3, 4), zeros(4), [], [])
    assert tokens.shape == [0, 2**60, 4]
    patches = ops.vit_extract_patches(zeros(0, 2**30, 2**30, 3), patch_size=2)
    assert patches.shape == [0, 2**58, 12]
    assert ops.vit_extract_patches(zeros(2, 4, 4, 0), patch_size=2**40).shape == [2, 0, 0]


def test_a_grid_without_the_distance_is_ignored():
    arguments = ATTENTION | {"statistics": STATISTICS, "taps": ["entropy"]}
    ops = custom_ops.load()
    expected = ops.vit_attention_taps(**arguments).entropy
    found = ops.vit_attention_taps(**arguments, grid_rows=2**62, grid_columns=4).entropy
    np.testing.assert_array_equal(found, expected)


@pytest.mark.each_device
def test_gradients_of_nothing_are_zero():
    ops = custom_ops.load()
    d_bias = ops.vit_attention_bias_grad(
        zeros(0, 5, 36), [zeros(3, 5, 5)], zeros(0, 5, 12), zeros(0, 3, 2, 5), zeros(0, 5, 12), 3
    )
    np.testing.assert_array_equal(d_bias, np.zeros([3, 5, 5]))
    d_kernel = ops.vit_patch_embed_kernel_grad(
        zeros(4, 4, 3, 10), zeros(0, 8, 9, 3), zeros(0, 5, 10)
    )
    np.testing.assert_array_equal(d_kernel, np.zeros([4, 4, 3, 10]))
    d_tables = ops.vit_patch_embed_tables_grad(zeros(0, 5, 10), [zeros(1, 10)], [zeros(5, 10)])
    for gradient, shape in zip(
        tf.nest.flatten(list(d_tables)), ([10], [1, 10], [5, 10]), strict=True
    ):
        np.testing.assert_array_equal(gradient, np.zeros(shape))
    d_images = ops.vit_patch_embed_images_grad(
        zeros(2, 3, 9, 3), zeros(4, 4, 3, 10), tf.ones([2, 1, 10])
    )
    np.testing.assert_array_equal(d_images, np.zeros([2, 3, 9, 3]))
    d_images = ops.vit_extract_patches_grad(zeros(2, 0, 48), [2, 3, 9, 3], patch_size=4)
    np.testing.assert_array_equal(d_images, np.zeros([2, 3, 9, 3]))


@pytest.mark.each_device
def test_no_channels_and_images_smaller_than_a_patch():
    """Tokens are then only the sum of bias, prefix and position."""
    ops = custom_ops.load()
    bias, prefix, position = draw([10]), draw([1, 10]), draw([7, 10])
    tokens = ops.vit_patch_embed(zeros(2, 4, 6, 0), zeros(2, 2, 0, 10), bias, [prefix], [position])
    expected = np.concatenate([prefix, np.broadcast_to(bias, [6, 10])]) + position
    np.testing.assert_allclose(tokens, np.broadcast_to(expected, [2, 7, 10]), rtol=1e-6)
    tokens = ops.vit_patch_embed(zeros(2, 1, 6, 3), zeros(2, 2, 3, 10), bias, [prefix], [])
    np.testing.assert_array_equal(tokens, np.broadcast_to(prefix, [2, 1, 10]))
