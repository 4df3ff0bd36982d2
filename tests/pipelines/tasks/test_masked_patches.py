"""Targets and losses of masked patch prediction against float64 NumPy and vectors made by hand."""

import math

import numpy as np
import pytest
import tensorflow as tf

import vit_tf
from pipelines.tasks import patch_targets
from pipelines.tasks.masked_patches import MaskedPatches
from tests.vit_tf import tiny
from vit_tf.layers import RandomContext, draw_corruption

TARGETS = ("color", "downsample", "pixels")


def task(target="color", mean=(0.5,) * 3, std=(0.5,) * 3, **fields):
    config = tiny.config(num_classes=0, **fields)
    preprocessing = vit_tf.Preprocessing(image_size=config.image_size, mean=mean, std=std)
    return MaskedPatches(
        target=target, fraction=0.5, seed=3, config=config, preprocessing=preprocessing
    )


def batch_of(images):
    count = len(images)
    return {
        "image": tf.constant(images),
        "id": tf.range(10, 10 + count, dtype=tf.int64),
        "slot": tf.range(count),
        "weight": tf.ones([count]),
    }


@pytest.mark.parametrize(
    ("color", "expected"),
    [
        ((0, 0, 0), 0),
        ((255, 255, 255), 511),
        ((128, 64, 31.9), 272),
        ((32, 0, 0), 64),
        ((31.9, 32, 63.9), 9),
        ((224, 223.9, 96), 64 * 7 + 8 * 6 + 3),
    ],
)
def test_classes_of_colors(color, expected):
    # As the model gets them: scaled to [-1, 1] in float32 and back.
    scaled = np.float32(np.float32(color) / np.float32(127.5) - np.float32(1))
    back = (tf.constant(scaled) * 0.5 + 0.5) * 255
    assert int(patch_targets.color_classes(back)) == expected


@pytest.mark.parametrize("side", [16, 32])
def test_means_of_whole_patches_at_an_edge(side):
    for value in (32, 31, 64, 224):
        pixels = tf.fill([1, side, side, 3], np.float32(value)) / 127.5 - 1
        mean = tf.reduce_mean((pixels * 0.5 + 0.5) * 255, axis=(1, 2))
        assert int(patch_targets.color_classes(mean)[0]) == 73 * (value // 32)
    # The smallest difference of the mean of 1,024 integers stays below the edge.
    assert int(patch_targets.color_classes(tf.fill([3], 32 - 1 / 1024))) == 0


def test_every_level_of_uint8_has_its_class_after_scaling():
    values = np.arange(256)
    scaled = tf.constant(values, tf.float32) / 127.5 - 1
    back = (scaled * 0.5 + 0.5) * 255
    colors = tf.stack([back, back[::-1], tf.zeros(256)], axis=-1)
    expected = 64 * (values // 32) + 8 * (values[::-1] // 32)
    np.testing.assert_array_equal(patch_targets.color_classes(colors), expected)


def test_class_colors_are_in_their_class():
    colors = patch_targets.class_colors()
    np.testing.assert_array_equal(patch_targets.color_classes(colors), np.arange(512))
    assert colors[0].tolist() == [16, 16, 16] and colors[511].tolist() == [240, 240, 240]


def test_patches_are_cut_row_by_row():
    images = np.zeros([1, 11, 14, 3], np.float32)
    for row in range(2):
        for column in range(3):
            images[:, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] = 3 * row + column
    patches = patch_targets.patches_of(tf.constant(images), (2, 3), 4)
    assert patches.shape == (1, 6, 4, 4, 3)
    for index in range(6):
        assert (patches[0, index].numpy() == index).all()


@pytest.mark.parametrize("side", [1, 2, 3, 4, 6, 14, 16])
def test_cells_are_means_of_areas(side):
    patches = np.random.default_rng(side).uniform(0, 255, [2, 3, side, side, 3])
    # Each pixel as 4 x 4 equal parts; a cell is then a block of side x side parts.
    fine = patches.repeat(4, axis=2).repeat(4, axis=3)
    expected = fine.reshape(2, 3, 4, side, 4, side, 3).mean(axis=(3, 5)).reshape(2, 3, 16, 3)
    received = patch_targets.cell_means(tf.constant(patches))
    np.testing.assert_allclose(received, expected, rtol=1e-12)


def _expected_loss(target, predictions, images, corrupted, mean, std):
    """The loss of each image in float64: one patch after another."""
    values = (np.float64(images) * std + mean) * 255
    losses = np.zeros(len(images))
    for image in range(len(images)):
        for index in np.flatnonzero(corrupted[image]):
            row, column = divmod(index, 3)
            patch = values[image, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4]
            outputs = np.float64(predictions[image, index])
            if target == "pixels":
                losses[image] += np.mean((outputs - (patch.ravel() / 127.5 - 1)) ** 2)
                continue
            # Patches of 4 x 4 pixels: a cell is a pixel.
            colors = [patch.mean(axis=(0, 1))] if target == "color" else patch.reshape(16, 3)
            total = 0.0
            for color, logits in zip(colors, outputs.reshape(-1, 512), strict=True):
                r, g, b = (min(7, math.floor(x / 32)) for x in color)
                total += np.log(np.exp(logits).sum()) - logits[64 * r + 8 * g + b]
            losses[image] += total / len(colors)
        losses[image] /= corrupted[image].sum()
    return losses


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("scale", [((0.5,) * 3, (0.5,) * 3), ((0.4, 0.5, 0.6), (0.2, 0.3, 0.4))])
def test_loss_and_its_gradient(target, scale):
    mean, std = scale
    learned = task(target, mean, std)
    rng = np.random.default_rng(0)
    images = ((rng.uniform(0, 1, [3, 11, 14, 3]) - mean) / std).astype(np.float32)
    predictions = rng.normal(size=[3, 6, learned.outputs]).astype(np.float32)
    places = draw_corruption(6, 0.5, 0, 0, tf.range(3)).places
    corrupted = np.zeros([3, 6], bool)
    np.put_along_axis(corrupted, places.numpy(), True, axis=1)
    assert corrupted.sum(1).tolist() == [3, 3, 3]
    variable = tf.Variable(predictions)
    with tf.GradientTape() as tape:
        chosen = tf.gather(variable, places, axis=1, batch_dims=1)
        losses = learned.loss(chosen, tf.constant(images), places)
        total = tf.reduce_sum(losses)
    expected = _expected_loss(target, predictions, images, corrupted, mean, std)
    np.testing.assert_allclose(losses, expected, rtol=2e-5)
    gradient = np.abs(tf.convert_to_tensor(tape.gradient(total, variable)).numpy()).max(-1)
    np.testing.assert_array_equal(gradient > 0, corrupted)  # Exactly 0 at other patches.


@pytest.mark.parametrize("target", TARGETS)
def test_first_loss_is_that_of_knowing_nothing(target):
    learned = task(target)
    model = learned.create_model("float32")
    images = tiny.images(2)
    batch = batch_of(images)
    with RandomContext(seed=0, step=tf.constant(0), slots=batch["slot"]):
        losses = learned.losses(model, batch)
    if target != "pixels":
        np.testing.assert_allclose(losses, math.log(512), rtol=1e-6)
    sums, scored = learned.measure(model, batch)
    assert scored == [] and float(sums["examples"]) == 2
    if target == "pixels":
        mean_square = float(sums["loss"]) / 2
        assert 0.2 < mean_square < 0.5  # Uniform in [-1, 1]: 1 / 3.


def _perfect(learned, images):
    """A function instead of a model, whose predictions are the targets."""
    targets = learned._targets(images)
    if learned.target == "pixels":
        predictions = targets
    else:
        predictions = tf.reshape(tf.one_hot(targets, 512, 9.0), [*targets.shape[:2], -1])

    def predict(images, source, places=None, training=False):
        chosen = places is not None
        return tf.gather(predictions, places, axis=1, batch_dims=1) if chosen else predictions

    return predict


@pytest.mark.parametrize("target", TARGETS)
def test_metrics(target):
    learned = task(target)
    batch = batch_of(tiny.images(3))
    batch["weight"] = tf.constant([1.0, 1.0, 0.0])  # The last image is padding.
    sums, _ = learned.measure(_perfect(learned, batch["image"]), batch)
    name = "psnr" if target == "pixels" else "patch_accuracy"
    assert set(sums) == {"examples", "loss", name}
    assert float(sums["examples"]) == 2
    if target == "pixels":
        off = learned._targets(batch["image"]) + 0.1

        def predict(images, source, places, training):
            return tf.gather(off, places, axis=1, batch_dims=1)

        sums, _ = learned.measure(predict, batch)
        np.testing.assert_allclose(sums["loss"], 2 * 0.01, rtol=1e-4)
        np.testing.assert_allclose(sums["psnr"], 2 * 10 * math.log10(4 / 0.01), rtol=1e-4)
    else:
        assert float(sums["patch_accuracy"]) == 2
        sums, _ = learned.measure(lambda *_, training: tf.zeros([3, 3, learned.outputs]), batch)
        assert float(sums["patch_accuracy"]) < 0.2  # Black everywhere.


@pytest.mark.parametrize("target", TARGETS)
def test_an_evaluation_does_not_depend_on_the_batch_size(target):
    learned = task(target)
    model = learned.create_model("float32")
    tiny.randomize(model)
    batch = batch_of(tiny.images(3))
    whole, _ = learned.measure(model, batch)
    singles = [{key: value[i : i + 1] for key, value in batch.items()} for i in range(3)]
    parts = [learned.measure(model, single)[0] for single in singles]
    for name, value in whole.items():
        expected = sum(float(part[name]) for part in parts)
        np.testing.assert_allclose(value, expected, rtol=1e-5)
    assert len({round(float(part["loss"]), 4) for part in parts}) == 3


@pytest.mark.parametrize("target", TARGETS)
def test_uint8_images_are_the_same_images(target):
    learned = task(target)
    model = learned.create_model("float32")
    tiny.randomize(model)
    levels = tiny.images(3, dtype="uint8")
    batches = [batch_of(images) for images in (levels, (levels / 127.5 - 1).astype("float32"))]
    (received, _), (expected, _) = (learned.measure(model, batch) for batch in batches)
    assert received.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(received[name], value, rtol=1e-5)
    drawn, wanted = (learned.pictures(model, batch) for batch in batches)
    for name, value in wanted.items():
        np.testing.assert_allclose(drawn[name], value, atol=1e-5)


@pytest.mark.parametrize("target", TARGETS)
def test_pictures_show_image_mask_target_and_prediction(target):
    learned = task(target)
    batch = batch_of(np.full([2, 11, 14, 3], -1.0, np.float32))  # Black.
    batch["image"] = tf.concat([batch["image"][:1], -batch["image"][1:]], axis=0)  # And white.
    shown = learned.pictures(_perfect(learned, batch["image"]), batch)
    assert list(shown) == ["image", "corrupted", "target", "prediction"]
    assert all(x.shape == (2, 8, 12, 3) for x in shown.values())
    for index, value in enumerate((0, 1)):
        assert (shown["image"][index].numpy() == value).all()
        gray = (shown["corrupted"][index].numpy() == 0.5).all(-1)
        assert gray.sum() == 3 * 16  # Of 6 patches 3 are corrupted, and all of these masked.
        drawn = shown["target"][index].numpy()
        expected = value if target == "pixels" else (16 + 224 * value) / 255
        np.testing.assert_allclose(drawn, expected, atol=1e-6)
        np.testing.assert_array_equal(shown["prediction"][index], drawn)


@pytest.mark.parametrize("classifier", ["token", "gap"])
def test_features_are_the_mean_of_the_patches(classifier):
    """The class token, which no loss trains directly, is not among them."""
    learned = task(classifier=classifier, representation_size=None)
    model = learned.create_model("float32")
    tiny.randomize(model)
    images = tiny.images()
    tokens, _ = model.encoder.encode(model.encoder.embed(images))
    patches = math.prod(model.config.grid)
    expected = tokens.numpy().astype(np.float64)[:, -patches:].mean(axis=1)
    received = learned.features(model)(images)
    np.testing.assert_allclose(received, expected, rtol=0, atol=1e-5)
    # The head's input is the same for a GAP model, not for a token model.
    distance = np.abs(model.encoder.features(images) - expected).max()
    assert distance < 1e-5 if classifier == "gap" else distance > 0.1
