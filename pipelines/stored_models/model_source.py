"""Finds models on disk, and reads files of arrays: `.npz` files and safetensors."""

import dataclasses
import logging
import os

import vit_tf
from pipelines.data.labels.label_file import read_label_file
from pipelines.errors import UserError
from pipelines.runs import checkpoints
from pipelines.runs.workdir import Workdir
from pipelines.stored_models import runtimes
from pipelines.stored_models.checkpoint import Checkpoint
from pipelines.stored_models.exported import is_saved_model
from pipelines.stored_models.runtime_file import RuntimeFile
from pipelines.stored_models.stored_model import StoredConfig, StoredModel
from vit_tf import keras_file, size_checks
from vit_tf.checkpoints.pickles import refuse_pickle
from vit_tf.checkpoints.safetensors.checkpoint import is_safetensors_folder
from vit_tf.checkpoints.sidecar import read_sidecar
from vit_tf.files import storage
from vit_tf.loaded import open_file
from vit_tf.pretrained.download import DownloadError
from vit_tf.pretrained.records import WeightsRecord, named_record
from vit_tf.weights import find_weights, open_checkpoint

_log = logging.getLogger(__name__)

# The name of the small digits model inside the package.
SHIPPED = "shipped"
_SHIPPED_PATH = os.path.join(os.path.dirname(vit_tf.__file__), "assets", "digits.npz")


class _File(StoredModel):
    def _open(self, opening):
        dtype = opening.dtype or self._trained_dtype()
        loaded, notes = open_file(self.path, dtype, opening.assumed, opening.activation)
        for note in notes:
            _log.info(f"note: {note}")
        return loaded

    def _trained_dtype(self):
        """The dtype policy of training; None if it is unknown."""
        return None


class KerasFile(_File):
    """A `.keras` file."""

    def _read_config(self):
        return StoredConfig(
            *keras_file.read_config(self.path), read_sidecar(self.path).preprocessing
        )


class _ArrayFile(_File):
    def _read_config(self):
        with open_checkpoint(self.path) as file:
            size_checks.check_file(file)
            return StoredConfig(file.config, self._trained_dtype(), file.preprocessing)


class NpzFile(_ArrayFile):
    """A `.npz` file."""

    def _load(self, model, head, preprocessing):
        return vit_tf.load_npz(model, self.path, head, preprocessing=preprocessing)

    def _trained_dtype(self):
        dtype = read_sidecar(self.path).dtype
        if dtype is None and self.workdir is not None:
            return self.workdir.read_experiment().model.dtype
        return dtype


class SafetensorsModel(_ArrayFile):
    """A folder with `model.safetensors`, or such a file, of any layout."""

    def has_preprocessing(self):
        """See `StoredModel.has_preprocessing`."""
        return True

    def _read_activation(self, opening):
        with open_checkpoint(self.path) as file:
            return file.classes.activation

    def _load(self, model, head, preprocessing):
        return vit_tf.load_safetensors(model, self.path, head, preprocessing)


_READERS = {".npz": NpzFile, ".keras": KerasFile, ".safetensors": SafetensorsModel}
_READERS |= dict.fromkeys(runtimes.SUFFIXES.values(), RuntimeFile)


def find(path, weights="final", label_file=None, runtime_files=False) -> StoredModel:
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
        runtime_files: whether the path may also be a `RuntimeFile`, which only computes logits.

    Raises:
        UserError: if the path does not exist or is not a model, `weights` is not "final" and the
            path is not a workdir, published weights cannot be had, or the labels cannot be read.
    """
    labels = () if label_file is None else read_label_file(label_file)
    try:
        found = _find(os.fspath(path), weights)
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror}.") from None
    if isinstance(found, RuntimeFile) and not runtime_files:
        raise UserError(
            f"{path} is an export, which only pipelines.predict and pipelines.evaluate take. "
            "Expected the workdir, .npz or .keras file that it was exported from."
        )
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
        return NpzFile(path, _SHIPPED_PATH)
    if not storage.exists(path):
        return NpzFile(path, _download(path))
    if is_safetensors_folder(path):
        return SafetensorsModel(path, path)
    try:
        refuse_pickle(path)
    except ValueError as error:
        raise UserError(str(error)) from None
    return _find_final(Workdir(path)) if storage.is_folder(path) else _find_file(path)


def published_record(path) -> WeightsRecord | None:
    """The record of published weights, if `path` names them and is not a path on this machine."""
    return None if storage.is_url(path) or os.path.exists(path) else named_record(path)


def is_run(path) -> bool:
    """Whether `path` is the workdir of a run, and not a safetensors folder with a config.json."""
    return storage.exists(Workdir(path).config) and not is_safetensors_folder(path)


def _download(name):
    """The path of published weights in the cache."""
    try:
        return find_weights(name)
    except (DownloadError, ValueError) as error:
        raise UserError(str(error)) from None


def _find_file(path):
    if not storage.is_file(path):
        # Reading a pipe or a device may never end.
        raise UserError(f"{path} is not a file.")
    for end, reader in _READERS.items():
        if path.endswith(end):
            return reader(path, path)
    raise UserError(
        f"Cannot tell what {path} is. Expected a workdir, a .npz, .keras or .safetensors file, or "
        "a directory with model.safetensors."
    )


def _find_run(path, weights):
    if (
        path == SHIPPED
        or named_record(path) is not None
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
    if is_saved_model(run.path):
        raise UserError(
            f"{run.path} is a SavedModel, which is for serving only. Expected the workdir, .npz or "
            ".keras file that it was exported from."
        )
    if storage.exists(run.config) and storage.exists(run.final):
        return NpzFile(run.path, run.final, run)
    step = checkpoints.newest(run.checkpoints)
    if not storage.exists(run.config) or step is None:
        raise UserError(
            f"{run.path} holds no trained model: expected config.json with final.npz or "
            "checkpoints."
        )
    return _checkpoint(run.path, run, step)


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
    return _checkpoint(name, run, step, ema=True)


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
    return _checkpoint(name, run, step, ema)


def _checkpoint(name, run, step, ema=False):
    return Checkpoint(name, checkpoints.prefix(run.checkpoints, step), run, ema=ema)
