"""Preprocessing against NumPy: resize rules, value range, round trip."""

import json
import resource

import numpy as np
import pytest
import tensorflow as tf

from vit_tf.preprocessing import Preprocessing

RULES = [
    {"image_size": (6, 9)},
    {"image_size": (32, 24)},
    {"image_size": (6, 4), "resize": "resize_small", "resize_to": 6},
    {"image_size": (8, 12), "resize": "resize_small", "resize_to": 17},
]


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
        # Graph optimisation may change the order of the last additions.
        np.testing.assert_allclose(result, preprocessing(image), rtol=0, atol=1.2e-7)


def test_range():
    black_and_white = np.array([0, 255], np.uint8)[:, None, None] * np.ones((2, 1, 3), np.uint8)
    result = Preprocessing(image_size=(2, 1))(black_and_white)
    np.testing.assert_array_equal(result[:, 0, 0], [-1.0, 1.0])


@pytest.mark.parametrize("size", [(1, 20_000), (20_000, 1)])
def test_extreme_aspect_needs_little_memory(size):
    """Resizing the whole image to a shorter side of 256 would take 15 GB."""
    rule = {"image_size": (224, 224), "resize": "resize_small", "resize_to": 256}
    image = _random_image((*size, 3))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = Preprocessing(**rule)(image)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # kB

    # The crop lies within the three central pixels.
    centre = image[9_998:10_002] if size[1] == 1 else image[:, 9_998:10_002]
    np.testing.assert_allclose(result, _numpy_preprocess(centre, rule), atol=2e-3)


def test_dictionary_round_trip():
    for rule in RULES:
        preprocessing = Preprocessing(**rule, labels=("cat", "dog"))
        again = Preprocessing.from_dict(json.loads(json.dumps(preprocessing.to_dict())))
        assert again == preprocessing
        assert hash(again) == hash(preprocessing)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (None, "must be a dictionary"),
        ([8, 8], "must be a dictionary"),
        ({}, "lacks 'image_size'"),
        ({"image_size": [8, 8], "mean": 0.5}, "unknown keys ['mean']"),
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
        ({"image_size": [8, 8], "labels": "cat"}, "labels='cat'"),
        ({"image_size": [8, 8], "labels": ["cat", 3]}, "labels=['cat', 3]"),
    ],
)
def test_from_dict_rejects(fields, text):
    with pytest.raises(ValueError) as error:
        Preprocessing.from_dict(fields)
    assert text in str(error.value)


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
