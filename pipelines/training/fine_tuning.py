"""The settings that a fine-tuning run takes from its initial model, or chooses for photos.

Architecture and dtype are those of the initial model, the settings of training those of the recipe.
A recipe for built-in data, such as the default `digits`, says nothing about photos: for them the
settings are the paper's (docs/paper.md F.5 and F.9). Assignments of the user win over all of these.
"""

import contextlib
import dataclasses
import math
import re
import typing

from pipelines.config import Data, Experiment, Optimizer, Schedule, Train, override
from pipelines.config.model import Model, changed_fields, model_field_types
from pipelines.config.names import Dtype
from pipelines.config.recipes.rows import hyper_rule_length
from pipelines.data.sources.open import open_source
from pipelines.data.sources.splits import with_splits
from pipelines.data.sources.subset import subset_size
from pipelines.data.sources.tfds_catalog import BUILTIN
from pipelines.errors import DataError, MissingDataError, UserError
from pipelines.runs import checkpoints
from pipelines.runs.workdir import Workdir
from pipelines.stored_models import model_source
from vit_tf import cost
from vit_tf.config import ModelConfig
from vit_tf.config.variants import get_variant
from vit_tf.families import family_of
from vit_tf.preprocessing import Preprocessing

# Without an assignment, no run reads photos with a side below this number of pixels.
_SMALLEST_SIDE = 64
# Fields of a model that belong to its training: they are the recipe's, not the initial model's.
_OF_TRAINING = (
    "dropout",
    "attention_dropout",
    "stochastic_depth",
    "representation_size",
    "head_bias",
)
# Fields that arrays show and that fine-tuning may change.
_MAY_DIFFER = {"num_classes", "grid", "root_size"}
# The only rate in every row of the paper's table 4.
_LEARNING_RATE = 0.01
_SMALLEST_BATCH, _LARGEST_BATCH, _BATCHES_PER_EPOCH = 16, 512, 16
_ANY_SIZE = 4096
# Steps and warm-up steps below this number of images, where the rule for benchmarks is long.
_FEW_PHOTOS, _FEW_STEPS = 1_000, (250, 50)
# Fields of `Preprocessing` that are taken from the initial model.
_OF_PIXELS = ("interpolation", "antialias", "mean", "std")
# Memory for the activations of the images that are processed at a time.
_ACTIVATION_BYTES = 4e9
# What `choose` prints about training.
_SHOWN = {
    "optimizer": ("name", "learning_rate", "weight_decay"),
    "schedule": ("warmup_steps", "decay"),
    "data": ("crop", "flip"),
    "train": ("steps", "batch_size", "accumulate_steps"),
}


@dataclasses.dataclass(frozen=True)
class _Initial:
    """The initial model: name for messages, configuration; None: the file does not store it."""

    name: str
    config: ModelConfig
    dtype: str | None
    preprocessing: Preprocessing | None = None


def choose(
    start, assignments, workdir, log, is_complete=False, replicas=1
) -> tuple[Experiment, str]:
    """Completes a recipe for fine-tuning.

    Args:
        start: the `Experiment` of the recipe.
        assignments: the `path=value` settings of the user.
        workdir: directory of the run. If it holds checkpoints, the initial weights need not exist.
        log: called with lines about what was chosen.
        is_complete: whether `start` is the experiment of a run, not a recipe: then nothing is
            chosen. The same holds for a recipe that names its own initial weights: it states their
            architecture, and they need not be on this machine yet.
        replicas: number of devices that share a batch.

    Returns:
        The `Experiment` to run, whose lengths in epochs are not replaced yet, and a line about the
        settings of training that were chosen for photos; empty if they are the recipe's.

    Raises:
        UserError: if an assignment is wrong, the initial model cannot be read, or the assigned
            architecture does not fit it.
    """
    asked = override(start, [text for text in assignments if text.startswith(("data.", "init_"))])
    asked = dataclasses.replace(asked, init_from=asked.init_from or model_source.SHIPPED)
    has_own = asked.init_from == start.init_from
    initial = None
    published = model_source.published_record(asked.init_from)
    if published or not has_own or model_source.exists(asked.init_from):
        initial = _read_initial(asked, Workdir(workdir))
    base = dataclasses.replace(start, init_from=asked.init_from, init_weights=asked.init_weights)
    chooses = not is_complete and not has_own
    for_photos = chooses and _is_builtin(start.data) and not _is_builtin(asked.data)
    if chooses:
        base = dataclasses.replace(base, model=_model(initial, start, for_photos))
    if for_photos:
        examples = _count(asked.data)
        batch = _given_batch(base, assignments, Workdir(workdir))
        base = _for_photos(base, examples or 0, assignments, initial.preprocessing, replicas, batch)
    if initial is not None:
        _check_fit(base, initial, assignments)
    experiment = override(base, assignments, log)
    if chooses:
        log(f"from {initial.name}: {_as_settings('model', experiment.model.to_dict())}")
    if for_photos:
        return experiment, _describe(experiment, examples is not None)
    check_photo_size(start, experiment, assignments)
    return experiment, ""


def _read(experiment):
    record = model_source.published_record(experiment.init_from)
    if record and experiment.init_weights == "final":
        # A dry run does not download them, and other runs do so once everything else is checked.
        config = get_variant(record.model).replace(
            image_size=record.image_size, num_classes=record.num_classes
        )
        return _Initial(record.name, config, None, record.preprocessing)
    source = model_source.find(experiment.init_from, experiment.init_weights)
    return _Initial(source.name, *source.read_config())


def _read_initial(experiment, run):
    try:
        return _read(experiment)
    except UserError:
        if not checkpoints.steps(run.checkpoints):
            raise
        # A resumed run does not need its initial weights: its own model has their architecture.
        own = run.read_experiment()
        config, preprocessing = own.model.config(num_classes=1), own.preprocessing()
        return _Initial(experiment.init_from, config, own.model.dtype, preprocessing)


def _is_builtin(data):
    return re.split("[/:]", data.name)[0] in BUILTIN


def _model(initial, recipe, for_photos):
    """The model section: the initial architecture, and the fields of training of the recipe.

    A recipe for photos keeps its image size. If one for built-in data is used for photos, its
    fields of training are left out, and a small size is multiplied.
    """
    dtype = initial.dtype if initial.dtype in typing.get_args(Dtype) else recipe.model.dtype
    section = Model.of(initial.config, dtype, recipe.model.name)
    known = model_field_types(section.name)
    fields = {name: x for name, x in section.fields.items() if name not in _OF_TRAINING}
    for name in _OF_TRAINING:
        if name in recipe.model.fields and name in known and not for_photos:
            fields[name] = recipe.model.fields[name]
    height, width = section.image_size
    if for_photos:
        times = -(-_SMALLEST_SIDE // min(height, width))
        height, width = height * times, width * times
    elif not _is_builtin(recipe.data):
        height, width = recipe.model.image_size
    return dataclasses.replace(section, fields=fields, image_size=(height, width))


def _given_batch(base, assignments, run):
    """The batch size that the user assigned, or with which the run has begun; None: no such one."""
    if "train.batch_size" in _paths(assignments):
        texts = [text for text in assignments if text.startswith("train.batch_size=")]
        return override(base, texts).train.batch_size
    if checkpoints.steps(run.checkpoints):
        return run.read_experiment().train.batch_size
    return None


def _for_photos(base, examples, assignments, preprocessing, replicas, batch):
    """The recipe with the paper's settings for fine-tuning, for the number of examples.

    Pixels are filtered and scaled as for the initial model; the crop is that of the paper. A batch
    is split so that it fits into the memory of `replicas` devices; `batch` is its size, if known.
    """
    steps, warmup = _FEW_STEPS if examples < _FEW_PHOTOS else hyper_rule_length(examples)
    wanted = override(base, [text for text in assignments if text.startswith("model.")]).model
    batch, parts = _batch(examples, wanted, replicas, batch)
    return dataclasses.replace(
        base,
        data=Data(**{name: getattr(preprocessing, name) for name in _OF_PIXELS if preprocessing}),
        optimizer=Optimizer(name="sgd", learning_rate=_LEARNING_RATE, momentum=0.9, clip_norm=1.0),
        schedule=Schedule(warmup_steps=warmup, decay="cosine"),
        train=Train(
            steps=steps,
            batch_size=batch,
            accumulate_steps=parts,
            log_every=steps // 50,
            eval_every=steps // 5,
            checkpoint_every=steps // 5,
        ),
    )


def _count(data):
    """Number of training examples; None if the data cannot be opened, which is reported later."""
    try:
        return subset_size(data, _open(data))
    except DataError:
        return None


def _open(data):
    data = with_splits(data)
    return open_source(data.name, data.train_split, data.data_dir)


def _batch(examples, model, replicas, batch=None):
    """`(train.batch_size, train.accumulate_steps)`; `batch` is a given size, None: choose one.

    The chosen size is a power of two, or the largest multiple of `replicas` below it. An epoch has
    at least 16 batches, if that does not make batches smaller than 16 images. The activations of a
    micro-batch fit into 4 GB of each device.
    """
    config = model.config(num_classes=1)
    # GPUs run the reference, which stores the weights of attention.
    bytes_per_image = cost.activation_bytes(config, 1, model.dtype, compiled=False)
    room = max(1, int(_ACTIVATION_BYTES // bytes_per_image))
    is_whole = config.uses_batch_statistics  # Cannot be split into micro-batches.
    if batch is None:
        batch = min(max(examples // _BATCHES_PER_EPOCH, _SMALLEST_BATCH), _LARGEST_BATCH)
        if is_whole:
            batch = min(batch, room * replicas)
        batch = max(2 ** int(math.log2(batch)) // replicas, 1) * replicas
    each = batch // replicas
    if is_whole or batch % replicas:  # A batch of the user that does not fit is refused later.
        return batch, 1
    largest = next(size for size in range(min(each, room), 0, -1) if each % size == 0)
    return batch, each // largest


def check_initial(experiment, assignments, flag="--set"):
    """Checks that the initial weights of an experiment exist and fit its model.

    Args:
        experiment: the `Experiment`; its `init_from` is not none.
        assignments: the `path=value` settings to blame for a model that does not fit.
        flag: where they come from, for messages.

    Raises:
        UserError: if the weights cannot be read or do not fit.
    """
    _check_fit(experiment, _read(experiment), assignments, flag)


def check_photo_size(start, experiment, assignments):
    """Refuses photos at the small image size of a recipe for built-in data.

    Args:
        start: the `Experiment` of the recipe.
        experiment: the same with the settings of the user.
        assignments: these `path=value` settings.

    Raises:
        UserError: if the data are other data and the user did not assign the image size, or if
            the data cannot be used.
    """
    height, width = experiment.model.image_size
    if (
        min(height, width) < _SMALLEST_SIDE
        and _is_builtin(start.data)
        and not _is_builtin(experiment.data)
        and "model.image_size" not in _paths(assignments)
    ):
        with contextlib.suppress(MissingDataError):
            _open(experiment.data)  # A wrong name has a message of its own.
        raise UserError(
            f"The settings are for {start.data.name}: {experiment.data.name} would be trained at "
            f"{height} x {width} pixels. Choose a size, such as --set model.image_size=224 --set "
            f"model.name={experiment.model.name}, or a recipe for photos; --list prints them."
        )


def _check_fit(base, initial, assignments, flag="--set"):
    """Raises `UserError` if the weights of the initial model do not fit the assigned model."""
    of_model = [text for text in assignments if text.startswith("model.")]
    # Weights fit whatever the image size is: at a large one, every model is valid.
    model = override(base, [*of_model, f"model.image_size={_ANY_SIZE}"]).model
    theirs = initial.config
    ours, wrong = model.config(theirs.num_classes), {}
    if same_family := type(ours) is type(theirs):
        layout = family_of(theirs).published
        names = {
            name
            for config in (ours, theirs)
            for name in layout.array_fields(config) | layout.trained_fields(config)
        }
        wrong = {
            path: value
            for path, value in changed_fields(ours, theirs).items()
            if path.rpartition(".")[2] in names - _MAY_DIFFER
        }
        if not wrong:
            return
    paths = {f"model.{path}" for path in (*wrong, "name")}
    blamed = [text for text in assignments if text.partition("=")[0] in paths]
    if not same_family or "model.name" in _paths(blamed) or not blamed:
        right = Model.of(theirs, model.dtype, model.name)
        fields = {name: x for name, x in right.fields.items() if name not in _OF_TRAINING}
        wrong = {"name": right.name, **fields}
    given = " ".join(f"{flag} {text}" for text in blamed)
    raise UserError(
        f"{given or f'The model {model.name}'} does not fit {initial.name}. "
        f"{'Leave it out, or use' if given else 'Use'} {_as_settings('--set model', wrong)}."
    )


def _describe(experiment, has_data):
    """The line about training on photos."""
    values, defaults = experiment.to_dict(), Data()
    pixels = [x for x in _OF_PIXELS if getattr(experiment.data, x) != getattr(defaults, x)]
    shown = {
        f"{section}.{name}": values[section][name]
        for section, names in (*_SHOWN.items(), ("data", pixels))
        for name in names
    }
    for steps, epochs in (
        ("schedule.warmup_steps", "schedule.warmup_epochs"),
        ("train.steps", "train.epochs"),
    ):
        section, _, name = epochs.partition(".")
        if (length := values[section][name]) is not None:
            del shown[steps]
            shown[epochs] = length
    note = ""
    if not has_data:
        note = ". Length and batch depend on the data, which could not be read"
    if experiment.init_from == model_source.SHIPPED:
        note += ". The shipped model knows only digits: name one of photos with --init_from"
    return f"chosen for photos, each can be changed by --set: {_as_settings('', shown)}{note}"


def _paths(assignments):
    return [text.partition("=")[0] for text in assignments]


def _as_settings(section, values):
    """Values as they are assigned: `model.layers=2 model.stem.stage_depths=1,2`."""
    parts = []
    for name, value in values.items():
        path = f"{section}.{name}" if section else name
        if isinstance(value, dict):
            parts.append(_as_settings(path, value))
        elif isinstance(value, tuple | list):
            parts.append(f"{path}={','.join(map(str, value))}")
        else:
            parts.append(f"{path}={str(value).lower() if value in (None, True, False) else value}")
    return " ".join(parts)
