"""`compile` notices losses that read logits as probabilities."""

import functools

import keras
import numpy as np
import pytest

import vit_tf
from tests.vit_tf import tiny

SPARSE = r"keras.losses.SparseCategoricalCrossentropy\(from_logits=True\)"


@pytest.fixture(params=["vit", "resnet"])
def model(request):
    small = {"stage_depths": (1,), "width": 0.5, "image_size": (11, 14), "num_classes": 5}
    configs = {"vit": tiny.config(layers=1), "resnet": vit_tf.ResNetConfig(**small)}
    return tiny.shared_of(configs[request.param])


@pytest.mark.parametrize(
    ("loss", "fix"),
    [
        ("sparse_categorical_crossentropy", SPARSE),
        ("SparseCategoricalCrossentropy", SPARSE),
        (keras.losses.sparse_categorical_crossentropy, SPARSE),
        (keras.losses.SparseCategoricalCrossentropy(), SPARSE),
        ([keras.losses.SparseCategoricalCrossentropy(from_logits=False)], SPARSE),
        ("categorical_crossentropy", r"keras.losses.CategoricalCrossentropy\(from_logits=True"),
        (keras.losses.CategoricalCrossentropy(), "keras.losses.CategoricalCrossentropy"),
        ("bce", r"keras.losses.BinaryCrossentropy\(from_logits=True"),
        (keras.losses.BinaryCrossentropy(), "keras.losses.BinaryCrossentropy"),
        (keras.losses.BinaryFocalCrossentropy(), "keras.losses.BinaryFocalCrossentropy"),
    ],
)
def test_losses_of_probabilities(model, loss, fix):
    with pytest.warns(UserWarning, match=f"returns logits.* Compile with {fix}") as caught:
        model.compile("sgd", loss)
    assert len(caught) == 1 and caught[0].filename == __file__


@pytest.mark.parametrize(
    "loss",
    [
        None,
        "mse",
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        keras.losses.BinaryCrossentropy(from_logits=True),
        functools.partial(keras.losses.sparse_categorical_crossentropy, from_logits=True),
        lambda truth, logits: logits,
    ],
)
def test_other_losses(model, loss, recwarn):
    model.compile(loss=loss)
    assert [warning for warning in recwarn if warning.category is UserWarning] == []


def test_a_model_without_a_head_returns_no_logits(recwarn):
    tiny.shared(num_classes=0).compile("sgd", "binary_crossentropy")
    assert [warning for warning in recwarn if warning.category is UserWarning] == []


def test_an_unknown_name_is_an_error_of_keras(model):
    with pytest.raises(ValueError, match="no_such_loss"):
        model.compile("sgd", "no_such_loss")
        model.fit(tiny.images(2, (11, 14)), np.zeros([2, 5]), verbose=0)
