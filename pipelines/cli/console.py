"""The program `vit-tf`: `vit-tf predict ...` is `python -m pipelines.predict ...`."""

import importlib.metadata
import runpy
import sys

from pipelines.cli.command_names import commands, wrong_command
from pipelines.errors import EXIT_USAGE

_HELP = """usage: vit-tf COMMAND [flags]

Vision Transformers for TensorFlow and Keras. `vit-tf COMMAND --help` describes a command, and
`vit-tf --version` prints the version. The commands are {}.
"""


def main():
    """Runs the command that the first argument names, in this process."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name in ("--help", "-h"):
        print(_HELP.format(", ".join(commands())), end="")
    elif name == "--version":
        print(importlib.metadata.version("vit-tf"))
    elif name in commands():
        del sys.argv[1]
        runpy.run_module(f"pipelines.{name}", run_name="__main__", alter_sys=True)
    else:
        message = wrong_command(f"pipelines.{name.replace('.', '_')}" if name else "pipelines")
        print(f"error: {message}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
