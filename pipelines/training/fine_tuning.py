"""The settings that a fine-tuning run takes from its initial model, and whether that model fits.

Architecture and dtype come from the initial model, the settings of training from the recipe.
A recipe for built-in data, such as the default `digits`, says nothing about photos: for them the
recipe is `config/recipes/photos.py`. Assignments of the user win over all of these.
"""

import dataclasses
import logging
import typing
from collections.abc import Callable
from typing import NamedTuple

from pipelines.config import Data, Experiment, Request
from pipelines.config.model import Model, changed_fields, model_field_types
from pipelines.config.names import Dtype
from pipelines.config.recipes import photos
from pipelines.data.sources.subset import open_train_split, subset_size
from pipelines.errors import DataError, UserError
from pipelines.runs import checkpoints
from pipelines.runs.workdir import Workdir
from pipelines.stored_models import model_source
from vit_tf import cost
from vit_tf.config import ModelConfig
from vit_tf.families import family_of
from vit_tf.preprocessing import Preprocessing
from vit_tf.pretrained.records import list_weights

_log = logging.getLogger(__name__)

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
_ANY_SIZE = (4096, 4096)
# The collection of published weights that an error suggests.
_SUGGESTED = "imagenet21k/"


@dataclasses.dataclass(frozen=True)
class _Initial:
    """The initial model: name for messages, configuration; None: the file does not store it."""

    name: str
    config: ModelConfig
    dtype: str | None
    preprocessing: Preprocessing | None = None


class _Situation(NamedTuple):
    """What decides between the cases of `choose`."""

    is_complete: bool  # The experiment describes a run, not a recipe.
    has_own: bool  # The recipe names the initial weights itself.
    of_photos: bool  # The recipe is for built-in data, and the data of the run are photos.
    has_model: bool  # The user names the initial weights, or the run has begun.


class _Case(NamedTuple):
    """Which settings of the initial model are taken; the first case that holds counts.

    Attributes:
        holds: whether a `_Situation` is of this case.
        pre_logits: with init_head=reset_last, the pre-logits come from the initial model.
        model: the architecture and dtype come from the initial model.
        photos: the settings of training are for photos, and replace the recipe's.
        refusal: the error about the section of the data; None: the run is possible.
    """

    holds: Callable[[_Situation], bool]
    pre_logits: bool = True
    model: bool = False
    photos: bool = False
    refusal: Callable[[Data], UserError] | None = None


def _no_photo_model(data):
    """The error for photos without initial weights: the shipped model knows only digits."""
    names = [name for name in list_weights() if name.startswith(_SUGGESTED)]
    return UserError(
        f"{data.name} needs a model of photos to begin with. Name it with --init_from: a workdir, "
        f"a file, or published weights such as {', '.join(names)}; vit_tf.list_weights() has all "
        "names. To begin with random weights, use pipelines.pretrain; --init_from=shipped begins "
        "with the model of digits."
    )


_CASES = (
    _Case(lambda s: s.is_complete, pre_logits=False),
    # It states the architecture of the weights, which need not be on this machine yet.
    _Case(lambda s: s.has_own),
    _Case(lambda s: s.of_photos and not s.has_model, refusal=_no_photo_model),
    _Case(lambda s: s.of_photos, model=True, photos=True),
    _Case(lambda s: True, model=True),
)


def choose(
    start: Experiment, request: Request, workdir, is_complete=False, replicas=1
) -> tuple[Experiment, Request]:
    """Chooses the recipe and the initial model of a fine-tuning run; logs what it chooses.

    Args:
        start: the `Experiment` of the recipe.
        request: the `Request` of the user.
        workdir: directory of the run. If it holds checkpoints, the initial weights need not exist.
        is_complete: whether `start` is the experiment of a run, not a recipe.
        replicas: number of devices that share a batch.

    Returns:
        The `Experiment` to run, whose lengths in epochs are not replaced yet, and the `Request`.
        If settings of training were chosen for photos, they are its origin, and it has the data
        that were opened to count them.

    Raises:
        UserError: if the initial model cannot be read, an assignment does not fit the others, or
            the assigned architecture does not fit the initial model.
    """
    run, assignments = Workdir(workdir), request.assignments
    asked = _with(assignments, start, "data.", "init_", "train.batch_size", "optimizer.lora_")
    init_from = asked.init_from or model_source.SHIPPED
    situation = _Situation(
        is_complete=is_complete,
        has_own=init_from == start.init_from,
        of_photos=start.data.is_builtin and not asked.data.is_builtin,
        has_model=asked.init_from is not None or bool(checkpoints.steps(run.checkpoints)),
    )
    case = next(case for case in _CASES if case.holds(situation))
    base = dataclasses.replace(
        start, init_from=init_from, init_weights=asked.init_weights, init_head=asked.init_head
    )
    published = model_source.published_record(init_from)
    initial = None
    if published or not situation.has_own or model_source.exists(init_from):
        initial = _read_initial(base, run)
    if case.refusal:
        raise case.refusal(asked.data)
    if case.model:
        base = dataclasses.replace(base, model=_model(initial, start, case.photos))
    if initial is not None and case.pre_logits:
        base = _with_pre_logits(base, initial.config)
    if case.photos:
        examples, source = _count(asked.data)
        base = _for_photos(base, initial, asked, run, assignments, examples or 0, replicas)
    if initial is not None:
        _check_fit(base, initial, assignments)
    experiment, notes = assignments.apply(base)
    if case.model:
        notes.append(f"from {initial.name}: {_as_settings('model', experiment.model.to_dict())}")
    for note in notes:
        _log.info(note)
    if case.photos:
        origin = _describe(experiment, examples is not None)
        opened = source and (asked.data, source)
        return experiment, dataclasses.replace(request, origin=origin, opened=opened)
    has_size = assignments.given("model.image_size")
    photos.check_size(start, experiment, has_size, open_train_split)
    return experiment, request


def _with(assignments, experiment, *starts):
    """The experiment with the assignments to paths that begin with one of `starts`."""
    return assignments.within(*starts).apply(experiment)[0]


def _read(experiment):
    record = model_source.published_record(experiment.init_from)
    if record and experiment.init_weights == "final":
        # A dry run does not download them, and other runs do so once everything else is checked.
        return _Initial(record.name, record.config, None, record.preprocessing)
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


def _model(initial, recipe, for_photos):
    """The model section: the initial architecture, and the fields of training of the recipe.

    A recipe for photos keeps its image size. If one for built-in data is used for photos, its
    fields of training are left out, and a small size is multiplied.
    """
    dtype = initial.dtype if initial.dtype in typing.get_args(Dtype) else recipe.model.dtype
    section = Model.of(initial.config, dtype, recipe.model.name)
    fields = {name: x for name, x in section.fields.items() if name not in _OF_TRAINING}
    if for_photos:
        height, width = section.image_size
        times = -(-photos.SMALLEST_SIDE // min(height, width))
        size = (height * times, width * times)
        return dataclasses.replace(section, fields=fields, image_size=size)
    known, own = model_field_types(section.name), recipe.model.fields
    fields |= {name: own[name] for name in _OF_TRAINING if name in own and name in known}
    size = section.image_size if recipe.data.is_builtin else recipe.model.image_size
    return dataclasses.replace(section, fields=fields, image_size=size)


def _with_pre_logits(base, config):
    """The experiment with the initial model's number of pre-logits, if it keeps their weights."""
    if base.init_head == "reset" or not hasattr(config, "representation_size"):
        return base
    fields = dict(base.model.fields) | {"representation_size": config.representation_size}
    return dataclasses.replace(base, model=dataclasses.replace(base.model, fields=fields))


def _for_photos(base, initial, asked, run, assignments, examples, replicas):
    """The recipe for photos, for the model with its assignments; see `photos.photos`."""
    batch_size = None
    if assignments.given("train.batch_size"):
        batch_size = asked.train.batch_size
    elif checkpoints.steps(run.checkpoints):  # That of the run, which has begun.
        batch_size = run.read_experiment().train.batch_size
    wanted = _with(assignments, base, "model.").model
    config, stored = wanted.config(num_classes=1), initial.preprocessing
    pixels = {name: getattr(stored, name) for name in photos.PIXEL_FIELDS if stored}
    if pixels and not pixels["antialias"] and pixels["jpeg"] == "fast":
        del pixels["jpeg"]  # As none.
    if pixels.get("interpolation") == "area":
        # The reference evaluates with it and trains with the bilinear filter (docs/paper.md K.2).
        pixels["eval_interpolation"] = pixels.pop("interpolation")
    lora = asked.optimizer.lora
    if lora is not None:
        try:
            lora.check(config)
        except ValueError:  # Refused later.
            lora = None
    return photos.photos(
        base,
        # GPUs run the reference, which stores the weights of attention.
        image_bytes=cost.activation_bytes(config, 1, wanted.dtype, compiled=False, lora=lora),
        splits=not config.uses_batch_statistics,
        pixels=pixels,
        examples=examples,
        replicas=replicas,
        batch_size=batch_size,
    )


def _count(data):
    """The number of training examples, and the `DataSource` of the split that they are chosen from.

    Both are None if the data cannot be opened, which is reported later.
    """
    try:
        source = open_train_split(data)
        return subset_size(data, source), source
    except DataError:
        return None, None


def check_initial(experiment, assignments):
    """Checks that the initial weights of an experiment exist and fit its model.

    Args:
        experiment: the `Experiment`; its `init_from` is not none.
        assignments: the `Assignments` to blame for a model that does not fit.

    Raises:
        UserError: if the weights cannot be read or do not fit.
    """
    _check_fit(experiment, _read(experiment), assignments)


def _check_fit(base, initial, assignments):
    """Raises `UserError` if the weights of the initial model do not fit the assigned model."""
    # Weights fit whatever the image size is: at a large one, every model is valid. Sizes in the
    # section of the data belong to the size of the run.
    large = dataclasses.replace(base.model, image_size=_ANY_SIZE)
    of_model = assignments.within("model.", but="model.image_size")
    model = of_model.apply(dataclasses.replace(base, model=large, data=Data()))[0].model
    theirs = initial.config
    ours, wrong = model.config(theirs.num_classes), {}
    # The layer of the head that keeps its weights.
    kept = {"representation_size"} if base.init_head == "reset_last" else set()
    if same_family := ours.family == theirs.family:
        layout = family_of(theirs).published
        names = {
            name
            for config in (ours, theirs)
            for name in layout.array_fields(config) | layout.trained_fields(config)
        }
        wrong = {
            path: value
            for path, value in changed_fields(ours, theirs).items()
            if path.rpartition(".")[2] in names - _MAY_DIFFER | kept
        }
        if not wrong:
            return
    paths = {f"model.{path}" for path in (*wrong, "name")}
    values = {path: value for path, value in assignments.values.items() if path in paths}
    blamed = {path.removeprefix("model."): value for path, value in values.items()}
    if not same_family or assignments.given("model.name") or not blamed:
        right = Model.of(theirs, model.dtype, model.name)
        fields = {n: x for n, x in right.fields.items() if n in kept or n not in _OF_TRAINING}
        wrong = {"name": right.name, **fields}
    given = _as_settings(f"{assignments.flag} model", blamed)
    raise UserError(
        f"{given or f'The model {model.name}'} does not fit {initial.name}. "
        f"{'Leave it out, or use' if given else 'Use'} {_as_settings('--set model', wrong)}."
    )


def _describe(experiment, has_data):
    """The line about training on photos."""
    note = ""
    if not has_data:
        note = ". Length and batch depend on the data, which could not be read"
    settings = _as_settings("", photos.shown(experiment))
    return f"chosen for photos, each can be changed by --set: {settings}{note}"


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
