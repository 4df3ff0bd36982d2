"""Models from wherever they are kept: workdir, `.npz`, `.keras`, safetensors, or in the package."""

import dataclasses
import os

import keras
import tensorflow as tf

import vit_tf
from pipelines.runs import checkpoints, keras_archive
from pipelines.errors import UserError
from pipelines.runs.workdir import Workdir, read_json
from vit_tf.weights import ModelArrays, infer_config, read_sidecar
from vit_tf.families import config_from_dict
from vit_tf.checkpoints.loading import load_arrays

SHIPPED = "shipped"
_FOREIGN = ("model.safetensors", "model.safetensors.index.json")
_SHIPPED_PATH = os.path.join(os.path.dirname(vit_tf.__file__), "assets", "digits.npz")


@dataclasses.dataclass(frozen=True)
class Source:
    """A model on disk that was found but not read.

    Attributes:
        path: what the user gave, or a little more, for messages.
        kind: "npz", "keras", "safetensors" or "checkpoint".
        file: the file to read; for a checkpoint its TensorFlow prefix.
        workdir: the run it belongs to, or None.
        ema: of a checkpoint, the Polyak average instead of the weights.
    """

    path: str
    kind: str
    file: str
    workdir: Workdir | None = None
    ema: bool = False


def checkpointable(model) -> tf.Module:
    """The weights of a model, by path, as `tf.train.Checkpoint` wants them.

    Keras' own tracking leaves out what a model keeps in lists, and the states of seed generators,
    which it includes, are of no use: training draws by step.
    """
    return _by_path(model.weights)


def choose(path, choice) -> str:
    """The path of one of the sets of weights that a run can have.

    Args:
        path: what the user named.
        choice: "final", the newest weights; "average", their Polyak average; "best", those of the
            checkpoint with the highest score (train.keep_best).

    Returns:
        A path for `find`, whether or not there is a file of this name: a configuration that begins
        with these weights then says so.

    Raises:
        UserError: if there is a choice to make in what is no workdir.
    """
    if choice == "final":
        return path
    run = Workdir(path)
    if path == SHIPPED or (os.path.exists(path) and not is_run(path)):
        raise UserError(
            f"--weights={choice} chooses within a workdir, and {path} is none: it has one set of "
            "weights. Leave the flag out, or name a workdir."
        )
    return {"ema": run.ema, "best": run.best}[choice]


def is_run(path) -> bool:
    """Whether `path` is the workdir of a run: folders from elsewhere have a config.json too."""
    return os.path.exists(Workdir(path).config) and not _is_foreign(path)


def _is_foreign(path):
    return any(os.path.isfile(os.path.join(path, name)) for name in _FOREIGN)


def find(path) -> Source:
    """Looks up what `path` names; "shipped" is the small digits model inside the package.

    `ema.npz` in a workdir can be named before the run has ended: the newest checkpoint holds
    the average too. `checkpoints/best` names the checkpoint with the highest score.

    Raises:
        UserError: if there is nothing, or nothing we can read.
    """
    path = os.fspath(path)
    if path == SHIPPED:
        return Source(path, "npz", _SHIPPED_PATH)
    if _is_foreign(path):
        return Source(path, "safetensors", path)
    if os.path.isdir(path):
        return _find_in_workdir(path)
    if not os.path.exists(path):
        return _find_best(path) or _find_average(path)
    if not os.path.isfile(path):
        # A pipe or device can be endless.
        raise UserError(f"{path} is not a file.")
    for kind in ("npz", "keras", "safetensors"):
        if path.endswith("." + kind):
            return Source(path, kind, path)
    raise UserError(
        f"Cannot tell what {path} is. Expected a workdir, a .npz, .keras or .safetensors file, or "
        "a directory with model.safetensors."
    )


def open_model(source, dtype=None) -> tuple[keras.Model, vit_tf.Preprocessing]:
    """Builds the model a source describes, with its weights and preprocessing.

    A file without a sidecar gets the reference's preprocessing (direct resize) and no labels.

    Raises:
        UserError: if the source is damaged or foreign.
    """
    try:
        if source.kind == "checkpoint":
            return _open_checkpoint(source, dtype)
        if source.kind == "safetensors":
            return _open_foreign(source, dtype)
        if source.kind == "keras":
            sidecar = read_sidecar(source.file)
            model = keras_archive.open_keras(source.file, dtype)
        else:
            sidecar = read_sidecar(source.file)
            config = _config_of_file(source.file, sidecar.get("config"))
            keras_archive.check_input(config, source.path)
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


def notes(source) -> list[str]:
    """What had to be assumed to read a model from elsewhere, one sentence each."""
    if source.kind != "safetensors":
        return []
    from vit_tf.checkpoints.safetensors import checkpoint

    with checkpoint.open_foreign(source.file) as file:
        return file.notes


def load(model, source, head="reset"):
    """Loads a source's weights into a model, resizing positions; see `vit_tf.load_npz`.

    Returns:
        `vit_tf.weights.LoadReport`.

    Raises:
        UserError: if they do not fit. The model is then unchanged.
    """
    try:
        if source.kind == "npz":
            return vit_tf.load_npz(model, source.file, head=head)
        if source.kind == "safetensors":
            return vit_tf.load_safetensors(model, source.file, head=head)
        donor, _ = open_model(source)
        grid = getattr(donor, "grid", None)
        return load_arrays(model, ModelArrays(donor), source.path, head, grid, donor.config)
    except ValueError as error:
        raise UserError(str(error)) from None


def _config_of_file(path, fields):
    """The configuration in a sidecar, once the arrays have confirmed the sizes it claims."""
    found = infer_config(path)
    keras_archive.check_compression(found, path)
    if not fields:
        return found
    config = config_from_dict(fields)
    claimed, real = _sizes(config), _sizes(found)
    for name in claimed | real:
        if claimed.get(name) != real.get(name):
            raise UserError(
                f"{path}.json says {name}={claimed.get(name)}, the arrays of {path} have "
                f"{real.get(name)}. Restore or delete the sidecar."
            )
    return config


def _sizes(config):
    """What the arrays of a model show of its configuration."""
    if isinstance(config, vit_tf.ResNetConfig):
        names, residual = ("num_classes",), config
    else:
        # The grid decides the size of the position table; the image may leave pixels over.
        names = ("hidden_size", "mlp_size", "layers", "heads", "patch_size", "num_classes", "grid")
        residual = config.stem
    sizes = {name: getattr(config, name) for name in names}
    return sizes | ({"stage_depths": residual.stage_depths, "width": residual.width} if residual else {})


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
    """The average of a run whose `path`, `ema.npz`, is not written yet."""
    run = Workdir(os.path.dirname(path) or os.curdir)
    is_average = os.path.basename(path) == os.path.basename(run.ema)
    step = checkpoints.newest(run.checkpoints) if is_average else None
    if step is None:
        raise UserError(f"There is no model at {path}.")
    if run.read_experiment().train.ema_decay is None:
        raise UserError(
            f"{run.path} keeps no average of its weights: train.ema_decay was none. Use "
            "--weights=final, or train with --set train.ema_decay=0.9999."
        )
    name = f"{run.path} (average at step {step})"
    return Source(name, "checkpoint", checkpoints.prefix(run.checkpoints, step), run, ema=True)


def _find_best(path):
    """What was scored highest in a run whose `best` is `path`; None if it is no such name."""
    run = Workdir(os.path.dirname(os.path.dirname(path)) or os.curdir)
    if os.path.normpath(path) != os.path.normpath(run.best) or not os.path.exists(run.config):
        return None
    step = checkpoints.best(run.checkpoints)
    if step is None:
        raise UserError(
            f"{run.path} has no best checkpoint: none in {run.checkpoints} is whole and has a "
            "score. Use --weights=final, or train with --set train.keep_best=true."
        )
    # Evaluations are of the average where there is one, so it is what the score is of.
    average = run.read_experiment().train.ema_decay is not None
    name = f"{run.path} (best, {'average at ' * average}step {step})"
    return Source(name, "checkpoint", checkpoints.prefix(run.checkpoints, step), run, average)


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
    config = experiment.model.config(len(labels))
    try:
        saved = tf.train.load_checkpoint(source.file).get_variable_to_shape_map()
        shapes = [shape for name, shape in saved.items() if name.startswith("model/")]
        keras_archive.check_size(config, shapes, source.path)
        model = vit_tf.create_model(config, dtype=dtype or experiment.model.dtype)
        _read(source.file, model=checkpointable(model))
        if source.ema:
            _read(source.file, ema=_by_path(model.trainable_weights))
    except (AssertionError, tf.errors.OpError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"Cannot read the checkpoint {source.file}: {reason}") from None
    return model, experiment.preprocessing(tuple(labels))


def _open_foreign(source, dtype):
    from vit_tf.checkpoints.safetensors import checkpoint

    with checkpoint.open_foreign(source.file) as file:
        config = file.config
        keras_archive.check_input(config, source.path)
        model = vit_tf.create_model(config, dtype=dtype)
        load_arrays(model, file, source.path, "keep", getattr(config, "grid", None), config)
        return model, file.preprocessing


def _read(file, **objects):
    """Reads a part of a checkpoint, of which nothing may be missing."""
    status = tf.train.Checkpoint(**objects).read(file)
    status.assert_existing_objects_matched().expect_partial()
