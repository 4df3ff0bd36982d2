"""Finds image files, and a function that classifies them with a model of any kind."""

import logging
import os
from typing import NamedTuple

from pipelines.data.labels.label_file import read_label_file
from pipelines.data.skipped_files import count_by_suffix, describe_skipped, is_hidden
from pipelines.errors import UserError
from pipelines.serving.signatures import make_signatures
from pipelines.stored_models import model_source
from pipelines.stored_models.exported import SIGNATURE, find_exported, open_classifier
from pipelines.stored_models.stored_model import AS_TRAINED
from vit_tf.files import storage
from vit_tf.images import image_file
from vit_tf.images.decoding import SUFFIXES

_log = logging.getLogger(__name__)

_NUM_EXAMPLES = 5


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


def find_classifier(path, weights="final", label_file=None, opening=AS_TRAINED):
    """Opens a model of any kind.

    Args:
        path: a SavedModel or its parent directory, or a path or name for `model_source.find`.
        weights, label_file: see `model_source.find`.
        opening: see `StoredModel.open_model`.

    Returns:
        The result of `exported.open_classifier`. Two threads may call its `classify` at the same
        time.

    Raises:
        UserError: if there is no model, or the weights of a SavedModel are to be packed.
    """
    exported = find_exported(path) if weights == "final" else None
    if exported is None:
        source = model_source.find(path, weights, label_file, runtime_files=True)
        return _open_classifier(source, opening)
    if opening.packed:
        raise UserError(
            f"--fused is for models that are not exported, but {path} is a SavedModel. "
            "Leave --fused out: the form of the export decides."
        )
    labels = () if label_file is None else read_label_file(label_file)
    return open_classifier(exported, labels)


def _open_classifier(source, opening):
    model, preprocessing, classes = source.open_model(opening)
    if model.head is None:
        raise UserError(f"{source.name} has no head (num_classes=0), so it predicts no classes.")
    classify = make_signatures(model, preprocessing, classes)[SIGNATURE]
    return classify, list(classes.names(model.config.num_classes))


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
