"""Parses the flags of a command, runs it, and ends with an exit code.

0: done; 2: the user's input is wrong; 1: any other failure; 75: interrupted after saving, 130:
before saving; 76: another worker was lost. A failure prints one sentence to stderr; only defects of
this project print a traceback. A worker that ends tells the others, which end with the same code.
"""

import atexit
import io
import itertools
import os
import signal
import sys
import traceback

from absl import flags

from custom_ops import dispatch
from pipelines.cli.doctor import tensorflow_version
from pipelines.cli.help_text import help_text, recipe_list
from pipelines.cli.request import SHARED_FLAGS, WHY_NOT_TAKEN, define_config, define_shared
from pipelines.config.experiment import config_paths
from pipelines.config.near_paths import flag_hint
from pipelines.distribution import onednn
from pipelines.distribution.group import current_group
from pipelines.distribution.log_lines import LineHandler, attached, process_name
from pipelines.errors import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    EXIT_WORKER_LOST,
    Interrupted,
    RunError,
    UserError,
    WorkerError,
    first_line,
)
from pipelines.runs import manifest
from vit_tf.files import storage

EXIT_SIGINT = 130
_OUR_PACKAGES = ("custom_ops", "vit_tf", "pipelines")


def run(
    main,
    description,
    define=None,
    positional=None,
    check_ops=True,
    shared_flags=SHARED_FLAGS,
    fields=None,
    logs_to="stderr",
):
    """Parses the command line and calls `main(values, arguments)`; never returns.

    Args:
        main: gets the parsed flags as attributes and the list of positional arguments.
        description: first lines of `--help`.
        define: optional function that adds the command's own flags to an `absl.flags.FlagValues`.
        positional: names of the positional arguments, for `--help`; None refuses them.
        check_ops: whether a wrong VIT_OPS, VIT_ISA or TensorFlow is told, and may end the command,
            before `main`, and oneDNN is turned on (`distribution.onednn`).
        shared_flags: the members of `SHARED_FLAGS` that the command takes; it refuses the others.
        fields: config paths that hints about unknown flags may suggest for `--set`; None means all.
        logs_to: "stdout" or "stderr", where log lines go; "stderr" if stdout holds a result.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # As stderr does: a file name may have bytes that are not text.
        sys.stdout.reconfigure(errors="backslashreplace")
    values = define_shared(shared_flags)
    if "experiment" in values:
        define_config(values)
    shared = set(values)
    if define is not None:
        define(values)
    # Behind "--" are flags of another command.
    own = itertools.takewhile(lambda text: text != "--", sys.argv[1:])
    if {"--help", "-help", "-h", "--helpshort", "--helpfull"} & set(own):
        _print_and_exit(_help(values, shared, description, positional))
    try:
        arguments = values(sys.argv)[1:]
    except flags.UnrecognizedFlagError as error:
        _fail(EXIT_USAGE, _unknown_flag(error, values, fields))
    except flags.Error as error:
        _fail(EXIT_USAGE, error)
    if "config" in values and values.list:  # Other commands have a --list of their own.
        _print_and_exit(recipe_list())
    if arguments and positional is None:
        _fail(
            EXIT_USAGE,
            f"Unexpected argument {arguments[0]!r}: this command takes flags only, and --set is "
            "repeated for each assignment. See --help.",
        )
    # Then stdout holds only the result.
    if any(name in values and values[name].value for name in ("json", "dry_run")):
        logs_to = "stderr"
    if check_ops:
        _check_tensorflow()
        # Before the checks that may import TensorFlow. For a default folder, a command chooses.
        workdir = values.workdir if "workdir" in values else None
        onednn.choose(manifest.onednn_of(workdir) if workdir else True)
    with attached(LineHandler(getattr(sys, logs_to)), propagate=False):
        _run(main, values, arguments, check_ops)


def _run(main, values, arguments, check_ops):
    # Only code that needs TensorFlow imports it, so that `doctor` can report a failed import.
    try:
        _check_urls(values, arguments)
        if check_ops:
            check_implementation()
        main(values, arguments)
        current_group().gather(None)  # The last worker may still need the others.
    except WorkerError as error:
        _fail(error.code, error)
    except UserError as error:
        _fail(EXIT_USAGE, error)
    except RunError as error:
        _fail(EXIT_FAILED, error)
    except OSError as error:
        place = f" ({error.filename})" if error.filename else ""
        _fail(EXIT_FAILED, f"{error.strerror or error}{place}.")
    except Interrupted as error:
        _say(error)
        _end(EXIT_INTERRUPTED, error)
    except KeyboardInterrupt:
        _say(interrupted := "Interrupted before there was anything new to save.")
        _end(EXIT_SIGINT, interrupted)
    except ImportError as error:
        if (error.name or "").partition(".")[0] in _OUR_PACKAGES:
            raise
        _fail(EXIT_FAILED, f"{error}. Run `python -m pipelines.doctor` to see what to install.")
    except Exception as error:
        if (cause := current_group().cause(error)) is not error:
            _fail(cause.code, cause)
        if not _is_op_error(error):
            if current_group().count > 1:  # Python's own end would wait for the other workers.
                for line in traceback.format_exc().splitlines():
                    print(process_name() + line, file=sys.stderr)
                _end(EXIT_FAILED, repr(error))
            raise
        _fail(EXIT_FAILED, (first_line(error) or "TensorFlow failed") + ".")
    _end(0)


def _check_tensorflow():
    """Warns of a TensorFlow that commands are not for, or refuses it: see `tensorflow_version`."""
    if complaint := tensorflow_version.complaint():
        name = os.path.basename(sys.argv[0]).removesuffix(".py")
        if name in tensorflow_version.NEED_ORBIT and tensorflow_version.lacks_orbit():
            _fail(EXIT_USAGE, f"{complaint} {name} needs both. {tensorflow_version.fix()}")
        _say(f"warning: {complaint}")


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
    _say(message if code == EXIT_INTERRUPTED else f"error: {message}")
    # Python's own end would wait for the other workers, or for what is left of an engine.
    if current_group().count > 1 or code == EXIT_WORKER_LOST:
        _end(code, message)
    sys.exit(code)


def _say(message):
    print(process_name() + " ".join(str(message).split()), file=sys.stderr, flush=True)


def _end(code, reason=""):
    """Tells the other workers, and ends the process at once: no destructor of TensorFlow runs.

    They take a second. Those of a tf.data pipeline may take half a minute on a busy machine, and a
    scheduler kills a process that does not end soon after SIGTERM. Everything is saved by now.
    """
    current_group().leave(code, str(reason))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # A second one changes nothing any more.
    atexit._run_exitfuncs()  # They delete temporary folders; `os._exit` does not call them.
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # The reader has ended, as in `| head`.
        pass
    except OSError as error:
        _say(f"error: Cannot write to stdout: {error.strerror}.")
        code = code or EXIT_FAILED
    os._exit(code)
