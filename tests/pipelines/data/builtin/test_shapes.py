"""The data set of drawn shapes: images against labels, prefixes, seeds, names, splits."""

import zlib

import numpy as np
import pytest
import tensorflow_datasets as tfds

from pipelines.data.builtin import shape_images, shapes
from pipelines.data.sources.open import open_source
from pipelines.errors import DataError
from tests.pipelines.process import run_module
from vit_tf.images.decoding import decode_image

NUM_IMAGES = 400


@pytest.fixture(scope="module")
def drawn():
    return shape_images.draw(0, NUM_IMAGES, 64, seed=1)


@pytest.fixture
def plain():
    """A function that draws images without patterns in shapes and backgrounds."""

    def draw(count, **options):
        images, attributes = shape_images.draw(0, 20 * count, 64, **options)
        simple = (attributes.texture == 0) & (attributes.background == 0)
        chosen = np.flatnonzero(simple)[: count // 2]
        assert len(chosen) == count // 2
        return images[chosen], shape_images.Attributes(*(a[chosen] for a in attributes))

    return draw


def _masks(images):
    """The pixels that differ from the corner pixel, which shows the plain background."""
    corner = images[:, :1, :1].astype(int)
    return (abs(images - corner).sum(-1) > 60).astype(int)


def _regions(mask):
    """Number of connected regions of a mask, by flood fill; diagonal neighbors are connected."""
    mask, count = mask.copy(), 0
    while mask.any():
        count += 1
        waiting = [tuple(np.argwhere(mask)[0])]
        while waiting:
            y, x = waiting.pop()
            if 0 <= y < mask.shape[0] and 0 <= x < mask.shape[1] and mask[y, x]:
                mask[y, x] = 0
                waiting += [(y + dy, x + dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)]
    return count


def test_an_image_depends_on_its_number_alone(drawn):
    images, attributes = drawn
    for first, count in ((0, 1), (17, 40), (399, 1)):
        part, part_attributes = shape_images.draw(first, count, 64, seed=1)
        np.testing.assert_array_equal(part, images[first : first + count])
        for column, other in zip(part_attributes, attributes, strict=True):
            np.testing.assert_array_equal(column, other[first : first + count])


def test_images_are_pinned():
    """If images changed under the same name, runs could not be repeated."""
    images, _ = shape_images.draw(100, 16, 32, seed=7, stream=1)
    assert zlib.crc32(images.tobytes()) == 1593633995


def test_streams_and_seeds_differ(drawn):
    images, _ = drawn
    for options in ({"seed": 2}, {"seed": 1, "stream": 1}):
        others, _ = shape_images.draw(0, NUM_IMAGES, 64, **options)
        assert not (others == images).all((1, 2, 3)).any()
    assert len({image.tobytes() for image in images}) == NUM_IMAGES


def test_attributes_are_uniform_and_independent():
    """Chi-squared of each and of each pair is at most 5 standard deviations above its mean."""
    _, attributes = shape_images.draw(0, 6000, 16, seed=3, single=True)
    columns = {name: column for name, column in attributes._asdict().items() if name != "count"}
    sizes = {"kind": 8, "color": 8, "position": 9, "texture": 5, "background": 5}
    for a, column in columns.items():
        for b, other in columns.items():
            if a < b:
                cells = sizes[a] * sizes[b]
                counts = np.bincount(column * sizes[b] + other, minlength=cells)
                expected = 6000 / cells
                chi_squared = ((counts - expected) ** 2 / expected).sum()
                assert chi_squared < cells - 1 + 5 * np.sqrt(2 * (cells - 1)), (a, b)


def test_pairs_are_uniform_and_all_else_is_as_without_them():
    """Held-out pairs are the others; of each kind and each color there are two."""
    drawn = {}
    for label in ("pairs", "held-out-pairs"):
        config = shapes.ShapesConfig(name="any", label=label, size=16, seed=3)
        images, labels = shapes.draw_examples(config, "train", 0, 3000)
        names = shapes._LABELS[label]
        counts, expected = np.bincount(labels, minlength=len(names)), 3000 / len(names)
        chi_squared = ((counts - expected) ** 2 / expected).sum()
        assert chi_squared < len(names) - 1 + 5 * np.sqrt(2 * (len(names) - 1))
        drawn[label] = names
        # Where the pair of an image is by chance the same, so is the image.
        plain, attributes = shape_images.draw(0, 3000, 16, seed=3, large=True)
        same = [
            names[label] == f"{tuple(shape_images.COLORS)[color]} {shape_images.KINDS[kind]}"
            for label, kind, color in zip(labels, attributes.kind, attributes.color, strict=True)
        ]
        assert 10 < sum(same) < 600
        np.testing.assert_array_equal(images[same], plain[same])
        assert not (images == plain).all((1, 2, 3))[~np.array(same)].any()
    seen, held_out = map(set, drawn.values())
    assert (len(seen), len(held_out), len(seen | held_out)) == (48, 16, 64)
    for words in (shape_images.KINDS, shape_images.COLORS):
        assert all(sum(word in name.split() for name in held_out) == 2 for word in words)


def test_counts_are_uniform(drawn):
    counts = np.bincount(drawn[1].count)
    assert len(counts) == 5
    assert (abs(counts - NUM_IMAGES / 5) < 5 * np.sqrt(NUM_IMAGES * 0.16)).all()


def test_count_of_shapes(plain):
    """Counts the shapes in the image: shapes never touch each other."""
    images, attributes = plain(60)
    for mask, count in zip(_masks(images), attributes.count, strict=True):
        assert _regions(mask) == int(shape_images.COUNTS[count])


def test_position_of_the_shape(plain):
    images, attributes = plain(60, single=True)
    assert set(attributes.count) == {0}
    for mask, position, kind in zip(
        _masks(images), attributes.position, attributes.kind, strict=True
    ):
        rows, columns = np.nonzero(mask)
        row, column = rows.mean() / 64, columns.mean() / 64
        name = shape_images.POSITIONS[position]
        # The center of a triangle or a half disc is not exactly its center of mass.
        slack = 0.06 if kind in (3, 7) else 0.02
        third = {"top": 0, "middle": 1, "bottom": 2, "left": 0, "centre": 1, "right": 2}
        for place, word in zip((row, column), name.split(), strict=True):
            assert third[word] / 3 - slack < place < (third[word] + 1) / 3 + slack


def test_color_of_the_shape(plain):
    """The most frequent color outside the background is nearest to the color of the label."""
    images, attributes = plain(60)
    palette = np.array(list(shape_images.COLORS.values()))
    for image, mask, color in zip(images, _masks(images), attributes.color, strict=True):
        values, counts = np.unique(image[mask == 1], axis=0, return_counts=True)
        distances = abs(palette - values[counts.argmax()].astype(int)).sum(-1)
        assert distances.argmin() == color


def test_a_large_shape_is_whole_and_anywhere(plain):
    images, attributes = plain(400, large=True)
    assert set(attributes.count) == {0}
    radii, centers = [], []
    for mask in _masks(images[attributes.kind == shape_images.KINDS.index("circle")]):
        assert _regions(mask) == 1
        radii.append(np.sqrt(mask.sum() / np.pi) / 64 / 0.9)  # A circle fills 0.9 of its radius.
        centers.append([places.mean() / 64 for places in np.nonzero(mask)])
    assert 0.24 < min(radii) < 0.3 and 0.4 < max(radii) < 0.46
    for radius, center in zip(radii, centers, strict=True):
        assert all(radius * 0.9 - 0.02 < x < 1 - radius * 0.9 + 0.02 for x in center)
    assert np.ptp(centers, axis=0).min() > 0.25


@pytest.mark.parametrize("option", ["single", "large"])
def test_shape_of_the_shape(plain, option):
    """Area, and area of the smallest enclosing circle, distinguish most kinds."""
    images, attributes = plain(160, **{option: True})
    for mask, kind in zip(_masks(images), attributes.kind, strict=True):
        rows, columns = np.nonzero(mask)
        points = np.stack([rows, columns], 1)
        spread = points - points.mean(0)
        radius = np.sqrt((spread**2).sum(1).max()) + 0.5
        fill = len(points) / (np.pi * radius**2)
        low, high = {
            "circle": (0.9, 1.1),
            "ring": (0.6, 0.85),
            "square": (0.5, 0.75),
            "triangle": (0.3, 0.52),
            "star": (0.25, 0.5),
            "cross": (0.45, 0.7),
            "bar": (0.25, 0.5),
            "semicircle": (0.4, 0.65),
        }[shape_images.KINDS[kind]]
        assert low < fill < high, shape_images.KINDS[kind]


def test_patterns_differ(drawn):
    """Texture and background are visible: mean difference of neighboring pixels, by background."""
    images, attributes = drawn
    steps = abs(np.diff(images.astype(float), axis=2)).mean((1, 2, 3))
    by_background = [steps[attributes.background == index].mean() for index in range(5)]
    plain, gradient, stripes, clouds, speckles = by_background
    assert max(plain, gradient, clouds) + 1 < stripes < speckles


@pytest.mark.parametrize("size", [16, 33, 224])
def test_any_size(size):
    images, _ = shape_images.draw(3, 5, size)
    assert images.shape == (5, size, size, 3)
    assert images.dtype == np.uint8
    assert images.std((1, 2, 3)).min() > 5


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("class", shape_images.KINDS),
        ("colour", tuple(shape_images.COLORS)),
        ("count", ("1", "2", "3", "4", "5")),
        ("position", shape_images.POSITIONS),
        ("class-large", shape_images.KINDS),
        ("pairs", shapes._LABELS["pairs"]),
        ("held-out-pairs", shapes._LABELS["held-out-pairs"]),
    ],
)
def test_data_set(name, labels, tmp_path):
    source = open_source(f"shapes/{name}-24x50-seed3", "train", tmp_path)
    assert source.labels == labels
    assert source.name == f"shapes/{name}-24x50-seed3"
    examples = source.read(range(50))
    config = shapes.ShapesConfig(name="any", label=name, size=24, seed=3)
    images, expected = shapes.draw_examples(config, "train", 0, 50)
    np.testing.assert_array_equal(examples.labels, expected)
    for image, pixels in zip(examples.images, images, strict=True):
        np.testing.assert_array_equal(decode_image(image), pixels)
    tests = open_source(f"shapes/{name}-24x50-seed3", "test+validation", tmp_path)
    assert tests.num_examples == 10
    assert not set(tests.read(range(10)).images) & set(examples.images)


def test_more_images_begin_with_the_same(tmp_path):
    few, more = (
        open_source(f"shapes/class-16x{count}", "train", tmp_path).read(range(40))
        for count in (40, 70)
    )
    assert few.images.tolist() == more.images.tolist()


def test_default_configuration():
    config = shapes.Shapes.builder_configs["class"]
    assert (config.size, config.num_train, config.seed) == (64, 5000, 0)
    assert [config.num_examples(split) for split in ("train", "validation", "test")] == [
        5000,
        500,
        500,
    ]
    assert shapes.Shapes.BUILDER_CONFIGS[0].name == "class"


@pytest.mark.process
def test_loading_with_tfds_is_quiet(tmp_path):
    """Runs in a new process, which loads the configuration by its name."""
    open_source("shapes/count-16x20", "train", tmp_path)
    program = "tests.pipelines.programs.load_shapes"
    result = run_module(program, "shapes/count-16x20", tmp_path, cwd=tmp_path, cold=True)
    assert (result.returncode, result.stdout, result.stderr) == (0, "20 2\n", "")


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("shapes/size", ["'size' is not a configuration", "class, colour, count, position"]),
        ("shapes/class-64", ["'class-64' is not a configuration"]),
        ("shapes/class-8x10", ["8 pixels", "16 .. 512"]),
        ("shapes/class-64x0", ["describes 0 images"]),
        ("shapes/class-64x9999999999", ["describes 9,999,999,999 images"]),
        ("shapes/class:2.0.0", ["shapes/class:2.0.0", "version 1.0.0"]),
    ],
)
def test_clear_errors(name, texts, tmp_path):
    with pytest.raises(DataError) as error:
        open_source(name, "train", tmp_path)
    assert "\n" not in str(error.value)
    assert "Failed to construct" not in str(error.value)
    for text in texts:
        assert text in str(error.value)
    assert not list(tmp_path.rglob("*.tfrecord*"))


def test_builders_are_registered():
    assert tfds.builder_cls("shapes") is shapes.Shapes
