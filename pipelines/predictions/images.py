"""The images to classify as a `DataSource`: named files, a data set, or a few examples."""

import logging
import os
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from pipelines.data.decoding import map_ignoring_errors
from pipelines.data.skipped_files import count_by_suffix, describe_skipped, is_hidden
from pipelines.data.sources.arrays import EncodedSource
from pipelines.data.sources.files import Files, FileSource, read_if_named
from pipelines.data.sources.source import DataSource
from pipelines.errors import UserError
from vit_tf.files import storage
from vit_tf.images import image_file
from vit_tf.images.decoding import SUFFIXES

_log = logging.getLogger(__name__)

_MOST_NAMED = 5
_NUM_EXAMPLES = 5
# The path of a file that cannot be an image: there is never a file.
_NO_FILE = os.path.join(os.devnull, "none")


class Image(NamedTuple):
    """An image to classify: its name, and its encoded bytes or the reason why there are none."""

    path: str
    content: bytes = b""
    error: str = ""


def find_images(paths) -> list[Image]:
    """The image files in `paths`: files as they are; for a folder, all images below it, sorted.

    Inside of folders, names that `is_hidden` are not looked at, as in training.

    A path that does not exist or is not a file, and a folder without images, has an `error`. Logs
    how many other files the folders hold.
    """
    found, others = [], []
    for path in paths:
        if not storage.is_folder(path):
            found.append(Image(path, error=_unusable(path)))
            continue
        inside = []
        for directory, folders, names in storage.walk(path, SUFFIXES):
            folders[:] = [name for name in folders if not is_hidden(name)]
            for name in names:
                if is_hidden(name):
                    continue
                if name.lower().endswith(SUFFIXES):
                    inside.append(os.path.join(directory, name))
                else:
                    others.append(name)
        inside.sort()
        found += [Image(file, error=_unusable(file)) for file in inside]
        if not inside:
            error = f"The folder {path} holds no image ({', '.join(SUFFIXES)})."
            found.append(Image(path, error=error))
    if others and not all(image.error for image in found):
        _log.info(describe_skipped(count_by_suffix(others)))
    return found


def example_images():
    """Yields a few `Image`s without a download: digits held out of every training."""
    from pipelines.data.builtin import digits  # TFDS takes seconds to import

    for index in digits.split_indices("test")[:_NUM_EXAMPLES]:
        png, label = digits.png_image(index)
        yield Image(f"digits test image {index}, a {label}", png)


def _unusable(path):
    """Why a path is not a file that can be an image; "" if it may be one."""
    if not storage.exists(path):
        return f"There is no image or folder at {path}."
    return image_file.unusable(path)


class Images(NamedTuple):
    """The images to classify.

    Attributes:
        source: they are its examples.
        errors: index of an image -> why its file cannot be an image.
        have_labels: whether ids and labels mean something; else an image has a path only.
    """

    source: DataSource
    errors: dict[int, str]
    have_labels: bool

    def name(self, example_id) -> str:
        """The path of an image, or else what describes it."""
        return self.source.path(example_id) or self.source.describe(example_id)


def from_paths(paths) -> Images:
    """The images in files and folders, see `find_images`; a few examples if there are no paths.

    Raises:
        UserError: if none of the paths leads to a file.
    """
    if not paths:
        return _examples()
    found = find_images(paths)
    errors = {index: image.error for index, image in enumerate(found) if image.error}
    if len(errors) == len(found):
        named = " ".join(list(errors.values())[:_MOST_NAMED])
        more = len(found) - _MOST_NAMED
        raise UserError(named + (f" And {more:,} more." if more > 0 else ""))
    return Images(_NamedFiles(found), errors, have_labels=False)


def from_source(source) -> Images:
    """The images of a data set."""
    return Images(source, {}, have_labels=True)


class _NamedFiles(FileSource):
    """Files in the order of the command line; a file that cannot be an image has zero bytes."""

    def __init__(self, images):
        self._names = [image.path for image in images]
        # A store would fail for a missing object. A folder has a time of change.
        paths = [_NO_FILE if image.error else image.path for image in images]
        files = Files(paths, np.zeros(len(paths), np.int32), np.arange(len(paths)), [], {})
        super().__init__("the named images", os.curdir, {"images": files}, "images", labels=())

    def __str__(self):
        return self.name

    def path(self, example_id):
        """See `DataSource.path`: as it was named."""
        return self._names[example_id]

    def _read_files(self, paths):
        """See `FileSource._read_files`; what a store cannot give has zero bytes too."""
        read = map_ignoring_errors(read_if_named, paths, [], tf.data.AUTOTUNE)
        return read.map(lambda contents, _: contents)

    def manifest(self):
        """See `DataSource.manifest`; with the names, also of files that are not there."""
        return super().manifest() | {"names": self._names}


class _Examples(EncodedSource):
    """Images in memory with names."""

    def __init__(self, images):
        self._names = [image.path for image in images]
        contents = np.array([image.content for image in images], object)
        labels = np.zeros(len(images), np.int32)
        super().__init__(contents, labels, (), name="examples", version="1", split="test")

    def path(self, example_id):
        """See `DataSource.path`."""
        return self._names[example_id]


def _examples():
    images = list(example_images())
    _log.info(
        f"no image given: predicting {len(images)} handwritten digits of the digits test split"
    )
    return Images(_Examples(images), {}, have_labels=False)
