"""Runs small programs in processes of their own."""

import os
import subprocess
import sys

from tests.checkout import ROOT


def run_python(program, *arguments, folder=ROOT, cwd=None, **environment):
    """Runs a program that must succeed without warnings.

    Args:
        program: text of the program.
        arguments: its command line.
        folder: where it imports `custom_ops` from.
        cwd: its working directory; None is `folder`.
        environment: variables that are set for it.

    Returns:
        What it printed to stdout.
    """
    variables = {"PYTHONPATH": str(folder), "TF_CPP_MIN_LOG_LEVEL": "3"} | environment
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", program, *map(str, arguments)],
        cwd=cwd or folder,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=600,  # Generous: it ends a process that hangs.
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for warning in ("Warning", "AutoGraph"):
        assert warning not in done.stdout + done.stderr, done.stderr
    return done.stdout
