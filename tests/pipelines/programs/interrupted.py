"""Runs a command that gets a signal when it calls a function.

usage: python -m tests.pipelines.programs.interrupted SIGNAL FUNCTION COMMAND [argument ...]

SIGNAL is a name such as SIGINT, FUNCTION one such as
`pipelines.stored_models.stored_model.StoredModel.open_model`. The command does not call the
function: it gets the signal instead.
"""

import os
import pkgutil
import runpy
import signal
import sys


def main(number, function, command, *arguments):
    module, _, name = function.rpartition(".")

    def interrupt(*arguments, **keywords):
        os.kill(os.getpid(), signal.Signals[number])

    setattr(pkgutil.resolve_name(module), name, interrupt)
    sys.argv = [command, *arguments]
    runpy.run_module(f"pipelines.{command}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
