"""RandAugment: each operation against Pillow or NumPy, the statistics of the draws, the levels."""

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageEnhance, ImageOps

from pipelines.config.augmentation import AUGREG_LEVELS, Augmentation
from pipelines.data import stateless_random
from pipelines.data.transforms import randaugment

HEIGHT, WIDTH = 45, 60
NAMES = [
    "AutoContrast",
    "Equalize",
    "Invert",
    "Rotate",
    "Posterize",
    "Solarize",
    "Color",
    "Contrast",
    "Brightness",
    "Sharpness",
    "ShearX",
    "ShearY",
    "TranslateX",
    "TranslateY",
    "Cutout",
    "SolarizeAdd",
]


def _images():
    """Noise, a smooth picture, a dark one, one color, few colors, and small sizes."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (HEIGHT, WIDTH, 3)).astype(np.uint8)
    small = Image.fromarray(noise[:5, :6])
    scene = np.asarray(small.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC))
    return {
        "noise": noise,
        "scene": scene,
        "dark": scene // 3 + 20,
        "one color": np.full((HEIGHT, WIDTH, 3), (255, 0, 77), np.uint8),
        "few colors": (noise // 128 * 127 + [[[0, 1, 60]]]).astype(np.uint8),
        "3 x 3": noise[:3, :3],
        "2 x 5": noise[:2, :5],
        "1 x 1": noise[:1, :1],
    }


IMAGES = _images()


def _points(image, function):
    """Applies a map of values in NumPy integers, clipped to 0 .. 255."""
    return np.clip(function(image.astype(int)), 0, 255).astype(np.uint8)


def _by_pillow(name, image, magnitude):
    """The published operation at its magnitude, computed by Pillow or NumPy."""
    level, picture = magnitude / 10, Image.fromarray(image)
    bits, threshold, addition = int(4 * level), int(256 * level), int(110 * level)
    results = {
        "AutoContrast": lambda: ImageOps.autocontrast(picture),
        "Equalize": lambda: ImageOps.equalize(picture),
        "Invert": lambda: ImageOps.invert(picture),
        # Pillow keeps 1 to 8 bits; with 0 bits the image is black.
        "Posterize": lambda: ImageOps.posterize(picture, bits) if bits else image * 0,
        "Solarize": lambda: ImageOps.solarize(picture, threshold),
        "SolarizeAdd": lambda: _points(image, lambda x: np.where(x < 128, x + addition, x)),
    }
    if name in results:
        return np.asarray(results[name]())
    return np.asarray(getattr(ImageEnhance, name)(picture).enhance(1.8 * level + 0.1))


COLORS = {
    ("AutoContrast", "Equalize", "Invert"): [10],
    ("Posterize", "Solarize", "SolarizeAdd"): [0, 3, 15, 20],
    ("Color", "Contrast", "Brightness", "Sharpness"): [0, 10, 20],
}


@pytest.mark.parametrize(
    ("name", "magnitude"),
    [(name, magnitude) for names, each in COLORS.items() for name in names for magnitude in each],
)
def test_colors_are_exactly_those_of_pillow(name, magnitude):
    for title, image in IMAGES.items():
        result = randaugment.pool(magnitude)[name](tf.constant(image), 1.0, [0.5, 0.5])
        assert result.dtype == tf.uint8
        np.testing.assert_array_equal(result, _by_pillow(name, image, magnitude), err_msg=title)


def _published(name, magnitude):
    """The operations of AugReg's graph code, with Python numbers and uint8 pixels."""

    @tf.function
    def operation(image):
        level = magnitude / 10
        if name == "Solarize":
            return tf.where(image < int(256 * level), image, 255 - image)
        if name == "SolarizeAdd":
            added = tf.cast(image, tf.int64) + int(110 * level)
            return tf.where(image < 128, tf.cast(tf.clip_by_value(added, 0, 255), tf.uint8), image)
        if name == "Posterize":
            shift = tf.constant(8 - int(4 * level), tf.uint8)
            return tf.bitwise.left_shift(tf.bitwise.right_shift(image, shift), shift)
        counts = tf.histogram_fixed_width(tf.cast(image[..., 0], tf.int32), [0, 255], nbins=256)
        mean = tf.reduce_sum(tf.cast(counts, tf.float32)) / 256.0
        start = tf.floor(tf.clip_by_value(mean, 0.0, 255.0))
        mixed = start + (1.8 * level + 0.1) * (tf.cast(image, tf.float32) - start)
        return tf.cast(tf.clip_by_value(mixed, 0.0, 255.0), tf.uint8)

    return operation


@pytest.mark.parametrize("magnitude", [0, 10, 15, 20])
@pytest.mark.parametrize("name", ["Solarize", "SolarizeAdd", "Posterize", "Contrast"])
def test_published_rules_are_those_of_the_graph_code(name, magnitude):
    large = np.random.default_rng(1).integers(0, 256, (280, 260, 3)).astype(np.uint8)
    for title, image in {**IMAGES, "large": large}.items():
        result = randaugment.pool(magnitude, "published")[name](tf.constant(image), 1.0, [0.5, 0.5])
        expected = _published(name, magnitude)(tf.constant(image))
        np.testing.assert_array_equal(result, expected, err_msg=title)


def test_published_solarize_inverts_every_pixel_at_10_and_20():
    image = IMAGES["noise"]
    for magnitude in (10, 20):
        for rules, expected in (("published", 255 - image), ("exact", image)):
            result = randaugment.pool(magnitude, rules)["Solarize"](tf.constant(image), 1.0, None)
            np.testing.assert_array_equal(result, expected)


def test_gray_is_exactly_that_of_pillow():
    """Uses a regular grid of all colors, which covers every rounding."""
    steps = np.arange(0, 256, 5, dtype=np.uint8)
    cube = np.stack(np.meshgrid(steps, steps, steps), axis=-1).reshape(52, -1, 3)
    expected = np.asarray(Image.fromarray(cube).convert("L"))
    np.testing.assert_array_equal(randaugment.gray(tf.constant(cube)), expected)


def _matrix(name, sign, magnitude):
    """Rows (a, b, c) of the map from output to input positions, at pixel centers."""
    level = magnitude / 10
    if name == "Rotate":
        angle = np.deg2rad(sign * 30 * level)
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        middle = np.array([(WIDTH - 1) / 2, (HEIGHT - 1) / 2])
        return np.column_stack([turn, middle - turn @ middle])
    shear, shift = sign * 0.3 * level, sign * 100 * level
    return {
        "ShearX": np.array([[1, shear, 0], [0, 1, 0]]),
        "ShearY": np.array([[1, 0, 0], [shear, 1, 0]]),
        "TranslateX": np.array([[1, 0, shift], [0, 1, 0]]),
        "TranslateY": np.array([[1, 0, 0], [0, 1, shift]]),
    }[name]


@pytest.mark.parametrize(("magnitude", "sign"), [(0, 1.0), (1.3, -1.0), (10, 1.0), (20, -1.0)])
@pytest.mark.parametrize("name", ["Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY"])
def test_geometry_takes_the_nearest_pixel(name, magnitude, sign):
    """Pillow's affine transform, and NumPy in float64.

    A position halfway between two pixels has no nearest pixel: float64, float32 and Pillow's 16-bit
    fixed point may round it differently. All other pixels are equal.
    """
    image = IMAGES["noise"]
    operation = randaugment.pool(magnitude)[name]
    result = operation(tf.constant(image), tf.constant(sign), [0.5, 0.5]).numpy()
    matrix = _matrix(name, sign, magnitude)
    columns, rows = np.meshgrid(np.arange(WIDTH), np.arange(HEIGHT))
    places = np.tensordot(matrix, np.stack([columns, rows, np.ones_like(rows)]), axes=1)
    column, row = np.floor(places + 0.5).astype(int)
    inside = (column >= 0) & (column < WIDTH) & (row >= 0) & (row < HEIGHT)
    expected = np.full_like(image, 128)
    expected[inside] = image[row[inside], column[inside]]

    clear = (np.abs(places - np.floor(places) - 0.5) > 1e-3).all(axis=0)
    assert clear.mean() > 0.85
    np.testing.assert_array_equal(result[clear], expected[clear])

    # Pillow's coordinates start at the corner of the first pixel, not at its center.
    shifted = matrix.astype(float).copy()
    shifted[:, 2] += 0.5 - matrix[:, :2].sum(axis=1) / 2
    pillow = Image.fromarray(image).transform(
        (WIDTH, HEIGHT), Image.Transform.AFFINE, shifted.ravel(), fillcolor=(128, 128, 128)
    )
    np.testing.assert_array_equal(result[clear], np.asarray(pillow)[clear])
    if magnitude == 0:
        np.testing.assert_array_equal(result, image)


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_rotation_is_that_of_pillow(sign):
    """Compares with Pillow's `rotate` by its own angle, around the same center."""
    image = IMAGES["scene"]
    result = randaugment.rotate(tf.constant(image), tf.constant(sign * 20.0)).numpy()
    expected = np.asarray(Image.fromarray(image).rotate(sign * 20.0, fillcolor=(128, 128, 128)))
    assert (result == expected).all(axis=-1).mean() > 0.999


@pytest.mark.parametrize("magnitude", [0, 3, 20])
def test_cutout_grays_a_square(magnitude):
    image, half = IMAGES["noise"], int(40 * magnitude / 10)
    for place in ((0.0, 0.0), (0.5, 0.4), (0.999, 0.999)):
        result = randaugment.pool(magnitude)["Cutout"](tf.constant(image), 1.0, tf.constant(place))
        row, column = int(np.float32(place[0]) * HEIGHT), int(np.float32(place[1]) * WIDTH)
        expected = image.copy()
        expected[
            max(row - half, 0) : max(row + half, 0), max(column - half, 0) : max(column + half, 0)
        ] = 128
        np.testing.assert_array_equal(result, expected)


def test_levels_are_the_published_ones():
    table = {
        name: tuple(level[key] for key in ("randaugment_layers", "randaugment_magnitude", "mixup"))
        for name, level in AUGREG_LEVELS.items()
    }
    assert table == {
        "none": (0, 0, 0),
        "light1": (2, 0, 0),
        "light2": (2, 10, 0.2),
        "medium1": (2, 15, 0.2),
        "medium2": (2, 15, 0.5),
        "strong1": (2, 20, 0.5),
        "strong2": (2, 20, 0.8),
    }
    assert list(randaugment.pool(10)) == NAMES


def _record(monkeypatch):
    """Replaces the pool by operations that write their arguments into the image."""

    def write(number):
        def operation(image, sign, place):
            row = [tf.cast(number, tf.float32), sign * 50 + 100, place[0] * 256, place[1] * 256]
            row = tf.cast(tf.stack(row), tf.uint8)[None, :, None]
            return tf.concat([tf.tile(row, [1, 1, 3]), image[:-1]], axis=0)

        return operation

    pool = {name: write(number) for number, name in enumerate(NAMES)}
    monkeypatch.setattr(randaugment, "pool", lambda magnitude, rules: pool)


def test_draws_are_uniform_and_independent(monkeypatch):
    """Choice, sign and position of both layers, over 4,000 examples."""
    _record(monkeypatch)
    seeds = stateless_random.example_seeds(3, 7, np.arange(4000))
    start = tf.zeros([2, 4, 3], tf.uint8)
    results = tf.data.Dataset.from_tensor_slices(seeds).map(
        lambda seed: randaugment.rand_augment(start, seed, 2, 10.0)[..., 0]
    )
    draws = np.stack(list(results.as_numpy_iterator())).astype(float)  # [example, layer, column]
    for layer in range(2):
        counts = np.bincount(draws[:, layer, 0].astype(int), minlength=16)
        assert len(counts) == 16
        # Chi-squared with 15 degrees of freedom: 44 is exceeded once in 10,000.
        assert ((counts - 250) ** 2 / 250).sum() < 44
        assert abs((draws[:, layer, 1] == 150).mean() - 0.5) < 0.032  # four standard deviations
        assert set(draws[:, layer, 1]) == {50, 150}
        for column in (2, 3):
            values = draws[:, layer, column]
            assert abs(values.mean() - 127.5) < 4 * 74 / 4000**0.5
            assert abs(values.std() - 73.9) < 3
    correlation = np.corrcoef(draws.reshape(4000, 8), rowvar=False)
    assert np.abs(correlation - np.eye(8)).max() < 4 / 4000**0.5
    # Operations may repeat: both layers choose the same one in one of 16 cases.
    same = (draws[:, 0, 0] == draws[:, 1, 0]).mean()
    assert abs(same - 1 / 16) < 4 * (15 / 256 / 4000) ** 0.5


def _of_example(seed, layers, magnitude):
    return randaugment.rand_augment(tf.constant(IMAGES["scene"]), seed, layers, magnitude)


def test_layers_are_operations_one_after_the_other():
    """Applies the draws of the definition by hand: the same image."""
    for seed in stateless_random.example_seeds(1, 0, np.arange(24)):
        image = tf.constant(IMAGES["scene"])
        for choice, sign, *place in tf.random.stateless_uniform([3, 4], seed).numpy():
            name = NAMES[int(choice * 16)]
            sign = tf.constant(-1.0 if sign < 0.5 else 1.0)
            image = randaugment.pool(9.0)[name](image, sign, tf.constant(place))
        np.testing.assert_array_equal(_of_example(seed, 3, 9.0), image)


def test_eager_equals_tf_data():
    magnitude = 15.0
    seeds = stateless_random.example_seeds(2, 0, np.arange(60))
    dataset = tf.data.Dataset.from_tensor_slices(seeds).map(
        lambda seed: _of_example(seed, 2, magnitude), num_parallel_calls=2
    )
    assert dataset.element_spec == tf.TensorSpec([HEIGHT, WIDTH, 3], tf.uint8)
    for seed, mapped in zip(seeds, dataset, strict=True):
        np.testing.assert_array_equal(mapped, _of_example(seed, 2, magnitude))


def test_magnitude_zero_is_not_the_identity():
    image = tf.constant(IMAGES["scene"])
    changed = {
        name
        for name, operation in randaugment.pool(0.0).items()
        if (operation(image, 1.0, [0.5, 0.5]).numpy() != image.numpy()).any()
    }
    assert changed == {
        "AutoContrast",
        "Equalize",
        "Invert",
        "Posterize",
        "Solarize",
        "Color",
        "Contrast",
        "Brightness",
        "Sharpness",
    }


@pytest.mark.parametrize(("layers", "magnitude"), [(-1, 10), (2, -1), (2, 41)])
def test_rejects(layers, magnitude):
    with pytest.raises(ValueError, match=f"={layers} .*magnitude={magnitude}"):
        Augmentation(randaugment_layers=layers, randaugment_magnitude=magnitude)
