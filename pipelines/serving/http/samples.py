"""Images to try a model with: two photos, four drawn shapes and two digits, without a download."""

import dataclasses

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_sample_images

from pipelines.data.builtin import digits, shape_images
from pipelines.reports import pictures

_SHAPES, _SIDE = 4, 160
_DIGITS = 2


@dataclasses.dataclass(frozen=True)
class Sample:
    """An image of the page; `content` is its file."""

    title: str
    media_type: str
    content: bytes


def samples() -> list[Sample]:
    """The images, drawn and encoded now."""
    found = load_sample_images()
    made = [
        Sample(f"photo {name.partition('.')[0]}", "image/jpeg", tf.io.encode_jpeg(image).numpy())
        for name, image in zip(map(_base, found.filenames), found.images, strict=True)
    ]
    images, attributes = shape_images.draw(0, _SHAPES, _SIDE, large=True)
    colors, kinds = np.array([*shape_images.COLORS]), np.array(shape_images.KINDS)
    for image, color, kind in zip(
        images, colors[attributes.color], kinds[attributes.kind], strict=True
    ):
        made.append(Sample(f"{color} {kind}", "image/png", pictures.png(image)))
    for index in digits.split_indices("test")[:_DIGITS]:
        content, label = digits.png_image(index)
        made.append(Sample(f"digit {label}", "image/png", content))
    return made


def _base(path):
    return path.replace("\\", "/").rpartition("/")[2]
