"""A trained DINOv2-small, loaded from a folder, gives the features that ONNX Runtime computes."""

import pytest

import vit_tf
from tests.peers import trained
from vit_tf.features import feature_model

pytestmark = [pytest.mark.heavy("trained")]


def test_the_preprocessing_is_that_of_the_processor(loaded):
    preprocessing = loaded.preprocessing
    assert (preprocessing.mean, preprocessing.std) == (trained.MEAN, trained.STD)
    assert (preprocessing.resize, preprocessing.resize_to) == ("shortest_edge", 256)
    assert (preprocessing.image_size, preprocessing.interpolation) == ((224, 224), "bicubic")


def test_features_of_the_class_token(loaded, images, expected):
    assert trained.difference(loaded.model(images).numpy(), expected[:, 0]) <= trained.TOLERANCE


def test_all_tokens(loaded, images, expected):
    tokens = feature_model(loaded.model, ["norm"])(images)["norm"]
    assert trained.difference(tokens.numpy(), expected) <= trained.TOLERANCE


def test_packed_weights(loaded, images, expected):
    """Layer scale is part of the packed weights; rounding to bfloat16 keeps the direction."""
    packed = vit_tf.pack_model(loaded.model, "float32")
    assert trained.difference(packed(images).numpy(), expected[:, 0]) <= trained.TOLERANCE
    rounded = vit_tf.pack_model(loaded.model, "bfloat16")(images)
    assert trained.smallest_cosine(rounded, expected[:, 0]) >= 0.9999


@pytest.mark.parametrize("packed", [False, True])
def test_features(source, loaded, images, crops, expected, packed):
    """Tokens by kind, and those behind the blocks, which the graph has under their own names."""
    if packed:
        loaded = loaded._replace(model=vit_tf.pack_model(loaded.model))
    found = loaded.features(crops)
    assert trained.difference(found.class_token, expected[:, 0]) <= trained.TOLERANCE
    patches = expected[:, 1:].reshape(4, 16, 16, -1)
    assert trained.difference(found.patches, patches) <= trained.TOLERANCE
    layers = (2, 8, -1)
    for layer, features in zip(layers, loaded.features(crops, layers, norm=False), strict=True):
        tokens = trained.behind_block(source, images, layer % trained.LAYERS)
        assert features.registers is None
        assert trained.difference(features.class_token, tokens[:, 0]) <= trained.TOLERANCE
        patches = tokens[:, 1:].reshape(4, 16, 16, -1)
        assert trained.difference(features.patches, patches) <= trained.TOLERANCE
    assert (loaded.features(crops, [-1])[0].patches == found.patches).all()


def test_files_that_are_written_hold_the_same_model(loaded, images, expected, tmp_path):
    model, preprocessing, _ = loaded
    vit_tf.save_safetensors(model, tmp_path / "dinov2", "dinov2", preprocessing)
    vit_tf.save_npz(model, tmp_path / "model.npz", preprocessing)
    for name in ("dinov2", "model.npz"):
        again = vit_tf.load(tmp_path / name)
        assert again.preprocessing.mean == trained.MEAN
        assert trained.difference(again.model(images).numpy(), expected[:, 0]) <= trained.TOLERANCE
