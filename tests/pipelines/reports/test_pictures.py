"""Pictures of maps and images."""

import numpy as np

from pipelines.reports import pictures


def test_the_crop_is_framed_and_the_rest_is_darker():
    image = np.full((400, 300, 3), 200, np.uint8)
    picture = pictures.with_crop(image, (100, 0, 300, 300), side=200)
    assert picture.shape == (200, 150, 3)
    assert (picture[10, 70] == 110).all() and (picture[100, 70] == 200).all()
    assert (picture[50, 70] == (255, 64, 32)).all() and (picture[149, 70] == (255, 64, 32)).all()
    assert (picture[150:] == 110).all() and (picture[:50] == 110).all()


def test_a_small_image_is_enlarged_before_the_frame_is_drawn():
    picture = pictures.with_crop(np.full((8, 8, 3), 50, np.uint8), (0, 0, 8, 8))
    assert picture.shape == (224, 224, 3) and (picture[100, 100] == 50).all()


def test_tiles_are_in_order_with_white_gaps():
    images = np.arange(5, dtype=np.uint8)[:, None, None, None] * np.ones((1, 2, 3, 3), np.uint8)
    picture = pictures.tiles(images, columns=2)
    assert picture.shape == (8, 7, 3)
    assert [picture[row, column, 0] for row in (0, 3, 6) for column in (0, 4)] == [
        0,
        1,
        2,
        3,
        4,
        255,
    ]
    assert (picture[2] == 255).all() and (picture[:, 3] == 255).all()


def test_a_map_lies_on_its_cells():
    seen = np.zeros((7, 9, 3), np.uint8)
    picture = pictures.overlay(np.array([[0.0, 1.0]]), seen, (4, 4))
    scale = len(picture) // 7
    low, high, beyond = picture[0, 0], picture[0, 4 * scale], picture[-1, -1]
    assert (low != high).any() and high[0] > low[0]
    assert (beyond == 0).all(), "No patch reads these pixels."
    np.testing.assert_array_equal(picture[4 * scale - 1, 8 * scale - 1], high)


def test_page_pictures_are_small():
    noise = np.random.default_rng(0).integers(0, 256, (500, 400, 3), np.uint8)
    uri = pictures.page_uri(noise)
    assert uri.startswith("data:image/jpeg;base64,") and len(uri) < 60_000
    assert pictures.page_uri(np.zeros((90, 40, 3), np.uint8)).startswith("data:image/png;base64,")
