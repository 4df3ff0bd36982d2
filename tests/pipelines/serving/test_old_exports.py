"""SavedModels that an earlier version wrote still give what they gave then."""

import zipfile

import numpy as np
import pytest
import tensorflow as tf

from pipelines.predictions import results
from tests.conftest import GOLDEN
from tests.pipelines.serving.exports import LABELS


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """The folder with both forms, and the arrays of the version that wrote them."""
    folder = tmp_path_factory.mktemp("old")
    with zipfile.ZipFile(GOLDEN / "old" / "saved_models.zip") as file:
        file.extractall(folder)
    with np.load(folder / "expected.npz", allow_pickle=False) as arrays:
        return folder, dict(arrays)


@pytest.mark.parametrize("form", ["portable", "fused"])
def test_an_old_export_is_served(stored, form):
    folder, arrays = stored
    # Also loads the library of this version, which the fused form needs.
    classify, labels = results.find_classifier(folder / form)
    assert labels == list(LABELS)
    png = tf.io.encode_png(arrays["images"][0]).numpy()
    exponents = np.exp(arrays["logits"] - arrays["logits"].max())
    probabilities = classify(tf.constant([png]))["probabilities"]
    np.testing.assert_allclose(probabilities, exponents / exponents.sum(), rtol=1e-4)

    loaded = tf.saved_model.load(folder / form)
    images = tf.constant(arrays["images"])
    logits = loaded.signatures["serving_uint8"](images=images)["logits"]
    embed = loaded.signatures["embed"](images=tf.cast(images, tf.float32))["embedding"]
    for received, expected in ((logits, arrays["logits"]), (embed, arrays["embedding"])):
        largest = np.abs(expected).max()
        np.testing.assert_allclose(received, expected, rtol=0, atol=2e-5 * largest)
