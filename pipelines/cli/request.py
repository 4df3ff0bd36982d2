"""The request of a command line: the experiment that its flags describe, and where it runs."""

import logging
import os

from pipelines.config.experiment import Experiment, Request, config_paths, override
from pipelines.config.names import PRECISIONS
from pipelines.config.recipes import get_recipe, summary
from pipelines.errors import UserError
from vit_tf.files import storage

_log = logging.getLogger(__name__)


def experiment(values, run=None):
    """The experiment that the shared flags describe.

    Args:
        values: parsed flags.
        run: as for `start`.

    Raises:
        UserError: if an assignment is wrong, or --experiment is given together with a run.
    """
    return override(start(values, run), values.set, _log.info)


def pretraining(values, grid=()):
    """The experiment of a run from random weights, and the `Request` for it.

    Args:
        values: parsed flags.
        grid: further `path=value` settings that follow, as of `--grid`.

    Raises:
        UserError: as `experiment`, and for photos at the image size of a recipe for built-in data.
    """
    begin = start(values)
    described = override(begin, values.set, _log.info)
    # Imported last: it loads TensorFlow, and wrong flags are answered before.
    from pipelines.training.fine_tuning import check_photo_size

    check_photo_size(begin, described, [*values.set, *grid])
    return described, _request(values, origin(values))


def _request(values, origin):
    extend = "extend" in values and values.extend
    return Request(origin=origin, assigned=tuple(_assigned(values)), extend=extend)


def _assigned(values):
    """The config paths that `--set` assigns."""
    return [text.partition("=")[0] for text in values.set]


def fine_tuning(values, begin, workdir, replicas):
    """The experiment of a run from existing weights: `--init_from`, `--weights` and `--set`.

    Args:
        values: parsed flags.
        begin: the result of `start`.
        workdir: directory of the run.
        replicas: number of devices that share a batch.

    Returns:
        The experiment and the `Request` for it. The origin is what was chosen for photos, if
        anything was.

    Raises:
        UserError: as `fine_tuning.choose`.
    """
    from pipelines.training.fine_tuning import choose

    assignments = list(values.set)
    for name, value in (("init_from", values.init_from), ("init_weights", values.weights)):
        if value is not None:
            assignments.append(f"{name}={value}")
    # A file holds every setting of a run, so nothing is left to choose.
    is_complete = values.config is not None
    experiment, chosen = choose(begin, assignments, workdir, _log.info, is_complete, replicas)
    return experiment, _request(values, chosen or origin(values))


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


def origin(values):
    """Where an experiment starts from: its recipe or its file, for the first line of a run."""
    if values.config is not None:
        return f"configuration {values.config}"
    return f"recipe {values.experiment}: {summary(values.experiment)}"


def check_settings(values, effective, reason):
    """Refuses `--set` for fields of an experiment that the command does not use.

    Args:
        values: parsed flags.
        effective: dotted paths of the fields that the command uses.
        reason: why other fields have no effect, for the message.

    Raises:
        UserError: if `--set` names other fields. `experiment` refuses unknown paths.
    """
    paths, known = _assigned(values), config_paths()
    idle = [path for path in paths if path in known or path.startswith("model.")]
    if idle := [path for path in idle if path not in effective]:
        raise UserError(
            f"--set {', '.join(idle)} has no effect: {reason}. Fields with an effect: "
            f"{', '.join(effective)}."
        )


def strategy(values):
    """The distribution strategy that the shared flags describe."""
    from pipelines.runs.strategies import make_strategy

    return make_strategy(
        values.strategy, values.logical_cpus, values.tpu, values.zone, values.project
    )


def model_path_and_weights(values):
    """`(path, weights)` for `model_source.find`: of `--model`, `--workdir` or the shipped model."""
    from pipelines.stored_models import model_source

    for name in ("model", "workdir"):
        if getattr(values, name) == "":
            raise UserError(f"--{name} is empty. Name a model, or leave the flag out.")
    return values.model or values.workdir or model_source.SHIPPED, values.weights


def opening(values):
    """How `--fused` and `--precision` open a model: a `stored_model.Opening`.

    Raises:
        UserError: if there is only --precision.
    """
    from pipelines.stored_models.stored_model import Opening

    if values.precision and not values.fused:
        raise UserError(f"--precision={values.precision} needs --fused. Add it, or leave both out.")
    return Opening(PRECISIONS.get(values.precision), packed=values.fused)


def workdir(values, command):
    """`--workdir`, by default `runs/<command>-<experiment>`.

    Raises:
        UserError: if it is missing and --config is given, since a file has no recipe name.
    """
    if values.config is not None and not values.workdir:
        raise UserError("--workdir is missing. With --config it has no default: name a directory.")
    return values.workdir or os.path.join("runs", f"{command}-{values.experiment}")
