"""Attention maps against the weights of the NumPy equations."""

import numpy as np
import pytest
import tensorflow as tf

import vit_tf
from tests.tolerances import assert_close
from tests.vit_tf import tiny
from tests.vit_tf.analysis.dense import DenseAttention, one_hot_attention, rollout, weights
from vit_tf.analysis.attention_maps import attention_maps, attention_rollout, class_rows


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
        ("token", "rotary_2d", "stem"),
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


@pytest.mark.parametrize("classifier", ["token", "gap", "token_distilled"])
def test_registers_are_no_part_of_a_map(classifier):
    """They, or a distillation token, are neither keys nor, without a class token, queries."""
    count = 0 if classifier == "token_distilled" else 2
    model = tiny.shared(classifier=classifier, register_tokens=count)
    images, prefix = tiny.images(), model.num_prefix_tokens
    expected = weights(model, images)
    queries = slice(prefix, None) if classifier == "gap" else slice(0, 1)
    expected = expected[..., queries, prefix:].mean(axis=-2)
    maps = attention_maps(model, images)
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


KINDS = [
    {},
    {"classifier": "gap"},
    {"classifier": "map", "position_embedding": "relative"},
    {"classifier": "unpooled", "layers": 3},
    {"position_embedding": "sincos_2d", "position_injection": "every_layer_shared"},
    {"axial": True, "classifier": "gap"},
    {"register_tokens": 2},
    {"register_tokens": 2, "classifier": "gap"},
    {"classifier": "token_distilled"},
]


class TestRollout:
    @pytest.mark.parametrize("fields", KINDS, ids=str)
    def test_is_the_row_of_the_dense_product(self, fields):
        model, images = tiny.shared(**fields), tiny.images()
        found = attention_rollout(model, images)
        assert found.shape == (3, 2, 3) and found.dtype == "float32"
        config = model.config
        expected = rollout(weights(model, images), model.num_prefix_tokens, config.has_class_token)
        np.testing.assert_allclose(found, expected.reshape(found.shape), atol=1e-6)

    def test_of_a_hybrid(self):
        fields = {"stem": {"stage_depths": (1,), "width": 0.5}, "patch_size": 1}
        model = tiny.shared(**fields, image_size=(10, 14))
        images = tiny.images(size=(10, 14))
        dense = DenseAttention(model.attention_inputs(images), model)
        expected = rollout(dense.weights(), 1).reshape(3, *model.grid)
        np.testing.assert_allclose(attention_rollout(model, images), expected, atol=1e-6)

    def test_the_worked_example(self):
        """docs/paper.md J.4, in the other direction: the class token's row of the product."""
        first = [[0.2, 0.3, 0.5], [0.6, 0.2, 0.2], [0.1, 0.8, 0.1]]
        second = [[0.5, 0.25, 0.25], [0.1, 0.1, 0.8], [0.3, 0.3, 0.4]]
        found = attention_rollout(DenseAttention.of([first, second], grid=(1, 2)), None)
        np.testing.assert_allclose(found, [[[0.2375, 0.26875]]], atol=1e-6)

    @pytest.mark.parametrize("layers", [1, 3])
    def test_uniform_attention(self, layers):
        """Each layer moves half of the rest to all tokens alike."""
        model = DenseAttention.of([np.full([7, 7], 1 / 7)] * layers, grid=(2, 3))
        found = attention_rollout(model, None)
        np.testing.assert_allclose(found, np.full([1, 2, 3], (1 - 0.5**layers) / 7), atol=1e-6)

    def test_identity_attention_stays_where_it_begins(self):
        found = attention_rollout(DenseAttention.of([np.eye(7)] * 2, grid=(2, 3)), None)
        np.testing.assert_allclose(found, np.zeros([1, 2, 3]), atol=1e-6)
        found = attention_rollout(DenseAttention.of([np.eye(6)] * 2, grid=(2, 3)), None)
        np.testing.assert_allclose(found, np.full([1, 2, 3], 1 / 6), atol=1e-6)

    def test_one_hot_attention(self):
        """All tokens read token 4: half of the class token's weight goes there in each layer."""
        model = DenseAttention.of([one_hot_attention(7, 4)] * 2, grid=(2, 3))
        expected = np.zeros([1, 2, 3])
        expected[0, 1, 0] = 0.75
        np.testing.assert_allclose(attention_rollout(model, None), expected, atol=1e-6)

    def test_in_half_width_and_in_a_graph(self):
        model, images = tiny.shared(dtype="mixed_bfloat16"), tf.constant(tiny.images())
        found = attention_rollout(model, images)
        assert found.dtype == "float32"
        in_graph = tf.function(lambda x: attention_rollout(model, x))(images)
        np.testing.assert_allclose(in_graph, found, atol=2e-3)

    def test_of_packed_weights(self):
        model, images = (
            tiny.shared(classifier="gap", position_injection="every_layer"),
            tiny.images(),
        )
        expected = attention_rollout(model, images)
        packed = attention_rollout(vit_tf.pack_model(model), images)
        np.testing.assert_allclose(packed, expected, atol=1e-6)

    def test_models_without_patches_are_refused(self):
        config = vit_tf.ResNetConfig(stage_depths=(1,), width=0.5, image_size=16, num_classes=2)
        with pytest.raises(ValueError, match="patches.*'resnet'"):
            attention_rollout(tiny.shared_of(config), tiny.images(size=(16, 16)))
