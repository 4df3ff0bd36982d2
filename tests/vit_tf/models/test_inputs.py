"""Float images in a range like 0 .. 255 cause one warning, but not inside graphs."""

import numpy as np
import pytest
import tensorflow as tf

import vit_tf
from tests.vit_tf import tiny
from vit_tf.models import inputs

CONFIGS = {
    "vit": tiny.config(),
    "resnet": vit_tf.ResNetConfig(stage_depths=(1,), width=0.5, image_size=(11, 14), num_classes=2),
}


@pytest.fixture(params=CONFIGS)
def model(request):
    return vit_tf.create_model(CONFIGS[request.param])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_one_warning_for_a_model(model, dtype):
    images = tiny.images(dtype="uint8").astype(dtype)
    with pytest.warns(UserWarning, match=r"values in \[-1, 1\].* is 255: pass 0 .. 255"):
        model(images)
    model(images)  # a second warning would be an error


@pytest.mark.parametrize(
    "images",
    [tiny.images(), tiny.images(dtype="uint8"), 3 * tiny.images(), np.full([1, 11, 14, 3], np.nan)],
    ids=["in range", "uint8", "otherwise normalized", "not a number"],
)
def test_no_warning(model, images, recwarn):
    model(images)
    assert [str(warning.message) for warning in recwarn] == []


def test_only_the_first_batch_is_looked_at(model, recwarn):
    model(tiny.images())
    model(tiny.images(dtype="uint8").astype("float32"))
    assert [str(warning.message) for warning in recwarn] == []


def test_graphs_are_left_as_they_are(model, monkeypatch):
    monkeypatch.setattr(inputs, "range_note", lambda images: pytest.fail("looked at values"))
    spec = tf.TensorSpec([None, 11, 14, 3])
    tf.function(model, autograph=False).get_concrete_function(spec)
