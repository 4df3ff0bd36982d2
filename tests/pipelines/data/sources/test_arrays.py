"""Images in memory: exact pixels, ids, and clear errors."""

import json

import numpy as np
import pytest
import tensorflow as tf

from pipelines.data.sources.arrays import ArraySource
from pipelines.errors import DataError
from vit_tf.images.decoding import decode_image


def _random(*shape):
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


@pytest.mark.parametrize("shape", [(20, 5, 7, 3), (20, 5, 7, 1), (20, 5, 7)])
def test_images_labels_and_ids(shape):
    images, labels = _random(*shape), np.arange(20, dtype=np.uint8) // 7
    source = ArraySource(images, labels)
    assert source.labels == ("0", "1", "2")
    examples = source.read([*range(5, 20), *range(5)])
    np.testing.assert_array_equal(np.sort(examples.ids), np.arange(20))
    np.testing.assert_array_equal(examples.labels, labels[examples.ids])
    assert examples.labels.dtype == np.int32
    expected = np.broadcast_to(images.reshape(20, 5, 7, -1), (20, 5, 7, 3))
    for image, example_id in zip(examples.images, examples.ids, strict=True):
        np.testing.assert_array_equal(decode_image(image), expected[example_id])
    # Sorted by class in the array, mixed in the source.
    assert (np.diff(source.read(range(20)).labels) < 0).any()


@pytest.mark.parametrize(
    "labels",
    [
        tf.constant([2, 0, 1]),
        [np.array(2), np.array(0), np.array(1)],
        np.array([2, 0, 1], np.uint64),
    ],
    ids=["tensor", "scalars", "uint64"],
)
def test_one_label_per_image_of_any_kind(labels):
    source = ArraySource(_random(3, 2, 2), labels)
    assert not source.multi_label and source.labels == ("0", "1", "2")
    examples = source.read(range(3))
    np.testing.assert_array_equal(examples.labels, np.array([2, 0, 1])[examples.ids])


def test_names_and_manifest():
    source = ArraySource(_random(4, 2, 2, 3), [0, 0, 1, 0], ["cat", "dog", "eel"], name="mine")
    assert (source.num_classes, source.labels) == (3, ("cat", "dog", "eel"))
    assert source.describe(2) == "image 2 of mine"
    assert json.loads(json.dumps(source.manifest()))["id"] == "index in the array"


@pytest.mark.parametrize(
    ("images", "labels", "names", "text"),
    [
        (_random(3, 4, 4, 3) / 255, [0, 1, 1], None, "float64.*3, 4, 4, 3.*round"),
        (_random(3, 4, 4, 4), [0, 1, 1], None, r"uint8 \[3, 4, 4, 4\]"),
        (_random(3, 4), [0, 1, 1], None, r"uint8 \[3, 4\]"),
        (_random(0, 4, 4, 3), [], None, "no pixels"),
        (_random(3, 0, 4, 3), [0, 1, 1], None, "no pixels"),
        (_random(3, 4, 4, 3), [0, 1], None, r"3 images.* 2: \[0, 1\]"),
        (_random(3, 4, 4, 3), [0.0, 1.0, 1.0], None, "one integer label"),
        (_random(3, 4, 4, 3), [[0, 1], 1, [2]], None, "list of integer labels"),
        (_random(2, 4, 4, 3), [[0], [0, 1, 0]], None, "Image 1 .*label 0 twice"),
        (_random(2, 4, 4, 3), [[0], [2, 0]], ["a", "b"], "label 2.* 0 .. 1"),
        (_random(2, 4, 4, 3), np.array([0, 2**63], np.uint64), ["a"], "Image 1 of arrays has the"),
        (_random(2, 4, 4, 3), [[0], [2**70]], ["a"], "integer labels.* 2"),
        (_random(3, 4, 4, 3), [0, -1, 1], None, "Image 1 .*-1.* 0 .. 1"),
        (_random(3, 4, 4, 3), [0, 1, 2], ["a", "b"], "Image 2 .*label 2.*0 .. 1"),
    ],
)
def test_rejects(images, labels, names, text):
    with pytest.raises(DataError, match=text):
        ArraySource(images, labels, names)
