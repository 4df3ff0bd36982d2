"""Runs `predict`, which gets a signal when it has written some parts of its files.

usage: python -m tests.pipelines.programs.killed_prediction SIGNAL PARTS [argument ...]

Every batch is a part.
"""

import os
import runpy
import signal
import sys

from pipelines.predictions import files


def main(number, parts, *arguments):
    add, added = files._Parts.add, []

    def add_and_signal(self, rows):
        add(self, rows)
        added.append(rows.count)
        if len(added) == int(parts):
            os.kill(os.getpid(), signal.Signals[number])

    files._PART_SECONDS = 0.0
    files._Parts.add = add_and_signal
    sys.argv = ["predict", *arguments]
    runpy.run_module("pipelines.predict", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
