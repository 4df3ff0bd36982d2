"""Grad-CAM and component pictures against float64 NumPy."""

import math

import numpy as np
import pytest
import tensorflow as tf

import vit_tf
from tests.vit_tf import numpy_resnet, numpy_vit, tiny
from vit_tf.analysis import class_activation, token_components

BIT = vit_tf.ResNetConfig(stage_depths=(1, 1), width=0.5, image_size=(40, 60), num_classes=4)
AXIAL_RESNET = vit_tf.AxialResNetConfig(
    stage_depths=(1, 1), width=0.125, heads=2, image_size=(48, 64), num_classes=4
)


def only_last_block(model):
    """The published arrays of a model whose only block is the last one, without positions."""
    params, last = numpy_vit.published(model), f"encoderblock_{model.config.layers - 1}/"
    kept = {key.replace(last, "encoderblock_0/"): params[key] for key in params if last in key}
    others = ("Transformer/encoder_norm", "pre_logits", "head")
    return kept | {key: params[key] for key in params if key.startswith(others)}


def slow_class_activation(model, tokens, classes):
    """Central differences of the logits in float64: `[B, N]`."""
    params, config = only_last_block(model), model.config

    def logits(tokens):
        features, _ = numpy_vit.encode(params, tokens, config.heads, classifier="none")
        found = numpy_vit.classify(params, features, config.classifier)
        return found[np.arange(len(tokens)), ..., classes].reshape(len(tokens), -1).mean(axis=1)

    gradient, step = np.zeros_like(tokens), 1e-5
    for place in np.ndindex(tokens.shape[1:]):
        moved = np.zeros(tokens.shape[1:])
        moved[place] = step
        gradient[:, *place] = (logits(tokens + moved) - logits(tokens - moved)) / (2 * step)
    first = model.num_prefix_tokens
    weights = gradient[:, first:].mean(axis=1, keepdims=True)
    return np.maximum(0, (weights * tokens[:, first:]).sum(axis=-1))


class TestClassActivation:
    @pytest.mark.parametrize(
        "fields",
        [
            {},
            {"classifier": "gap"},
            {"classifier": "unpooled"},
            {"representation_size": 7},
        ],
        ids=str,
    )
    def test_of_a_transformer(self, fields):
        model, images, classes = tiny.shared(**fields), tiny.images(), [1, 4, 0]
        tokens = vit_tf.feature_model(model, ["block_0"])(images)["block_0"].numpy()
        expected = slow_class_activation(model, tokens.astype(np.float64), classes)
        assert expected.max() > 0
        found = class_activation(model, images, classes)
        assert found.shape == (3, 2, 3) and found.dtype == "float32"
        tolerance = 1e-5 * expected.max()
        np.testing.assert_allclose(found, expected.reshape(3, 2, 3), atol=tolerance)
        packed = class_activation(vit_tf.pack_model(model), images, classes)
        np.testing.assert_allclose(packed, found, atol=tolerance)

    def test_of_a_residual_network(self):
        """The gradient of the mean over the pixels is the column of the head over their number."""
        model, images = tiny.shared_of(BIT), tiny.images(size=BIT.image_size)
        last = np.float64(model.stages(images)[-1])
        gamma, beta = (np.float64(x.value) for x in (model.norm.gamma, model.norm.beta))
        last = np.maximum(0, numpy_resnet.group_norm(last, gamma, beta, BIT.group_norm_epsilon))
        kernel = np.float64(model.head.kernel.value)[:, 2]
        expected = np.maximum(0, last @ kernel / math.prod(last.shape[1:3]))
        found = class_activation(model, images, 2)
        assert found.shape == (3, 5, 8) and expected.max() > 0
        np.testing.assert_allclose(found, expected, atol=1e-5 * expected.max())

    def test_of_an_axial_residual_network(self):
        model = tiny.shared_of(AXIAL_RESNET)
        images = tiny.images(size=AXIAL_RESNET.image_size)
        last = np.float64(model.stages(images)[-1])
        evidence = last @ np.float64(model.head.kernel.value) / math.prod(last.shape[1:3])
        target = int(evidence.max(axis=(0, 1, 2)).argmax())
        expected = np.maximum(0, evidence[..., target])
        found = class_activation(model, images, target)
        assert found.shape == (3, 6, 8) and expected.max() > 0
        np.testing.assert_allclose(found, expected, atol=1e-5 * expected.max())

    @pytest.mark.parametrize(
        ("fields", "read", "last"),
        [
            ({"axial": True, "classifier": "gap"}, "block_1_row", "block_1_column"),
            ({"classifier": "map"}, "block_0", "block_1"),
        ],
        ids=["axial", "map"],
    )
    def test_of_other_transformers(self, fields, read, last):
        """The gradient through the last block, the norm and the head, called one by one."""
        model, images, classes = tiny.shared(**fields), tiny.images(), [1, 4, 0]
        tokens = vit_tf.feature_model(model, [read])(images)[read]
        with tf.GradientTape() as tape:
            tape.watch(tokens)
            normed = model.norm(tf.reshape(model.get_layer(last)(tokens)[0], [3, 6, -1]))
            logits = tf.reshape(model.classify(normed), [len(classes), -1])
            total = tf.reduce_sum(tf.gather(logits, classes, axis=1, batch_dims=1))
        gradient = np.float64(tape.gradient(total, tokens)).reshape(3, 6, -1)
        read_tokens = np.float64(tokens).reshape(3, 6, -1)
        weights = gradient.mean(axis=1, keepdims=True)
        expected = np.maximum(0, (weights * read_tokens).sum(axis=-1)).reshape(3, 2, 3)
        assert expected.max() > 0
        found = class_activation(model, images, classes)
        np.testing.assert_allclose(found, expected, atol=1e-5 * expected.max())

    def test_other_classes_are_refused(self):
        with pytest.raises(ValueError, match="5 classes.*from 2 to 5"):
            class_activation(tiny.shared(), tiny.images(), [2, 5, 3])
        with pytest.raises(ValueError, match="has 0 classes"):
            class_activation(tiny.shared(num_classes=0), tiny.images(), 0)


class TestTokenComponents:
    @pytest.mark.parametrize(
        "fields", [{}, {"classifier": "gap"}, {"axial": True, "classifier": "gap"}], ids=str
    )
    def test_are_those_of_the_final_tokens(self, fields):
        model, images = tiny.shared(**fields), tiny.images()
        features, _ = model.encode(model.embed(images))
        vectors = features.numpy()[:, model.num_prefix_tokens :].reshape(-1, 12).astype(np.float64)
        values, directions = np.linalg.eigh(np.cov(vectors.T))
        found = token_components(model, images, count=2)
        assert found.shape == (3, 2, 3, 2) and found.dtype == "float32"
        for index, direction in enumerate(directions.T[np.argsort(-values)][:2]):
            projected = vectors @ direction * np.sign(direction[np.abs(direction).argmax()])
            expected = (projected - projected.min()) / (projected.max() - projected.min())
            np.testing.assert_allclose(found[..., index].ravel(), expected, atol=1e-5)

    def test_do_not_depend_on_the_order_of_the_batch(self):
        model, images, order = tiny.shared(), tiny.images(5), [3, 0, 4, 2, 1]
        expected = token_components(model, images)[order]
        np.testing.assert_allclose(token_components(model, images[order]), expected, atol=1e-5)

    @pytest.mark.parametrize("config, shape", [(BIT, (5, 8)), (AXIAL_RESNET, (6, 8))])
    def test_of_feature_maps(self, config, shape):
        model, images = tiny.shared_of(config), tiny.images(size=config.image_size)
        assert token_components(model, images).shape == (3, *shape, 3)

    def test_of_packed_weights(self):
        model, images = tiny.shared(), tiny.images()
        expected = token_components(model, images)
        np.testing.assert_allclose(
            token_components(vit_tf.pack_model(model), images), expected, atol=1e-5
        )
