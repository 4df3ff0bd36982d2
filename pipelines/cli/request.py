"""The request of a command line: the experiment that its flags describe, and where it runs."""

import logging
import os
import re
import typing

from absl import flags

from pipelines.config import Assignments, Experiment, Request
from pipelines.config.names import Strategy
from pipelines.config.recipes import get_recipe, photos, summary
from pipelines.distribution.group import current_group
from pipelines.errors import UserError
from vit_tf.files import storage

_log = logging.getLogger(__name__)

# Flags that commands share. Each command lists the ones that it takes.
WORKER_FLAGS = ("workers", "worker_index", "worker_wait")
DEVICE_FLAGS = ("strategy", "logical_cpus", "tpu", "zone", "project", *WORKER_FLAGS)
SHARED_FLAGS = ("experiment", "workdir", "set", *DEVICE_FLAGS)
# The reason why a command does not take a flag.
WHY_NOT_TAKEN = {
    "experiment": "it has no recipe to choose",
    "workdir": "it has no run of its own",
    "set": "it has no recipe to change, and a model keeps its training settings",
    **dict.fromkeys(DEVICE_FLAGS, "it computes on one device"),
}
# A path at which there can be no directory.
_NO_FOLDER = os.path.join(os.devnull, "new")


def define_shared(names):
    """Returns the flags of these members of `SHARED_FLAGS`."""
    values = flags.FlagValues()
    shared = {"flag_values": values}
    flags.DEFINE_string("experiment", "digits", "The recipe to start from.", **shared)
    flags.DEFINE_string("workdir", None, "Directory of the run.", **shared)
    flags.DEFINE_multi_string(
        "set",
        [],
        "<path.to.field=value>: Change one field of the experiment, as in --set train.steps=100. "
        "Repeat it.",
        **shared,
    )
    flags.DEFINE_enum(
        "strategy", "auto", typing.get_args(Strategy), "The devices to run on.", **shared
    )
    flags.DEFINE_integer(
        "logical_cpus", 1, "Split the CPU into this many devices.", lower_bound=1, **shared
    )
    flags.DEFINE_string("tpu", "", "Name or address of the TPU; local on a TPU VM.", **shared)
    flags.DEFINE_string("zone", None, "Cloud zone of the TPU.", **shared)
    flags.DEFINE_string("project", None, "Cloud project of the TPU.", **shared)
    flags.DEFINE_string(
        "workers",
        None,
        "For --strategy=multi_worker: HOST:PORT of all workers, with commas between them; by "
        "default from TF_CONFIG or SLURM's variables.",
        **shared,
    )
    flags.DEFINE_integer("worker_index", None, "The number of this worker, from 0.", **shared)
    flags.DEFINE_float(
        "worker_wait", 300.0, "Seconds to wait for the other workers.", lower_bound=0, **shared
    )
    for name in set(SHARED_FLAGS).difference(names):
        delattr(values, name)
    return values


def define_config(values):
    """Adds the flags that belong to `--experiment`."""
    flags.DEFINE_string(
        "config",
        None,
        "A config.json to start from instead of a recipe, for example from a workdir.",
        flag_values=values,
    )
    flags.DEFINE_bool(
        "list", False, "Print the recipes and the names of models, and end.", flag_values=values
    )


def define_training(values):
    """Adds `--extend` and `--dry_run`, for commands that train."""
    flags.DEFINE_bool(
        "extend",
        False,
        "Go on with the run in --workdir up to another train.steps, with the schedule for that "
        "number of steps.",
        flag_values=values,
    )
    flags.DEFINE_bool(
        "dry_run",
        False,
        "Print the configuration, the size and cost of the model and the shapes of the first "
        "batch, and end.",
        flag_values=values,
    )


def experiment(values, run=None, effective=None, reason="", defaults=()):
    """The experiment that the shared flags describe.

    Args:
        values: parsed flags.
        run: as for `start`.
        effective: paths of the only fields that the command uses; None: it uses all.
        reason: why other fields have no effect, for the message.
        defaults: assignments that hold unless `--set` has others, such as "data.name=imagenet2012".

    Raises:
        UserError: if an assignment is wrong or has no effect, or --experiment is given together
            with a run.
    """
    assignments = Assignments.parse([*defaults, *values.set])
    idle = [path for path in assignments.values if path not in (effective or assignments.values)]
    if idle:
        raise UserError(
            f"--set {', '.join(idle)} has no effect: {reason}. Fields with an effect: "
            f"{', '.join(effective)}."
        )
    return _apply(assignments, start(values, run))


def assumed_preprocessing(values, data) -> dict:
    """The arguments of `vit_tf.Preprocessing` for a model file that states none.

    Without an assignment, photos are turned or not as `vit_tf.load` decides by the file.

    Args:
        values: parsed flags.
        data: the section `data` of their experiment.
    """
    fields = data.preprocessing_fields()
    if data.exif == "apply" and not Assignments.parse(values.set).given("data.exif"):
        del fields["exif"]
    return fields


def _apply(assignments, begin):
    described, notes = assignments.apply(begin)
    for note in notes:
        _log.info(note)
    return described


def read(values):
    """The experiment that a run starts from, before `--set`, and the `Request` for the run.

    Args:
        values: parsed flags.

    Raises:
        UserError: as `start`, and if an assignment is wrong.
    """
    begin, texts = start(values), list(values.set)
    for path, flag in (("init_from", "init_from"), ("init_weights", "weights")):
        if flag in values and values[flag].value is not None:
            texts.append(f"{path}={values[flag].value}")
    extend = "extend" in values and values.extend
    assignments = Assignments.parse(texts)
    return begin, Request(origin=_origin(values), assignments=assignments, extend=extend)


def pretraining(begin, request, grid=()):
    """The experiment of a run from random weights.

    Args:
        begin, request: the result of `read`.
        grid: further `path=value` settings that follow, as of `--grid`.

    Raises:
        UserError: as `experiment`, and for photos at the image size of a recipe for built-in data.
    """
    described = _apply(request.assignments, begin)
    size = "model.image_size"
    has_size = request.assignments.given(size) or any(x.startswith(f"{size}=") for x in grid)
    photos.check_size(begin, described, has_size, _open_data)
    return described


def _open_data(data):
    from pipelines.data.sources.subset import open_train_split  # It loads TensorFlow.

    open_train_split(data)


def start(values, run=None):
    """The experiment that --config or --experiment names, before `--set`.

    Args:
        values: parsed flags.
        run: a `Workdir` whose experiment replaces it, or None.

    Raises:
        UserError: if it does not exist, or --experiment is given together with a run.
    """
    if run is not None:
        for name in ("experiment", "config"):
            if values[name].present:
                raise UserError(
                    f"{run.path} is a run and has its own experiment. Leave out "
                    f"--{name} {values[name].value}."
                )
        return run.read_experiment()
    if values.config is None:
        return get_recipe(values.experiment)
    if values["experiment"].present:
        raise UserError(
            "--config and --experiment both name an experiment to start from. Leave one out."
        )
    if storage.is_folder(values.config):
        raise UserError(
            f"--config {values.config} is a directory. Name a file, such as the config.json of a "
            "run."
        )
    from pipelines.runs.json_file import read_json

    return Experiment.from_dict(read_json(values.config))


def _origin(values):
    """Where an experiment starts from: its recipe or its file, for the first line of a run."""
    if values.config is not None:
        return f"configuration {values.config}"
    return f"recipe {values.experiment}: {summary(values.experiment)}"


def eval_source(data, use="read"):
    """Opens the evaluation split of a section of data, which may be `auto`.

    Args:
        data: `config.data.Data`.
        use: what the command does with the images, for the message.

    Raises:
        UserError: if data.eval_split is none.
        DataError: as `open_source`.
    """
    from pipelines.data.sources.open import choose_splits, open_split

    data = choose_splits(data, training=False)
    if data.eval_split is None:
        raise UserError(f"data.eval_split is none: there is nothing to {use}. Set it to a split.")
    return open_split(data, data.eval_split)


def named_source(values, arguments, run, fields, use, reason):
    """The `DataSource` that the flags name in place of images; None if they name no data.

    Args:
        values: parsed flags.
        arguments: the images that are named too, which are then refused.
        run: as for `start`.
        fields, reason: `effective` and `reason` of `experiment`.
        use: what the command does with images, for the message.
    """
    given = [name for name in ("experiment", "config", "set") if values[name].present]
    if not given:
        return None
    if arguments:
        raise UserError(f"Images and --{given[-1]} both name what to {use}. Leave one out.")
    return eval_source(experiment(values, run, fields, reason).data)


def strategy(values):
    """The distribution strategy that the shared flags describe.

    Raises:
        UserError, WorkerError: as `make_strategy`, and if workers have different flags.
    """
    from pipelines.distribution.strategies import Workers, make_strategy

    workers = Workers(values.workers, values.worker_index, values.worker_wait)
    made = make_strategy(
        values.strategy, values.logical_cpus, values.tpu, values.zone, values.project, workers
    )
    current_group().compare("flags", _same_flags(values))
    return made


def _same_flags(values):
    """The flags that all workers must have, by their names."""
    given = values.flag_values_dict()
    same = {f"--{name}": given[name] for name in given if name not in ("set", *WORKER_FLAGS)}
    # A message about one field does not have all others.
    assigned = [text.partition("=") for text in given.get("set", ())]
    return same | {f"--set {path}": text for path, _, text in assigned}


def workdir(values, command, begin, request, name=None):
    """The directory of a run: `--workdir`, by default `runs/<command>-<experiment>`.

    The last part of `data.name` follows if the recipe has another: runs/finetune-digits-pets.
    A dry run describes a new run, whatever is in the directory that has no flag.

    Args:
        values: parsed flags.
        command: name of the command.
        begin, request: the result of `read`.
        name: stands for the name of the recipe; None takes the recipe's.

    Raises:
        UserError: if it is missing and --config is given, since a file has no recipe name.
    """
    if values.workdir:
        return values.workdir
    if values.dry_run and not request.extend:
        return _NO_FOLDER
    if values.config is not None:
        raise UserError("--workdir is missing. With --config it has no default: name a directory.")
    data = request.assignments.values.get("data.name", begin.data.name)
    end = "" if data == begin.data.name else f"-{_last_part(data)}"
    return os.path.join("runs", f"{command}-{name or values.experiment}{end}")


def _last_part(data_name):
    """The last part of `data.name`, such as "pets" of "folder:/data/pets/", for a file name."""
    kind, _, path = data_name.partition(":")
    # Of other names, which TFDS knows, the version follows.
    name = path if kind in ("folder", "list", "tfrecord") else kind
    last = os.path.basename(os.path.normpath(name)).removesuffix(".csv").removesuffix(".jsonl")
    return re.sub(r"[^\w.-]", "_", last)
