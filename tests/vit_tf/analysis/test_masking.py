"""Occlusion, deletion and insertion on images whose score is known."""

import numpy as np
import pytest

from vit_tf.analysis import masking

IMAGE = np.arange(7 * 9 * 3, dtype=np.float32).reshape(7, 9, 3)
FILL = [-1.0, -2.0, -3.0]


def test_a_cell_is_covered_and_pixels_beyond_are_not():
    masks = masking.occlusion_masks((2, 3))
    assert masks.shape == (6, 2, 3) and (masks.sum(axis=(1, 2)) == 1).all()
    images = masking.covered(IMAGE, masks, (3, 2), FILL)
    assert images.dtype == np.float32
    expected = IMAGE.copy()
    expected[3:6, 2:4] = FILL
    np.testing.assert_array_equal(images[4], expected)
    np.testing.assert_array_equal(masking.covered(IMAGE, ~masks, (3, 2), FILL)[4][6], IMAGE[6])


def test_the_last_cells_may_be_cut_off():
    covered = masking.covered(IMAGE, np.ones([1, 2, 3], bool), (4, 4), FILL)
    np.testing.assert_array_equal(covered[0], np.broadcast_to(FILL, IMAGE.shape))


def test_deletion_covers_the_largest_values_first():
    fractions, masks = masking.deletion_masks([[0.1, 0.5], [0.5, 0.9]])
    np.testing.assert_allclose(fractions, [0, 0.25, 0.5, 0.75, 1])
    order = [(masks[i] & ~masks[i - 1]).ravel().argmax() for i in range(1, 5)]
    assert order == [3, 1, 2, 0]
    fractions, masks = masking.deletion_masks(np.zeros([3, 9]), steps=5)
    assert [mask.sum() for mask in masks] == [0, 5, 11, 16, 22, 27]
    np.testing.assert_allclose(fractions, np.array([0, 5, 11, 16, 22, 27]) / 27)


def test_scores_are_those_of_the_masked_images_whatever_the_batch():
    masks = masking.occlusion_masks((3, 4))
    sizes = []

    def score(images):
        sizes.append(len(images))
        return images.sum(axis=(1, 2, 3))

    expected = [masking.covered(IMAGE, mask[None], (2, 2), FILL).sum() for mask in masks]
    for batch_size in (5, 12, 32):
        found = masking.masked_scores(score, IMAGE, masks, (2, 2), FILL, batch_size)
        np.testing.assert_allclose(found, expected)
    assert set(sizes) == {5, 12, 32}


def test_a_map_that_marks_the_evidence_beats_the_opposite_one():
    """The score is the number of uncovered pixels of the right half."""
    image, truth = np.ones([8, 8, 3]), np.zeros([4, 4])
    truth[:, 2:] = 1

    def areas(heat):
        fractions, masks = masking.deletion_masks(heat, steps=16)
        found = [
            masking.masked_scores(
                lambda x: x[:, :, 4:, 0].mean(axis=(1, 2)), image, m, (2, 2), [0] * 3
            )
            for m in (masks, ~masks)
        ]
        return [masking.area(fractions, scores) for scores in found]

    assert areas(truth) == pytest.approx([0.25, 0.75])
    assert areas(-truth) == pytest.approx([0.75, 0.25])
