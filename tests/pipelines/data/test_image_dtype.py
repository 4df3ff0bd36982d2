"""Batches of uint8 images: the bytes of the source, or the floats of other runs rounded once."""

import numpy as np
import pytest
import tensorflow as tf

from pipelines.data import pipeline
from pipelines.data.sources.arrays import ArraySource
from tests.pipelines.data.batches import to_numpy, train_dataset
from vit_tf.preprocessing import Preprocessing

DTYPES = ("uint8", "float32")
COUNT, SIZE = 24, (11, 14)
# Half a level of 255 in [-1, 1], and the rounding of float32.
HALF_STEP = 0.5 / 127.5 + 2e-7


@pytest.fixture(scope="module")
def pixels():
    return np.random.default_rng(0).integers(0, 256, [COUNT, *SIZE, 3], np.uint8)


@pytest.fixture(scope="module")
def source(pixels):
    return ArraySource(pixels, np.arange(COUNT) % 2)


def _train(source, dtype, image_size=SIZE, antialias=False, **options):
    preprocessing = Preprocessing(image_size=image_size, antialias=antialias, dtype=dtype)
    dataset = train_dataset(
        source,
        batch_size=8,
        shuffle_window=9,
        seed=3,
        preprocessing=preprocessing,
        **options,
    )
    return dataset, to_numpy(dataset.take(2 * COUNT // 8))


def _evaluate(source, dtype, **fields):
    preprocessing = Preprocessing(**{"image_size": SIZE, "dtype": dtype} | fields)
    return pipeline.eval_dataset(source, batch_size=8, preprocessing=preprocessing)


def test_without_a_resize_the_bytes_are_those_of_the_source(source, pixels):
    dataset, batches = _train(source, "uint8", crop="none")
    assert dataset.element_spec["image"] == tf.TensorSpec([8, *SIZE, 3], tf.uint8)
    mirrored = []
    for batch in batches:
        for image, example_id in zip(batch["image"], batch["id"], strict=True):
            stored = pixels[example_id]
            mirrored.append((image != stored).any())
            np.testing.assert_array_equal(image, stored[:, ::-1] if mirrored[-1] else stored)
    assert 0 < sum(mirrored) < len(mirrored)
    evaluated = _evaluate(source, "uint8")
    assert evaluated.element_spec["image"] == tf.TensorSpec([8, *SIZE, 3], tf.uint8)
    for batch in to_numpy(evaluated):
        np.testing.assert_array_equal(batch["image"], pixels[batch["id"]])


@pytest.mark.parametrize(
    "options",
    [
        {"random_erasing": 1.0},
        {"crop": "none", "random_erasing": 1.0, "random_erasing_fill": "grey"},
    ],
    ids=str,
)
def test_values_are_rounded_to_the_nearest_level(source, options):
    _, received = _train(source, "uint8", (9, 17), **options)
    _, expected = _train(source, "float32", (9, 17), **options)
    differences = []
    for batch, other in zip(received, expected, strict=True):
        assert (batch["image"].dtype, other["image"].dtype) == (np.uint8, np.float32)
        differences.append(batch["image"] / 127.5 - 1 - other["image"])
        for key in ("label", "id", "slot", "weight"):
            np.testing.assert_array_equal(batch[key], other[key])
    differences = np.stack(differences)
    # Reaches half a level in both directions, so it is rounding to the nearest one.
    assert 0.9 * HALF_STEP < differences.max() <= HALF_STEP
    assert -HALF_STEP <= differences.min() < -0.9 * HALF_STEP


def _assert_bitwise(received, expected):
    """Checks that levels become the floats exactly."""
    for batch, other in zip(received, expected, strict=True):
        levels = batch["image"].astype(np.float32)
        floats = (levels - np.float32(127.5)) * np.float32(1 / 127.5)
        np.testing.assert_array_equal(floats, other["image"])


def test_rounding_changes_no_whole_levels(source):
    options = {"antialias": True, "color_jitter": (0.4, 0.4, 0.4, 0.1)}
    levels, floats = (_train(source, dtype, (9, 17), **options)[1] for dtype in DTYPES)
    _assert_bitwise(levels, floats)


@pytest.mark.parametrize(
    "fields",
    [
        {"interpolation": "bicubic", "resize": "resize_small", "resize_to": 20},
        {"resize": "center", "resize_to": 15},
    ],
    ids=str,
)
def test_antialiased_evaluations_are_exact(source, fields):
    """`Data.eval_image_dtype` relies on it."""
    fields |= {"image_size": (9, 13), "antialias": True}
    levels, floats = (to_numpy(_evaluate(source, dtype, **fields)) for dtype in DTYPES)
    _assert_bitwise(levels, floats)
