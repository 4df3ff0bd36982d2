"""The ops in functions of unknown sizes and in data pipelines."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.grappler import item as grappler_item

import custom_ops
from custom_ops.attention import TAPS
from tests.custom_ops.compare import (
    attend,
    compiled_ops,
    draw,
    draw_uint8,
    exact,
    tables,
)
from tests.tolerances import assert_close

TO_UNIT = {"scale": 2 / 255, "offset": -1.0}
pytestmark = pytest.mark.usefixtures("auto")


def check(actual, expected, implementation):
    """Compares with an eager call: TensorFlow's own ops are fused in graphs, the compiled not."""
    for one, other in zip(tf.nest.flatten(actual), tf.nest.flatten(expected), strict=True):
        if implementation == "compiled":
            np.testing.assert_array_equal(one, other)
        else:
            assert_close(one, exact(other), "float32", "attention gradient")


def attend_and_differentiate(qkv, bias, axis=None):
    return attend(None, qkv, 3, tf.ones_like(qkv)[..., :12], bias, axis)


# (shape of qkv, shape of bias, axis, static shapes of out, d_qkv and d_bias)
STATIC = [
    ([None, 197, 36], [3, None, None], None, [None, 197, 12]),
    ([2, None, 36], [None, None], None, [2, None, 12]),
    ([None, None, None], [], None, [None, None, None]),
    ([4, 7, None], [7], None, [4, 7, None]),
    ([None, 14, None, 36], [3, 14, 14], 1, [None, 14, None, 12]),
    ([None, None, None, None], None, 2, [None, None, None, None]),
]


@pytest.mark.usefixtures("each_implementation")
@pytest.mark.parametrize(("qkv", "bias", "axis", "out"), STATIC)
def test_static_shapes_of_attention(qkv, bias, axis, out):
    function = tf.function(lambda qkv, bias: attend_and_differentiate(qkv, bias, axis))
    specifications = [tf.TensorSpec(qkv), tf.TensorSpec(bias)]
    outputs = function.get_concrete_function(*specifications).outputs
    assert outputs[0].shape.as_list() == out
    assert outputs[1].shape.as_list() == qkv
    assert outputs[2].shape.is_compatible_with(bias)
    assert outputs[2].shape.rank == (None if bias is None else len(bias))


def test_static_shapes_where_no_rank_is_known():
    @tf.function
    def trace(qkv, images, kernel, tables):
        ops = custom_ops.load()
        out, statistics = ops.vit_attention(qkv, [], num_heads=3)
        assert out.shape.as_list() == [None, None, None]
        assert statistics.shape.as_list() == [None, 3, 2, None]
        out, statistics = ops.vit_attention(qkv, [tables], num_heads=3, axis=1)
        assert out.shape.as_list() == [None, None, None, None]
        assert statistics.shape.as_list() == [None, None, 3, 2, None]
        tokens = ops.vit_patch_embed(images, kernel, tables, [tables], [tables])
        assert tokens.shape.as_list() == [None, None, None]
        patches = ops.vit_extract_patches(images, patch_size=4)
        assert patches.shape.as_list() == [None, None, None]
        restored = ops.vit_extract_patches_grad(patches, tf.shape(images, tf.int64), patch_size=4)
        assert restored.shape.as_list() == [None] * 4
        return True

    trace.get_concrete_function(*[tf.TensorSpec(None)] * 4)


def test_static_shapes_of_taps(each_implementation):
    function = tf.function(lambda qkv: custom_ops.attention_with_taps(qkv, 3, TAPS, grid=(2, 2))[1])
    found = compiled_ops(function, tf.TensorSpec([2, 5, 36]))
    compiled = each_implementation == "compiled"
    assert found == ({"VitAttention", "VitAttentionTaps"} if compiled else set())
    for count in (5, None):
        taps = function.get_concrete_function(tf.TensorSpec([None, count, 36])).structured_outputs
        assert [taps[name].shape.as_list() for name in TAPS] == [
            [None, 3, count],
            [None, 3],
            [None, 3],
        ]


@pytest.mark.parametrize(
    ("images", "prefix", "position", "tokens"),
    [
        ([None, 224, 112, 3], [1, None], [None, 10], [None, 99, 10]),
        ([2, None, 32, 3], [1, 10], [5, 10], [2, 5, 10]),
        ([None, None, None, None], [None, 10], [None, None], [None, None, 10]),
        ([None, 32, 32, None], [None, 10], [None, None], [None, None, 10]),
    ],
)
def test_static_shapes_of_patches_and_gradients(images, prefix, position, tokens):
    @tf.function
    def function(images, kernel, prefix, position):
        weights = {"kernel": kernel, "bias": kernel[0, 0, 0], "prefix": prefix}
        weights["position"] = position
        with tf.GradientTape() as tape:
            tape.watch([images, weights])
            found = custom_ops.patch_embed(images, **weights)
        return found, tape.gradient(found, weights | {"images": images})

    shapes = {"images": images, "kernel": [16, 16, None, 10], "prefix": prefix}
    shapes["position"] = position
    concrete = function.get_concrete_function(*map(tf.TensorSpec, shapes.values()))
    found, gradients = concrete.structured_outputs
    assert found.shape.as_list() == tokens
    for name, shape in shapes.items():
        assert gradients[name].shape.as_list() == shape, name


def test_an_unknown_dimension_of_an_output_is_one_of_the_inputs():
    """TensorFlow then knows that shapes are equal. It shows unknown dimensions as numbers < -1."""
    ops = custom_ops.load()
    with tf.Graph().as_default() as graph:
        qkv = tf.ensure_shape(tf.compat.v1.placeholder("float32"), [None, None, None, 36], "qkv")
        images = tf.ensure_shape(tf.compat.v1.placeholder("float32"), [None, 8, 9, None], "images")
        out = ops.vit_attention(qkv, [], num_heads=3, axis=2, name="attention")
        patches = ops.vit_extract_patches(images, patch_size=4, name="patches")
        shape = tf.shape(images, tf.int64)
        restored = ops.vit_extract_patches_grad(patches, shape, patch_size=4, name="restored")
        for tensor in (*out, restored):
            graph.add_to_collection("train_op", tensor)
        saved = tf.compat.v1.train.export_meta_graph(graph=graph)
    shapes = {
        name: [[dim.size for dim in output.shape.dim] for output in outputs]
        for name, outputs in grappler_item.Item(saved).GetOpProperties().items()
    }
    [[batch, rows, columns, _]] = shapes["qkv"]
    assert batch < -1 and len({batch, rows, columns}) == 3
    assert shapes["attention"] == [[batch, rows, columns, 12], [batch, rows, 3, 2, columns]]
    [[batch, *_, channels]] = shapes["images"]
    assert batch < -1 and shapes["restored"] == [[batch, 8, 9, channels]]
    assert shapes["patches"][0][:2] == [batch, 4]


@pytest.mark.usefixtures("each_implementation")
@pytest.mark.parametrize(
    ("images", "tokens", "patches"),
    [
        ([None, 230, 112, 3], [None, 99, 10], [None, 98, 768]),
        ([2, 224, None, 3], [2, None, 10], [2, None, 768]),
        ([None, 32, 32, None], [None, 4, 10], [None, 4, None]),
    ],
)
def test_static_shapes_of_patches(images, tokens, patches):
    weights = tables([1, 224, 112, 3], 16, "float32")
    if tokens[1] != 99:
        del weights["prefix"], weights["position"]

    @tf.function
    def function(images):
        return custom_ops.patch_embed(images, **weights), custom_ops.extract_patches(images, 16)

    found = function.get_concrete_function(tf.TensorSpec(images)).outputs
    assert [tensor.shape.as_list() for tensor in found] == [tokens, patches]


@pytest.mark.each_device
@pytest.mark.parametrize(
    ("signature", "axis"),
    [([None, None, 36], None), ([None, None, None], None), ([None, None, None, 36], 1)],
)
def test_a_function_of_unknown_sizes_serves_many(signature, axis, each_implementation):
    @tf.function(input_signature=[tf.TensorSpec(signature), tf.TensorSpec([3, None, None])])
    def function(qkv, bias):
        return attend_and_differentiate(qkv, bias, axis)

    ops = {"VitAttention", "VitAttentionGrad", "VitAttentionBiasGrad"}
    assert compiled_ops(function) == (ops if each_implementation == "compiled" else set())
    for batch, count in ((2, 5), (1, 33), (3, 17), (0, 5), (2, 0), (2, 5)):
        qkv = draw([batch, count, 36] if axis is None else [batch, count, 4, 36])
        arguments = qkv, draw([3, count, count])
        expected = attend_and_differentiate(*arguments, axis)
        check(function(*arguments), expected, each_implementation)


@pytest.mark.each_device
def test_patches_in_a_function_of_unknown_sizes(each_implementation):
    @tf.function(
        input_signature=[
            tf.TensorSpec([None, None, None, None], "uint8"),
            {
                "kernel": tf.TensorSpec([4, 4, 3, 10]),
                "bias": tf.TensorSpec([None]),
                "prefix": tf.TensorSpec([None, 10]),
                "position": tf.TensorSpec([None, 10]),
            },
        ]
    )
    def function(images, weights):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            tokens = custom_ops.patch_embed(images, **weights, **TO_UNIT)
        return tokens, tape.gradient(tokens, weights), custom_ops.extract_patches(images, 4)

    ops = {"VitPatchEmbed", "VitPatchEmbedKernelGrad", "VitPatchEmbedTablesGrad"}
    ops |= {"VitExtractPatches"}
    assert compiled_ops(function) == (ops if each_implementation == "compiled" else set())
    for shape in ([2, 8, 8, 3], [1, 17, 33, 3], [0, 8, 8, 3], [1, 11, 6, 3]):
        arguments = draw_uint8(shape), tables(shape, 4, "float32")
        expected = function.python_function(*arguments)
        check(function(*arguments), expected, each_implementation)
    # As in the reference, images smaller than a patch are rejected only if the size is known.
    shape = [2, 3, 8, 3]
    tokens, _, patches = function(draw_uint8(shape), tables(shape, 4, "float32"))
    assert tokens.shape == [2, 1, 10] and patches.shape == [2, 0, 48]


@pytest.mark.usefixtures("each_implementation")
def test_position_table_of_another_grid_is_refused_when_sizes_are_unknown():
    @tf.function(input_signature=[tf.TensorSpec([None, None, None, 3], "float32")])
    def graph(images):
        return custom_ops.patch_embed(images, kernel, bias, position=position)

    weights = tables([1, 8, 8, 3], 4, "float32", prefix_size=0)
    kernel, bias, position = weights["kernel"], weights["bias"], weights["position"][:1]
    assert graph(tf.zeros([2, 4, 4, 3])).shape == [2, 1, 10]
    with pytest.raises(tf.errors.InvalidArgumentError, match="position .*number"):
        graph(tf.zeros([2, 8, 8, 3]))


@pytest.mark.usefixtures("each_implementation")
def test_inside_tf_data():
    images, weights = draw_uint8([6, 11, 8, 3]), tables([6, 11, 8, 3], 4, "float32")

    def transform(images):
        tokens = custom_ops.patch_embed(images, **weights, **TO_UNIT)
        out, taps = custom_ops.attention_with_taps(tokens[..., :9], 1, ("entropy",))
        return out, taps["entropy"], custom_ops.extract_patches(images, 4)

    data = tf.data.Dataset.from_tensor_slices(images).batch(2)
    data = data.map(transform, num_parallel_calls=2)
    found = [tf.concat(parts, axis=0) for parts in zip(*data, strict=True)]
    for actual, expected in zip(found, transform(images), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_variables_and_arrays_as_inputs():
    qkv, bias = (tf.Variable(draw(shape, "float64")) for shape in ([2, 9, 36], [9, 9]))
    with tf.GradientTape() as tape:
        out = custom_ops.attention(qkv, 3, bias=bias)
    gradients = tape.gradient(out, [qkv, bias])
    for actual, expected in zip(
        [out, *gradients], attend(None, qkv.value(), 3, None, bias.value()), strict=True
    ):
        np.testing.assert_array_equal(actual, expected)
    of_arrays = custom_ops.attention(qkv.numpy(), 3, bias=bias.numpy())
    assert of_arrays.dtype == "float64"
    np.testing.assert_array_equal(of_arrays, out)
