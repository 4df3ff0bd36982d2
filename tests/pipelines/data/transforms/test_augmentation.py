"""Augmentation: results and statistics of each operation; they depend only on the seed."""

import colorsys
import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageEnhance

from pipelines.config.augmentation import Augmentation
from pipelines.data import stateless_random
from pipelines.data.transforms import augmentation
from pipelines.data.transforms.randaugment import rand_augment
from vit_tf.images.decoding import decode_image
from vit_tf.images.resizing import resize, to_model_range
from vit_tf.preprocessing import Preprocessing

HEIGHT, WIDTH = 160, 200


def _encode(image, file_format, **options):
    file = io.BytesIO()
    Image.fromarray(image).save(file, file_format, **options)
    return file.getvalue()


@pytest.fixture(scope="module")
def plane():
    """An image whose red value is the column and whose green value is the row."""
    image = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    image[..., 0] = np.arange(WIDTH)
    image[..., 1] = np.arange(HEIGHT)[:, None]
    return image


@pytest.fixture(scope="module")
def photograph():
    image = np.random.default_rng(0).integers(0, 256, (9, 11, 3)).astype(np.uint8)
    return np.asarray(Image.fromarray(image).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC))


# The defaults of data.crop_area and data.random_erasing_*.
AREA = (0.05, 1.0)
ERASING = {"area": (0.02, 0.4), "aspect": (0.3, 1 / 0.3), "fill": "noise"}


def _seeds(count, step=0):
    return stateless_random.example_seeds(1, step, np.arange(count))


def _augment(encoded, seed, *, preprocessing, **options):
    return augmentation.augment(encoded, seed, preprocessing, Augmentation(**options))


def _mapped(function, seeds):
    """The results of a function for each seed, as in the input of training."""
    dataset = tf.data.Dataset.from_tensor_slices(seeds).map(function)
    return np.stack(list(dataset.as_numpy_iterator()))


def _boxes(encoded, seeds, area):
    """Position and size (row, column, height, width) of the crop of each seed."""

    def box(seed):
        crop = augmentation.inception_crop(encoded, seed, area)
        return tf.concat([tf.cast(crop[0, 0, 1::-1], tf.int32), tf.shape(crop)[:2]], axis=0)

    return _mapped(box, seeds)


def test_crop_is_a_part_of_the_image(plane):
    encoded = _encode(plane, "PNG")
    for seed in _seeds(20):
        crop = augmentation.inception_crop(encoded, seed, AREA).numpy()
        row, column = crop[0, 0, 1], crop[0, 0, 0]
        part = plane[row : row + crop.shape[0], column : column + crop.shape[1]]
        np.testing.assert_array_equal(crop, part)


FIELDS = {"interpolation": "bicubic", "antialias": True, "mean": (0.4, 0.5, 0.6)}
FIELDS |= {"std": (0.3, 0.5, 0.7)}


@pytest.mark.parametrize("fields", [{"interpolation": "area"}, FIELDS], ids=str)
def test_training_and_evaluation_use_the_same_filter_and_range(photograph, fields):
    """A crop becomes the input as the whole image does outside training."""
    encoded, preprocessing = (
        _encode(photograph, "PNG"),
        Preprocessing(image_size=(24, 32), **fields),
    )
    for seed in _seeds(3):
        crop = augmentation.inception_crop(encoded, seed, AREA)
        received = _augment(encoded, seed, preprocessing=preprocessing, flip=False)
        np.testing.assert_array_equal(received, preprocessing(crop))
        received = _augment(encoded, seed, preprocessing=preprocessing, flip=False, crop="none")
        np.testing.assert_array_equal(received, preprocessing(photograph))


@pytest.mark.parametrize("area", [(0.05, 1.0), (0.3, 0.5)])
def test_crop_statistics(plane, area):
    row, column, height, width = _boxes(_encode(plane, "PNG"), _seeds(600), area=area).T
    share = height * width / (HEIGHT * WIDTH)
    aspect = width / height
    # Sizes are whole pixels, so small crops may exceed the limits a little.
    assert area[0] * 0.97 <= share.min() < area[0] + 0.1 * (area[1] - area[0])
    assert area[1] - 0.2 * (area[1] - area[0]) < share.max() <= area[1] * 1.03
    assert 0.75 * 0.97 <= aspect.min() < 0.85
    assert 1.2 < aspect.max() <= 1.33 * 1.03
    # Positions are uniform over the pixels that the crop leaves.
    for start, room in ((row, HEIGHT - height), (column, WIDTH - width)):
        place = start[room > 20] / room[room > 20]
        assert abs(place.mean() - 0.5) < 0.05
        assert place.min() < 0.02
        assert place.max() > 0.98


@pytest.mark.parametrize("kind", ["fast", "accurate"])
def test_jpeg_gives_the_same_crop_as_decoding_first(photograph, kind):
    png = _encode(photograph, "PNG")
    for subsampling, tolerance in ((0, 0), (2, 24)):
        jpeg = _encode(photograph, "JPEG", quality=95, subsampling=subsampling)
        whole = _encode(decode_image(jpeg, jpeg=kind).numpy(), "PNG")
        for seed in _seeds(20):
            crop = augmentation.inception_crop(jpeg, seed, AREA, jpeg=kind).numpy().astype(int)
            expected = augmentation.inception_crop(whole, seed, AREA).numpy()
            assert crop.shape == augmentation.inception_crop(png, seed, AREA).shape
            assert np.abs(crop - expected).max() <= tolerance
            # JPEG stores color at half resolution, so only the border of the crop differs.
            np.testing.assert_array_equal(crop[2:-2, 2:-2], expected[2:-2, 2:-2])


def test_flip_mirrors_half_of_the_images(plane):
    part = plane[:8, :6]
    results = _mapped(lambda seed: augmentation.random_flip(part, seed), _seeds(800))
    is_flipped = results[:, 0, 0, 0] == 5
    assert 340 < is_flipped.sum() < 460  # four standard deviations
    for result, flipped in zip(results, is_flipped, strict=True):
        np.testing.assert_array_equal(result, part[:, ::-1] if flipped else part)


def test_vertical_flip_mirrors_half_and_changes_no_other_draw(plane):
    part = plane[:4, 5:10]
    results = _mapped(lambda seed: augmentation.random_vertical_flip(part, seed), _seeds(800))
    is_flipped = results[:, 0, 0, 1] == 3
    assert 340 < is_flipped.sum() < 460  # four standard deviations
    encoded, preprocessing = _encode(plane, "PNG"), Preprocessing(image_size=(24, 32))
    for seed, flipped in list(zip(_seeds(800), is_flipped, strict=True))[:8]:
        plain = _augment(encoded, seed, preprocessing=preprocessing)
        result = _augment(encoded, seed, preprocessing=preprocessing, vertical_flip=True)
        np.testing.assert_array_equal(result, plain[::-1] if flipped else plain)


@pytest.mark.parametrize("fields", [{}, {"resize": "resize_small", "resize_to": 40}], ids=str)
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "area"])
def test_random_crop_is_a_window_of_the_resized_image(photograph, fields, interpolation):
    """Each window is a part of the whole resized image, and every place is equally likely."""
    height, width = (40, 50) if fields else (40, 40)
    preprocessing = Preprocessing(image_size=(24, 32), interpolation=interpolation, **fields)
    encoded = _encode(photograph, "PNG")
    whole = resize(tf.constant(photograph), (height, width), interpolation).numpy()
    windows = np.lib.stride_tricks.sliding_window_view(whole, (24, 32, 3))[:, :, 0]
    results = _mapped(
        lambda seed: augmentation.random_crop(encoded, seed, preprocessing, 40), _seeds(200)
    )
    differences = [np.abs(windows - result).max(axis=(2, 3, 4)) for result in results]
    assert max(each.min() for each in differences) < 1e-2
    places = np.array([np.unravel_index(each.argmin(), each.shape) for each in differences])
    for place, room in zip(places.T, (height - 24, width - 32), strict=True):
        assert (place.min(), place.max()) == (0, room)
        assert abs(place.mean() / room - 0.5) < 0.09  # four standard deviations


def test_flip_and_crop_are_independent(plane):
    encoded = _encode(plane, "PNG")
    flipped = _mapped(lambda seed: augmentation.random_flip(plane, seed)[0, 0, 0] > 0, _seeds(400))
    row, column, height, width = _boxes(encoded, _seeds(400), AREA).T
    for choice in (height * width, width / height, row, column):
        assert abs(np.corrcoef(flipped, choice)[0, 1]) < 0.2  # four standard deviations


OPTIONS = [
    {"preprocessing": Preprocessing(image_size=(24, 32))},
    {"preprocessing": Preprocessing(image_size=(24, 32)), "flip": False, "crop_area": (0.5, 0.6)},
    {"preprocessing": Preprocessing(image_size=(9, 7)), "crop": "none"},
    {
        "preprocessing": Preprocessing(image_size=(24, 32)),
        "color_jitter": (0.4, 0.4, 0.4, 0.1),
        "randaugment_layers": 2,
        "random_erasing": 0.8,
    },
    {
        "preprocessing": Preprocessing(image_size=(9, 7)),
        "crop": "none",
        "color_jitter": (0.4, 0.0, 0.4, 0.0),
        "random_erasing": 0.8,
        "random_erasing_fill": "grey",
    },
]


@pytest.mark.parametrize(
    ("options", "file_format"),
    list(zip(OPTIONS, ("JPEG", "PNG", "JPEG", "PNG", "JPEG"), strict=True)),
    ids=["both", "crop", "flip", "all", "no crop"],
)
def test_eager_equals_tf_data(photograph, file_format, options):
    encoded, seeds = _encode(photograph, file_format), _seeds(6)
    mapped = _mapped(lambda seed: _augment(encoded, seed, **options), seeds)
    assert mapped.dtype == np.float32
    assert mapped.shape[1:] == (*options["preprocessing"].image_size, 3)
    for seed, image in zip(seeds, mapped, strict=True):
        eager = _augment(encoded, seed, **options)
        np.testing.assert_array_equal(image, eager)
        assert -1 <= tf.reduce_min(eager) < tf.reduce_max(eager) <= 1


def test_the_size_of_an_augmented_image_is_static(photograph):
    encoded = _encode(photograph, "PNG")
    seeds = tf.data.Dataset.from_tensor_slices(_seeds(1))
    dataset = seeds.map(lambda seed: _augment(encoded, seed, **OPTIONS[3]))
    assert dataset.element_spec == tf.TensorSpec([24, 32, 3], tf.float32)


def test_augmentation_is_crop_resize_range_flip(photograph):
    encoded = _encode(photograph, "PNG")
    for seed in _seeds(8):
        crop = augmentation.inception_crop(encoded, seed, AREA)
        expected = (tf.image.resize(crop, (24, 32)) - 127.5) / 127.5
        result = _augment(encoded, seed, **OPTIONS[0])
        np.testing.assert_allclose(
            result, augmentation.random_flip(expected, seed), rtol=0, atol=1.2e-7
        )


def test_without_crop_and_flip_it_is_the_evaluation_rule(photograph):
    encoded = _encode(photograph, "PNG")
    preprocessing = Preprocessing(image_size=(8, 9), resize="resize_small", resize_to=12)
    result = _augment(encoded, _seeds(1)[0], preprocessing=preprocessing, crop="none", flip=False)
    np.testing.assert_array_equal(result, preprocessing(photograph))


def test_seeds_decide(photograph):
    encoded = _encode(photograph, "PNG")

    def images(seeds):
        return [_augment(encoded, seed, **OPTIONS[0]).numpy() for seed in seeds]

    first, again, next_step = images(_seeds(8)), images(_seeds(8)), images(_seeds(8, step=1))
    np.testing.assert_array_equal(first, again)
    everything = np.array(first + next_step).reshape(16, -1)
    assert len(np.unique(everything, axis=0)) == 16


def test_tiny_image():
    """A single pixel has only one crop."""
    encoded = _encode(np.full((1, 1, 3), 255, np.uint8), "PNG")
    result = _augment(encoded, _seeds(1)[0], **OPTIONS[0])
    np.testing.assert_array_equal(result, np.ones((24, 32, 3)))


def _draws(seed):
    """The four numbers of an example from which its changes of color are computed."""
    return tf.random.stateless_uniform([4], seed + tf.constant([0, 3], tf.int64))


def _jitter(image, seed, *strengths):
    return augmentation.jitter_colors(tf.constant(image), seed, strengths).numpy()


@pytest.mark.parametrize(
    ("place", "enhancer"),
    [(0, ImageEnhance.Brightness), (1, ImageEnhance.Contrast), (2, ImageEnhance.Color)],
)
@pytest.mark.parametrize("strength", [0.4, 1.0])
def test_jitter_is_pillow_with_a_uniform_factor(photograph, place, enhancer, strength):
    """Pillow gets the factor that the seed determines."""
    image, seeds = Image.fromarray(photograph), _seeds(200)
    factors = 1 - strength + 2 * strength * _mapped(_draws, seeds)[:, place].astype(float)
    for seed, factor in zip(seeds[:6], factors, strict=False):
        strengths = [0.0] * 4
        strengths[place] = strength
        result = _jitter(photograph, seed, *strengths).astype(int)
        expected = np.asarray(enhancer(image).enhance(factor)).astype(int)
        # Rounded down from a float32 factor here, from a float64 factor in Pillow.
        assert np.abs(result - expected).max() <= 1
        assert (result == expected).mean() > 0.999
    assert 1 - strength <= min(factors) < 1 - 0.9 * strength
    assert 1 + 0.9 * strength < max(factors) <= 1 + strength
    assert abs(np.mean(factors) - 1) < 4 * strength / 600**0.5


def test_jitter_turns_the_hue(photograph):
    """Hue is an angle; the test compares every pixel with the standard library."""
    image = photograph[::20, ::20]
    for seed in _seeds(6):
        turn = (2 * float(_draws(seed)[3]) - 1) * 0.2
        result = _jitter(image, seed, 0.0, 0.0, 0.0, 0.2)
        for pixel, turned in zip(image.reshape(-1, 3), result.reshape(-1, 3), strict=True):
            hue, saturation, value = colorsys.rgb_to_hsv(*(pixel / 255))
            expected = colorsys.hsv_to_rgb((hue + turn) % 1, saturation, value)
            assert np.abs(turned - 255 * np.array(expected)).max() < 0.52  # rounding is 0.5


def test_jitter_goes_in_its_order(photograph):
    for seed in _seeds(4):
        expected = photograph
        for place in range(4):
            strengths = [0.0] * 4
            strengths[place] = 0.5
            expected = _jitter(expected, seed, *strengths)
        np.testing.assert_array_equal(_jitter(photograph, seed, 0.5, 0.5, 0.5, 0.5), expected)


def _erased(seeds, shape=(60, 80), pixels=None, **options):
    """The pixels that each seed erases in images of 2s, bool `[n, h, w]`, and the images."""
    image = tf.fill([*shape, 3], 2.0)
    prepare = Preprocessing(image_size=shape, **(pixels or {}))
    options["model_range"] = prepare.mean, prepare.std, prepare.dtype
    images = _mapped(lambda seed: augmentation.erase(image, seed, **(ERASING | options)), seeds)
    return (images != 2).all(axis=-1), images


def test_erasing_follows_its_definition():
    """Probability, one rectangle inside; area fraction, aspect, position and noise are uniform."""
    masks, images = _erased(_seeds(1500), probability=0.6)
    hit = masks.any(axis=(1, 2))
    assert abs(hit.mean() - 0.6) < 4 * (0.24 / 1500) ** 0.5
    rows, columns = masks.any(axis=2)[hit], masks.any(axis=1)[hit]
    top, left = rows.argmax(axis=1), columns.argmax(axis=1)
    height, width = rows.sum(axis=1), columns.sum(axis=1)
    np.testing.assert_array_equal(height * width, masks[hit].sum(axis=(1, 2)))  # rectangles

    # Small rectangles always fit, so for them area fraction and aspect are uniform and independent.
    share, aspect = height * width / 4800, height / width
    assert 0.02 * 0.85 < share.min() < 0.03
    assert share.max() <= 0.4 * 1.03
    small = (share > 0.03) & (share < 0.12)  # rounding to pixels is far from these limits
    assert abs(share[small].mean() - 0.075) < 4 * 0.026 / small.sum() ** 0.5
    assert abs(aspect[small].mean() - (0.3 + 1 / 0.3) / 2) < 4 * 0.88 / small.sum() ** 0.5
    places = []
    for start, room in ((top, 60 - height), (left, 80 - width)):
        places.append((start + 0.5) / (room + 1))
        assert abs(places[-1].mean() - 0.5) < 4 * 0.29 / len(start) ** 0.5
        assert start.min() == 0
        assert (start == room).any()
    independent = np.corrcoef([*places, aspect])
    assert np.abs(independent - np.eye(3)).max() < 4 / len(top) ** 0.5

    noise = images[hit][masks[hit]]
    assert -1 <= noise.min() < -0.999 < 0.999 < noise.max() < 1
    assert abs(noise.mean()) < 4 * 0.58 / noise.size**0.5
    assert abs(np.corrcoef(noise, rowvar=False) - np.eye(3)).max() < 0.01
    assert (images[~masks] == 2).all()


def test_erasing_options():
    masks, images = _erased(
        _seeds(50), probability=1.0, area=(0.25, 0.25), aspect=(1.0, 1.0), fill="grey"
    )
    height = masks.any(axis=2).sum(axis=1)
    assert set(height) == {round((0.25 * 4800) ** 0.5)}
    assert (images[masks] == 0).all()
    # In the range of pixels that the model reads.
    pixels = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 0.5)}
    masks, images = _erased(_seeds(50), probability=1.0, fill="grey", pixels=pixels)
    np.testing.assert_allclose(images[masks], [[0.5, 0.5, 1.0]] * masks.sum(), atol=1e-6)
    masks, images = _erased(_seeds(50), probability=1.0, pixels=pixels)
    assert images[masks].min() >= 0 and (abs(images[masks].max(axis=0) - [1, 1, 2]) < 1e-3).all()
    # Half the area at an aspect of 3 never fits into a square image; then nothing is erased.
    masks, _ = _erased(
        _seeds(5), shape=(20, 20), probability=1.0, area=(0.5, 0.6), aspect=(3.0, 3.0)
    )
    assert not masks.any()


def test_flip_and_erasing_are_independent():
    masks, _ = _erased(_seeds(1000), probability=0.5)
    image = np.arange(2, dtype=np.float32).reshape(1, 2, 1)
    flipped = _mapped(lambda seed: augmentation.random_flip(image, seed)[0, 0, 0], _seeds(1000))
    assert abs(np.corrcoef(flipped, masks.any(axis=(1, 2)))[0, 1]) < 4 / 1000**0.5


def test_all_changes_in_their_order(photograph):
    """Crop, resize, mirror, jitter, RandAugment, value range, erasing."""
    encoded, options = _encode(photograph, "PNG"), OPTIONS[3]
    for seed in _seeds(6):
        image = tf.image.resize(augmentation.inception_crop(encoded, seed, AREA), (24, 32))
        image = augmentation.random_flip(image, seed)
        image = tf.cast(tf.floor(image + 0.5), tf.uint8)
        image = augmentation.jitter_colors(image, seed, options["color_jitter"])
        image = rand_augment(image, seed + tf.constant([0, 4], tf.int64), 2, 10.0)
        erasing = ERASING | {"model_range": ()}
        image = augmentation.erase(to_model_range(image), seed, 0.8, **erasing)
        np.testing.assert_array_equal(_augment(encoded, seed, **options), image)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"random_erasing": 1.5}, "random_erasing=1.5"),
        ({"random_erasing_area": (0.0, 0.5)}, r"erasing_area=\(0.0, 0.5\)"),
        ({"random_erasing_aspect": (2.0, 0.5)}, r"aspect=\(2.0, 0.5\)"),
        ({"color_jitter": (0.4, 0.4, 0.4)}, r"jitter=\(0.4, 0.4, 0.4\)"),
        ({"color_jitter": (0.4, 0.4, 0.4, 0.6)}, "0.6"),
        ({"color_jitter": (-0.1, 0.4, 0.4, 0.1)}, "-0.1"),
        ({"crop": "random"}, "random.*resize_to=None"),
        ({"crop_resize_to": 448}, "inception.*resize_to=448"),
        ({"mixing_steps": -1}, "mixing_steps=-1"),
        ({"mixing_epochs": -0.5}, "mixing_epochs=-0.5"),
    ],
)
def test_rejects(options, text):
    with pytest.raises(ValueError, match=text):
        Augmentation(**options)
