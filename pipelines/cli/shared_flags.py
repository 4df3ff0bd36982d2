"""Flags of results and engines, and what refuses flags that do not fit together."""

import contextlib
import json
import sys

from absl import flags

from pipelines.errors import UserError


def refuse(values, given, names, why):
    """Refuses flags that have no meaning beside a flag that is given.

    Args:
        values: parsed flags.
        given: the flag, or the flag and its value: "paper", "format=onnx".
        names: names of the flags that it does not take.
        why: the reason, for the message.
    """
    for name in names:
        if values[name].present:
            raise UserError(f"--{given} takes no --{name}: {why}. Leave one of them out.")


def require(values, owner, names):
    """Refuses flags that have a meaning only beside another flag, which is missing.

    Args:
        values, names: as for `refuse`.
        owner: the missing flag, or the flag and its value.
    """
    for name in names:
        if values[name].present:
            raise UserError(f"--{name} belongs to --{owner}. Add it, or leave out --{name}.")


def define_json(values, text="Print one JSON object instead of text."):
    """Adds `--json`, for commands that print results."""
    flags.DEFINE_bool("json", False, text, flag_values=values)


def print_result(values, result, text):
    """Prints a result as JSON with `--json`, else the text that the function `text` returns."""
    if values.json:
        print_json(result)
    else:
        print(text(result))


def print_json(value):
    """Prints a value as one line of JSON; text that the terminal cannot show is escaped."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:  # A file name may have bytes that are not text.
        text = json.dumps(value)
    print(text)


def define_output(values, text):
    """Adds `--output`, for commands that write something other than a workdir."""
    flags.DEFINE_string("output", None, text, flag_values=values)


def define_engine(values):
    """Adds the flags of the engine, for commands whose work can be divided among machines."""
    flags.DEFINE_enum(
        "engine",
        "local",
        ["local", "ray"],
        "Where to compute: in this process, or in processes of a Ray cluster.",
        flag_values=values,
    )
    flags.DEFINE_string(
        "ray_address",
        None,
        "With --engine=ray, HOST:PORT of the head of a cluster to join, on one of its machines; by "
        "default one is started on this machine, and ended.",
        flag_values=values,
    )
    flags.DEFINE_integer(
        "ray_cores",
        1,
        "With --engine=ray, cores of each process; there are as many processes as fit.",
        lower_bound=1,
        flag_values=values,
    )


def engine(values):
    """The engine of `--engine`: a context manager of a `RayEngine`, or of None for "local".

    Raises:
        UserError: if Ray is not installed, or flags belong to another engine; in the context, if
            there is no cluster at `--ray_address`.
    """
    if values.engine == "local":
        require(values, "engine=ray", ("ray_address", "ray_cores"))
        return contextlib.nullcontext()
    from pipelines.distribution.engine.ray_engine import RayEngine

    return RayEngine(values.ray_address, values.ray_cores)
