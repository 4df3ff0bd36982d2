"""`custom_ops.patch_embed` and `extract_patches` against the float64 oracle."""

import numpy as np
import pytest
import tensorflow as tf

import custom_ops
from tests.custom_ops import oracle
from tests.tolerances import EPSILON, assert_close

pytestmark = pytest.mark.usefixtures("each_implementation")

# (image shape, patch size): square, rectangular, left-over pixels on either side, one patch.
SIZES = [
    ([2, 8, 8, 3], 4),
    ([3, 12, 8, 3], 4),
    ([2, 11, 17, 3], 4),
    ([2, 9, 7, 1], 3),
    ([1, 5, 5, 2], 5),
    ([2, 4, 3, 3], 1),
    ([0, 8, 8, 3], 4),
]


def draw(shape, dtype="float64", seed=0):
    values = np.random.default_rng([seed, *shape]).normal(size=shape)
    return tf.cast(tf.constant(values), dtype)


def draw_uint8(shape):
    return tf.constant(np.random.default_rng(0).integers(0, 256, shape), "uint8")


def exact(tensor):
    return tensor.numpy().astype(np.float64)


def arguments(image_shape, patch_size, dtype, width=10, prefix_size=1):
    """Kernel, bias, prefix and position that fit the images."""
    count = (image_shape[1] // patch_size) * (image_shape[2] // patch_size)
    return {
        "kernel": draw([patch_size, patch_size, image_shape[3], width], dtype),
        "bias": draw([width], dtype, seed=1),
        "prefix": draw([prefix_size, width], dtype, seed=2),
        "position": draw([prefix_size + count, width], dtype, seed=3),
    }


def check(images, weights, dtype, **rescale):
    """Compares the tokens and all gradients with the oracle."""
    watched = dict(weights)
    if images.dtype.is_floating:
        watched["images"] = images
    with tf.GradientTape() as tape:
        tape.watch(watched)
        tokens = custom_ops.patch_embed(images, **weights, **rescale)
    expected, backward = oracle.patch_embed(
        exact(images), **{name: exact(x) for name, x in weights.items()}, **rescale
    )
    assert tokens.dtype == weights["kernel"].dtype
    assert_close(tokens, expected, dtype, "patch_embed")

    cotangent = draw(tokens.shape, tokens.dtype, seed=4)
    gradients = tape.gradient(tokens, watched, cotangent)
    expected = backward(exact(cotangent))
    for name, gradient in gradients.items():
        assert gradient.dtype == watched[name].dtype
        assert_close(gradient, expected[name], dtype, "patch_embed gradient")


@pytest.mark.parametrize("dtype", tuple(EPSILON))
@pytest.mark.parametrize(("shape", "patch_size"), SIZES)
def test_tokens_and_gradients_match_the_equations(shape, patch_size, dtype):
    check(draw(shape, dtype), arguments(shape, patch_size, dtype), dtype)


@pytest.mark.parametrize("dtype", tuple(EPSILON))
def test_uint8_images_take_the_dtype_of_the_kernel(dtype):
    shape = [2, 9, 10, 3]
    check(draw_uint8(shape), arguments(shape, 4, dtype), dtype)
    check(draw_uint8(shape), arguments(shape, 4, dtype), dtype, scale=2 / 255, offset=-1.0)


@pytest.mark.parametrize(
    ("image_dtype", "dtype"),
    [("float32", "bfloat16"), ("float16", "float32"), ("float64", "float32")],
)
def test_images_of_another_float_are_rescaled_and_cast(image_dtype, dtype):
    shape = [2, 8, 8, 3]
    images = tf.cast(draw(shape, dtype), image_dtype)
    coarse = max(dtype, image_dtype, key=EPSILON.get)
    check(images, arguments(shape, 4, dtype), coarse, scale=0.5, offset=0.25)


def test_rescaling_is_rounded_to_bfloat16_only_at_the_end():
    # Near the middle of the range the offset cancels: in bfloat16 no digit would be correct.
    values = np.arange(256)
    images = tf.constant(values.reshape(1, 16, 16, 1), "uint8")
    one, zero = tf.ones([1, 1, 1, 1], "bfloat16"), tf.zeros([1], "bfloat16")
    expected = values * (2 / 255) - 1
    for source in (images, tf.cast(images, "bfloat16"), tf.cast(images, "float16")):
        tokens = custom_ops.patch_embed(source, one, zero, scale=2 / 255, offset=-1)
        relative = np.abs(exact(tokens).ravel() / expected - 1)
        assert relative.max() < EPSILON["bfloat16"]


@pytest.mark.parametrize("left_out", [("prefix",), ("position",), ("prefix", "position")])
def test_prefix_and_position_are_optional(left_out):
    shape = [2, 11, 8, 3]
    weights = arguments(shape, 4, "float64")
    if left_out == ("prefix",):
        weights["position"] = weights["position"][1:]
    weights = {name: x for name, x in weights.items() if name not in left_out}
    check(draw(shape), weights, "float64")


@pytest.mark.parametrize("prefix_size", [0, 2, 5])
def test_number_of_prefix_tokens(prefix_size):
    shape = [2, 8, 8, 3]
    check(draw(shape), arguments(shape, 4, "float64", prefix_size=prefix_size), "float64")


def test_weights_of_another_float_than_the_kernel_are_cast():
    shape = [2, 8, 8, 3]
    weights = arguments(shape, 4, "bfloat16")
    others = {name: tf.cast(x, "float32") for name, x in weights.items()}
    check(draw(shape, "bfloat16"), others | {"kernel": weights["kernel"]}, "bfloat16")


@pytest.mark.parametrize(("shape", "patch_size"), SIZES[:-1])
def test_convolution_and_flatten_then_dense_agree(shape, patch_size):
    images = draw(shape, "float32")
    weights = arguments(shape, patch_size, "float32")
    kernel, bias = weights["kernel"], weights["bias"]
    tokens = custom_ops.patch_embed(images, kernel, bias)
    convolution = tf.nn.conv2d(images, kernel, patch_size, "VALID") + bias
    dense = custom_ops.extract_patches(images, patch_size) @ tf.reshape(kernel, [-1, 10]) + bias
    expected = exact(tf.reshape(convolution, tokens.shape))
    assert_close(tokens, expected, "float32", "patch_embed")
    assert_close(dense, expected, "float32", "patch_embed")


@pytest.mark.parametrize("dtype", ["uint8", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize(("shape", "patch_size"), SIZES)
def test_extract_patches_moves_values_only(shape, patch_size, dtype):
    images = draw_uint8(shape) if dtype == "uint8" else draw(shape, dtype)
    patches = custom_ops.extract_patches(images, patch_size)
    expected, _ = oracle.extract_patches(exact(images), patch_size)
    assert patches.dtype == images.dtype
    np.testing.assert_array_equal(exact(patches), expected)


@pytest.mark.parametrize(("shape", "patch_size"), SIZES)
def test_extract_patches_gradient(shape, patch_size):
    images = draw(shape)
    with tf.GradientTape() as tape:
        tape.watch(images)
        patches = custom_ops.extract_patches(images, patch_size)
    cotangent = draw(patches.shape, seed=1)
    _, backward = oracle.extract_patches(exact(images), patch_size)
    gradient = tape.gradient(patches, images, cotangent)
    np.testing.assert_array_equal(gradient, backward(exact(cotangent)))


def test_extract_patches_order_is_that_of_tensorflow():
    images = draw([2, 11, 17, 3], "float32")
    expected = tf.image.extract_patches(images, [1, 4, 4, 1], [1, 4, 4, 1], [1, 1, 1, 1], "VALID")
    patches = custom_ops.extract_patches(images, 4)
    np.testing.assert_array_equal(patches, tf.reshape(expected, patches.shape))


def test_leftover_pixels_are_not_read():
    images = draw([2, 11, 9, 3]).numpy()
    cropped = images[:, :8, :8].copy()
    images[:, 8:] = images[:, :, 8:] = np.nan
    weights = arguments([2, 8, 8, 3], 4, "float64")
    np.testing.assert_array_equal(
        custom_ops.patch_embed(images, **weights), custom_ops.patch_embed(cropped, **weights)
    )


def test_graph_with_unknown_sizes_equals_eager():
    @tf.function(
        input_signature=[
            tf.TensorSpec([None, None, None, None], "uint8"),
            tf.TensorSpec([4, 4, 3, 10], "float32"),
            tf.TensorSpec([None, 10], "float32"),
            tf.TensorSpec([None, 10], "float32"),
        ]
    )
    def graph(images, kernel, prefix, position):
        with tf.GradientTape() as tape:
            watched = [kernel, prefix, position]
            tape.watch(watched)
            tokens = custom_ops.patch_embed(
                images, kernel, bias, scale=2 / 255, offset=-1.0, prefix=prefix, position=position
            )
        patches = custom_ops.extract_patches(images, 4)
        return tokens, patches, *tape.gradient(tokens, watched)

    bias = draw([10], "float32", seed=1)
    for shape in ([2, 8, 8, 3], [0, 8, 8, 3], [1, 11, 6, 3]):
        images = draw_uint8(shape)
        weights = arguments(shape, 4, "float32")
        del weights["bias"]
        eager = graph.python_function(images, *weights.values())
        for actual, expected in zip(graph(images, *weights.values()), eager, strict=True):
            assert_close(actual, exact(expected), "float32", "patch_embed gradient")
    # An image smaller than a patch has only its prefix tokens.
    weights["position"] = weights["position"][:1]
    tokens = graph(draw_uint8([2, 3, 9, 3]), *weights.values())[0]
    assert tokens.shape == [2, 1, 10]


def test_position_table_of_another_grid_is_refused_when_sizes_are_unknown():
    @tf.function(input_signature=[tf.TensorSpec([None, None, None, 3], "float32")])
    def graph(images):
        return custom_ops.patch_embed(images, kernel, bias, position=position)

    weights = arguments([1, 8, 8, 3], 4, "float32", prefix_size=0)
    kernel, bias, position = weights["kernel"], weights["bias"], weights["position"][:1]
    assert graph(tf.zeros([2, 4, 4, 3])).shape == [2, 1, 10]
    with pytest.raises(tf.errors.InvalidArgumentError, match="position has another number"):
        graph(tf.zeros([2, 8, 8, 3]))


def test_inside_tf_data_equals_eager():
    images = draw_uint8([3, 11, 8, 3])
    weights = arguments([3, 11, 8, 3], 4, "float32")

    def embed(images):
        return custom_ops.patch_embed(images, **weights), custom_ops.extract_patches(images, 4)

    data = tf.data.Dataset.from_tensor_slices(images).batch(3).map(embed)
    for actual, expected in zip(next(iter(data)), embed(images), strict=True):
        assert_close(actual, exact(expected), "float32", "patch_embed")


def test_compiles_under_xla(monkeypatch):
    monkeypatch.delenv("VIT_OPS")  # VIT_OPS=compiled would fail: no kernels for XLA.

    def gradients(images, weights):
        with tf.GradientTape() as tape:
            tape.watch([images, *weights.values()])
            tokens = custom_ops.patch_embed(images, **weights)
        return tokens, *tape.gradient(tokens, [images, *weights.values()])

    images = draw([2, 11, 8, 3], "float32")
    weights = arguments([2, 11, 8, 3], 4, "float32")
    compiled = tf.function(gradients, jit_compile=True)(images, weights)
    for actual, expected in zip(compiled, gradients(images, weights), strict=True):
        assert_close(actual, exact(expected), "float32", "patch_embed gradient")


def test_static_shapes_are_known():
    weights = arguments([1, 224, 112, 3], 16, "float32")

    @tf.function
    def trace(images, unknown):
        tokens = custom_ops.patch_embed(images, **weights)
        assert tokens.shape.as_list() == [None, 1 + 14 * 7, 10]
        patches = custom_ops.extract_patches(images, 16)
        assert patches.shape.as_list() == [None, 14 * 7, 16 * 16 * 3]
        tokens = custom_ops.patch_embed(unknown, weights["kernel"], weights["bias"])
        assert tokens.shape.as_list() == [None, None, 10]
        patches = custom_ops.extract_patches(unknown, 16)
        assert patches.shape.as_list() == [None, None, 16 * 16 * 3]
        return True

    trace.get_concrete_function(
        tf.TensorSpec([None, 230, 112, 3]), tf.TensorSpec([None, 224, None, 3])
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": np.zeros([8, 8, 3])}, r"images must be \[B, H, W, C\].*\(8, 8, 3\)"),
        ({"images": np.zeros([2, 8, 8, 3], "int32")}, "images have dtype int32. Cast"),
        ({"images": np.zeros([2, 8, 8, 4])}, "4 channels.*for 3"),
        ({"images": np.zeros([2, 3, 8, 3])}, "3 x 8 pixels hold no patch of 4 x 4"),
        ({"kernel": np.zeros([4, 4, 30])}, r"kernel must be \[P, P, C, D\]"),
        ({"kernel": np.zeros([4, 2, 3, 10])}, r"\(4, 2, 3, 10\).*one patch size"),
        ({"kernel": np.zeros([0, 0, 3, 10])}, "at least 1"),
        ({"kernel": np.zeros([4, 4, 3, 10], "int32")}, "kernel has dtype int32"),
        ({"bias": np.zeros([9])}, r"bias has shape \(9,\).*D = 10"),
        ({"bias": np.zeros([1, 10])}, r"bias must be \[D\]"),
        ({"prefix": np.zeros([1, 9])}, r"prefix has shape \(1, 9\)"),
        ({"prefix": np.zeros([10])}, r"prefix must be \[T, D\]"),
        ({"prefix": np.zeros([1, 10], "int32")}, "prefix has dtype int32"),
        ({"position": np.zeros([5, 9])}, r"position has shape \(5, 9\)"),
        ({"position": np.zeros([4, 10])}, "4 rows, but there are 5 tokens.*1 of the.*2 x 2"),
        ({"scale": [1.0, 2.0, 3.0]}, r"scale=\[1.0, 2.0, 3.0\].*one number"),
        ({"offset": None}, "offset=None"),
        ({"implementation": "fast"}, "implementation='fast' is unknown"),
    ],
)
def test_illegal_arguments_are_named(changes, message):
    legal = {"images": tf.zeros([2, 8, 8, 3])} | arguments([2, 8, 8, 3], 4, "float32")
    custom_ops.patch_embed(**legal)
    with pytest.raises(ValueError, match=message):
        custom_ops.patch_embed(**(legal | changes))


@pytest.mark.parametrize(
    ("shape", "patch_size", "message"),
    [
        ([8, 8, 3], 4, "images must be"),
        ([2, 8, 3, 3], 4, "8 x 3 pixels hold no patch of 4 x 4"),
        ([2, 8, 8, 3], 0, "patch_size must be a positive integer. Received: 0"),
        ([2, 8, 8, 3], (4, 4), r"patch_size.*\(4, 4\)"),
    ],
)
def test_extract_patches_names_illegal_arguments(shape, patch_size, message):
    with pytest.raises(ValueError, match=message):
        custom_ops.extract_patches(tf.zeros(shape), patch_size)
