"""Parses the flags of a command, runs it, and ends with an exit code.

0: done; 2: the user's input is wrong; 1: any other failure; 75: interrupted after saving, 130:
before saving. A failure prints one sentence to stderr; only defects of this project print a
traceback.
"""

import os
import sys

from absl import flags

from custom_ops import dispatch
from pipelines.config.experiment import Experiment, config_paths, override
from pipelines.config.help_text import help_text, recipe_list
from pipelines.config.near_paths import flag_hint
from pipelines.config.recipes import get_recipe, summary
from pipelines.errors import Interrupted, RunError, UserError, first_line
from pipelines.shared_flags import SHARED_FLAGS, WHY_NOT_TAKEN, define_config, define_shared
from vit_tf import storage

EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED, EXIT_SIGINT = 1, 2, 75, 130
_OUR_PACKAGES = ("custom_ops", "vit_tf", "pipelines")


def run(
    main,
    description,
    define=None,
    positional=None,
    check_ops=True,
    shared_flags=SHARED_FLAGS,
    fields=None,
):
    """Parses the command line and calls `main(values, arguments)`; never returns.

    Args:
        main: gets the parsed flags as attributes and the list of positional arguments.
        description: first lines of `--help`.
        define: optional function that adds the command's own flags to an `absl.flags.FlagValues`.
        positional: names of the positional arguments, for `--help`; None refuses them.
        check_ops: whether a wrong VIT_OPS or VIT_ISA ends the command before `main`.
        shared_flags: the members of `SHARED_FLAGS` that the command takes; it refuses the others.
        fields: config paths that hints about unknown flags may suggest for `--set`; None means all.
    """
    values = define_shared(shared_flags)
    if "experiment" in values:
        define_config(values)
    shared = set(values)
    if define is not None:
        define(values)
    if {"--help", "-help", "-h", "--helpshort", "--helpfull"} & set(sys.argv[1:]):
        _print_and_exit(_help(values, shared, description, positional))
    try:
        arguments = values(sys.argv)[1:]
    except flags.UnrecognizedFlagError as error:
        _fail(EXIT_USAGE, _unknown_flag(error, values, fields))
    except flags.Error as error:
        _fail(EXIT_USAGE, error)
    if "list" in values and values.list:
        _print_and_exit(recipe_list())
    if arguments and positional is None:
        _fail(
            EXIT_USAGE,
            f"Unexpected argument {arguments[0]!r}: this command takes flags only, and --set is "
            "repeated for each assignment. See --help.",
        )
    _quiet_tensorflow()
    _run(main, values, arguments, check_ops)


def _run(main, values, arguments, check_ops):
    # Only code that needs TensorFlow imports it, so that `doctor` can report a failed import.
    try:
        _check_urls(values, arguments)
        if check_ops:
            check_implementation()
        main(values, arguments)
    except UserError as error:
        _fail(EXIT_USAGE, error)
    except RunError as error:
        _fail(EXIT_FAILED, error)
    except OSError as error:
        place = f" ({error.filename})" if error.filename else ""
        _fail(EXIT_FAILED, f"{error.strerror or error}{place}.")
    except Interrupted as error:
        _fail(EXIT_INTERRUPTED, error)
    except KeyboardInterrupt:
        _fail(EXIT_SIGINT, "Interrupted before there was anything new to save.")
    except ImportError as error:
        if (error.name or "").partition(".")[0] in _OUR_PACKAGES:
            raise
        _fail(EXIT_FAILED, f"{error}. Run `python -m pipelines.doctor` to see what to install.")
    except Exception as error:
        if not _is_op_error(error):
            raise
        _fail(EXIT_FAILED, (first_line(error) or "TensorFlow failed") + ".")
    sys.exit(0)


def check_implementation():
    """Refuses a wrong VIT_OPS or VIT_ISA. If neither is set, it loads nothing.

    Raises:
        UserError: if the implementation or instruction set that they name cannot run here.
    """
    if os.environ.get(dispatch.ENVIRONMENT_VARIABLE) or os.environ.get(dispatch.ISA_VARIABLE):
        try:
            dispatch.resolve()
        except ValueError as error:
            raise UserError(str(error)) from None


def _check_urls(values, arguments):
    """Refuses URLs that cannot be read, before anything else is done."""
    named = {f"--{name}": value for name, value in values.flag_values_dict().items()}
    named.pop("--tpu", None)
    for name, value in [*named.items(), *(("", argument) for argument in arguments)]:
        if isinstance(value, str) and storage.is_url(value):
            try:
                storage.exists(value)
            except OSError as error:
                raise UserError(f"Cannot read {name} {value}: {error.strerror}.") from None


def _is_op_error(error):
    tf = sys.modules.get("tensorflow")
    return tf is not None and isinstance(error, tf.errors.OpError)


def experiment(values, run=None):
    """The experiment that the shared flags describe.

    Args:
        values: parsed flags.
        run: as for `start`.

    Raises:
        UserError: if an assignment is wrong, or --experiment is given together with a run.
    """
    return override(start(values, run), values.set, print_note)


def pretraining(values, grid=()):
    """The experiment of a run from random weights.

    Args:
        values: parsed flags.
        grid: further `path=value` settings that follow, as of `--grid`.

    Raises:
        UserError: as `experiment`, and for photos at the image size of a recipe for built-in data.
    """
    begin = start(values)
    described = override(begin, values.set, print_note)
    # Imported last: it loads TensorFlow, and wrong flags are answered before.
    from pipelines.training.fine_tuning import check_photo_size

    check_photo_size(begin, described, [*values.set, *grid])
    return described


def assigned(values):
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
        The experiment, and where its settings come from, for the first line of the run: as
        `origin`, or what was chosen for photos.

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
    experiment, chosen = choose(begin, assignments, workdir, print_note, is_complete, replicas)
    return experiment, chosen or origin(values)


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

    return Experiment.from_dict(read_json(values.config), source=values.config)


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
    paths, known = assigned(values), config_paths()
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


def print_note(message):
    """Prints to stderr, since stdout holds only the results of a command."""
    print(message, file=sys.stderr, flush=True)


def model_path_and_weights(values):
    """`(path, weights)` for `model_source.find`: of `--model`, `--workdir` or the shipped model."""
    from pipelines.runs import model_source

    for name in ("model", "workdir"):
        if getattr(values, name) == "":
            raise UserError(f"--{name} is empty. Name a model, or leave the flag out.")
    return values.model or values.workdir or model_source.SHIPPED, values.weights


def workdir(values, command):
    """`--workdir`, by default `runs/<command>-<experiment>`.

    Raises:
        UserError: if it is missing and --config is given, since a file has no recipe name.
    """
    if values.config is not None and not values.workdir:
        raise UserError("--workdir is missing. With --config it has no default: name a directory.")
    return values.workdir or os.path.join("runs", f"{command}-{values.experiment}")


def _unknown_flag(error, values, fields):
    """The message about a flag that the command does not have."""
    if error.flagname in SHARED_FLAGS:
        return (
            f"This command does not take --{error.flagname}: {WHY_NOT_TAKEN[error.flagname]}. "
            "Leave it out; --help lists the flags."
        )
    value = str(error.flagvalue or "").partition("=")[2]
    paths = (config_paths() if fields is None else fields) if "set" in values else ()
    hint = flag_hint(error.flagname, value, list(values), paths)
    return f"Unknown flag --{error.flagname}.{hint}"


def _help(values, shared, description, positional):
    usage = f"python -m {_module()} [flags]" + (f" [{positional}]" if positional else "")
    own = [values[name] for name in values if name not in shared]
    return help_text(description, usage, own, [values[name] for name in shared])


def _print_and_exit(text):
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # The reader has ended, as in `--help | head`. The flush at exit must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(0)


def _module():
    spec = sys.modules["__main__"].__spec__
    return spec.name if spec else os.path.basename(sys.argv[0])


def _fail(code, message):
    print(f"error: {' '.join(str(message).split())}", file=sys.stderr, flush=True)
    sys.exit(code)


def _quiet_tensorflow():
    """Hides TensorFlow's start-up messages.

    Without an NVIDIA driver, TensorFlow logs an error about that. Errors that matter are raised.
    """
    level = "2" if os.path.exists("/proc/driver/nvidia") else "3"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", level)
