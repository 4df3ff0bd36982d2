"""Runs a command without compiling its steps.

usage: python -m tests.pipelines.programs.uncompiled COMMAND [argument ...]
"""

import runpy
import sys

from tests.pipelines.training_runs import without_compiling

if __name__ == "__main__":
    command = sys.argv.pop(1)
    with without_compiling():
        runpy.run_module(f"pipelines.{command}", run_name="__main__", alter_sys=True)
