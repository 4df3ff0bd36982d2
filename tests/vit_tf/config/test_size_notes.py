"""Notes about sizes that are probably mistakes."""

import warnings

import pytest

import vit_tf
from tests.vit_tf import tiny
from vit_tf.config.size_notes import MANY_TOKENS, one_patch, size_notes


@pytest.mark.parametrize(
    ("fields", "sizes", "advice"),
    [
        (
            {"image_size": (4, 7)},
            "single patch (4 x 7 pixels in patches of 4)",
            "Set a larger model.image_size or a smaller model.patch_size.",
        ),
        # The feature map of 32 x 32 pixels has a single pixel, and a patch cannot be smaller.
        (
            {"image_size": 32, "patch_size": 1, "stem": (1, 1, 1, 1)},
            "single patch (32 x 32 pixels in patches of 32)",
            "Set a larger model.image_size.",
        ),
    ],
)
def test_one_patch(fields, sizes, advice):
    note = one_patch(tiny.config(**fields), "model.")
    assert sizes in note and advice in note


@pytest.mark.parametrize(
    "fields",
    [{"image_size": (4, 8)}, {"image_size": 64, "patch_size": 1, "stem": (1, 1, 1, 1)}],
)
def test_two_patches_have_no_note(fields):
    assert one_patch(tiny.config(**fields)) is None


def test_many_tokens_are_for_axial_models():
    config = tiny.config(image_size=(4 * 50, 4 * 50))
    assert len(size_notes(config)) == 1
    assert size_notes(config.replace(axial=True)) == []


@pytest.mark.parametrize(
    ("fields", "unread"),
    [
        ({"image_size": (8, 12)}, None),
        ({"image_size": (11, 13)}, "3 rows of pixels at the bottom and 1 column of pixels at the"),
        ({"image_size": (9, 12)}, "1 row of pixels at the bottom (9 x 12 pixels in patches of 4)"),
        ({"image_size": (8, 14)}, "The patches leave out 2 columns of pixels at the right"),
        # The last row of 5 x 5 feature pixels, each of 4 x 4, is left over. A stem rounds up: 15
        # pixels give 4 feature pixels.
        ({"image_size": 20, "patch_size": 2, "stem": (1,)}, "4 rows of pixels"),
        ({"image_size": 15, "patch_size": 2, "stem": (1,)}, None),
    ],
)
def test_pixels_that_no_patch_reads(fields, unread):
    notes = size_notes(tiny.config(**fields))
    assert len(notes) == (unread is not None)
    if unread:
        assert unread in notes[0] and "Set image_size to multiples of" in notes[0]


def test_thousands_of_tokens():
    config = tiny.config(image_size=(4 * 40, 4 * 50))
    assert config.num_prefix_tokens == 1 and MANY_TOKENS == 2000
    (note,) = size_notes(config, "model.")
    assert note.startswith("2,001 tokens per image (160 x 200 pixels in patches of 4)")
    assert "smaller model.image_size or a larger model.patch_size" in note
    assert size_notes(config.replace(image_size=(4 * 40, 4 * 49))) == []


def test_a_model_without_patches_has_no_notes():
    config = vit_tf.ResNetConfig(stage_depths=(1,), width=0.5, image_size=33)
    assert (one_patch(config), size_notes(config)) == (None, [])


@pytest.mark.parametrize(
    ("spatial", "image_size", "places", "note"),
    [
        # The root reads patches of 2 x 2 pixels.
        ("full", (224, 224), 112 * 112, "12,544 pixels of a feature map attend to each other"),
        ("full", (65, 96), 32 * 48, None),
        # The second of two stages has an eighth of the sides, rounded up.
        ("augmented", (224, 224), 28 * 28, None),
        ("augmented", (353, 360), 45 * 45, "2,025 pixels of a feature map attend to each other"),
        ("stand_alone", (800, 800), 0, None),
        ("convolution", (800, 800), 0, None),
    ],
)
def test_pixels_that_attend_to_each_other(spatial, image_size, places, note):
    config = vit_tf.ResNetConfig(stage_depths=(1, 1), spatial=spatial, image_size=image_size)
    assert config.mutual_places == places
    notes = size_notes(config, "model.")
    assert len(notes) == (note is not None)
    if note:
        height, width = image_size
        assert notes[0].startswith(f"{note} (images of {height} x {width} pixels)")
        assert "A smaller model.image_size reduces it." in notes[0]


def test_create_model_warns_of_one_patch():
    with pytest.warns(UserWarning, match="single patch.*image_size") as caught:
        vit_tf.create_model("ViT-Ti/16", image_size=16, layers=1, num_classes=2)
    assert [warning.filename for warning in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        vit_tf.create_model("ViT-Ti/16", image_size=32, layers=1, num_classes=2)
