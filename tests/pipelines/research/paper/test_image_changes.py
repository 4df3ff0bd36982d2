"""Changes of images against loops and closed forms."""

import numpy as np
import pytest

from pipelines.research.paper import image_changes
from pipelines.research.paper.image_changes import Corruption, Shift, Shuffle

IMAGES = np.random.default_rng(0).uniform(-1, 1, size=[40, 8, 12, 3]).astype(np.float32)


def changed(change, images=IMAGES, seed=0):
    found = change.apply(images, np.random.default_rng(seed))
    assert found.shape == images.shape and found.dtype == np.float32
    return found


def test_shifts_move_each_image_in_one_direction():
    seen = set()
    for before, after in zip(IMAGES, changed(Shift(3)), strict=True):
        moved = {
            "right": (before[:, :-3], after[:, 3:], before[:, :1], after[:, :3]),
            "left": (before[:, 3:], after[:, :-3], before[:, -1:], after[:, -3:]),
            "down": (before[:-3], after[3:], before[:1], after[:3]),
            "up": (before[3:], after[:-3], before[-1:], after[-3:]),
        }
        (name,) = [
            name
            for name, (a, b, edge, gap) in moved.items()
            if np.array_equal(a, b) and np.array_equal(np.broadcast_to(edge, gap.shape), gap)
        ]
        seen.add(name)
    assert len(seen) == 4


def test_shuffles_keep_the_squares():
    def squares(image):
        return sorted(
            image[y : y + 4, x : x + 4].tobytes() for y in range(0, 8, 4) for x in range(0, 12, 4)
        )

    after = changed(Shuffle(4))
    assert [squares(image) for image in after] == [squares(image) for image in IMAGES]
    still = [np.array_equal(a, b) for a, b in zip(after, IMAGES, strict=True)]
    assert sum(still) < 3  # 6 squares have 720 orders.
    orders = changed(Shuffle(4), np.tile(IMAGES[:1], (40, 1, 1, 1)))
    assert len({image.tobytes() for image in orders}) > 30  # One for each image.


def test_corruptions():
    gray = np.zeros([200, 16, 16, 3], np.float32)
    assert changed(Corruption("noise", 0.2), gray).std() == pytest.approx(0.2, rel=0.01)
    assert np.abs(changed(Corruption("noise", 0.4))).max() == 1.0
    point = np.zeros([1, 17, 17, 3], np.float32)
    point[0, 8, 8] = 1.0
    x = np.arange(-8, 9)
    line = np.exp(-0.5 * x**2) / np.exp(-0.5 * x**2).sum()
    blurred = changed(Corruption("blur", 1.0), point)[0, :, :, 1]
    np.testing.assert_allclose(blurred, np.outer(line, line), atol=2e-4)
    weak = changed(Corruption("contrast", 0.75))
    mean = IMAGES.mean(axis=(1, 2), keepdims=True)
    np.testing.assert_allclose(weak - mean, 0.25 * (IMAGES - mean), atol=1e-6)
    covered = changed(Corruption("cover", 0.5)) != IMAGES
    for mask in covered.all(axis=-1):
        rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
        assert (len(rows), len(columns), mask.sum()) == (4, 6, 24)


def test_strengths_increase_and_names_differ():
    for kind, changes in image_changes.CORRUPTIONS.items():
        before = [np.abs(changed(x) - IMAGES).mean() for x in changes]
        assert before == sorted(before) and before[0] < before[-1], kind
    names = [*map(str, image_changes.SHIFTS), *map(str, image_changes.OTHERS)]
    assert len(set(names)) == len(names) == 8 + 3 + 12
