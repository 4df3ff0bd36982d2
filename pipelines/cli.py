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
from pipelines.config.fields import check_local
from pipelines.config.help_text import help_text, recipe_list
from pipelines.config.names import STRATEGIES, WEIGHTS
from pipelines.config.near_paths import flag_hint
from pipelines.config.recipes import get_recipe
from pipelines.config.renamed import RENAMED_WEIGHTS
from pipelines.errors import Interrupted, RunError, UserError, first_line

EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED, EXIT_SIGINT = 1, 2, 75, 130
_OUR_PACKAGES = ("custom_ops", "vit_tf", "pipelines")

# Flags that commands share. Each command lists the ones that it takes.
DEVICE_FLAGS = ("strategy", "logical_cpus", "tpu", "zone", "project")
SHARED_FLAGS = ("experiment", "workdir", "set", *DEVICE_FLAGS)
# The reason why a command does not take a flag.
_WHY_NOT_TAKEN = {
    "experiment": "it has no recipe to choose",
    "workdir": "it has no run of its own",
    "set": "it has no recipe to change, and a model keeps its training settings",
    **dict.fromkeys(DEVICE_FLAGS, "it computes on one device"),
}


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
    values = _shared_flags(shared_flags)
    if "experiment" in values:
        _define_config(values)
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
        _check_paths(values, arguments)
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


def _check_paths(values, arguments):
    """Refuses URLs, which the file functions of Python would treat as local paths."""
    for name, value in values.flag_values_dict().items():
        if isinstance(value, str) and name != "tpu":
            check_local(f"--{name}", value)
    for argument in arguments:
        check_local("A path", argument)


def _is_op_error(error):
    tf = sys.modules.get("tensorflow")
    return tf is not None and isinstance(error, tf.errors.OpError)


def experiment(values, init_from=None, init_weights=None, run=None):
    """The experiment that the shared flags describe.

    Args:
        values: parsed flags.
        init_from, init_weights: the initial weights, for commands that have flags for them; None
            keeps the values of the recipe or `--set`.
        run: a `Workdir` whose experiment replaces the recipe; None uses --config or
            --experiment.

    Raises:
        UserError: if an assignment is wrong, or --experiment is given together with a run.
    """
    assignments = list(values.set)
    if init_from is not None:
        assignments.append(f"init_from={init_from}")
    if init_weights is not None:
        assignments.append(f"init_weights={init_weights}")
    return override(_start(values, run), assignments)


def _start(values, run):
    """The experiment of `run`, or the one that --config or --experiment names."""
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
    if os.path.isdir(values.config):
        raise UserError(
            f"--config {values.config} is a directory. Name a file, such as the config.json of a "
            "run."
        )
    from pipelines.runs.json_file import read_json

    return Experiment.from_dict(read_json(values.config), source=values.config)


def check_settings(values, effective, reason):
    """Refuses `--set` for fields of an experiment that the command does not use.

    Args:
        values: parsed flags.
        effective: dotted paths of the fields that the command uses.
        reason: why other fields have no effect, for the message.

    Raises:
        UserError: if `--set` names other fields. `experiment` refuses unknown paths.
    """
    paths, known = [text.partition("=")[0] for text in values.set], config_paths()
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


def define_model(values, kinds="Workdir, .npz or .keras file, name of published weights"):
    """Adds flags for commands that read a model; `kinds` names what `--model` can be."""
    flags.DEFINE_string(
        "model",
        None,
        f"{kinds}; by default --workdir, else the model shipped with the package.",
        flag_values=values,
    )
    define_weights(values)
    flags.DEFINE_string(
        "labels",
        None,
        "File with other class names in the order of the outputs: one per line, or a JSON list.",
        flag_values=values,
    )


def define_weights(values, default="final"):
    """Adds `--weights`: the choice of weights in a workdir."""
    flags.DEFINE(
        _WeightsParser(WEIGHTS),
        "weights",
        default,
        f"<{'|'.join(WEIGHTS)}>: For a workdir: its newest weights, their Polyak average "
        "(train.ema_decay), or the weights of the checkpoint with the best evaluation "
        "(train.keep_best).",
        flag_values=values,
    )


class _WeightsParser(flags.EnumParser):
    def parse(self, argument):
        if argument in RENAMED_WEIGHTS:
            raise ValueError(f"it is called {RENAMED_WEIGHTS[argument]} now")
        return super().parse(argument)


def define_json(values, text="Print one JSON object instead of text."):
    """Adds `--json`, for commands that print results."""
    flags.DEFINE_bool("json", False, text, flag_values=values)


def define_extend(values):
    """Adds `--extend`, for commands that train."""
    flags.DEFINE_bool(
        "extend",
        False,
        "Go on with the run in --workdir up to another train.steps, with the schedule for that "
        "number of steps.",
        flag_values=values,
    )


def print_note(message):
    """Prints to stderr, since stdout holds only the results of a command."""
    print(message, file=sys.stderr, flush=True)


def define_output(values, text):
    """Adds `--output`, for commands that write something other than a workdir."""
    flags.DEFINE_string("output", None, text, flag_values=values)


def model_path_and_weights(values):
    """`(path, weights)` for `model_source.find`: of `--model`, `--workdir` or the shipped model."""
    from pipelines.runs import model_source

    for name in ("model", "workdir"):
        if getattr(values, name) == "":
            raise UserError(f"--{name} is empty. Name a model, or leave the flag out.")
    return values.model or values.workdir or model_source.SHIPPED, values.weights


def define_dry_run(values):
    """Adds `--dry_run`, for commands that train."""
    flags.DEFINE_bool(
        "dry_run",
        False,
        "Print the configuration, the size and cost of the model and the shapes of the first "
        "batch, and end.",
        flag_values=values,
    )


def workdir(values, command):
    """`--workdir`, by default `runs/<command>-<experiment>`.

    Raises:
        UserError: if it is missing and --config is given, since a file has no recipe name.
    """
    if values.config is not None and not values.workdir:
        raise UserError("--workdir is missing. With --config it has no default: name a directory.")
    return values.workdir or os.path.join("runs", f"{command}-{values.experiment}")


def _shared_flags(names):
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
    flags.DEFINE_enum("strategy", "auto", STRATEGIES, "The devices to run on.", **shared)
    flags.DEFINE_integer(
        "logical_cpus", 1, "Split the CPU into this many devices.", lower_bound=1, **shared
    )
    flags.DEFINE_string("tpu", "", "Name or address of the TPU; local on a TPU VM.", **shared)
    flags.DEFINE_string("zone", None, "Cloud zone of the TPU.", **shared)
    flags.DEFINE_string("project", None, "Cloud project of the TPU.", **shared)
    for name in set(SHARED_FLAGS).difference(names):
        delattr(values, name)
    return values


def _define_config(values):
    """Adds the flags that belong to `--experiment`."""
    flags.DEFINE_string(
        "config",
        None,
        "A config.json to start from instead of a recipe, for example from a workdir.",
        flag_values=values,
    )
    flags.DEFINE_bool("list", False, "Print the recipes and end.", flag_values=values)


def _unknown_flag(error, values, fields):
    """The message about a flag that the command does not have."""
    if error.flagname in SHARED_FLAGS:
        return (
            f"This command does not take --{error.flagname}: {_WHY_NOT_TAKEN[error.flagname]}. "
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
