"""Pictures of maps, and the verdict about training."""

import keras
import numpy as np
import pytest

import vit_tf
from pipelines.inspection import model_numbers, pictures, untrained
from pipelines.inspection.subject import Subject
from pipelines.stored_models import model_source
from tests.vit_tf import tiny


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


def _checks(subject, model):
    prepared = np.random.default_rng(0).uniform(-1, 1, (8, *subject.config.image_size, 3))
    both = [
        model_numbers.of_weights(each)
        | model_numbers.statistics(
            each, [np.float32(prepared)], ("distance", "entropy"), lambda count: None
        )
        for each in (model, subject.twin)
    ]
    return untrained.checks(subject.config, *both)


def test_a_trained_model_does_not_look_untrained():
    subject = Subject("shipped", *model_source.find("shipped").open_model())
    found = _checks(subject, subject.model)
    assert untrained.verdict(found).startswith("Looks trained")
    assert len(found) == 4 and found[0].passed


@pytest.mark.parametrize("fields", [{}, {"position_embedding": "learned_2d"}], ids=str)
def test_random_weights_look_untrained(fields):
    config = tiny.config(image_size=64, hidden_size=48, **fields)
    subject = Subject("twin", tiny.shared_of(config), None, None)
    keras.utils.set_random_seed(5)
    other = vit_tf.create_model(config)
    found = _checks(subject, other)
    assert untrained.verdict(found) == "LOOKS UNTRAINED: 4 of 4 numbers like random weights."


def test_fixed_positions_are_not_judged():
    config = tiny.config(position_embedding="sincos_2d")
    subject = Subject("fixed", tiny.shared_of(config), None, None)
    judged = {check.name[:9]: check.passed for check in _checks(subject, subject.twin)}
    assert judged["Positions"] is None


def test_positions_of_few_patches_are_not_judged():
    subject = Subject("few", tiny.shared_of(tiny.config()), None, None)
    judged = {check.name[:9]: check.expected for check in _checks(subject, subject.twin)}
    assert judged["Positions"] == "not judged: too few patches"
