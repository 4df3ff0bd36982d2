"""Attention maps against the weights of the NumPy equations."""

import numpy as np
import pytest

from tests.tolerances import assert_close
from tests.vit_tf import numpy_vit, tiny
from vit_tf.analysis.attention_maps import attention_maps, class_rows


def weights(model, images):
    """`[B, layers, heads, T, T]` of all blocks, float64."""
    params = numpy_vit.published(model)
    patches = numpy_vit.embed(params, images)
    config = model.config
    _, blocks = numpy_vit.encode(
        params,
        patches,
        config.heads,
        config.classifier,
        grid=config.grid,
        injection=config.position_injection,
    )
    return np.stack(blocks, axis=1)


def test_rows_of_the_class_token():
    model, images = tiny.shared(), tiny.images()
    rows = class_rows(model, images)
    assert rows.shape == (3, 2, 3, 7) and rows.dtype == "float32"
    assert_close(rows, weights(model, images)[..., 0, :], "float32", "model")


@pytest.mark.parametrize(
    ("classifier", "positions", "injection"),
    [
        ("token", "learned_1d", "stem"),
        ("gap", "learned_1d", "stem"),
        ("gap", "learned_1d", "every_layer"),
        ("map", "sincos_2d", "stem"),
        ("token", "sincos_2d", "every_layer_shared"),
        ("map", "relative", "stem"),
        ("gap", "none", "stem"),
    ],
)
def test_maps_are_rows_or_means_of_the_weights(classifier, positions, injection):
    model = tiny.shared(
        classifier=classifier, position_embedding=positions, position_injection=injection
    )
    images = tiny.images()
    expected = weights(model, images)
    has_token = classifier == "token"
    expected = expected[..., 0, 1:] if has_token else expected.mean(axis=-2)
    maps = attention_maps(model, images)
    assert maps.shape == (3, 2, 3, 2, 3) and maps.dtype == "float32"
    assert_close(maps, expected.reshape(maps.shape), "float32", "model")


@pytest.mark.parametrize("classifier", ["token", "gap"])
def test_maps_of_axial_models(classifier):
    """The mean over the queries of the column weights times the row weights of each layer."""
    model = tiny.shared(axial=True, classifier=classifier)
    images = tiny.images()
    blocks = weights(model, images)
    assert blocks.shape == (3, 4, 3, 6, 6)
    assert (blocks[:, 0, :, :3, 3:] == 0).all() and (blocks[:, 1, :, 0, [1, 2, 4, 5]] == 0).all()
    expected = (blocks[:, 1::2] @ blocks[:, ::2]).mean(axis=-2)
    maps = attention_maps(model, images)
    assert maps.shape == (3, 2, 3, 2, 3) and maps.dtype == "float32"
    assert_close(maps, expected.reshape(maps.shape), "float32", "model")


@pytest.mark.parametrize("classifier", ["token", "gap"])
def test_half_width_models_give_float32_maps(classifier):
    model = tiny.shared(classifier=classifier, dtype="mixed_bfloat16")
    maps = attention_maps(model, tiny.images())
    assert maps.dtype == "float32"
    if classifier == "gap":
        np.testing.assert_allclose(np.sum(maps, axis=(-2, -1)), 1, rtol=1e-5)
