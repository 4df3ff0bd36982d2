"""The built-in data set against scikit-learn, and its preparation after errors."""

import collections
import os
import zlib

import numpy as np
import pytest
import tensorflow_datasets as tfds
from sklearn.datasets import load_digits

from pipelines.data.builtin import digits
from vit_tf.images.decoding import decode_image

SIZES = {"train": 1297, "validation": 200, "test": 300}
# Configuration -> its first digit, and the number of its images.
PARTS = {
    "low": (0, {"train": 651, "validation": 100, "test": 150}),
    "high": (5, {"train": 646, "validation": 100, "test": 150}),
}


@pytest.fixture(scope="module")
def stored():
    """(images, labels) of each split, read through TFDS' own interface."""
    return {
        split: tuple(map(np.stack, zip(*tfds.as_numpy(dataset), strict=True)))
        for split, dataset in tfds.load("digits", as_supervised=True).items()
    }


def test_contents_equal_scikit_learn(stored):
    source = load_digits()
    assert {split: len(labels) for split, (_, labels) in stored.items()} == SIZES
    for split, (images, labels) in stored.items():
        indices = digits.split_indices(split)
        assert images.shape == (SIZES[split], 8, 8, 3)
        assert images.dtype == np.uint8
        np.testing.assert_array_equal(labels, source.target[indices])
        expected = np.round(source.images[indices] * 255 / 16)
        for channel in range(3):
            np.testing.assert_array_equal(images[..., channel], expected)


def test_a_png_image_is_the_stored_one(stored):
    images, labels = stored["test"]
    for place in (0, 7, 299):
        png, label = digits.png_image(digits.split_indices("test")[place])
        np.testing.assert_array_equal(decode_image(png), images[place])
        assert label == labels[place]


@pytest.mark.parametrize("side", [2, 1])
def test_shuffled_digits_have_the_same_squares_in_one_other_order(stored, side):
    """All images together: what one place has in each of them is what another place had."""
    splits = tfds.load(f"digits/shuffled-{side}", as_supervised=True)
    moved, kept = [], []
    for split, (before, before_labels) in stored.items():
        images, labels = map(np.stack, zip(*tfds.as_numpy(splits[split]), strict=True))
        np.testing.assert_array_equal(labels, before_labels)
        moved.append(images)
        kept.append(before)
    moved, kept = (
        [np.concatenate(x)[:, i : i + side, j : j + side].tobytes() for i, j in _corners(side)]
        for x in (moved, kept)
    )
    assert moved != kept
    assert sorted(moved) == sorted(kept)


def _corners(side):
    return [(i, j) for i in range(0, 8, side) for j in range(0, 8, side)]


def test_splits_are_disjoint_complete_and_balanced():
    indices = np.concatenate([digits.split_indices(split) for split in SIZES])
    np.testing.assert_array_equal(np.sort(indices), np.arange(1797))
    labels = load_digits().target
    for split, each in (("validation", 20), ("test", 30)):
        counts = np.bincount(labels[digits.split_indices(split)])
        np.testing.assert_array_equal(counts, [each] * 10)


def test_membership_is_pinned():
    """A changed split would move test images into the training images of older models."""
    checksums = {split: zlib.crc32(digits.split_indices(split).tobytes()) for split in SIZES}
    assert checksums == {"train": 2323508326, "validation": 4274164808, "test": 119768035}


def test_stored_order_is_shuffled():
    """A prefix such as train[:100] has examples of every digit."""
    labels = load_digits().target[digits.split_indices("train")[:100]]
    assert set(labels) == set(range(10))


@pytest.mark.parametrize("name", PARTS)
def test_parts_have_the_same_splits(stored, name):
    first, sizes = PARTS[name]
    part, info = tfds.load(f"digits/{name}", as_supervised=True, with_info=True)
    assert info.features["label"].names == [str(first + label) for label in range(5)]
    for split, dataset in part.items():
        images, labels = map(np.stack, zip(*tfds.as_numpy(dataset), strict=True))
        all_images, all_labels = stored[split]
        is_there = all_labels // 5 == first // 5
        assert len(labels) == sizes[split]
        np.testing.assert_array_equal(labels + first, all_labels[is_there])
        np.testing.assert_array_equal(images, all_images[is_there])


def test_preparation_is_silent(tmp_path, capfd):
    tfds.load("digits", data_dir=tmp_path)
    output = capfd.readouterr()
    assert output.out == ""
    assert output.err == ""
    assert collections.Counter(path.suffix for path in tmp_path.rglob("digits-*"))


def test_two_processes_may_prepare_at_once(tmp_path, monkeypatch):
    """The slower process finds that the folder exists when it renames its own."""
    slow = tfds.builder("digits", data_dir=tmp_path)
    generate = digits.Digits._generate_examples

    def overtaken(self, split):
        if self is slow and not os.path.exists(slow.data_dir):
            tfds.builder("digits", data_dir=tmp_path).download_and_prepare()
        return generate(self, split)

    monkeypatch.setattr(digits.Digits, "_generate_examples", overtaken)
    slow.download_and_prepare()
    assert slow.info.splits["test"].num_examples == 300
    assert len(list(slow.as_dataset(split="test"))) == 300
    assert [path.name for path in slow.data_path.parent.iterdir()] == ["1.0.0"]


def test_failed_preparation_leaves_nothing(tmp_path, monkeypatch):
    def full_disk(self, split):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(digits.Digits, "_generate_examples", full_disk)
    builder = tfds.builder("digits", data_dir=tmp_path)
    with pytest.raises(OSError, match="No space left"):
        builder.download_and_prepare()
    assert not builder.data_path.exists()
    assert list(builder.data_path.parent.iterdir()) == []
