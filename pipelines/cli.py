"""The frame of every command: flags in, one exit code out.

0 done; 2 the user's input is wrong; 1 any other failure; 75 interrupted after saving, 130 before. A
failure is one sentence on stderr without a traceback, unless it is a defect of ours.
"""

import os
import sys

from absl import flags

from custom_ops import dispatch
from pipelines.config.names import STRATEGIES, WEIGHTS
from pipelines.config.renamed import RENAMED_WEIGHTS
from pipelines.errors import Interrupted, RunError, UserError, first_line

EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED, EXIT_SIGINT = 1, 2, 75, 130
_OUR_PACKAGES = ("custom_ops", "vit_tf", "pipelines")


def run(main, description, define=None, positional=None, check_ops=True):
    """Parses the command line and calls `main(values, arguments)`; never returns.

    Args:
        main: gets the parsed flags as attributes and the list of positional arguments.
        description: first lines of `--help`.
        define: optional function that adds the command's own flags to an `absl.flags.FlagValues`.
        positional: what positional arguments mean, for `--help`; None refuses them.
        check_ops: whether a wrong VIT_OPS or VIT_ISA ends the command before `main`.
    """
    values = _shared_flags()
    if define is not None:
        define(values)
    if {"--help", "-help", "-h", "--helpshort", "--helpfull"} & set(sys.argv[1:]):
        _print_help(values, description, positional)
        sys.exit(0)
    try:
        arguments = values(sys.argv)[1:]
    except flags.Error as error:
        _fail(EXIT_USAGE, error)
    if arguments and positional is None:
        _fail(
            EXIT_USAGE,
            f"Unexpected argument {arguments[0]!r}: this command takes flags only, and --set is "
            "repeated for each assignment. See --help.",
        )
    _quiet_tensorflow()
    _run(main, values, arguments, check_ops)


def _run(main, values, arguments, check_ops):
    # TensorFlow is imported by what needs it, so that `doctor` can say why it cannot be.
    try:
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
        _fail(EXIT_FAILED, f"{error}. `python -m pipelines.doctor` says what to install.")
    except Exception as error:
        if not _is_op_error(error):
            raise
        _fail(EXIT_FAILED, (first_line(error) or "TensorFlow failed") + ".")
    sys.exit(0)


def check_implementation():
    """Refuses a wrong VIT_OPS or VIT_ISA; where neither is set there is nothing to load yet.

    Raises:
        UserError: if what they ask for cannot run here.
    """
    if os.environ.get(dispatch.ENVIRONMENT_VARIABLE) or os.environ.get(dispatch.ISA_VARIABLE):
        try:
            dispatch.resolve()
        except ValueError as error:
            raise UserError(str(error)) from None


def _is_op_error(error):
    tf = sys.modules.get("tensorflow")
    return tf is not None and isinstance(error, tf.errors.OpError)


def experiment(values, init_from=None, init_weights=None):
    """The experiment that the shared flags describe.

    Args:
        values: parsed flags.
        init_from, init_weights: the first weights, for commands that have flags for them; None
            leaves what the recipe or `--set` says.
    """
    from pipelines.config.experiment import override
    from pipelines.config.recipes import get_recipe

    assignments = list(values.set)
    if init_from is not None:
        assignments.append(f"init_from={init_from}")
    if init_weights is not None:
        assignments.append(f"init_weights={init_weights}")
    return override(get_recipe(values.experiment), assignments)


def strategy(values):
    """The distribution strategy that the shared flags describe."""
    from pipelines.runs.strategies import make_strategy

    return make_strategy(
        values.strategy, values.logical_cpus, values.tpu, values.zone, values.project
    )


def define_model(values, kinds="Workdir, .npz or .keras file"):
    """Adds `--model` and `--weights`, for commands that read a model; `kinds` is what it may be."""
    flags.DEFINE_string(
        "model",
        None,
        f"{kinds}; by default --workdir, else the model shipped with the package.",
        flag_values=values,
    )
    define_weights(values)


def define_weights(values, default="final"):
    """Adds `--weights`: which weights of a workdir."""
    flags.DEFINE(
        _WeightsParser(WEIGHTS),
        "weights",
        default,
        f"<{'|'.join(WEIGHTS)}>: Of a workdir: its newest weights, their Polyak average "
        "(train.ema_decay), or those of the checkpoint with the best evaluation "
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


def print_note(message):
    """Prints to stderr: of a command that prints results, they alone go to stdout."""
    print(message, file=sys.stderr, flush=True)


def define_output(values, text):
    """Adds `--output`, for commands that write something else than a workdir."""
    flags.DEFINE_string("output", None, text, flag_values=values)


def model_path_and_weights(values):
    """`(path, weights)` for `model_source.find`: of `--model`, `--workdir` or the shipped model."""
    from pipelines.runs import model_source

    for name in ("model", "workdir"):
        if getattr(values, name) == "":
            raise UserError(f"--{name} is empty. Name a model, or leave the flag out.")
    return values.model or values.workdir or model_source.SHIPPED, values.weights


def workdir(values, command):
    """`--workdir`, by default `runs/<command>-<experiment>`."""
    return values.workdir or os.path.join("runs", f"{command}-{values.experiment}")


def _shared_flags():
    values = flags.FlagValues()
    shared = {"flag_values": values}
    flags.DEFINE_string("experiment", "digits", "Recipe from pipelines/config/recipes.", **shared)
    flags.DEFINE_string("workdir", None, "Directory of the run.", **shared)
    flags.DEFINE_multi_string(
        "set", [], "path.to.field=value; changes one field of the experiment. Repeat it.", **shared
    )
    flags.DEFINE_enum("strategy", "auto", STRATEGIES, "Where to run.", **shared)
    flags.DEFINE_integer(
        "logical_cpus", 1, "Split the CPU into this many devices.", lower_bound=1, **shared
    )
    flags.DEFINE_string("tpu", "", "Name or address of the TPU; local on a TPU VM.", **shared)
    flags.DEFINE_string("zone", None, "Cloud zone of the TPU.", **shared)
    flags.DEFINE_string("project", None, "Cloud project of the TPU.", **shared)
    return values


def _print_help(values, description, positional):
    print(description.strip())
    print(f"\nusage: python -m {_module()} [flags]" + (f" [{positional}]" if positional else ""))
    for flag in sorted(values.get_flags_for_module(__name__), key=lambda flag: flag.name):
        _print_flag(flag)
    for module, own in sorted(values.flags_by_module_dict().items()):
        if module != __name__:
            for flag in sorted(own, key=lambda flag: flag.name):
                _print_flag(flag)


def _print_flag(flag):
    default = "" if flag.default in (None, "", []) else f" (default: {flag.default})"
    print(f"  --{flag.name}: {flag.help}{default}")


def _module():
    spec = sys.modules["__main__"].__spec__
    return spec.name if spec else os.path.basename(sys.argv[0])


def _fail(code, message):
    print(f"error: {' '.join(str(message).split())}", file=sys.stderr, flush=True)
    sys.exit(code)


def _quiet_tensorflow():
    """Keeps TensorFlow's start-up notes off the terminal.

    Without an NVIDIA driver it logs an error about that; what matters is raised anyway.
    """
    level = "2" if os.path.exists("/proc/driver/nvidia") else "3"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", level)
