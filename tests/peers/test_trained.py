"""A trained DINOv2-small, loaded from a folder, gives the features that ONNX Runtime computes."""

import numpy as np
import pytest
import sklearn.datasets

import vit_tf
from tests.peers import trained
from vit_tf.features import feature_model

# Relative to the largest feature.
TOLERANCE = 5e-6

pytestmark = [pytest.mark.peers]


@pytest.fixture(scope="module")
def source():
    """The ONNX model."""
    return trained.graph()


@pytest.fixture(scope="module")
def folder(source, tmp_path_factory):
    """The backbone as a folder of Hugging Face."""
    path = tmp_path_factory.mktemp("dinov2_small")
    trained.write(path, source)
    return path


@pytest.fixture(scope="module")
def loaded(folder):
    return vit_tf.load(folder)


@pytest.fixture(scope="module")
def images(loaded):
    """Four crops of scikit-learn's photos as the model reads them, `[4, 224, 224, 3]`."""
    photos = sklearn.datasets.load_sample_images().images
    crops = [photo[top : top + 400, :400] for photo in photos for top in (0, 27)]
    return np.stack([loaded.preprocessing(crop) for crop in crops])


@pytest.fixture(scope="module")
def expected(source, images):
    """All tokens behind the last norm, by ONNX Runtime."""
    return trained.features(source, images)


def difference(received, expected):
    assert received.shape == expected.shape
    found = np.abs(np.float64(received) - expected).max() / np.abs(expected).max()
    print(f"largest difference {found:.1e} of the largest feature")
    return found


def test_the_preprocessing_is_that_of_the_processor(loaded):
    preprocessing = loaded.preprocessing
    assert (preprocessing.mean, preprocessing.std) == (trained.MEAN, trained.STD)
    assert (preprocessing.resize, preprocessing.resize_to) == ("shortest_edge", 256)
    assert (preprocessing.image_size, preprocessing.interpolation) == ((224, 224), "bicubic")


def test_features_of_the_class_token(loaded, images, expected):
    assert difference(loaded.model(images).numpy(), expected[:, 0]) <= TOLERANCE


def test_all_tokens(loaded, images, expected):
    tokens = feature_model(loaded.model, ["norm"])(images)["norm"]
    assert difference(tokens.numpy(), expected) <= TOLERANCE


def test_packed_weights(loaded, images, expected):
    """Layer scale is part of the packed weights; rounding to bfloat16 keeps the direction."""
    packed = vit_tf.pack_model(loaded.model, "float32")
    assert difference(packed(images).numpy(), expected[:, 0]) <= TOLERANCE
    rounded = np.float64(vit_tf.pack_model(loaded.model, "bfloat16")(images))
    products = (rounded * expected[:, 0]).sum(axis=1)
    norms = np.linalg.norm(rounded, axis=1) * np.linalg.norm(expected[:, 0], axis=1)
    print(f"smallest cosine in bfloat16 {(products / norms).min():.6f}")
    assert (products / norms).min() >= 0.9999


def test_files_that_are_written_hold_the_same_model(loaded, images, expected, tmp_path):
    model, preprocessing, _ = loaded
    vit_tf.save_safetensors(model, tmp_path / "dinov2", "dinov2", preprocessing)
    vit_tf.save_npz(model, tmp_path / "model.npz", preprocessing)
    for name in ("dinov2", "model.npz"):
        again = vit_tf.load(tmp_path / name)
        assert again.preprocessing.mean == trained.MEAN
        assert difference(again.model(images).numpy(), expected[:, 0]) <= TOLERANCE
