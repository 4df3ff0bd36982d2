"""`patch_embed` and `extract_patches`: both implementations against the float64 oracle.

The compiled one must also be about as accurate as plain TensorFlow. The C++ tests (tests/cc) have
every size with every pair of dtypes and every instruction set.
"""

import itertools

import numpy as np
import pytest
import tensorflow as tf

import custom_ops
from tests.custom_ops import oracle
from tests.custom_ops.compare import (
    check_patch_embed,
    draw,
    draw_uint8,
    each_isa,
    embed,
    exact,
    tables,
)
from tests.pairwise import pairwise
from tests.tolerances import EPSILON, assert_close

pytestmark = pytest.mark.each_device

DTYPES = tuple(EPSILON)
BOTH = ("compiled", "reference")
TO_UNIT = {"scale": 1 / 127.5, "offset": -1.0}

# (image shape, patch size, width): square, rectangular, left-over pixels on either side, one patch,
# patches of one pixel, many channels, widths around the vector width, no images.
SIZES = [
    ([2, 8, 8, 3], 4, 10),
    ([3, 12, 8, 3], 4, 16),
    ([2, 11, 17, 3], 4, 17),
    ([2, 9, 7, 1], 3, 33),
    ([1, 5, 5, 2], 5, 1),
    ([2, 4, 3, 3], 1, 31),
    ([1, 9, 9, 20], 2, 64),
    ([1, 40, 33, 3], 16, 96),
    ([5, 14, 14, 3], 7, 100),
    ([2, 33, 50, 3], 16, 40),
    ([0, 8, 8, 3], 4, 10),
]


@pytest.mark.parametrize(("size", "dtype"), list(zip(SIZES, itertools.cycle(DTYPES), strict=False)))
def test_sizes(size, dtype):
    shape, patch_size, width = size
    weights = tables(shape, patch_size, dtype, width)
    # The sum over a patch of 16 x 16 pixels is too long for the bounds of the table.
    bounded = patch_size < 16
    check_patch_embed(draw(shape, dtype), weights, bounded=bounded)
    check_patch_embed(draw_uint8(shape), weights, bounded=bounded, **TO_UNIT)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_instruction_set(dtype):
    """The wiring of each set; tests/cc has the sizes."""
    shape = [2, 11, 17, 3]
    check_patch_embed(draw(shape, dtype), tables(shape, 4, dtype, width=17), isas=each_isa())


@pytest.mark.parametrize(
    ("image_dtype", "dtype"),
    [
        ("float64", "float32"),
        ("float64", "bfloat16"),
        ("float32", "float64"),
        ("float32", "float16"),
        ("float16", "bfloat16"),
        ("bfloat16", "float32"),
    ],
)
def test_images_of_another_float(image_dtype, dtype):
    shape = [2, 9, 8, 3]
    # Values that every dtype represents: only the dtype may differ.
    images = tf.cast(tf.cast(tf.cast(draw(shape), "bfloat16"), "float16"), image_dtype)
    check_patch_embed(images, tables(shape, 4, dtype))
    check_patch_embed(images, tables(shape, 4, dtype), scale=0.5, offset=0.25)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_uint8_as_it_is(dtype):
    check_patch_embed(draw_uint8([2, 9, 8, 3]), tables([2, 9, 8, 3], 4, dtype))


@pytest.mark.parametrize(
    ("scale", "offset"),
    [(2 / 255, -1.0), (1 / 3, 1e-9), (-7.5, 0.1), (0.0, 0.3), (1.0, 0.0), (1e30, 1e20), (3, -1)],
)
def test_rescaling_is_exact(scale, offset):
    """In float64: op attributes are float32, and a single one would have an error of 1e-8."""
    images, one = draw_uint8([1, 16, 16, 1]), tf.ones([1, 1, 1, 1], "float64")
    tokens = custom_ops.patch_embed(
        images, one, tf.zeros([1]), scale=scale, offset=offset, implementation="compiled"
    )
    expected = exact(images).reshape(tokens.shape) * scale + offset
    np.testing.assert_allclose(tokens, expected, rtol=1e-15, atol=0)


def test_rescaling_that_no_float_holds_takes_the_reference():
    for scale in (1e300, 1e-300, float("nan"), float("inf")):
        tokens = custom_ops.patch_embed(
            tf.ones([1, 1, 1, 1], "float64"),
            tf.ones([1, 1, 1, 1], "float64"),
            tf.zeros([1]),
            scale=scale,
            implementation="compiled",
        )
        np.testing.assert_array_equal(tokens, [[[scale]]])


@pytest.mark.parametrize("implementation", BOTH)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rescaling_is_rounded_to_half_width_only_at_the_end(dtype, implementation):
    # Near the middle of the range the offset cancels: in bfloat16 no digit would be correct.
    images = tf.constant(np.arange(256).reshape(1, 16, 16, 1), "uint8")
    expected = np.arange(256) * (2 / 255) - 1
    one, zero = tf.ones([1, 1, 1, 1], dtype), tf.zeros([1], dtype)
    for source in (images, tf.cast(images, "bfloat16"), tf.cast(images, "float16")):
        tokens = custom_ops.patch_embed(
            source, one, zero, scale=2 / 255, offset=-1, implementation=implementation
        )
        relative = np.abs(exact(tokens).ravel() / expected - 1)
        assert relative.max() < EPSILON[dtype]


@pytest.mark.parametrize(
    ("with_position", "prefix_size", "dtype"),
    pairwise([False, True], [None, 0, 1, 3], DTYPES),
)
def test_prefix_and_position_are_optional(with_position, prefix_size, dtype):
    shape = [3, 11, 8, 3]
    weights = tables(shape, 4, dtype, prefix_size=prefix_size or 0)
    if prefix_size is None:
        del weights["prefix"]
    if not with_position:
        del weights["position"]
    check_patch_embed(draw(shape, dtype), weights)


def test_tables_of_another_float_than_the_kernel():
    shape = [2, 8, 8, 3]
    weights = tables(shape, 4, "bfloat16")
    others = {name: tf.cast(x, "float32") for name, x in weights.items()}
    check_patch_embed(draw(shape, "bfloat16"), others | {"kernel": weights["kernel"]})


def test_many_patches_and_a_long_reduction():
    # 300 patches of 768 pixels: several blocks of rows, columns and of the sum.
    shape = [3, 160, 160, 3]
    weights = tables(shape, 16, "float32", 48)
    check_patch_embed(draw_uint8(shape), weights, bounded=False, **TO_UNIT)


@pytest.mark.usefixtures("each_implementation")
@pytest.mark.parametrize(("shape", "patch_size", "width"), SIZES[:6])
def test_convolution_and_flatten_then_dense_agree(shape, patch_size, width):
    images = draw(shape)
    weights = tables(shape, patch_size, "float32", width)
    kernel, bias = weights["kernel"], weights["bias"]
    tokens = custom_ops.patch_embed(images, kernel, bias)
    convolution = tf.nn.conv2d(images, kernel, patch_size, "VALID") + bias
    flat = tf.reshape(kernel, [-1, width])
    dense = custom_ops.extract_patches(images, patch_size) @ flat + bias
    expected = exact(tf.reshape(convolution, tokens.shape))
    assert_close(tokens, expected, "float32", "patch_embed")
    assert_close(dense, expected, "float32", "patch_embed")


@pytest.mark.parametrize("implementation", BOTH)
@pytest.mark.parametrize("image_dtype", ["uint8", "float32"])
def test_leftover_pixels_are_not_read(image_dtype, implementation):
    shape = [2, 11, 14, 3]
    images, weights = draw_uint8(shape), tables(shape, 4, "float32")
    if image_dtype == "float32":
        images = tf.cast(images, tf.float32)
        beyond = np.ones(shape, bool)
        beyond[:, :8, :12] = False
        images = tf.where(beyond, np.nan, images)
    cut = images[:, :8, :12]
    (tokens, gradients, cotangent) = embed(implementation, images, weights, TO_UNIT, None)
    (expected, expected_gradients, _) = embed(implementation, cut, weights, TO_UNIT, cotangent)
    np.testing.assert_array_equal(tokens, expected)
    for name in weights:
        np.testing.assert_array_equal(gradients[name], expected_gradients[name])
    if image_dtype == "float32":
        d_images = gradients["images"].numpy()
        assert not d_images[:, 8:].any() and not d_images[:, :, 12:].any()
        np.testing.assert_array_equal(d_images[:, :8, :12], expected_gradients["images"])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_inf_spread_as_in_the_reference(value):
    shape = [2, 9, 8, 3]
    weights = tables(shape, 4, "float32", width=20)
    images = draw(shape).numpy()
    images[1, 5, 2, 1] = value
    for name in ("images", *weights):
        inputs = {"images": draw(shape)} | weights
        if name == "images":
            inputs["images"] = tf.constant(images)
        else:
            broken = inputs[name].numpy()
            broken.flat[7] = value
            inputs[name] = tf.constant(broken)
        given = inputs.pop("images")
        plain, plain_gradients, cotangent = embed("reference", given, inputs, TO_UNIT, None)
        tokens, gradients, _ = embed("compiled", given, inputs, TO_UNIT, cotangent)
        np.testing.assert_allclose(tokens, plain, rtol=0, atol=1e-4)
        for key, gradient in gradients.items():
            np.testing.assert_allclose(gradient, plain_gradients[key], rtol=0, atol=1e-4)


def test_the_same_bits_every_time():
    shape = [3, 64, 48, 3]
    images, weights = draw_uint8(shape), tables(shape, 16, "bfloat16", width=72)
    first, first_gradients, cotangent = embed("compiled", images, weights, TO_UNIT, None)
    again, gradients, _ = embed("compiled", images, weights, TO_UNIT, cotangent)
    np.testing.assert_array_equal(exact(again), exact(first))
    for name, gradient in gradients.items():
        np.testing.assert_array_equal(exact(gradient), exact(first_gradients[name]))


FIXED_SIZE = ["uint8", "int8", "bool", "uint16", "int16", "float16", "bfloat16", "int32", "uint32"]
FIXED_SIZE += ["float32", "int64", "uint64", "float64", "complex64", "complex128"]


@pytest.mark.usefixtures("each_implementation")
@pytest.mark.parametrize(
    ("size", "dtype"), list(zip(itertools.cycle(SIZES), FIXED_SIZE, strict=False))
)
def test_extract_patches_moves_values_only(size, dtype):
    shape, patch_size, _ = size
    images = tf.cast(draw_uint8(shape), dtype)
    patches = custom_ops.extract_patches(images, patch_size)
    expected, _ = oracle.extract_patches(images.numpy(), patch_size)
    assert patches.dtype == images.dtype
    np.testing.assert_array_equal(patches, expected.reshape(patches.shape))


@pytest.mark.usefixtures("each_implementation")
def test_extract_patches_of_strings_takes_the_reference():
    images = np.array([[f"{i}{j}" for j in range(5)] for i in range(4)]).reshape(1, 4, 5, 1)
    patches = custom_ops.extract_patches(tf.constant(images), 2)
    expected = [["00", "01", "10", "11"], ["02", "03", "12", "13"]]
    np.testing.assert_array_equal(patches[0, :2].numpy().astype(str), expected)


@pytest.mark.usefixtures("each_implementation")
@pytest.mark.parametrize(("shape", "patch_size"), [size[:2] for size in SIZES])
def test_extract_patches_gradient(shape, patch_size):
    images = draw(shape, "float64")
    with tf.GradientTape() as tape:
        tape.watch(images)
        patches = custom_ops.extract_patches(images, patch_size)
    cotangent = draw(patches.shape, "float64", seed=1)
    _, backward = oracle.extract_patches(exact(images), patch_size)
    gradient = tape.gradient(patches, images, cotangent)
    np.testing.assert_array_equal(gradient, backward(exact(cotangent)))


@pytest.mark.usefixtures("each_implementation")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64"])
def test_extract_patches_second_gradient(dtype):
    """Cutting patches is linear, so the second and further gradients exist too."""
    shape = [2, 11, 17, 3]
    images, inner = (tf.cast(draw(shape, seed=seed), dtype) for seed in (0, 1))
    with tf.GradientTape() as outer_tape:
        outer_tape.watch(inner)
        with tf.GradientTape() as tape:
            tape.watch(images)
            patches = custom_ops.extract_patches(images, 4)
            weights = custom_ops.extract_patches(inner, 4)
        gradient = tape.gradient(patches, images, weights)
    assert gradient.dtype == images.dtype
    expected = inner.numpy()
    expected[:, 8:] = expected[:, :, 16:] = 0
    np.testing.assert_array_equal(gradient, expected)
    second = outer_tape.gradient(gradient, inner, tf.ones_like(gradient))
    np.testing.assert_array_equal(second, np.where(expected != 0, np.ones_like(expected), 0))


@pytest.mark.usefixtures("each_implementation")
def test_extract_patches_order_is_that_of_tensorflow():
    images = draw([2, 11, 17, 3], "float32")
    expected = tf.image.extract_patches(images, [1, 4, 4, 1], [1, 4, 4, 1], [1, 1, 1, 1], "VALID")
    patches = custom_ops.extract_patches(images, 4)
    np.testing.assert_array_equal(patches, tf.reshape(expected, patches.shape))
