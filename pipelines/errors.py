"""Exceptions that end a command with a short message and a documented exit code; their wording."""

import re

# The exit codes of commands beside 0, and 130 of Ctrl-C before there is anything to save.
EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED, EXIT_WORKER_LOST = 1, 2, 75, 76


class UserError(ValueError):
    """The user's input is wrong: exit code 2."""


class DataError(UserError):
    """The data cannot be used; the message tells the user how to fix it. Exit code 2."""


class MissingDataError(DataError):
    """A data set has a valid name, but its files are not on this machine."""


class MissingLabelError(DataError):
    """Examples of a split have no labels."""


class InUseError(UserError):
    """Another process writes to a workdir."""


class RunError(RuntimeError):
    """The run failed for a reason outside the user's input: exit code 1."""


class NonFiniteError(RunError):
    """A loss, gradient or weight is not finite, and the run does not go on without it."""


class Interrupted(Exception):
    """A signal, or the end of a budget, stopped it; the same command goes on: exit code 75."""


class WorkerError(Exception):
    """Another worker was lost, hangs or has failed, so this one ends too.

    Attributes:
        code: the exit code: 76 (start the job again), or the code of the worker that has failed.
    """

    def __init__(self, message, code=EXIT_WORKER_LOST):
        super().__init__(message)
        self.code = code


def counted(number, noun) -> str:
    """The number and its noun: "1 image", "1,000 images"; a number of epochs may be a float."""
    shown = f"{number:,}" if isinstance(number, int) else f"{number:g}"
    return f"{shown} {noun}{'' if number == 1 else 's'}"


def first_line(error):
    """Returns the first line of a `tf.errors.OpError` message, without details of the graph."""
    message = re.sub(r"\{\{.*?\}\}\s*", "", error.message)
    if uncompiled := re.search(r"No registered '(Vit\w+)' OpKernel for XLA_CPU_JIT", message):
        return _uncompiled(uncompiled[1])
    if asserted := re.search(r"assertion failed: \[(.*?)\]", message):
        return asserted[1]
    # The location of the error, if the message has one, comes before the error itself.
    message = message.removeprefix("Graph execution error:").strip()
    message = re.sub(r"(?s)^Detected at node.*?defined at .*?\n\n(?=\S)", "", message)
    return re.sub(r"\s*\[Op:.*", "", message.strip().partition("\n")[0]).rstrip(".")


def _uncompiled(op):
    from custom_ops import loader  # here, since this module is imported everywhere

    reason = loader.library().xla.reason
    return (
        f"A function that was traced with the compiled op {op} is used under jit_compile=True, "
        "which cannot compile it" + (f": {reason}; or set VIT_OPS=reference" if reason else "")
    )
