"""Runs a command of the pipelines inside the test process; a new one takes seconds to start."""

import runpy
import sys

import pytest


def run_here(monkeypatch, capsys, name, *arguments):
    """Runs `python -m pipelines.<name>` with arguments.

    Returns:
        Its exit code, and what it wrote to stdout and to stderr.
    """
    module = f"pipelines.{name}"
    monkeypatch.setattr(sys, "argv", [module, *map(str, arguments)])
    monkeypatch.delitem(sys.modules, module, raising=False)  # runpy warns of a second copy
    capsys.readouterr()
    with pytest.raises(SystemExit) as exit_info:
        runpy.run_module(module, run_name="__main__")
    out, err = capsys.readouterr()
    return exit_info.value.code, out, err
