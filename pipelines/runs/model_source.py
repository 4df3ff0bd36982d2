"""Where a model comes from, as a value, and the model opened or loaded from there."""

import dataclasses
import os

import keras

import vit_tf
from pipelines.errors import UserError
from pipelines.runs import checkpoints, keras_archive, manifest, size_checks
from pipelines.runs.workdir import Workdir
from vit_tf.checkpoints.sidecar import read_sidecar
from vit_tf.weights import load_checkpoint, model_weights, open_checkpoint

# The name of the small digits model inside the package.
SHIPPED = "shipped"
_SHIPPED_PATH = os.path.join(os.path.dirname(vit_tf.__file__), "assets", "digits.npz")
_SAFETENSORS = ("model.safetensors", "model.safetensors.index.json")


@dataclasses.dataclass(frozen=True)
class ModelSource:
    """A model on disk that was found and not read.

    Attributes:
        name: for messages: the path that the user gave, and the step of a checkpoint.
        kind: "npz", "keras", "safetensors", "checkpoint" (of TensorFlow, in a workdir), or
            "saved_model", which `find` does not return and `open_model` does not read.
        path: the file or folder to read; the prefix of a checkpoint's files.
        workdir: the run it belongs to, or None.
        ema: of a checkpoint: the moving average instead of the weights.
    """

    name: str
    kind: str
    path: str
    workdir: Workdir | None = None
    ema: bool = False


def find(path, weights="final") -> ModelSource:
    """Looks up a model without reading it.

    Args:
        path: a workdir, a `.npz`, `.keras` or `.safetensors` file, a folder with
            `model.safetensors`, or `SHIPPED`.
        weights: of a workdir: "final", its newest weights; "ema", their moving average, from the
            newest checkpoint until the run has written `ema.npz`; "best", the checkpoint with the
            highest score (train.keep_best), of which the average if there is one.

    Raises:
        UserError: if there is nothing, nothing that can be read, or a choice among `weights` in
            what is no workdir.
    """
    path = os.fspath(path)
    if weights != "final":
        run = _find_run(path, weights)
        return {"ema": _find_ema, "best": _find_best}[weights](run)
    if path == SHIPPED:
        return ModelSource(path, "npz", _SHIPPED_PATH)
    if not os.path.exists(path):
        raise UserError(f"There is no model at {path}.")
    if _is_safetensors_folder(path):
        return ModelSource(path, "safetensors", path)
    return _find_final(Workdir(path)) if os.path.isdir(path) else _find_file(path)


def is_run(path) -> bool:
    """Whether `path` is the workdir of a run: a safetensors folder has a config.json too."""
    return os.path.exists(Workdir(path).config) and not _is_safetensors_folder(path)


def has_preprocessing(source) -> bool:
    """Whether a source stores its preprocessing; if not, `open_model` has to assume it.

    Raises:
        UserError: if the file beside it is damaged.
    """
    if source.kind not in ("npz", "keras"):
        return True
    try:
        return read_sidecar(source.path).preprocessing is not None
    except ValueError as error:
        raise UserError(str(error)) from None


def open_model(
    source, dtype=None, log=None, assumed=None
) -> tuple[keras.Model, vit_tf.Preprocessing]:
    """Builds the model of a source, with its weights and preprocessing.

    A file that stores no preprocessing gets the reference's (direct resize) and no labels.

    Args:
        source: from `find`.
        dtype: Keras dtype policy; None is the one the model was trained in, or the global one if
            the source does not tell.
        log: called with what had to be assumed of a file of another project, a sentence each.
        assumed: fields of `vit_tf.Preprocessing` by name, for a file that stores none.

    Raises:
        UserError: if the source is damaged or holds no model of `vit_tf`.
    """
    try:
        if source.kind == "checkpoint":
            return _open_checkpoint(source, dtype)
        if source.kind == "keras":
            return _open_keras(source, dtype, assumed)
        return _open_arrays(source, dtype, log, assumed)
    except (TypeError, ValueError) as error:
        raise UserError(str(error)) from None


def load(model, source, head="reset"):
    """Loads a source's weights into a model, resizing positions; see `vit_tf.load_npz`.

    Returns:
        `vit_tf.weights.LoadReport`.

    Raises:
        UserError: if they do not fit. The model is then unchanged.
    """
    try:
        if source.kind in ("npz", "safetensors"):
            with open_checkpoint(source.path) as file:
                return load_checkpoint(model, file, head)
        donor, _ = open_model(source)
        arrays = model_weights(donor, source.name)
        return load_checkpoint(model, arrays, head)
    except ValueError as error:
        raise UserError(str(error)) from None


def _is_safetensors_folder(path):
    return any(os.path.isfile(os.path.join(path, name)) for name in _SAFETENSORS)


def _find_file(path):
    if not os.path.isfile(path):
        # A pipe or device can be endless.
        raise UserError(f"{path} is not a file.")
    for kind in ("npz", "keras", "safetensors"):
        if path.endswith("." + kind):
            return ModelSource(path, kind, path)
    raise UserError(
        f"Cannot tell what {path} is. Expected a workdir, a .npz, .keras or .safetensors file, or "
        "a directory with model.safetensors."
    )


def _find_run(path, weights):
    if path == SHIPPED or (os.path.exists(path) and not is_run(path)):
        raise UserError(
            f"--weights={weights} chooses within a workdir, and {path} is none: it has one set of "
            "weights. Leave the flag out, or name a workdir."
        )
    if not os.path.exists(path):
        raise UserError(f"There is no model at {path}.")
    return Workdir(path)


def _find_final(run):
    if os.path.exists(os.path.join(run.path, "saved_model.pb")):
        raise UserError(
            f"{run.path} is a SavedModel, whose weights only serve. Expected the workdir, .npz or "
            ".keras file it was exported from."
        )
    if os.path.exists(run.config) and os.path.exists(run.final):
        return ModelSource(run.path, "npz", run.final, workdir=run)
    step = checkpoints.newest(run.checkpoints)
    if not os.path.exists(run.config) or step is None:
        raise UserError(
            f"{run.path} holds no trained model: expected config.json with final.npz or "
            "checkpoints."
        )
    return _checkpoint_source(run.path, run, step)


def _find_ema(run):
    if os.path.exists(run.ema):
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
            f"{run.path} has no best checkpoint: none in {run.checkpoints} is whole and has a "
            "score. Use --weights=final, or train with --set train.keep_best=true."
        )
    # Evaluations, and so the scores, are of the average where there is one.
    ema = run.read_experiment().train.ema_decay is not None
    name = f"{run.path} (best, {'average at ' if ema else ''}step {step})"
    return _checkpoint_source(name, run, step, ema)


def _checkpoint_source(name, run, step, ema=False):
    prefix = checkpoints.prefix(run.checkpoints, step)
    return ModelSource(name, "checkpoint", prefix, run, ema)


def _open_arrays(source, dtype, log, assumed):
    """A `.npz` file or safetensors."""
    with open_checkpoint(source.path) as file:
        config = file.config
        if source.kind == "npz":  # Safetensors cannot be compressed.
            size_checks.check_compression(config, source.path)
        size_checks.check_input(config, source.name)
        preprocessing = file.preprocessing or _assume(config, assumed)
        model = vit_tf.create_model(config, dtype=dtype or _trained_dtype(source))
        load_checkpoint(model, file, head="keep")
        for note in file.notes if log else ():
            log(note)
        return model, preprocessing


def _trained_dtype(source):
    """The dtype policy that the arrays of a source were trained in; None if nothing tells."""
    if source.kind != "npz":
        return None
    dtype = read_sidecar(source.path).dtype
    if dtype is None and source.workdir is not None:
        return source.workdir.read_experiment().model.dtype
    return dtype


def _assume(config, fields):
    return vit_tf.Preprocessing(image_size=config.image_size, **(fields or {}))


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
    config = experiment.model.config(len(labels))
    size_checks.check_size(config, checkpoints.weight_shapes(source.path), source.name)
    model = vit_tf.create_model(config, dtype=dtype or experiment.model.dtype)
    checkpoints.read_weights(source.path, model, source.ema)
    return model, experiment.preprocessing(labels)
