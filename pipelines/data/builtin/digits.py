"""The TFDS data set `digits`: real handwritten digits that need no download.

scikit-learn contains 1,797 digits of 8 x 8 pixels (Alpaydin and Kaynak, UCI repository, 1998).
After this module is imported, `tfds.load("digits")` loads them like any other data set.
`digits/low` and `digits/high` have the images of the same splits with the digits 0 to 4, and 5 to
9. `digits/shuffled-2` has all images, each cut into squares of 2 x 2 pixels that are put together
in another order, the same for all images; `digits/shuffled-1` does so with pixels. Prepared files
are written to the TFDS data directory.
"""

from typing import ClassVar

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from pipelines.data import stateless_random
from pipelines.data.builtin.offline_builder import OfflineBuilder

# Images of each digit in the held-out splits. All other images are in the train split.
_PER_DIGIT = {"test": 30, "validation": 20}
_SPLITS = ("train", "validation", "test")
# Configuration -> its digits, whose labels count from 0, and the side of squares that are moved.
_CONFIGS = {
    "all": (range(10), None),
    "low": (range(5), None),
    "high": (range(5, 10), None),
    "shuffled-2": (range(10), 2),
    "shuffled-1": (range(10), 1),
}
_DESCRIPTION = """\
Handwritten digits, 8 x 8 pixels, from scikit-learn's load_digits. Gray values 0 .. 16 become
round(value * 255 / 16) in three equal channels. 1,297 train, 200 validation and 300 test images;
every digit appears 20 times in validation and 30 times in test.
"""


class Digits(OfflineBuilder, tfds.core.GeneratorBasedBuilder):
    """Builder of `digits/all`, the default, and of the other configurations.

    `digits/all` has 1,297 / 200 / 300 train / validation / test images, `digits/low` has 651 / 100
    / 150 and `digits/high` 646 / 100 / 150; the shuffled ones have as many
    as `digits/all`.
    """

    VERSION = tfds.core.Version("1.0.0")
    # TFDS reads a list under this name.
    BUILDER_CONFIGS: ClassVar = [
        tfds.core.BuilderConfig(name="all", description="All ten digits."),
        tfds.core.BuilderConfig(name="low", description="Digits 0 to 4, same splits."),
        tfds.core.BuilderConfig(name="high", description="Digits 5 to 9, same splits."),
        tfds.core.BuilderConfig(
            name="shuffled-2", description="Squares of 2 x 2 pixels in one other order."
        ),
        tfds.core.BuilderConfig(name="shuffled-1", description="Pixels in one other order."),
    ]

    def _info(self):
        return tfds.core.DatasetInfo(
            builder=self,
            description=_DESCRIPTION,
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(shape=(8, 8, 3), encoding_format="png"),
                    "label": tfds.features.ClassLabel(names=[str(i) for i in self._classes]),
                }
            ),
            supervised_keys=("image", "label"),
            disable_shuffling=True,  # `split_indices` is the stored order
            homepage="https://scikit-learn.org/stable/modules/generated/"
            "sklearn.datasets.load_digits.html",
        )

    @property
    def _classes(self):
        return _CONFIGS[self.builder_config.name][0]

    def _split_generators(self, dl_manager):
        del dl_manager  # nothing to download
        return {split: self._generate_examples(split) for split in _SPLITS}

    def _generate_examples(self, split):
        pixels, labels = _load()
        if side := _CONFIGS[self.builder_config.name][1]:
            pixels = shuffled(pixels, side)
        for number, index in enumerate(split_indices(split, self._classes)):
            label = self._classes.index(labels[index])
            yield number, {"image": _to_rgb(pixels[index]), "label": label}


def split_indices(split, classes=range(10)):
    """Returns the indices of a split's images in `sklearn.datasets.load_digits`, in stored order.

    Args:
        split: "train", "validation" or "test".
        classes: the digits that the configuration has.

    Returns:
        int64 array; element i is the index of the image that the pipelines give id i.
    """
    _, labels = _load()
    shuffled = stateless_random.permutation(len(labels), 0, stateless_random.SPLIT)
    # Rank of each image among the images of its digit, in shuffled order.
    rank = np.zeros(len(labels), np.int64)
    for digit in range(10):
        mine = shuffled[labels[shuffled] == digit]
        rank[mine] = np.arange(len(mine))

    test, validation = _PER_DIGIT["test"], _PER_DIGIT["validation"]
    first, last = {
        "test": (0, test),
        "validation": (test, test + validation),
        "train": (test + validation, len(labels)),
    }[split]
    member = (rank >= first) & (rank < last) & np.isin(labels, classes)
    # A second permutation: in the order of the first one, the train split would begin with the
    # classes that reach their 50 held-out images first.
    stored = stateless_random.permutation(len(labels), 0, stateless_random.SPLIT, 1)
    return stored[member[stored]]


def shuffled(pixels, side):
    """Cuts images into squares, and puts the squares of each together in one other order.

    Args:
        pixels: `[n, 8, 8]`.
        side: of a square, in pixels; divides 8.
    """
    count, height, width = pixels.shape
    rows, columns = height // side, width // side
    squares = pixels.reshape(count, rows, side, columns, side).transpose(0, 1, 3, 2, 4)
    order = stateless_random.permutation(rows * columns, 0, stateless_random.SPLIT, 2 + side)
    squares = squares.reshape(count, rows * columns, side, side)[:, order]
    squares = squares.reshape(count, rows, columns, side, side).transpose(0, 1, 3, 2, 4)
    return squares.reshape(pixels.shape)


def png_image(index):
    """Returns an image of `sklearn.datasets.load_digits` as a PNG file, bytes, and its label."""
    pixels, labels = _load()
    return tf.io.encode_png(_to_rgb(pixels[index])).numpy(), int(labels[index])


def _to_rgb(pixels):
    return np.repeat(pixels[..., None], 3, axis=-1)


def _load():
    """Returns pixels, uint8 `[1797, 8, 8]` in 0 .. 255, and labels, int64 `[1797]`."""
    from sklearn import datasets  # Slow to import (1 s), and prepared data do not need it.

    digits = datasets.load_digits()
    return np.round(digits.images * 255 / 16).astype(np.uint8), digits.target
