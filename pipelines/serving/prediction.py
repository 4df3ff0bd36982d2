"""Classifies image files with any model that `model_source` finds, or with a SavedModel."""

import logging
import os
import typing

import numpy as np
import tensorflow as tf

import custom_ops
from pipelines.config.names import ExportForm
from pipelines.data.labels.label_file import check_count, read_label_file
from pipelines.errors import UserError
from pipelines.serving import saved_model
from pipelines.serving.signatures import class_names, make_signatures
from pipelines.stored_models import fused_source, model_source
from pipelines.stored_models.model_source import ModelSource
from vit_tf.files import storage
from vit_tf.images.decoding import FORMATS, MAX_PIXELS, SUFFIXES, decode_image

_log = logging.getLogger(__name__)

BATCH_SIZE = 32
# Larger than any photo. A file is read into memory as a whole.
_MAX_BYTES = 2**28
# Progress is printed for more images than this.
_MAX_WITHOUT_PROGRESS = 100
_NUM_EXAMPLES = 5
_SIGNATURE = "serving_bytes_lenient"
_OUTPUTS = {"probabilities", "valid"}
# In TensorFlow's error for a fused export when the compiled ops are not loaded.
_UNKNOWN_OP = "Op type not registered 'Vit"


def predict(model_path, paths, top, weights="final", label_file=None, fused=False, precision=None):
    """Classifies images and yields a result for each, in order.

    All paths are checked and all images are decoded before the model is read.

    Args:
        model_path: SavedModel or its parent directory, or what `model_source.find` takes.
        paths: image files and folders, see `find_images`; empty for a few examples.
        top: classes in a result, the most probable first.
        weights: which weights of a workdir, see `model_source.find`.
        label_file: file with class names that replace the stored ones, or None.
        fused, precision: see `fused_source.with_fused`.

    Yields:
        `{"path": str, "top": [{"label": str, "index": int, "probability": float}, ...]}`.

    Raises:
        UserError: if a path is missing, an image is unreadable, or the model is not a `vit_tf` one.
    """
    files = find_images(paths)
    source = find_model(model_path, weights, label_file)
    source = fused_source.with_fused(source, fused, precision)
    if files:
        images, count = ((path, _read(path)) for path in files), len(files)
        for path in files:
            _check_image(path)
    else:
        images, count = example_images(), _NUM_EXAMPLES
        _log.info(f"no image given: predicting {count} handwritten digits of the digits test split")
    classify, labels = load_classifier(source)

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


def find_model(path, weights="final", label_file=None) -> ModelSource:
    """Finds a model without reading it; for the arguments see `model_source.find`.

    Returns:
        A source of the kind "saved_model", or what `model_source.find` returns.

    Raises:
        UserError: if there is no model.
    """
    if weights == "final" and not storage.exists(os.path.join(path, "config.json")):
        for directory in (
            path,
            *(os.path.join(path, form) for form in typing.get_args(ExportForm)),
        ):
            if saved_model.is_saved_model(directory):
                labels = () if label_file is None else read_label_file(label_file)
                name, found = os.fspath(path), os.fspath(directory)
                return ModelSource(name, "saved_model", found, labels=labels)
    return model_source.find(path, weights, label_file)


def load_classifier(source):
    """Reads the model that `find_model` found.

    Returns:
        `(classify, labels)`: a function from string `[B]`, encoded images, to a dict with
        `probabilities` float32 `[B, K]` and `valid` bool `[B]`; and the `K` names of the classes.

    Raises:
        UserError: if it is damaged, not a `vit_tf` model, or a model without classes.
    """
    if source.kind == "saved_model":
        classify, labels = _load_saved_model(source.path)
        if source.labels:
            check_count(source.labels, len(labels))
        return classify, list(source.labels) or labels
    model, preprocessing = fused_source.open_for_inference(source)
    if model.head is None:
        raise UserError(f"{source.name} has no head (num_classes=0), so it predicts no classes.")
    return make_signatures(model, preprocessing)[_SIGNATURE], class_names(model, preprocessing)


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


def _undecodable(path):
    return UserError(
        f"Cannot decode {path}. Expected a whole {FORMATS} file of at most "
        f"{MAX_PIXELS // 10**6} megapixels."
    )


def _load_saved_model(path):
    if custom_ops.is_compiled():
        custom_ops.load()  # For a fused export. The library in its folder is not trusted.
    try:
        loaded = tf.saved_model.load(path)
        outputs = loaded.signatures[_SIGNATURE].structured_outputs
        names = list(loaded.signatures["labels"]()["classes"].numpy())
        count = outputs["probabilities"].shape[-1] if "probabilities" in outputs else None
    except Exception as error:  # TensorFlow raises many types for other directories.
        reason = str(error).partition("\n")[0]
        if _UNKNOWN_OP in reason and not custom_ops.is_compiled():
            why = custom_ops.describe()["reason"]
            raise UserError(
                f"{path} is a fused export, which needs the compiled ops, but {why}. A portable "
                "export needs none."
            ) from None
        raise UserError(
            f"{path} is not a SavedModel written by pipelines.export with classes to predict "
            f"({type(error).__name__}: {reason}). If an older version wrote it, export the model "
            "again."
        ) from None
    if not outputs.keys() >= _OUTPUTS:
        raise UserError(
            f"{path}: expected {sorted(_OUTPUTS)} from {_SIGNATURE}. Received: {sorted(outputs)}."
        )
    if count != len(names):
        raise UserError(
            f"{path} has {len(names)} class names but {count} probabilities. Export the model "
            "again."
        )

    def classify(image_bytes):
        # Called through `loaded`, which owns the variables and must stay alive.
        return loaded.signatures[_SIGNATURE](image_bytes=image_bytes)

    return classify, [name.decode("utf-8", "replace") for name in names]


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
            raise _undecodable(path)
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
