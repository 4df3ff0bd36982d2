"""Finds models on disk or by name, and reads the weights of runs and files of arrays."""

import dataclasses
import logging
import os

import vit_tf
from pipelines.data.labels.label_file import read_label_file
from pipelines.errors import UserError
from pipelines.runs import checkpoint_weights, checkpoints, manifest
from pipelines.runs.workdir import Workdir
from pipelines.stored_models.exported import RuntimeFile, SavedModel
from pipelines.stored_models.stored_model import StoredConfig, StoredModel
from vit_tf import create, keras_file
from vit_tf.checkpoints.kinds import Kind, kind_of, refusal
from vit_tf.checkpoints.sidecar import read_sidecar
from vit_tf.files import storage
from vit_tf.loaded import open_file
from vit_tf.models.lora import add_adapters
from vit_tf.pretrained.download import DownloadError
from vit_tf.pretrained.records import WeightsRecord, named_record
from vit_tf.weights import find_weights, load_checkpoint, model_weights, open_checkpoint

_log = logging.getLogger(__name__)

# The name of the small digits model inside the package.
SHIPPED = "shipped"
_SHIPPED_PATH = os.path.join(os.path.dirname(vit_tf.__file__), "assets", "digits.npz")
# Kinds that only some commands take: they compute outputs, and have no weights that are read.
RUNTIME_FILES = ("litert", "onnx")
EXPORTS = ("saved_model", *RUNTIME_FILES)


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
            create.check_file(file)
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


@dataclasses.dataclass(frozen=True)
class Checkpoint(StoredModel):
    """A checkpoint of TensorFlow in a workdir, whose `path` is the prefix of its files.

    Attributes:
        ema: whether to read the moving average instead of the weights.
    """

    ema: bool = False

    def has_preprocessing(self):
        """See `StoredModel.has_preprocessing`."""
        return True

    def _read_config(self):
        experiment, _, config = self._read_run()
        return StoredConfig(config, experiment.model.dtype, experiment.preprocessing())

    def _read_run(self):
        """Experiment, labels, and configuration of the model, which is checked."""
        experiment = self.workdir.read_experiment()
        labels = manifest.read_labels(self.workdir.manifest)
        config = experiment.model_config(len(labels))
        create.check_size(config, checkpoint_weights.weight_shapes(self.path), self.name)
        return experiment, labels, config

    def _read_activation(self, opening):
        return self.workdir.read_experiment().train.loss

    def _open(self, opening):
        experiment, labels, config = self._read_run()
        model = vit_tf.create_model(config, dtype=opening.dtype or experiment.model.dtype)
        if lora := experiment.optimizer.lora:
            add_adapters(model, lora)
        checkpoint_weights.read_weights(self.path, model, self.ema, partly=lora is not None)
        if lora:  # A model without adapters, with their merged weights.
            merged = vit_tf.create_model(config, dtype=model.dtype_policy.name)
            load_checkpoint(merged, model_weights(model), head="keep")
            model = merged
        return vit_tf.LoadedModel(model, experiment.preprocessing(), experiment.classes(labels))


_READERS: dict[Kind, type[StoredModel]] = {
    "npz": NpzFile,
    "keras": KerasFile,
    "safetensors": SafetensorsModel,
    "saved_model": SavedModel,
    **dict.fromkeys(RUNTIME_FILES, RuntimeFile),
}


def find(path, weights="final", label_file=None, exports=()) -> StoredModel:
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
        exports: the kinds of `EXPORTS` that the path may have, too.

    Raises:
        UserError: if the path does not exist or is not a model, `weights` is not "final" and the
            path is not a workdir, published weights cannot be had, or the labels cannot be read.
    """
    labels = () if label_file is None else read_label_file(label_file)
    try:
        found = _find(os.fspath(path), weights, exports)
    except (DownloadError, ValueError) as error:
        raise UserError(str(error)) from None
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror}.") from None
    return dataclasses.replace(found, labels=labels)


def _find(path, weights, exports):
    kind = "npz" if path == SHIPPED else kind_of(path)
    is_name = kind == "nothing" and named_record(path) is not None
    if weights != "final" and (is_name or kind not in ("run", "begun run", "nothing")):
        raise UserError(
            f"--weights={weights} needs a workdir, but {path} is not a workdir: it has one set of "
            "weights. Leave the flag out, or name a workdir."
        )
    if kind == "run":
        return _OF_RUN[weights](Workdir(path))
    if kind == "nothing":
        if weights != "final":
            raise UserError(f"There is no model at {path}.")
        return NpzFile(path, find_weights(path))
    if kind not in _READERS or (kind in EXPORTS and kind not in exports):
        raise refusal(path, kind)
    return _READERS[kind](path, _SHIPPED_PATH if path == SHIPPED else path)


def exists(path) -> bool:
    """Whether there is a file or a folder; raises `UserError` if a URL cannot be read."""
    try:
        return storage.exists(path)
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror}.") from None


def published_record(path) -> WeightsRecord | None:
    """The record of published weights, if `path` names them and is not a path on this machine."""
    return None if storage.is_url(path) or os.path.exists(path) else named_record(path)


def _final(run):
    if storage.exists(run.final):
        return NpzFile(run.path, run.final, run)
    step = checkpoints.newest(run.checkpoints)
    if step is None:
        raise refusal(run.path, "begun run")
    return _checkpoint(run.path, run, step)


def _ema(run):
    if storage.exists(run.ema):
        return NpzFile(run.ema, run.ema, run)
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


def _best(run):
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


_OF_RUN = {"final": _final, "ema": _ema, "best": _best}
