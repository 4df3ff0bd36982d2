"""Preprocessing against NumPy and Pillow: resize rules, filters, value range, round trip."""

import dataclasses
import json
import pathlib
import re
import typing

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from vit_tf.classes import Classes
from vit_tf.preprocessing import Interpolation, Preprocessing

RULES = [
    {"image_size": (6, 9)},
    {"image_size": (32, 24)},
    {"image_size": (6, 4), "resize": "resize_small", "resize_to": 6},
    {"image_size": (8, 12), "resize": "resize_small", "resize_to": 17},
]
CROPS = ("resize_small", "shortest_edge", "center", "squash")
# The sides before and after a crop have all remainders by 4, for the rounding of the offset.
FILTERED = [
    {"image_size": (6, 9)},
    {"image_size": (37, 23)},
    *({"image_size": (8, 8), "resize": rule, "resize_to": 13} for rule in CROPS),
    *({"image_size": (10, 7), "resize": rule, "resize_to": 13} for rule in CROPS),
]
SIZES = [(1, 1), (7, 5), (13, 40), (64, 31), (225, 223)]


def _random_image(shape, dtype=np.uint8):
    values = np.random.default_rng(0).integers(0, 256, shape)
    return values.astype(dtype) if dtype == np.uint8 else values.astype(dtype) - 0.25


def _numpy_bilinear(image, size):
    """Half-pixel bilinear resize without antialiasing, float64."""
    for axis, new in enumerate(size):
        old = image.shape[axis]
        at = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
        low = np.floor(at).astype(int)
        high = np.minimum(low + 1, old - 1)
        weight = (at - low).reshape([-1] + [1] * (image.ndim - 1 - axis))
        image = np.take(image, low, axis) * (1 - weight) + np.take(image, high, axis) * weight
    return image


def _numpy_preprocess(image, rule):
    image = image.astype(np.float64)
    size = rule["image_size"]
    if "resize_to" in rule:
        height, width = image.shape[:2]
        ratio = rule["resize_to"] / min(height, width)
        image = _numpy_bilinear(image, (round(height * ratio), round(width * ratio)))
        top, left = [(have - want) // 2 for have, want in zip(image.shape[:2], size, strict=True)]
        image = image[top : top + size[0], left : left + size[1]]
    else:
        image = _numpy_bilinear(image, size)
    return (image - 127.5) / 127.5


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("size", [(1, 1), (7, 5), (6, 9), (13, 40), (64, 31)])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_equals_numpy(rule, size, dtype):
    image = _random_image((*size, 3), dtype)
    result = Preprocessing(**rule)(image)
    assert result.dtype == tf.float32
    assert result.shape == (*rule["image_size"], 3)
    np.testing.assert_allclose(result, _numpy_preprocess(image, rule), atol=2e-5)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_batch_equals_single_images(rule):
    preprocessing = Preprocessing(**rule)
    images = _random_image((3, 19, 14, 3))
    single = np.stack([preprocessing(image) for image in images])
    np.testing.assert_array_equal(preprocessing(images), single)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_graph_with_unknown_shape_equals_eager(rule):
    preprocessing = Preprocessing(**rule)
    image = _random_image((23, 17, 3))
    single = tf.function(preprocessing, input_signature=[tf.TensorSpec([None, None, 3], tf.uint8)])
    batch = tf.function(
        preprocessing, input_signature=[tf.TensorSpec([None, None, None, 3], tf.uint8)]
    )
    assert single.get_concrete_function().output_shapes == (*rule["image_size"], 3)
    assert batch.get_concrete_function().output_shapes.as_list() == [None, *rule["image_size"], 3]
    (mapped,) = tf.data.Dataset.from_tensors(image).map(preprocessing)

    for result in (single(image), mapped, batch(image[None])[0]):
        # Graph optimization may change the order of the last additions.
        np.testing.assert_allclose(result, preprocessing(image), rtol=0, atol=1.2e-7)


def _place(size, rule):
    """Size of the whole resized image, and (top, left) of the crop, as the sources compute them."""
    crop, side, name = rule["image_size"], rule.get("resize_to"), rule.get("resize", "direct")
    if name == "direct":
        return crop, (0, 0)
    if name == "squash":
        resized = side, side
    elif name == "resize_small":
        resized = tuple(round(length * side / min(size)) for length in size)
    else:  # torchvision's Resize and get_resize_output_image_size of Hugging Face
        resized = tuple(int(side * length / min(size)) for length in size)
    rest = [have - want for have, want in zip(resized, crop, strict=True)]
    if name in ("center", "squash"):  # torchvision's CenterCrop
        return resized, tuple(round(x / 2.0) for x in rest)
    return resized, tuple(x // 2 for x in rest)


def _cropped(image, start, size):
    return image[start[0] : start[0] + size[0], start[1] : start[1] + size[1]]


@pytest.mark.parametrize("name", ["bilinear", "bicubic"])
@pytest.mark.parametrize("rule", FILTERED, ids=str)
def test_antialiasing_equals_pillow(rule, name):
    """At most one level apart; equal but for ties in rounding."""
    kind = Image.Resampling[name.upper()]
    preprocessing = Preprocessing(**rule, interpolation=name, antialias=True)
    for size in SIZES:
        image = _random_image((*size, 3))
        (height, width), start = _place(size, rule)
        # One pass after the other: Pillow 13 exchanges the passes for some sizes.
        resized = Image.fromarray(image).resize((width, size[0]), kind)
        resized = np.asarray(resized.resize((width, height), kind))
        expected = _cropped(resized, start, rule["image_size"])
        for given in (image, image.astype(np.float32)):
            difference = np.abs(preprocessing.resized(given).numpy() - expected)
            assert difference.max() <= 1, size
            assert np.mean(difference > 0) < 0.05, size


def _weights(length, new, name):
    """Weights `[new, length]` of a resize without antialiasing, float64."""
    at = (np.arange(new) + 0.5) * length / new
    if name == "area":
        edges, pixels = np.arange(new + 1) * length / new, np.arange(length)
        covered = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
        weights = np.maximum(covered, 0)
    else:  # Keys' kernel, a = -0.5
        x = np.abs(np.arange(length) + 0.5 - at[:, None])
        near, far = 1.5 * x**3 - 2.5 * x**2 + 1, -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2
        weights = np.where(x < 1, near, np.where(x < 2, far, 0))
    return weights / weights.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("name", ["bicubic", "area"])
@pytest.mark.parametrize("rule", FILTERED, ids=str)
def test_filters_without_antialiasing_equal_numpy(rule, name):
    preprocessing = Preprocessing(**rule, interpolation=name)
    for size in SIZES:
        image = _random_image((*size, 3), np.float32)
        resized, start = _place(size, rule)
        rows, columns = (_weights(size[i], resized[i], name) for i in range(2))
        expected = np.einsum("ah,bw,hwc->abc", rows, columns, image.astype(np.float64))
        if name == "bicubic":
            # The first pass is clipped too.
            expected = np.clip(np.einsum("bw,hwc->hbc", columns, image), 0, 255)
            expected = np.clip(np.einsum("ah,hbc->abc", rows, expected), 0, 255)
        received = preprocessing.resized(image)
        np.testing.assert_allclose(
            received, _cropped(expected, start, rule["image_size"]), atol=0.02
        )


@pytest.mark.parametrize(
    "fields",
    [
        {"interpolation": "bicubic", "antialias": True},
        {"interpolation": "area", "resize": "center", "resize_to": 20},
        {"mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6), "resize": "squash", "resize_to": 17},
    ],
    ids=str,
)
def test_new_fields_in_batches_and_graphs(fields):
    preprocessing = Preprocessing(image_size=(16, 16), **fields)
    images = _random_image((2, 33, 21, 3))
    batch = tf.function(
        preprocessing, input_signature=[tf.TensorSpec([None, None, None, 3], tf.uint8)]
    )
    single = np.stack([preprocessing(image) for image in images])
    for result in (preprocessing(images), batch(images)):
        np.testing.assert_allclose(result, single, rtol=0, atol=3e-6)
    again = Preprocessing.from_dict(json.loads(json.dumps(preprocessing.to_dict())))
    assert again == preprocessing


def test_mean_and_deviation_of_each_color():
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    image = _random_image((5, 4, 3))
    result = Preprocessing(image_size=(5, 4), mean=mean, std=std)(image)
    np.testing.assert_allclose(result, (image / 255 - mean) / std, rtol=1e-6, atol=1e-6)
    # The default is bitwise what the models compute for uint8 images.
    exact = (image.astype(np.float32) - np.float32(127.5)) * np.float32(1 / 127.5)
    np.testing.assert_array_equal(Preprocessing(image_size=(5, 4))(image), exact)


@pytest.mark.parametrize(
    ("side", "fraction", "expected"), [(224, 0.875, 256), (224, 0.9, 248), (384, 1.0, 384)]
)
def test_crop_fraction(side, fraction, expected):
    fields = {"image_size": (side, side), "resize": "center"}
    assert Preprocessing(**fields, crop_fraction=fraction) == Preprocessing(
        **fields, resize_to=expected
    )


def test_defaults_keep_old_files():
    """The dictionary has only the fields that earlier versions read."""
    assert Preprocessing(image_size=(8, 6)).to_dict() == {
        "image_size": [8, 6],
        "resize": "direct",
        "resize_to": None,
    }
    assert Classes(labels=("cat",)).to_dict() == {"labels": ["cat"], "probabilities": "softmax"}
    accurate = Preprocessing(image_size=(8, 6), antialias=True)
    assert accurate.to_dict()["jpeg"] == "accurate"
    assert Preprocessing.from_dict(accurate.to_dict()) == accurate
    before = {"image_size": [8, 6], "antialias": True}
    assert Preprocessing.from_dict(before) == dataclasses.replace(accurate, jpeg="fast")


def reset_peak():
    """Lets the peak of this process' memory begin again from what it uses now."""
    pathlib.Path("/proc/self/clear_refs").write_text("5")


def peak():
    """The peak of this process' memory in kB."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s*(\d+) kB", status)[1])


@pytest.mark.parametrize("size", [(500_000, 4), (4, 500_000)])
def test_extreme_aspect_with_antialiasing_needs_little_memory(size):
    """The width first would take 1.3 GB for the first of them."""
    image = np.zeros((*size, 3), np.uint8)
    preprocessing = Preprocessing(image_size=(224, 224), interpolation="bicubic", antialias=True)
    reset_peak()
    before = peak()
    preprocessing(image)
    assert peak() - before < 500_000  # kB


@pytest.mark.parametrize(
    ("rule", "resize_to", "size"),
    [
        ("direct", None, (6, 9)),
        *((rule, 8, (8, 8)) for rule in CROPS),
        *((rule, 9, size) for rule in CROPS for size in ((8, 8), (6, 9))),
    ],
)
def test_pixels_of_images_that_have_the_size_already(rule, resize_to, size):
    """`keeps_own_size` is what every filter does, in graphs of unknown size too."""
    images = np.random.default_rng(0).integers(0, 256, (2, *size, 3), np.uint8)
    fields = {"image_size": size, "resize": rule, "resize_to": resize_to}
    for interpolation, antialias in (
        *[(x, False) for x in typing.get_args(Interpolation)],
        ("bicubic", True),
    ):
        filtered = {"interpolation": interpolation, "antialias": antialias}
        preprocessing = Preprocessing(**fields, **filtered)
        same = np.array_equal(preprocessing.resized(images), images)
        assert same == preprocessing.keeps_own_size
    graph = tf.function(
        preprocessing.resized, input_signature=[tf.TensorSpec([None, None, None, 3], tf.uint8)]
    )
    assert np.array_equal(graph(images), images) == preprocessing.keeps_own_size


def test_black_and_white_are_the_ends_of_the_range():
    black_and_white = np.array([0, 255], np.uint8)[:, None, None] * np.ones((2, 1, 3), np.uint8)
    result = Preprocessing(image_size=(2, 1))(black_and_white)
    np.testing.assert_array_equal(result[:, 0, 0], [-1.0, 1.0])


@pytest.mark.parametrize("size", [(1, 20_000), (20_000, 1)])
def test_extreme_aspect_needs_little_memory(size):
    """Resizing the whole image to a shorter side of 256 would take 15 GB."""
    rule = {"image_size": (224, 224), "resize": "resize_small", "resize_to": 256}
    image = _random_image((*size, 3))
    reset_peak()
    before = peak()
    result = Preprocessing(**rule)(image)
    assert peak() - before < 500_000  # kB

    # The crop lies within the three central pixels.
    center = image[9_998:10_002] if size[1] == 1 else image[:, 9_998:10_002]
    np.testing.assert_allclose(result, _numpy_preprocess(center, rule), atol=2e-3)


@pytest.mark.parametrize("rule", ["resize_small", "shortest_edge", "center"])
def test_a_side_above_int32_after_the_resize(rule):
    """1 x 9,000,000 pixels become 256 x 2,304,000,000; the crop equals the center's alone."""
    image = _random_image((1, 9_000_000, 3))
    center = image[:, 4_499_997:4_500_003]
    for kind in ({}, {"interpolation": "area"}, {"interpolation": "bicubic", "antialias": True}):
        rule_and_kind = {"resize": rule, "resize_to": 256} | kind
        preprocessing = Preprocessing(image_size=(224, 224), **rule_and_kind)
        np.testing.assert_allclose(
            preprocessing.resized(image), preprocessing.resized(center), atol=1.01 if kind else 2e-3
        )


@pytest.mark.parametrize(
    "kind", [{"interpolation": "area"}, {"interpolation": "bicubic", "antialias": True}], ids=str
)
def test_weights_of_an_extreme_reduction_need_little_memory(kind):
    """All weights of the filter would take 1 GB (bicubic) or more than 100 GB (area)."""
    levels = np.repeat(np.arange(256, dtype=np.uint8), 234_375)
    image = np.repeat(levels[None, :, None], 3, axis=2)
    preprocessing = Preprocessing(image_size=(16, 256), resize="squash", resize_to=256, **kind)
    reset_peak()
    before = peak()
    result = preprocessing.resized(image)
    assert peak() - before < 500_000  # kB
    np.testing.assert_allclose(result[0, :, 0], np.arange(256), atol=1)


@pytest.mark.parametrize("rule", CROPS)
def test_the_crop_box_is_what_the_model_sees(rule):
    """Stretching that part of the image alone gives nearly the same pixels."""
    smooth = np.stack(np.meshgrid(np.linspace(0, 255, 64), np.linspace(255, 0, 48)), axis=-1)
    image = np.concatenate([smooth, smooth[..., :1] / 2], axis=-1).astype(np.uint8)
    preprocessing = Preprocessing(image_size=(16, 12), resize=rule, resize_to=24)
    top, left, bottom, right = preprocessing.crop_box((48, 64))
    # The shorter side becomes 24 pixels; "squash" brings both to 24.
    width = 32 if rule == "squash" else 24
    assert (top, left, bottom, right) == pytest.approx((8, 32 - width / 2, 40, 32 + width / 2))
    part = image[int(top) : int(bottom), round(left) : round(right)]
    seen = preprocessing.seen(image).numpy()
    assert seen.shape == (16, 12, 3) and seen.dtype == np.uint8
    stretched = Preprocessing(image_size=(16, 12)).seen(part).numpy()
    assert np.abs(seen.astype(int) - stretched).max() <= 2


def test_without_a_crop_the_model_sees_the_whole_image():
    preprocessing = Preprocessing(image_size=(6, 9), mean=(0.4, 0.5, 0.6), std=(0.2, 0.2, 0.2))
    assert preprocessing.crop_box((13, 40)) == (0, 0, 13, 40)
    image = _random_image((6, 9, 3))
    np.testing.assert_array_equal(preprocessing.seen(image), image)


def test_dictionary_round_trip():
    for rule in RULES:
        preprocessing, classes = Preprocessing(**rule), Classes(labels=("cat", "dog"))
        stored = json.loads(json.dumps(preprocessing.to_dict() | classes.to_dict()))
        again = Preprocessing.from_dict(stored)
        assert (again, Classes.from_dict(stored)) == (preprocessing, classes)
        assert hash(again) == hash(preprocessing)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (None, "must be a dictionary"),
        ([8, 8], "must be a dictionary"),
        ({}, "lacks 'image_size'"),
        ({"image_size": [8, 8], "crop": 0.5}, "unknown keys ['crop']"),
        ({"image_size": [8, 8], "mean": 0.5}, "mean=0.5"),
        ({"image_size": [8, 8], "mean": [0, 0, 10**400]}, "from -1e+06 to 1e+06"),
        ({"image_size": [8, 8], "mean": [0, 0, float("nan")]}, "nan"),
        ({"image_size": [8, 8], "std": [1, 1, 0]}, "std=[1, 1, 0]"),
        ({"image_size": [8, 8], "std": [1, 1]}, "three numbers"),
        ({"image_size": [8, 8], "interpolation": "lanczos"}, "interpolation='lanczos'"),
        ({"image_size": [8, 8], "interpolation": ["area"]}, "interpolation=['area']"),
        ({"image_size": [8, 8], "antialias": 1}, "antialias=1"),
        ({"image_size": [8, 8], "interpolation": "area", "antialias": True}, "Set antialias=false"),
        ({"image_size": 8}, "image_size=8"),
        ({"image_size": [8, 8, 3]}, "image_size=[8, 8, 3]"),
        ({"image_size": [8, 0]}, "image_size=[8, 0]"),
        ({"image_size": [8, True]}, "image_size=[8, True]"),
        ({"image_size": [8, 1e9]}, "image_size=[8, 1000000000.0]"),
        ({"image_size": [8, 10**9]}, "image_size=[8, 1000000000]"),
        ({"image_size": [8, 8], "resize": "nearest"}, "resize='nearest'"),
        ({"image_size": [8, 8], "resize_to": 9}, "resize_to=9 has no meaning"),
        ({"image_size": [8, 8], "resize": "resize_small"}, "resize_to=None"),
        ({"image_size": [8, 12], "resize": "resize_small", "resize_to": 11}, "from 12"),
        ({"image_size": [8, 8], "resize": "resize_small", "resize_to": "9"}, "resize_to='9'"),
    ],
)
def test_from_dict_rejects(fields, text):
    with pytest.raises(ValueError) as error:
        Preprocessing.from_dict(fields)
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"labels": "cat"}, "labels='cat'"),
        ({"labels": ["cat", 3]}, r"labels=\['cat', 3\]"),
        ({"probabilities": "relu"}, "'relu'.*probabilities"),
        ({"probabilities": ["softmax"]}, "gives no probabilities"),
    ],
)
def test_classes_reject(fields, text):
    with pytest.raises(ValueError, match=text):
        Classes.from_dict({"image_size": [8, 8]} | fields)


def test_names_and_probabilities_of_classes():
    assert Classes().names(3) == ("0", "1", "2")
    assert Classes(labels=("a", "b")).names(2) == ("a", "b")
    logits = np.array([[0.0, 1.0, -2.0]], np.float32)
    exponents = np.exp(logits)
    np.testing.assert_allclose(
        Classes().to_probabilities(logits), exponents / exponents.sum(), rtol=1e-6
    )
    sigmoid = Classes(activation="sigmoid").to_probabilities(logits)
    np.testing.assert_allclose(sigmoid, exponents / (1 + exponents), rtol=1e-6)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"resize": "center", "crop_fraction": 0}, "crop_fraction=0"),
        ({"resize": "center", "crop_fraction": 1.01}, "crop_fraction=1.01"),
        ({"resize": "center", "crop_fraction": 1e-9}, "does not fit"),
        ({"resize": "center", "crop_fraction": 0.9, "resize_to": 9}, "Leave one out"),
        ({"crop_fraction": 0.9}, "has no meaning"),
    ],
)
def test_crop_fraction_rejects(fields, text):
    with pytest.raises(ValueError, match=text):
        Preprocessing(image_size=(8, 8), **fields)


@pytest.mark.parametrize(
    "fields", [{"dtype": "int8"}, {"dtype": "uint8", "mean": (0.4, 0.5, 0.5)}], ids=str
)
def test_a_dtype_that_models_do_not_read_is_refused(fields):
    with pytest.raises(ValueError, match="float32, or uint8"):
        Preprocessing(image_size=(8, 8), **fields)


def test_the_dtype_is_not_stored():
    stored = Preprocessing(image_size=(8, 6)).to_dict()
    assert Preprocessing(image_size=(8, 6), dtype="uint8").to_dict() == stored
    with pytest.raises(ValueError, match=r"unknown keys \['dtype'\]"):
        Preprocessing.from_dict(stored | {"dtype": "uint8"})


@pytest.mark.parametrize(
    ("images", "text"),
    [
        (np.zeros((4, 4), np.uint8), "Received: (4, 4)"),
        (np.zeros((4, 4, 1), np.uint8), "Received: (4, 4, 1)"),
        (np.zeros((1, 1, 4, 4, 3), np.uint8), "Received: (1, 1, 4, 4, 3)"),
        (np.zeros((4, 4, 3), np.int32), "Received: int32"),
    ],
)
def test_call_rejects(images, text):
    with pytest.raises(ValueError) as error:
        Preprocessing(image_size=(2, 2))(images)
    assert text in str(error.value)
