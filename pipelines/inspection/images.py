"""The images that are inspected: files and folders, a data set, or samples from packages."""

import logging
import os
import random

import numpy as np
import tensorflow as tf

from pipelines.data import order
from pipelines.data.decoding import decode_error
from pipelines.errors import UserError, counted
from pipelines.predictions.images import Image, example_images, find_images
from vit_tf.images import image_file
from vit_tf.images.decoding import decode_image

_log = logging.getLogger(__name__)

# The paper's mean attention distance is over 128 images (docs/paper.md J.3).
MOST_IMAGES = 128


def from_paths(paths) -> tuple[list[Image], list[str]]:
    """At most `MOST_IMAGES` images in files and folders, and errors about those without an image.

    From more files, a random choice is taken, always the same, in their order.

    Raises:
        UserError: if none of the files can be read.
    """
    found = find_images(paths)
    images = [image for image in found if not image.error]
    if len(images) > MOST_IMAGES:
        _log.info(f"taking {MOST_IMAGES} of {len(images):,} images, by chance")
        chosen = sorted(random.Random(0).sample(range(len(images)), MOST_IMAGES))
        images = [images[index] for index in chosen]
    readable, errors = [], [image.error for image in found if image.error]
    for image in images:
        try:
            pixels(image)
            readable.append(image)
        except UserError as error:
            errors.append(str(error))
    return _with_errors(readable, errors)


def from_source(source) -> tuple[list[Image], list[str]]:
    """At most `MOST_IMAGES` images of a `DataSource`, spread evenly, as `from_paths`.

    Raises:
        UserError: if none of the images can be decoded.
    """
    examples = source.read(order.spread(source.num_examples, MOST_IMAGES))
    readable, errors = [], []
    for content, label, example_id in zip(*examples, strict=True):
        name = source.path(int(example_id)) or source.describe(int(example_id))
        if reason := decode_error(content):
            errors.append(image_file.undecodable(name, reason))
            continue
        if not source.multi_label:
            name += f", a {source.labels[label]}"
        readable.append(Image(name, content))
    return _with_errors(readable, errors)


def _with_errors(readable, errors):
    if not readable:
        raise UserError(f"None of the images can be read. {' '.join(errors[:5])}")
    return readable, errors


def samples(labels) -> list[Image]:
    """Images that come with packages.

    Args:
        labels: names of the model's classes; empty if they are unknown.

    Returns:
        Handwritten digits for a model of the ten digits, else the two photos of scikit-learn.
    """
    if list(labels) == [str(digit) for digit in range(10)]:
        _log.info("no image given: taking handwritten digits of the digits test split")
        return list(example_images())
    import sklearn.datasets

    folder = os.path.join(os.path.dirname(sklearn.datasets.__file__), "images")
    _log.info("no image given: taking the two photos of scikit-learn")
    return [
        Image(f"scikit-learn {name}", image_file.read_bytes(os.path.join(folder, name)))
        for name in ("china.jpg", "flower.jpg")
    ]


def pixels(image, decode=decode_image) -> np.ndarray:
    """The decoded pixels of an `Image`, uint8 `[H, W, 3]`.

    Args:
        image: the `Image`.
        decode: see `read_image`.

    Raises:
        UserError: if it cannot be read or decoded.
    """
    try:
        if not image.content:
            return image_file.read_image(image.path, decode).numpy()
        return decode(image.content).numpy()
    except ValueError as error:
        raise UserError(str(error)) from None
    except tf.errors.OpError:
        raise UserError(image_file.undecodable(image.path)) from None


def spread(images, most):
    """At most `most` of the images, evenly from the first to the last; says so if some are left."""
    if len(images) > most:
        _log.info(
            f"showing {most} of {counted(len(images), 'image')}; --show {len(images)} shows all"
        )
    return [images[place] for place in order.spread(len(images), most)]
