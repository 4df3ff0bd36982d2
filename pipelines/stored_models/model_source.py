"""Finds models on disk, builds them with their weights, or loads the weights into a model."""

import dataclasses
import logging
import os

import keras

import vit_tf
from pipelines.data.labels.label_file import check_count, read_label_file
from pipelines.errors import UserError
from pipelines.runs import checkpoints, manifest
from pipelines.runs.workdir import Workdir
from pipelines.stored_models import keras_archive
from vit_tf import size_checks
from vit_tf.checkpoints.sidecar import read_sidecar
from vit_tf.files import storage
from vit_tf.pretrained.class_names import class_names
from vit_tf.pretrained.download import DownloadError
from vit_tf.pretrained.records import WeightsRecord, find_file_record, list_weights
from vit_tf.weights import find_weights, load_checkpoint, model_weights, open_checkpoint

_log = logging.getLogger(__name__)

# The name of the small digits model inside the package.
SHIPPED = "shipped"
_SHIPPED_PATH = os.path.join(os.path.dirname(vit_tf.__file__), "assets", "digits.npz")
_SAFETENSORS = ("model.safetensors", "model.safetensors.index.json")


@dataclasses.dataclass(frozen=True)
class ModelSource:
    """A model on disk that was found, but not read yet.

    Attributes:
        name: name for messages: the path or name that the user gave, and the step of a checkpoint.
        kind: "npz", "keras", "safetensors", "checkpoint" (of TensorFlow, in a workdir), or
            "saved_model", which `find` does not return and `open_model` does not read.
        path: file or folder to read; for a checkpoint, the prefix of its files.
        workdir: the run that wrote the model, or None.
        ema: for a checkpoint: whether to read the moving average instead of the weights.
        labels: class names that replace the stored ones; () keeps those.
        fused: whether `fused_source.open_for_inference` packs the weights.
        precision: then a key of `config.names.PRECISIONS`, or None for that of the training.
    """

    name: str
    kind: str
    path: str
    workdir: Workdir | None = None
    ema: bool = False
    labels: tuple[str, ...] = ()
    fused: bool = False
    precision: str | None = None


def find(path, weights="final", label_file=None) -> ModelSource:
    """Looks up a model without reading it; downloads published weights.

    Args:
        path: a workdir, a `.npz`, `.keras` or `.safetensors` file, a folder with
            `model.safetensors`, the URL of one of these, a name of `vit_tf.list_weights`, or
            `SHIPPED`.
        weights: for a workdir: "final", the newest weights; "ema", their moving average, from
            `ema.npz` or, before the run has ended, from the newest checkpoint; "best", the
            checkpoint with the highest score (train.keep_best): its moving average if the run keeps
            one, else its weights.
        label_file: file with class names that replace the stored ones, see `read_label_file`.

    Raises:
        UserError: if the path does not exist or is not a model, `weights` is not "final" and the
            path is not a workdir, published weights cannot be had, or the labels cannot be read.
    """
    labels = () if label_file is None else read_label_file(label_file)
    try:
        found = _find(os.fspath(path), weights)
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror}.") from None
    return dataclasses.replace(found, labels=labels)


def exists(path) -> bool:
    """Whether there is a file or a folder; raises `UserError` if a URL cannot be read."""
    try:
        return storage.exists(path)
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror}.") from None


def _find(path, weights):
    if weights != "final":
        run = _find_run(path, weights)
        return {"ema": _find_ema, "best": _find_best}[weights](run)
    if path == SHIPPED:
        return ModelSource(path, "npz", _SHIPPED_PATH)
    if not storage.exists(path):
        return ModelSource(path, "npz", _download(path))
    if _is_safetensors_folder(path):
        return ModelSource(path, "safetensors", path)
    return _find_final(Workdir(path)) if storage.is_folder(path) else _find_file(path)


def published_record(path) -> WeightsRecord | None:
    """The record of published weights, if `path` names them and is not a path on this machine."""
    return None if storage.is_url(path) or os.path.exists(path) else list_weights().get(path)


def is_run(path) -> bool:
    """Whether `path` is the workdir of a run, and not a safetensors folder with a config.json."""
    return storage.exists(Workdir(path).config) and not _is_safetensors_folder(path)


def has_preprocessing(source) -> bool:
    """Whether a source stores its preprocessing; otherwise `open_model` assumes one.

    Raises:
        UserError: if the sidecar of the weights is damaged.
    """
    if source.kind not in ("npz", "keras"):
        return True
    try:
        return read_sidecar(source.path).preprocessing is not None
    except ValueError as error:
        raise UserError(str(error)) from None


def read_config(
    source,
) -> tuple[vit_tf.config.ModelConfig, str | None, vit_tf.Preprocessing | None]:
    """Returns configuration, dtype policy and preprocessing of a source, without its weights.

    The policy and the preprocessing are None if the source does not store them.

    Raises:
        UserError: if the source is damaged or does not hold a model of `vit_tf`.
    """
    try:
        if source.kind == "checkpoint":
            experiment = source.workdir.read_experiment()
            labels = manifest.read_labels(source.workdir.manifest)
            config = experiment.model_config(len(labels))
            shapes = checkpoints.weight_shapes(source.path)
            size_checks.check_size(config, shapes, source.name)
            return config, experiment.model.dtype, experiment.preprocessing(labels)
        if source.kind == "keras":
            config, dtype = keras_archive.read_config(source.path)
            return config, dtype, read_sidecar(source.path).preprocessing
        with open_checkpoint(source.path) as file:
            size_checks.check_file(file)
            return file.config, _trained_dtype(source), file.preprocessing
    except (TypeError, ValueError) as error:
        raise UserError(str(error)) from None


def probabilities(source, assumed=None) -> str:
    """How the logits of a source become probabilities, "softmax" or "sigmoid"; opens no model.

    Args:
        source, assumed: as for `open_model`.

    Raises:
        UserError: if the source is damaged.
    """
    if source.kind == "checkpoint":
        return source.workdir.read_experiment().train.loss
    try:
        if source.kind == "safetensors":
            with open_checkpoint(source.path) as file:
                preprocessing = file.preprocessing
        else:
            preprocessing = read_sidecar(source.path).preprocessing
    except (TypeError, ValueError) as error:
        raise UserError(str(error)) from None
    if preprocessing is None:
        return (assumed or {}).get("probabilities", vit_tf.Preprocessing.probabilities)
    return preprocessing.probabilities


def open_model(source, dtype=None, assumed=None) -> tuple[keras.Model, vit_tf.Preprocessing]:
    """Builds the model of a source, with its weights and preprocessing.

    If a file stores no preprocessing, the preprocessing of the reference code (direct resize) is
    used. It has labels if the file has the name and the number of classes of published weights.

    Args:
        source: from `find`.
        dtype: Keras dtype policy; None is the policy of training, or the global policy if the
            source does not store it.
        assumed: fields of `vit_tf.Preprocessing` by name, for a file without preprocessing.

    Raises:
        UserError: if the source is damaged or does not hold a model of `vit_tf`, or the number of
            its labels is wrong.
    """
    try:
        if source.kind == "checkpoint":
            model, preprocessing = _open_checkpoint(source, dtype)
        elif source.kind == "keras":
            model, preprocessing = _open_keras(source, dtype, assumed)
        else:
            model, preprocessing = _open_arrays(source, dtype, assumed)
    except (TypeError, ValueError) as error:
        raise UserError(str(error)) from None
    if source.labels:
        check_count(source.labels, model.config.num_classes)
        preprocessing = dataclasses.replace(preprocessing, labels=source.labels)
    return model, preprocessing


def load(model, source, head="reset", preprocessing=None):
    """Loads a source's weights into a model and resizes position embeddings.

    Args:
        model: the model.
        source: from `find`.
        head, preprocessing: see `vit_tf.load_npz`.

    Returns:
        `vit_tf.weights.LoadReport`.

    Raises:
        UserError: if the weights do not fit the model. The model is then unchanged.
    """
    try:
        if source.kind == "npz":
            return vit_tf.load_npz(model, source.path, head, preprocessing=preprocessing)
        if source.kind == "safetensors":
            return vit_tf.load_safetensors(model, source.path, head, preprocessing)
        donor, prepared = open_model(source)
        stated = prepared if has_preprocessing(source) else None
        arrays = model_weights(donor, source.name, stated)
        return load_checkpoint(model, arrays, head, preprocessing=preprocessing)
    except ValueError as error:
        raise UserError(str(error)) from None


def _download(name):
    """The path of published weights in the cache."""
    try:
        return find_weights(name)
    except (DownloadError, ValueError) as error:
        raise UserError(str(error)) from None


def _is_safetensors_folder(path):
    return any(storage.is_file(os.path.join(path, name)) for name in _SAFETENSORS)


def _find_file(path):
    if not storage.is_file(path):
        # Reading a pipe or a device may never end.
        raise UserError(f"{path} is not a file.")
    for kind in ("npz", "keras", "safetensors"):
        if path.endswith("." + kind):
            return ModelSource(path, kind, path)
    raise UserError(
        f"Cannot tell what {path} is. Expected a workdir, a .npz, .keras or .safetensors file, or "
        "a directory with model.safetensors."
    )


def _find_run(path, weights):
    if (
        path == SHIPPED
        or path in vit_tf.list_weights()
        or (storage.exists(path) and not is_run(path))
    ):
        raise UserError(
            f"--weights={weights} needs a workdir, but {path} is not a workdir: it has one set of "
            "weights. Leave the flag out, or name a workdir."
        )
    if not storage.exists(path):
        raise UserError(f"There is no model at {path}.")
    return Workdir(path)


def _find_final(run):
    if storage.exists(os.path.join(run.path, "saved_model.pb")):
        raise UserError(
            f"{run.path} is a SavedModel, which is for serving only. Expected the workdir, .npz or "
            ".keras file that it was exported from."
        )
    if storage.exists(run.config) and storage.exists(run.final):
        return ModelSource(run.path, "npz", run.final, workdir=run)
    step = checkpoints.newest(run.checkpoints)
    if not storage.exists(run.config) or step is None:
        raise UserError(
            f"{run.path} holds no trained model: expected config.json with final.npz or "
            "checkpoints."
        )
    return _checkpoint_source(run.path, run, step)


def _find_ema(run):
    if storage.exists(run.ema):
        return dataclasses.replace(_find_file(run.ema), workdir=run)
    step = checkpoints.newest(run.checkpoints)
    if step is None:
        raise UserError(f"There is no model at {run.ema}.")
    if run.read_experiment().train.ema_decay is None:
        raise UserError(
            f"{run.path} keeps no average of its weights: train.ema_decay was none. Use "
            "--weights=final, or train with --set train.ema_decay=0.9999."
        )
    name = f"{run.path} (average at step {step})"
    return _checkpoint_source(name, run, step, ema=True)


def _find_best(run):
    step = checkpoints.best(run.checkpoints)
    if step is None:
        raise UserError(
            f"{run.path} has no best checkpoint: none in {run.checkpoints} is undamaged and has a "
            "score. Use --weights=final, or train with --set train.keep_best=true."
        )
    # If the run keeps an average, evaluations use it, so the scores are scores of the average.
    ema = run.read_experiment().train.ema_decay is not None
    name = f"{run.path} (best, {'average at ' if ema else ''}step {step})"
    return _checkpoint_source(name, run, step, ema)


def _checkpoint_source(name, run, step, ema=False):
    prefix = checkpoints.prefix(run.checkpoints, step)
    return ModelSource(name, "checkpoint", prefix, run, ema)


def _open_arrays(source, dtype, assumed):
    """Opens a `.npz` file or safetensors."""
    with open_checkpoint(source.path) as file:
        size_checks.check_file(file)
        config = file.config
        preprocessing = file.preprocessing or _assume(config, assumed, source.path)
        model = vit_tf.create_model(config, dtype=dtype or _trained_dtype(source))
        load_checkpoint(model, file, head="keep", preprocessing=preprocessing)
        for note in file.notes:
            _log.info(f"note: {note}")
        return model, preprocessing


def _trained_dtype(source):
    """Returns the dtype policy of the training of a source; None if it is unknown."""
    if source.kind != "npz":
        return None
    dtype = read_sidecar(source.path).dtype
    if dtype is None and source.workdir is not None:
        return source.workdir.read_experiment().model.dtype
    return dtype


def _assume(config, fields, path=""):
    published = find_file_record(path, config.num_classes)
    labels = class_names(config.num_classes) if published else ()
    return vit_tf.Preprocessing(image_size=config.image_size, labels=labels, **(fields or {}))


def _open_keras(source, dtype, assumed):
    preprocessing = read_sidecar(source.path).preprocessing
    model = keras_archive.open_keras(source.path, dtype)
    image_size = model.config.image_size
    if preprocessing is None:
        return model, _assume(model.config, assumed)
    if preprocessing.image_size != image_size:
        raise ValueError(
            f"{source.path}.json prepares images of {preprocessing.image_size}, the model reads "
            f"{image_size}. Restore or delete it."
        )
    return model, preprocessing


def _open_checkpoint(source, dtype):
    experiment = source.workdir.read_experiment()
    labels = manifest.read_labels(source.workdir.manifest)
    config = experiment.model_config(len(labels))
    size_checks.check_size(config, checkpoints.weight_shapes(source.path), source.name)
    model = vit_tf.create_model(config, dtype=dtype or experiment.model.dtype)
    checkpoints.read_weights(source.path, model, source.ema)
    return model, experiment.preprocessing(labels)
