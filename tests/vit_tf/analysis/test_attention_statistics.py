"""Distance, entropy, share of the class token and norms against NumPy loops and closed forms."""

import math

import numpy as np
import pytest

import vit_tf
from tests.vit_tf import tiny
from tests.vit_tf.analysis.dense import DenseAttention, one_hot_attention, weights
from vit_tf.analysis import (
    attention_distance,
    attention_entropy,
    class_token_share,
    inspection,
    token_norms,
)

KINDS = [
    {},
    {"classifier": "gap", "position_embedding": "none"},
    {"classifier": "map", "position_embedding": "relative"},
    {"axial": True, "classifier": "gap"},
    {"register_tokens": 2},
    {"classifier": "token_distilled"},
]


def slow_distance(blocks, grid, patch_pixels, prefix, renormalize=False):
    """A double loop over queries and keys: `[layers, heads]` of `[B, layers, heads, T, T]`."""
    columns, count = grid[1], grid[0] * grid[1]
    total = np.zeros(blocks.shape[1:3])
    for query in range(count):
        row = blocks[..., prefix + query, prefix:]
        if renormalize:
            row = row / row.sum(axis=-1, keepdims=True)
        for key in range(count):
            far = math.hypot(query // columns - key // columns, query % columns - key % columns)
            total += (row[..., key] * far * patch_pixels).mean(axis=0)
    return total / count


def in_layers(model, images):
    """The weights, where row and column attention of an axial layer are multiplied."""
    found = weights(model, images)
    return found[:, 1::2] @ found[:, ::2] if model.config.axial else found


class TestDistance:
    @pytest.mark.parametrize("fields", KINDS, ids=str)
    def test_is_that_of_a_double_loop(self, fields):
        model, images = tiny.shared(**fields), tiny.images()
        found = attention_distance(model, images)
        assert found.shape == (2, 3) and found.dtype == "float32"
        expected = slow_distance(in_layers(model, images), (2, 3), 4, model.num_prefix_tokens)
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        if not model.why_not_packed():
            packed = attention_distance(vit_tf.pack_model(model), images)
            np.testing.assert_allclose(packed, expected, rtol=1e-5)

    @pytest.mark.parametrize("registers", [0, 2])
    def test_renormalized(self, registers):
        model, images = tiny.shared(register_tokens=registers), tiny.images()
        prefix = 1 + registers
        expected = slow_distance(weights(model, images), (2, 3), 4, prefix, renormalize=True)
        found = attention_distance(model, images, renormalize=True)
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        assert (found.numpy() > attention_distance(model, images).numpy()).all()

    def test_a_patch_of_a_hybrid_has_the_pixels_of_the_image(self):
        fields = {"stem": {"stage_depths": (1,), "width": 0.5}, "patch_size": 1}
        model, images = tiny.shared(**fields, image_size=(10, 14)), tiny.images(size=(10, 14))
        dense = DenseAttention(model.attention_inputs(images), model)
        assert model.grid == (3, 4)
        expected = slow_distance(dense.weights(), (3, 4), 4, 1)
        np.testing.assert_allclose(attention_distance(model, images), expected, rtol=1e-5)

    def test_closed_forms(self):
        """Uniform: the mean distance. Identity: 0. One-hot: the mean distance to that patch."""
        matrices = [np.full([7, 7], 1 / 7), np.eye(7), one_hot_attention(7, 4)]
        model = DenseAttention.of(matrices, grid=(2, 3), heads=2)
        uniform = inspection.uniform_distance((2, 3), 4, 1)
        to_patch = inspection.distances((2, 3))[1, 0].mean() * 4
        expected = np.repeat([[uniform], [0], [to_patch]], 2, axis=1)
        np.testing.assert_allclose(attention_distance(model, None), expected, atol=1e-5)


class TestEntropy:
    def test_is_that_of_the_weights(self):
        model, images = tiny.shared(), tiny.images()
        dense = weights(model, images)
        expected = -(dense * np.log(dense)).sum(axis=-1).mean(axis=(0, 3))
        np.testing.assert_allclose(attention_entropy(model, images), expected, rtol=1e-5)

    def test_closed_forms(self):
        model = DenseAttention.of([np.full([7, 7], 1 / 7), np.eye(7)], grid=(2, 3))
        found = attention_entropy(model, None)
        np.testing.assert_allclose(found, [[math.log(7)], [0]], atol=1e-5)

    def test_axial_attention_is_refused(self):
        with pytest.raises(ValueError, match="full attention, not axial"):
            attention_entropy(tiny.shared(axial=True, classifier="gap"), tiny.images())


class TestClassToken:
    def test_share_is_the_mean_of_its_column(self):
        model, images = tiny.shared(), tiny.images()
        expected = weights(model, images)[..., 0].mean(axis=(0, 3))
        np.testing.assert_allclose(class_token_share(model, images), expected, rtol=1e-5)

    @pytest.mark.parametrize("registers", [0, 2])
    def test_without_one_there_is_no_share(self, registers):
        model = tiny.shared(classifier="gap", register_tokens=registers)
        with pytest.raises(ValueError, match="no class token"):
            class_token_share(model, tiny.images())


class TestNorms:
    def test_are_those_of_the_features_of_each_block(self):
        model, images = tiny.shared(), tiny.images()
        found = token_norms(model, images)
        assert list(found) == ["patches", "largest", "class_token"]
        outputs = vit_tf.feature_model(model, ["block_0", "block_1"])(images)
        for index, tokens in enumerate(outputs.values(), start=1):
            norms = np.linalg.norm(tokens.numpy().astype(np.float64), axis=-1)
            expected = norms[:, 1:].mean(), norms[:, 1:].max(axis=1).mean(), norms[:, 0].mean()
            assert [float(found[name][index]) for name in found] == pytest.approx(expected)
        assert all(len(values) == 3 for values in found.values())

    def test_of_registers_are_apart(self):
        model, images = tiny.shared(register_tokens=2), tiny.images()
        found = token_norms(model, images)
        assert list(found) == ["patches", "largest", "class_token", "registers"]
        first = np.linalg.norm(model.register_tokens.tokens, axis=-1).mean()
        assert float(found["registers"][0]) == pytest.approx(first, rel=1e-5)
        tokens = vit_tf.feature_model(model, ["block_1"])(images)["block_1"].numpy()
        norms = np.linalg.norm(tokens.astype(np.float64), axis=-1)
        assert float(found["registers"][2]) == pytest.approx(norms[:, 1:3].mean())
        assert float(found["patches"][2]) == pytest.approx(norms[:, 3:].mean())

    @pytest.mark.parametrize("fields", [{"classifier": "gap"}, {"axial": True}], ids=str)
    def test_without_a_class_token(self, fields):
        assert list(token_norms(tiny.shared(**fields), tiny.images())) == ["patches", "largest"]


@pytest.mark.parametrize("function", [attention_distance, attention_entropy, token_norms])
def test_models_without_patches_are_refused(function):
    config = vit_tf.ResNetConfig(stage_depths=(1,), width=0.5, image_size=16, num_classes=2)
    with pytest.raises(ValueError, match="models with patches"):
        function(tiny.shared_of(config), tiny.images(size=(16, 16)))
