"""Models from wherever they are kept: workdir, `.npz`, `.keras`, or the one shipped with us."""

import dataclasses
import os
import tempfile

import tensorflow as tf

import vit_tf
from pipelines import checkpoints, model_files
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
        path: what the user gave, or a little more, for messages.
        kind: "npz", "keras" or "checkpoint".
        file: the file to read; for a checkpoint its TensorFlow prefix.
        workdir: the run it belongs to, or None.
        average: of a checkpoint, the Polyak average instead of the weights.
    """

    path: str
    kind: str
    file: str
    workdir: Workdir | None = None
    average: bool = False


def checkpointable(model) -> tf.Module:
    """The weights of a model, by path, as `tf.train.Checkpoint` wants them.

    Keras' own tracking leaves out what a model keeps in lists, and the states of seed generators,
    which it includes, are of no use: training draws by step.
    """
    return _by_path(model.weights)


def choose(path, choice) -> str:
    """The path of one of the two sets of weights that a run can have.

    Args:
        path: what the user named.
        choice: "final", the newest weights, or "average", their Polyak average.

    Returns:
        A path for `find`. For an average it is that of `average.npz`, whether or not the run has
        ended and written it: a configuration that begins with these weights then says so.

    Raises:
        UserError: if an average is wanted of what is no workdir.
    """
    if choice == "final":
        return path
    run = Workdir(path)
    if path == SHIPPED or (os.path.exists(path) and not os.path.exists(run.config)):
        raise UserError(
            f"--weights=average chooses within a workdir, and {path} is none: it has one set of "
            "weights. Leave the flag out, or name a workdir."
        )
    return run.average


def find(path) -> Source:
    """Looks up what `path` names; "shipped" is the small digits model inside the package.

    `average.npz` in a workdir can be named before the run has ended: the newest checkpoint holds
    the average too.

    Raises:
        UserError: if there is nothing, or nothing we can read.
    """
    path = os.fspath(path)
    if path == SHIPPED:
        return Source(path, "npz", _SHIPPED_PATH)
    if os.path.isdir(path):
        return _find_in_workdir(path)
    if not os.path.exists(path):
        return _find_average(path)
    if not os.path.isfile(path):
        # A pipe or device can be endless.
        raise UserError(f"{path} is not a file.")
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
            sidecar = read_sidecar(source.file)
            model = model_files.open_keras(source.file, dtype)
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
    model_files.check_compression(found, path)
    if not fields:
        return found
    config = vit_tf.ViTConfig.from_dict(fields)
    # The grid decides the size of the position table; the image may leave pixels over.
    for name in ("hidden_size", "mlp_size", "layers", "heads", "patch_size", "num_classes", "grid"):
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


def _find_average(path):
    """The average of a run whose `path`, `average.npz`, is not written yet."""
    run = Workdir(os.path.dirname(path) or os.curdir)
    is_average = os.path.basename(path) == os.path.basename(run.average)
    step = checkpoints.newest(run.checkpoints) if is_average else None
    if step is None:
        raise UserError(f"There is no model at {path}.")
    if run.read_experiment().train.average is None:
        raise UserError(
            f"{run.path} keeps no average of its weights: train.average was none. Use "
            "--weights=final, or train with --set train.average=0.9999."
        )
    name = f"{run.path} (average at step {step})"
    return Source(name, "checkpoint", checkpoints.prefix(run.checkpoints, step), run, average=True)


def _by_path(weights):
    module = tf.Module()
    module.by_path = {weight.path: weight.value for weight in weights}
    return module


def _open_checkpoint(source, dtype):
    experiment = source.workdir.read_experiment()
    manifest = read_json(source.workdir.manifest).get("data")
    labels = manifest.get("labels") if isinstance(manifest, dict) else None
    if not isinstance(labels, list):
        raise UserError(f"{source.workdir.manifest} names no labels. Restore it.")
    config = experiment.model.vit_config(len(labels))
    try:
        saved = tf.train.load_checkpoint(source.file).get_variable_to_shape_map()
        shapes = [shape for name, shape in saved.items() if name.startswith("model/")]
        model_files.check_size(config, shapes, source.path)
        model = vit_tf.create_model(config, dtype=dtype or experiment.model.dtype)
        _read(source.file, model=checkpointable(model))
        if source.average:
            _read(source.file, average=_by_path(model.trainable_weights))
    except (AssertionError, tf.errors.OpError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"Cannot read the checkpoint {source.file}: {reason}") from None
    return model, experiment.preprocessing(tuple(labels))


def _read(file, **objects):
    """Reads a part of a checkpoint, of which nothing may be missing."""
    status = tf.train.Checkpoint(**objects).read(file)
    status.assert_existing_objects_matched().expect_partial()
