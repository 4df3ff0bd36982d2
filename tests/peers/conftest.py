"""The trained DINOv2-small that several files here test: its graph, its folder, its features."""

import keras
import numpy as np
import pytest
import sklearn.datasets

import vit_tf
from tests.peers import trained


@pytest.fixture(scope="session")
def source():
    """The ONNX model."""
    return trained.graph()


@pytest.fixture(scope="session")
def folder(source, tmp_path_factory):
    """The backbone as a folder of Hugging Face."""
    path = tmp_path_factory.mktemp("dinov2_small")
    trained.write(path, source)
    return path


@pytest.fixture(scope="session")
def loaded(folder):
    return vit_tf.load(folder)


@pytest.fixture(scope="session")
def untrained(loaded):
    """A `LoadedModel` of the same configuration and preprocessing with random weights."""
    keras.utils.set_random_seed(0)
    return loaded._replace(model=vit_tf.create_model(loaded.model.config))


@pytest.fixture(scope="session")
def crops():
    """Four crops of scikit-learn's photos, uint8 `[4, 400, 400, 3]`."""
    photos = sklearn.datasets.load_sample_images().images
    return np.stack([photo[top : top + 400, :400] for photo in photos for top in (0, 27)])


@pytest.fixture(scope="session")
def images(loaded, crops):
    """The crops as the model reads them, `[4, 224, 224, 3]`."""
    return np.stack([loaded.preprocessing(crop) for crop in crops])


@pytest.fixture(scope="session")
def expected(source, images):
    """All tokens behind the last norm, by ONNX Runtime: `[4, 257, 384]`."""
    return trained.features(source, images)
