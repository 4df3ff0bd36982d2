"""Models from wherever they are kept: workdir, `.npz`, `.keras`, or the one shipped with us."""

import dataclasses
import os
import tempfile

import keras
import tensorflow as tf

import vit_tf
from pipelines import checkpoints
from pipelines.errors import UserError
from pipelines.workdir import Workdir, read_json
from vit_tf.checkpoints import infer_config, read_sidecar
from vit_tf.models import VisionTransformer

SHIPPED = "shipped"
_SHIPPED_PATH = os.path.join(os.path.dirname(vit_tf.__file__), "assets", "digits.npz")


@dataclasses.dataclass(frozen=True)
class Source:
    """A model on disk that was found but not read.

    Attributes:
        path: what the user gave.
        kind: "npz", "keras" or "checkpoint".
        file: the file to read; for a checkpoint its TensorFlow prefix.
        workdir: the run it belongs to, or None.
    """

    path: str
    kind: str
    file: str
    workdir: Workdir | None = None


def checkpointable(model) -> tf.Module:
    """The weights of a model, by path, as `tf.train.Checkpoint` wants them.

    Keras' own tracking leaves out what a model keeps in lists, and the states of seed generators,
    which it includes, are of no use: training draws by step.
    """
    module = tf.Module()
    module.by_path = {weight.path: weight.value for weight in model.weights}
    return module


def find(path) -> Source:
    """Looks up what `path` names; "shipped" is the small digits model inside the package.

    Raises:
        UserError: if there is nothing, or nothing we can read.
    """
    path = os.fspath(path)
    if path == SHIPPED:
        return Source(path, "npz", _SHIPPED_PATH)
    if os.path.isdir(path):
        return _find_in_workdir(path)
    if not os.path.exists(path):
        raise UserError(f"There is no model at {path}.")
    for kind in ("npz", "keras"):
        if path.endswith("." + kind):
            return Source(path, kind, path)
    raise UserError(f"Cannot tell what {path} is. Expected a workdir, a .npz or a .keras file.")


def open_model(source, dtype=None) -> tuple[VisionTransformer, vit_tf.Preprocessing]:
    """Builds the model a source describes, with its weights and preprocessing.

    A file without a sidecar gets the reference's preprocessing (direct resize) and no labels.

    Raises:
        UserError: if the source is damaged or foreign.
    """
    try:
        if source.kind == "checkpoint":
            return _open_checkpoint(source, dtype)
        if source.kind == "keras":
            model, sidecar = _open_keras(source.file), read_sidecar(source.file)
        else:
            sidecar = read_sidecar(source.file)
            config = _config_of_file(source.file, sidecar.get("config"))
            model = vit_tf.create_model(config, dtype=dtype)
            vit_tf.load_npz(model, source.file, head="keep")
        fields = sidecar.get("preprocessing") or {"image_size": list(model.config.image_size)}
        preprocessing = vit_tf.Preprocessing.from_dict(fields)
        if preprocessing.image_size != model.config.image_size:
            raise UserError(
                f"{source.path}: the sidecar prepares images of {preprocessing.image_size}, the "
                f"model reads {model.config.image_size}. Restore or delete the sidecar."
            )
        return model, preprocessing
    except (TypeError, ValueError) as error:
        raise UserError(str(error)) from None


def load(model, source, head="reset"):
    """Loads a source's weights into a model, resizing positions; see `vit_tf.load_npz`.

    Returns:
        `vit_tf.checkpoints.LoadReport`.

    Raises:
        UserError: if they do not fit. The model is then unchanged.
    """
    try:
        if source.kind == "npz":
            return vit_tf.load_npz(model, source.file, head=head)
        donor, _ = open_model(source)
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "weights.npz")
            vit_tf.save_npz(donor, path)
            report = vit_tf.load_npz(model, path, head=head)
            return dataclasses.replace(report, path=source.path)
    except ValueError as error:
        raise UserError(str(error)) from None


def _config_of_file(path, fields):
    """The configuration in a sidecar, once the arrays have confirmed the sizes it claims."""
    found = infer_config(path)
    if not fields:
        return found
    config = vit_tf.ViTConfig.from_dict(fields)
    for name in ("hidden_size", "mlp_size", "layers", "heads", "patch_size", "num_classes"):
        if getattr(config, name) != getattr(found, name):
            raise UserError(
                f"{path}.json says {name}={getattr(config, name)}, the arrays of {path} have "
                f"{getattr(found, name)}. Restore or delete the sidecar."
            )
    return config


def _find_in_workdir(path):
    run = Workdir(path)
    if os.path.exists(os.path.join(path, "saved_model.pb")):
        raise UserError(
            f"{path} is a SavedModel, whose weights only serve. Expected the workdir, .npz or "
            ".keras file it was exported from."
        )
    if os.path.exists(run.config) and os.path.exists(run.final):
        return Source(path, "npz", run.final, run)
    step = checkpoints.newest(run.checkpoints)
    if not os.path.exists(run.config) or step is None:
        raise UserError(
            f"{path} holds no trained model: expected config.json with final.npz or checkpoints."
        )
    return Source(path, "checkpoint", checkpoints.prefix(run.checkpoints, step), run)


def _open_checkpoint(source, dtype):
    experiment = source.workdir.read_experiment()
    manifest = read_json(source.workdir.manifest).get("data")
    labels = manifest.get("labels") if isinstance(manifest, dict) else None
    if not isinstance(labels, list):
        raise UserError(f"{source.workdir.manifest} names no labels. Restore it.")
    config = experiment.model.vit_config(len(labels))
    model = vit_tf.create_model(config, dtype=dtype or experiment.model.dtype)
    try:
        status = tf.train.Checkpoint(model=checkpointable(model)).read(source.file)
        status.assert_existing_objects_matched().expect_partial()
    except (AssertionError, tf.errors.OpError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"Cannot read the checkpoint {source.file}: {reason}") from None
    return model, experiment.preprocessing(tuple(labels))


def _open_keras(path):
    try:
        model = keras.models.load_model(path, compile=False, safe_mode=True)
    except Exception as error:  # Keras raises many unrelated types for a damaged file.
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"{path} is not a model Keras can read: {reason}") from None
    if not isinstance(model, VisionTransformer):
        raise UserError(f"{path} holds a {type(model).__name__}. Expected a VisionTransformer.")
    return model
