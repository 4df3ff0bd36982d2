"""Float images in a range like 0 .. 255 cause one warning, but not inside graphs."""

import numpy as np
import pytest
import tensorflow as tf

import vit_tf
from tests.vit_tf import tiny
from vit_tf.models import inputs

CONFIGS = {
    "vit": tiny.config(layers=1),
    "resnet": vit_tf.ResNetConfig(stage_depths=(1,), width=0.5, image_size=(11, 14), num_classes=2),
}


@pytest.fixture(params=CONFIGS)
def model(request):
    return vit_tf.create_model(CONFIGS[request.param])


def test_one_warning_for_a_model(model):
    images = tiny.images(dtype="uint8").astype("float64")
    with pytest.warns(UserWarning, match=r"values in \[-1, 1\].* is 255: pass 0 .. 255"):
        model(images)
    model(images)  # a second warning would be an error


@pytest.mark.parametrize(
    "images",
    [tiny.images(), tiny.images(dtype="uint8"), 3 * tiny.images(), np.full([1, 11, 14, 3], np.nan)],
    ids=["in range", "uint8", "otherwise normalized", "not a number"],
)
def test_images_in_another_plausible_range_cause_no_warning(model, images, recwarn):
    model(images)
    assert [str(warning.message) for warning in recwarn] == []


def test_after_images_in_range_no_values_are_read(model, monkeypatch):
    model(tiny.images())
    monkeypatch.setattr(tf, "reduce_max", lambda images: pytest.fail("read values"))
    inputs.check_images(model, tf.constant(tiny.images(dtype="uint8").astype("float32")))


def test_a_call_on_zeros_is_no_check(model):
    model(np.zeros_like(tiny.images()))
    with pytest.warns(UserWarning, match="is 255"):
        model(tiny.images(dtype="uint8").astype("float32"))


def test_fit_warns_about_arrays(model):
    model.compile(loss="mse", run_eagerly=True)
    images = tiny.images(dtype="uint8").astype("float32")
    targets = np.zeros([len(images), *model.output_shape[1:]], np.float32)
    with pytest.warns(UserWarning, match="is 255"):
        model.fit(images, targets, verbose=0)


def test_graphs_are_left_as_they_are(model, monkeypatch):
    monkeypatch.setattr(inputs, "check_range", lambda *_: pytest.fail("read values"))
    spec = tf.TensorSpec([None, 11, 14, 3])
    tf.function(model, autograph=False).get_concrete_function(spec)
