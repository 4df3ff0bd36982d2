"""Augmentation: contents and statistics of crops and flips; nothing but the seed matters."""

import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from pipelines.data import augmentation, keys
from vit_tf.preprocessing import Preprocessing, decode_image

HEIGHT, WIDTH = 160, 200


def _encode(image, file_format, **options):
    file = io.BytesIO()
    Image.fromarray(image).save(file, file_format, **options)
    return file.getvalue()


@pytest.fixture(scope="module")
def plane():
    """Image whose red value is the column and whose green value is the row."""
    image = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    image[..., 0] = np.arange(WIDTH)
    image[..., 1] = np.arange(HEIGHT)[:, None]
    return image


@pytest.fixture(scope="module")
def photograph():
    image = np.random.default_rng(0).integers(0, 256, (9, 11, 3)).astype(np.uint8)
    return np.asarray(Image.fromarray(image).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC))


def _seeds(count, step=0):
    return keys.example_seeds(1, step, np.arange(count))


def _boxes(encoded, seeds, **options):
    """Place and size (row, column, height, width) of the crop that each seed gives."""
    boxes = []
    for seed in seeds:
        crop = augmentation.inception_crop(encoded, seed, **options).numpy()
        boxes.append((crop[0, 0, 1], crop[0, 0, 0], *crop.shape[:2]))
    return np.array(boxes, int)


def test_crop_is_a_part_of_the_image(plane):
    encoded = _encode(plane, "PNG")
    for seed in _seeds(20):
        crop = augmentation.inception_crop(encoded, seed).numpy()
        row, column = crop[0, 0, 1], crop[0, 0, 0]
        part = plane[row : row + crop.shape[0], column : column + crop.shape[1]]
        np.testing.assert_array_equal(crop, part)


@pytest.mark.parametrize("area", [(0.05, 1.0), (0.3, 0.5)])
def test_crop_statistics(plane, area):
    row, column, height, width = _boxes(_encode(plane, "PNG"), _seeds(600), area=area).T
    share = height * width / (HEIGHT * WIDTH)
    aspect = width / height
    # Sizes are whole pixels, which moves small crops a little over the limits.
    assert area[0] * 0.97 <= share.min() < area[0] + 0.1 * (area[1] - area[0])
    assert area[1] - 0.2 * (area[1] - area[0]) < share.max() <= area[1] * 1.03
    assert 0.75 * 0.97 <= aspect.min() < 0.85
    assert 1.2 < aspect.max() <= 1.33 * 1.03
    # Places are uniform over the room that the size leaves.
    for start, room in ((row, HEIGHT - height), (column, WIDTH - width)):
        place = start[room > 20] / room[room > 20]
        assert abs(place.mean() - 0.5) < 0.05
        assert place.min() < 0.02
        assert place.max() > 0.98


def test_jpeg_gives_the_same_crop_as_decoding_first(photograph):
    png = _encode(photograph, "PNG")
    for subsampling, tolerance in ((0, 0), (2, 24)):
        jpeg = _encode(photograph, "JPEG", quality=95, subsampling=subsampling)
        whole = _encode(decode_image(jpeg).numpy(), "PNG")
        for seed in _seeds(20):
            crop = augmentation.inception_crop(jpeg, seed).numpy().astype(int)
            expected = augmentation.inception_crop(whole, seed).numpy()
            assert crop.shape == augmentation.inception_crop(png, seed).shape
            assert np.abs(crop - expected).max() <= tolerance
            # With colour at half resolution only the border of the crop differs.
            np.testing.assert_array_equal(crop[2:-2, 2:-2], expected[2:-2, 2:-2])


def test_flip_mirrors_half_of_the_images(plane):
    flipped = 0
    for seed in _seeds(800):
        result = augmentation.random_flip(plane, seed)
        is_flipped = result[0, 0, 0] == WIDTH - 1
        np.testing.assert_array_equal(result, plane[:, ::-1] if is_flipped else plane)
        flipped += int(is_flipped)
    assert 340 < flipped < 460  # four standard deviations


def test_flip_and_crop_are_independent(plane):
    encoded = _encode(plane, "PNG")
    flipped = [augmentation.random_flip(plane, seed)[0, 0, 0] > 0 for seed in _seeds(400)]
    row, column, height, width = _boxes(encoded, _seeds(400)).T
    for choice in (height * width, width / height, row, column):
        assert abs(np.corrcoef(flipped, choice)[0, 1]) < 0.2  # four standard deviations


OPTIONS = [
    {"preprocessing": Preprocessing(image_size=(24, 32))},
    {"preprocessing": Preprocessing(image_size=(24, 32)), "flip": False, "crop_area": (0.5, 0.6)},
    {"preprocessing": Preprocessing(image_size=(9, 7)), "crop": "none"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=["both", "crop", "flip"])
@pytest.mark.parametrize("file_format", ["PNG", "JPEG"])
def test_eager_equals_tf_data(photograph, file_format, options):
    encoded, seeds = _encode(photograph, file_format), _seeds(16)
    dataset = tf.data.Dataset.from_tensor_slices(seeds).map(
        lambda seed: augmentation.train_image(encoded, seed, **options), num_parallel_calls=2
    )
    size = options["preprocessing"].image_size
    assert dataset.element_spec == tf.TensorSpec([*size, 3], tf.float32)
    for seed, mapped in zip(seeds, dataset, strict=True):
        eager = augmentation.train_image(encoded, seed, **options)
        np.testing.assert_array_equal(mapped, eager)
        assert -1 <= tf.reduce_min(eager) < tf.reduce_max(eager) <= 1


def test_train_image_is_crop_resize_range_flip(photograph):
    encoded = _encode(photograph, "PNG")
    for seed in _seeds(8):
        crop = augmentation.inception_crop(encoded, seed)
        expected = (tf.image.resize(crop, (24, 32)) - 127.5) / 127.5
        result = augmentation.train_image(encoded, seed, **OPTIONS[0])
        np.testing.assert_allclose(
            result, augmentation.random_flip(expected, seed), rtol=0, atol=1.2e-7
        )


def test_without_crop_and_flip_it_is_the_evaluation_rule(photograph):
    encoded = _encode(photograph, "PNG")
    preprocessing = Preprocessing(image_size=(8, 9), resize="resize_small", resize_to=12)
    result = augmentation.train_image(
        encoded, _seeds(1)[0], preprocessing=preprocessing, crop="none", flip=False
    )
    np.testing.assert_array_equal(result, preprocessing(photograph))


def test_seeds_decide(photograph):
    encoded = _encode(photograph, "PNG")

    def images(seeds):
        return [augmentation.train_image(encoded, seed, **OPTIONS[0]).numpy() for seed in seeds]

    first, again, next_step = images(_seeds(8)), images(_seeds(8)), images(_seeds(8, step=1))
    np.testing.assert_array_equal(first, again)
    everything = np.array(first + next_step).reshape(16, -1)
    assert len(np.unique(everything, axis=0)) == 16


def test_tiny_image():
    """A single pixel has one part only."""
    encoded = _encode(np.full((1, 1, 3), 255, np.uint8), "PNG")
    result = augmentation.train_image(encoded, _seeds(1)[0], **OPTIONS[0])
    np.testing.assert_array_equal(result, np.ones((24, 32, 3)))
