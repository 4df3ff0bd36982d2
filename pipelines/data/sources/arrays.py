"""Sources of images in memory, for data that Python code generates or loads."""

import functools
import hashlib
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from pipelines.data import stateless_random
from pipelines.data.labels.encoding import RaggedLabels, padded
from pipelines.data.sources.source import GROUP, DataSource, SplitRange, load_in_groups
from pipelines.errors import DataError


class ArraySource(DataSource):
    """Images and labels in NumPy arrays; for `pipeline.train_dataset` and `eval_dataset`.

    Images are encoded as PNG, without loss, when they are read. The id of an image is its row in
    the array. The stored order is a fixed permutation, because arrays are often sorted by class.

    Args:
        images: uint8 `[n, h, w, 3]`, or gray `[n, h, w]` or `[n, h, w, 1]`. Copied at
            the first read.
        labels: integers `[n]` in 0 .. number of classes - 1; or `n` lists of such integers, which
            may be empty (multi-label).
        class_names: strings in label order; by default "0", "1", ... up to the largest label.
        name: name of the source, for messages and the manifest of a run.

    Raises:
        DataError: for other shapes, types or values.
    """

    id_rule = "index in the array"
    labels_in_memory = True

    def __init__(self, images, labels, class_names=None, *, name="arrays"):
        images = np.asarray(images)
        if images.ndim == 3:
            images = images[..., None]
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] not in (1, 3):
            raise DataError(
                f"Expected images as uint8 [n, h, w, 3], [n, h, w, 1] or [n, h, w]. Received: "
                f"{images.dtype} {list(images.shape)}. Values 0 .. 1 become uint8 with "
                f"np.round(images * 255).astype(np.uint8)."
            )
        if not all(images.shape):
            raise DataError(f"There are no pixels in images of shape {list(images.shape)}.")
        lists, multi_label = _label_lists(labels, len(images))
        if class_names is None:
            class_names = [str(label) for label in range(int(lists.values.max(initial=0)) + 1)]
        if wrong := lists.find_wrong(len(class_names)):
            raise DataError(f"Image {wrong[0]} of {name} {wrong[1]}.")
        super().__init__(
            name=name,
            version="in memory",
            split="train",
            split_ranges=(SplitRange("train", 0, len(images), 0),),
            labels=class_names,
            shard_lengths=(len(images),),
            multi_label=multi_label,
        )
        self.location_signature = {
            "row": tf.TensorSpec([None], tf.int64),
            "label": tf.TensorSpec([None, None] if multi_label else [None], tf.int32),
        }
        self._images, self._labels = images, lists if multi_label else lists.values
        self._order = stateless_random.permutation(len(images), 0, stateless_random.SPLIT)

    def locate(self, indices):
        """See `DataSource.locate`: the row of each image in the array, and its labels."""
        ids = self.ids(indices)
        return {"row": ids, "label": padded(self._labels[ids])}

    def load(self, location):
        """See `DataSource.load`."""
        stored = self._stored

        def encode(rows):
            images = tf.data.Dataset.from_tensor_slices(tf.gather(stored, rows))
            return images.map(tf.io.encode_png).batch(len(self._images))

        return load_in_groups(location["row"], encode, location["label"])

    @functools.cached_property
    def _stored(self):
        """The images as a tensor: datasets capture it, so their graphs have no constant of them."""
        with tf.init_scope(), tf.device("CPU:0"):
            return tf.convert_to_tensor(self._images)

    def ids(self, indices):
        """See `DataSource.ids`."""
        return self._order[np.asarray(indices, np.int64)]

    def read_labels(self, indices):
        """See `DataSource.read_labels`; encodes no images."""
        return self._labels[self.ids(indices)]

    def content_stamp(self):
        """See `DataSource.content_stamp`; a hash of all images and labels."""
        digest = hashlib.blake2b(str(self._images.shape).encode(), digest_size=8)
        for image in self._images:
            digest.update(image.tobytes())
        digest.update(self._labels.tobytes())
        return digest.hexdigest()

    def describe(self, example_id):
        """See `DataSource.describe`."""
        return f"image {example_id} of {self.name}"


class EncodedSource(DataSource):
    """Encoded images in memory, such as JPEG files, in the order that is given.

    Args:
        images: bytes `[n]`, of type object.
        labels: as in `Examples`.
        class_names: strings in label order.
        name, version, split: see `DataSource`.
        multi_label: whether an image has a list of labels.
    """

    location_signature: Mapping[str, tf.TensorSpec] = {"row": tf.TensorSpec([None], tf.int64)}
    labels_in_memory = True

    def __init__(self, images, labels, class_names, *, name, version, split, multi_label=False):
        super().__init__(
            name=name,
            version=version,
            split=split,
            split_ranges=(SplitRange(split, 0, len(images), 0),),
            labels=class_names,
            shard_lengths=(len(images),),
            multi_label=multi_label,
        )
        self._images, self._labels = images, labels
        self._stored = tf.constant(images.tolist(), tf.string), tf.constant(padded(labels))

    def locate(self, indices):
        """See `DataSource.locate`."""
        return {"row": np.asarray(indices, np.int64)}

    def load(self, location):
        """See `DataSource.load`."""
        rows = tf.data.Dataset.from_tensor_slices(location["row"]).batch(GROUP)
        images, labels = self._stored
        return rows.map(lambda own: (tf.gather(images, own), tf.gather(labels, own)))

    def read_labels(self, indices):
        """See `DataSource.read_labels`; reads no images."""
        return self._labels[np.asarray(indices, np.int64)]

    def content_stamp(self):
        """See `DataSource.content_stamp`; a hash of all images."""
        digest = hashlib.blake2b(digest_size=8)
        for image in self._images:
            digest.update(hashlib.blake2b(image).digest())
        return digest.hexdigest()


def _label_lists(labels, count):
    """The labels of all images as `RaggedLabels`, and whether they are lists (multi-label)."""
    try:
        array = np.asarray(labels)
    except ValueError:  # lists of different lengths
        array = np.fromiter(labels, object, len(labels))
    if array.shape == (count,) and np.issubdtype(array.dtype, np.integer):
        return RaggedLabels(array, np.arange(count + 1)), False
    lists = [np.asarray(label) for label in array] if array.ndim else []
    if len(lists) != count or not all(map(_are_labels, lists)):
        first = array[:3].tolist() if array.ndim else array
        raise DataError(
            f"Expected one integer label, or a list of integer labels, for each of {count:,} "
            f"images. Received {len(lists):,}: {str(first)[:80]}."
        )
    return RaggedLabels.from_lists(lists), True


def _are_labels(array):
    return array.ndim == 1 and (np.issubdtype(array.dtype, np.integer) or not array.size)
