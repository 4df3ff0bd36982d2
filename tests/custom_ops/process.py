"""Runs small programs in processes of their own."""

import os
import pathlib
import subprocess
import sys

from tests import fork_server
from tests.checkout import ROOT

PROGRAMS = pathlib.Path(__file__).parent / "programs"


def run_python(program, *arguments, folder=ROOT, cwd=None, cold=False, **environment):
    """Runs a program that must succeed without warnings.

    Args:
        program: name of a file of the folder `programs`, or another path.
        arguments: its command line.
        folder: where it imports `custom_ops` from.
        cwd: its working directory; None is `folder`.
        cold: whether a new interpreter starts it, instead of one that has TensorFlow.
        environment: variables that are set for it.

    Returns:
        Its output on stdout.
    """
    # `-c` for `-W error::RuntimeWarning`, which a forked interpreter cannot read.
    start = "import runpy, sys, warnings; warnings.simplefilter('error', RuntimeWarning); "
    start += "sys.argv.pop(0); runpy.run_path(sys.argv[0], run_name='__main__')"
    command = ["-c", start, str(PROGRAMS / program), *map(str, arguments)]
    variables = os.environ | {"PYTHONPATH": str(folder), "TF_CPP_MIN_LOG_LEVEL": "3"} | environment
    options = {"cwd": cwd or folder, "env": variables, "timeout": 600}  # A hanging program ends.
    if cold:
        command.insert(0, sys.executable)
        done = subprocess.run(command, capture_output=True, text=True, **options)
    else:
        done = fork_server.run("tensorflow", command, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    for warning in ("Warning", "AutoGraph"):
        assert warning not in done.stdout + done.stderr, done.stderr
    return done.stdout
