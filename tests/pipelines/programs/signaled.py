"""Runs a command that trains, which gets a signal after some steps.

usage: python -m tests.pipelines.programs.signaled SIGNAL STEPS COMMAND [argument ...]

SIGNAL is a name such as SIGINT; the process sends it to itself after STEPS steps of its own.
"""

import os
import runpy
import signal
import sys

from pipelines.runs import progress


def main(number, steps, command, *arguments):
    timed, taken = progress.Progress.timed, []

    def note(self, more):
        before = sum(taken)
        taken.append(more)
        if before < int(steps) <= sum(taken):
            os.kill(os.getpid(), signal.Signals[number])
        return timed(self, more)

    progress.Progress.timed = note
    sys.argv = [command, *arguments]
    runpy.run_module(f"pipelines.{command}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
