"""Classifies image files with any model that `model_source` finds, or with a SavedModel."""

import functools
import logging
import os

import numpy as np
import tensorflow as tf

from pipelines.data.labels.label_file import read_label_file
from pipelines.errors import UserError
from pipelines.serving.signatures import make_signatures
from pipelines.stored_models import model_source
from pipelines.stored_models.exported import SIGNATURE, find_exported, open_classifier
from pipelines.stored_models.stored_model import AS_TRAINED
from vit_tf.files import storage
from vit_tf.images.decoding import FORMATS, MAX_PIXELS, SUFFIXES, decode_image

_log = logging.getLogger(__name__)

BATCH_SIZE = 32
# Larger than any photo. A file is read into memory as a whole.
_MAX_BYTES = 2**28
# Progress is printed for more images than this.
_MAX_WITHOUT_PROGRESS = 100
_NUM_EXAMPLES = 5


def predict(model_path, paths, top, weights="final", label_file=None, opening=AS_TRAINED):
    """Classifies images and yields a result for each, in order.

    All paths are checked and all images are decoded before the model is read.

    Args:
        model_path, weights, label_file, opening: see `find_classifier`.
        paths: image files and folders, see `find_images`; empty for a few examples.
        top: classes in a result, the most probable first.

    Yields:
        `{"path": str, "top": [{"label": str, "index": int, "probability": float}, ...]}`.

    Raises:
        UserError: if a path is missing, an image is unreadable, or the model is not a `vit_tf` one.
    """
    files = find_images(paths)
    open_found = find_classifier(model_path, weights, label_file, opening)
    if files:
        images, count = ((path, _read(path)) for path in files), len(files)
        for path in files:
            _check_image(path)
    else:
        images, count = example_images(), _NUM_EXAMPLES
        _log.info(f"no image given: predicting {count} handwritten digits of the digits test split")
    classify, labels = open_found()

    done = 0
    for batch in _batches(images):
        names, contents = zip(*batch, strict=True)
        outputs = classify(tf.constant(contents))
        yield from _results(outputs, labels, names, top)
        if count > _MAX_WITHOUT_PROGRESS and done * 10 // count < (done + len(batch)) * 10 // count:
            _log.info(f"predicted {done + len(batch)} of {count} images")
        done += len(batch)


def find_images(paths) -> list[str]:
    """The image files in `paths`: files as they are; for a folder, all images below it, sorted.

    Raises:
        UserError: if a path does not exist, or a folder holds no image.
    """
    found = []
    for path in paths:
        if not storage.is_folder(path):
            found.append(path)
            if not storage.exists(path):
                raise UserError(f"There is no image or folder at {path}.")
            continue
        inside = sorted(
            os.path.join(directory, name)
            for directory, _, names in storage.walk(path, SUFFIXES)
            for name in names
            if name.lower().endswith(SUFFIXES)
        )
        if not inside:
            raise UserError(f"The folder {path} holds no image ({', '.join(SUFFIXES)}).")
        found += inside
    return found


def find_classifier(path, weights="final", label_file=None, opening=AS_TRAINED):
    """Finds a model without reading it.

    Args:
        path: a SavedModel or its parent directory, or a path or name for `model_source.find`.
        weights, label_file: see `model_source.find`.
        opening: see `StoredModel.open_model`.

    Returns:
        A function without arguments that returns the result of `exported.open_classifier`.

    Raises:
        UserError: if there is no model, or the weights of a SavedModel are to be packed.
    """
    exported = find_exported(path) if weights == "final" else None
    if exported is None:
        source = model_source.find(path, weights, label_file)
        return functools.partial(_open_classifier, source, opening)
    if opening.packed:
        raise UserError(
            f"--fused is for models that are not exported, but {path} is a SavedModel. "
            "Leave --fused out: the form of the export decides."
        )
    labels = () if label_file is None else read_label_file(label_file)
    return functools.partial(open_classifier, exported, labels)


def _open_classifier(source, opening):
    model, preprocessing, classes = source.open_model(opening)
    if model.head is None:
        raise UserError(f"{source.name} has no head (num_classes=0), so it predicts no classes.")
    classify = make_signatures(model, preprocessing, classes)[SIGNATURE]
    return classify, list(classes.names(model.config.num_classes))


def example_images():
    """Yields a few `(name, PNG bytes)` without a download: digits held out of every training."""
    from pipelines.data.builtin import digits  # TFDS takes seconds to import

    for index in digits.split_indices("test")[:_NUM_EXAMPLES]:
        png, label = digits.png_image(index)
        yield f"digits test image {index}, a {label}", png


def _read(path):
    """The contents of an image file."""
    # A pipe or device can be endless.
    if not storage.is_file(path):
        raise UserError(f"{path} is not a file.")
    if storage.size_and_time(path)[0] > _MAX_BYTES:
        raise UserError(f"{path} has more than {_MAX_BYTES // 2**20} MB, too much for an image.")
    try:
        return storage.read(path, _MAX_BYTES)
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror}.") from None


def _check_image(path):
    try:
        decode_image(_read(path))
    except tf.errors.OpError:
        raise _undecodable(path) from None


def _undecodable(path, addition=""):
    return UserError(
        f"Cannot decode {path}. Expected a whole {FORMATS} file of at most "
        f"{MAX_PIXELS // 10**6} megapixels{addition}."
    )


def _batches(items):
    batch = []
    for item in items:
        batch.append(item)
        if len(batch) == BATCH_SIZE:
            yield batch
            batch = []
    if batch:
        yield batch


def _results(outputs, labels, paths, top):
    probabilities, valid = (outputs[name].numpy() for name in ("probabilities", "valid"))
    for path, row, whole in zip(paths, probabilities, valid, strict=True):
        if not whole:
            # It could be decoded before: it has changed, or the limit of an export is lower.
            raise _undecodable(path, ", or of fewer if the model was exported with --max_pixels")
        # A stable sort keeps equal probabilities in label order.
        best = np.argsort(-row, kind="stable")[:top]
        yield {
            "path": path,
            "top": [
                {
                    "label": labels[index],
                    "index": int(index),
                    "probability": float(row[index]),
                }
                for index in best
            ],
        }
