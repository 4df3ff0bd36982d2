"""MixUp and CutMix: draws against closed forms, mixed batches against NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from pipelines.config.augmentation import Augmentation
from pipelines.data.transforms.mixing import Mixing, cut_box, symmetric_beta

STEPS = 3000


def _mixing(mixup=0.0, cutmix=0.0, image_size=(40, 60), seed=4):
    return Mixing(mixup=mixup, cutmix=cutmix, seed=seed, image_size=image_size, num_classes=5)


def _draws(**options):
    mixing = _mixing(**options)
    return np.stack([mixing.draw(step) for step in range(STEPS)]).astype(float)


@pytest.mark.parametrize("alpha", [0.02, 0.2, 0.5, 1.0, 3.0])
def test_symmetric_beta_has_its_moments(alpha):
    """On a grid of midpoints the sample means equal the integrals, up to the grid's own error."""
    grid = (np.arange(400) + 0.5) / 400
    values = np.array([[symmetric_beta(alpha, u, v) for u in grid] for v in grid])
    assert 0 <= values.min() < values.max() <= 1
    assert abs(values.mean() - 0.5) < 1e-9
    assert abs(values.var() - 1 / (4 * (2 * alpha + 1))) < 1e-3
    # E (2 x - 1)^4 = 3 / ((2 a + 1) (2 a + 3))
    fourth = ((2 * values - 1) ** 4).mean()
    assert abs(fourth - 3 / ((2 * alpha + 1) * (2 * alpha + 3))) < 3e-3


def test_symmetric_beta_of_one_is_uniform():
    grid = (np.arange(300) + 0.5) / 300
    values = np.sort([symmetric_beta(1.0, u, v) for u in grid for v in grid])
    uniform = (np.arange(len(values)) + 0.5) / len(values)
    assert np.abs(values - uniform).max() < 5e-3


def test_symmetric_beta_at_the_ends():
    for first in (2.0**-54, 0.5, 1 - 2.0**-53):
        for second in (2.0**-54, 0.25, 0.5, 0.75, 1 - 2.0**-53):
            for alpha in (1e-3, 1.0, 1e3):
                assert 0 <= symmetric_beta(alpha, first, second) <= 1


def test_mixup_draws_the_larger_share():
    draws = _draws(mixup=0.2)
    label, image = draws[:, 0], draws[:, 1]
    np.testing.assert_array_equal(label, image)
    assert (draws[:, 2:] == 0).all()
    assert 0.5 <= label.min() < 0.52
    assert 0.999 < label.max() <= 1
    # max(x, 1 - x) = 1/2 + |x - 1/2|, and the mean of the squared distance is the variance.
    squares = (label - 0.5) ** 2
    assert abs(squares.mean() - 1 / (4 * 1.4)) < 4 * squares.std() / STEPS**0.5


def test_cutmix_draws_a_box():
    """For alpha 1 the fraction is uniform; the area inside the border has a closed form."""
    draws = _draws(cutmix=1.0)
    label, image, top, left, bottom, right = draws.T
    assert (image == 1).all()
    area = (bottom - top) * (right - left) / 2400
    np.testing.assert_allclose(label, 1 - area, rtol=0, atol=1e-7)
    assert top.min() == left.min() == 0
    assert bottom.max() == 40
    assert right.max() == 60
    assert (bottom >= top).all() and (right >= left).all()
    # A side r around a uniform center keeps r - r^2 / 4. Its square over r = sqrt(1 - lambda) with
    # uniform lambda is the integral of 2 r (r - r^2 / 4)^2 from 0 to 1. Rounding to whole pixels
    # reduces it a little.
    expected = 2 * (1 / 4 - 1 / 10 + 1 / 96)
    assert abs(area.mean() - expected) < 4 * area.std() / STEPS**0.5 + 0.015


def test_box_without_border_has_its_area():
    assert cut_box((40, 60), 0.75, 0.5, 0.5) == (10, 15, 30, 45)
    assert cut_box((40, 60), 0.75, 0.0, 0.999) == (0, 44, 10, 60)
    assert cut_box((40, 60), 0.0, 0.5, 0.5) == (0, 0, 40, 60)
    top, left, bottom, right = cut_box((40, 60), 1.0, 0.5, 0.5)
    assert top == bottom and left == right


def test_with_both_each_batch_takes_one():
    draws = _draws(mixup=0.2, cutmix=1.0)
    is_mixup = (draws[:, 2:] == 0).all(axis=1) & (draws[:, 0] == draws[:, 1])
    assert abs(is_mixup.mean() - 0.5) < 4 * 0.5 / STEPS**0.5
    np.testing.assert_array_equal(draws[is_mixup], _draws(mixup=0.2)[is_mixup])
    np.testing.assert_array_equal(draws[~is_mixup], _draws(cutmix=1.0)[~is_mixup])


def test_seed_and_step_decide():
    first, other = _draws(mixup=0.8), _draws(mixup=0.8, seed=5)
    np.testing.assert_array_equal(first, _draws(mixup=0.8))
    assert len(np.unique(first[:, 0])) > STEPS * 0.99
    assert abs(np.corrcoef(first[:, 0], other[:, 0])[0, 1]) < 4 / STEPS**0.5
    assert abs(np.corrcoef(first[1:, 0], first[:-1, 0])[0, 1]) < 4 / STEPS**0.5


def _batch():
    rng = np.random.default_rng(0)
    images = rng.uniform(-1, 1, (4, 40, 60, 3)).astype(np.float32)
    labels = np.array([0, 3, 3, 1], np.int32)
    return images, labels, np.roll(images, 1, axis=0), np.roll(labels, 1)


def test_mixup_of_a_batch():
    images, labels, partners, partner_labels = _batch()
    mixing = _mixing(mixup=0.8)
    draw = mixing.draw(3)
    mixed, targets = mixing.mix(tf.constant(draw), images, labels, partners, partner_labels)
    share = draw[0]
    np.testing.assert_array_equal(mixed, share * images + (1 - share) * partners)
    one_hot = np.eye(5, dtype=np.float32)
    np.testing.assert_array_equal(
        targets, share * one_hot[labels] + (1 - share) * one_hot[partner_labels]
    )
    assert targets.dtype == tf.float32
    np.testing.assert_allclose(tf.reduce_sum(targets, axis=1), 1, rtol=0, atol=1e-6)


def test_cutmix_of_a_batch():
    images, labels, partners, partner_labels = _batch()
    mixing = _mixing(cutmix=1.0)
    for step in range(5):
        draw = mixing.draw(step)
        mixed, targets = mixing.mix(tf.constant(draw), images, labels, partners, partner_labels)
        top, left, bottom, right = draw[2:].astype(int)
        expected = images.copy()
        expected[:, top:bottom, left:right] = partners[:, top:bottom, left:right]
        np.testing.assert_array_equal(mixed, expected)
        share = 1 - (bottom - top) * (right - left) / 2400
        one_hot = np.eye(5)
        np.testing.assert_allclose(
            targets, share * one_hot[labels] + (1 - share) * one_hot[partner_labels], atol=1e-6
        )


@pytest.mark.parametrize("kind", ["mixup", "cutmix"])
def test_lists_of_labels_are_mixed(kind):
    """With the same shares as one-hot labels; a label of both images keeps its whole weight."""
    images, labels, partners, partner_labels = _batch()
    mixing = _mixing(**{kind: 0.7})
    draw = tf.constant(mixing.draw(2))
    _, single = mixing.mix(draw, images, labels, partners, partner_labels)
    rows = np.eye(5, dtype=np.float32)
    _, same = mixing.mix(draw, images, rows[labels], partners, rows[partner_labels])
    np.testing.assert_array_equal(single, same)
    several = np.array([[1, 1, 0, 0, 1], [0, 0, 0, 0, 0], [0, 1, 1, 0, 0], [1, 1, 1, 1, 1]], "f")
    _, mixed = mixing.mix(draw, images, several, partners, np.roll(several, 1, axis=0))
    share = float(draw[0])
    expected = share * several + (1 - share) * np.roll(several, 1, axis=0)
    np.testing.assert_allclose(mixed, expected, rtol=0, atol=1e-6)
    assert float(mixed[0, 0]) == pytest.approx(1)  # both images have the label


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["mixup", "cutmix"])
def test_rejects(name, value):
    with pytest.raises(ValueError, match=f"{name}={value} is not a parameter"):
        Augmentation(**{name: value})


def test_off_is_false():
    assert not _mixing()
    assert _mixing(mixup=0.1)
    assert _mixing(cutmix=0.1)
