"""Runs commands as a user does, in processes of a fork server, or faster in this process."""

import importlib
import json
import os
import subprocess
import sys

import pytest

from pipelines.cli import command as frame
from pipelines.cli import request
from tests import fork_server

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TIMEOUT = 600  # Seconds; generous, because the machine may be busy.


def run_command(module, *arguments, cwd, cold=False, **variables):
    """Runs `python -m pipelines.<module>` to its end; returns the completed process."""
    return run_module(f"pipelines.{module}", *arguments, cwd=cwd, cold=cold, **variables)


def run_module(module, *arguments, cwd, cold=False, stdout=None, **variables):
    """Runs `python -m <module>` to its end.

    Args:
        module: its dotted name.
        arguments: its command line.
        cwd: its working directory.
        cold: whether a new interpreter starts it, instead of a fork server.
        stdout: a file descriptor; None captures the output.
        variables: environment variables.

    Returns:
        A `subprocess.CompletedProcess` with text.
    """
    command = ["-m", module, *map(str, arguments)]
    environment = _environment() | variables
    if not cold:
        return fork_server.run(
            "pipelines", command, cwd=cwd, env=environment, timeout=TIMEOUT, stdout=stdout
        )
    return subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE if stdout is None else stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT,
    )


def run_here(module, *arguments, monkeypatch, capsys, cwd):
    """Calls the command in this process, where TensorFlow is already loaded, on one device.

    With replicas, a step that fails between their collectives would break all later ones.

    Returns:
        The same as `run_command`.
    """
    command = importlib.import_module(f"pipelines.{module}")
    monkeypatch.chdir(cwd)
    taken = getattr(command, "SHARED_FLAGS", request.SHARED_FLAGS)
    one_device = ["--strategy=one_device"] if "strategy" in taken else []
    monkeypatch.setattr(sys, "argv", [module, *one_device, *map(str, arguments)])
    monkeypatch.setattr(frame, "_end", lambda code, reason="": sys.exit(code))
    capsys.readouterr()
    with pytest.raises(SystemExit) as exit_:
        frame.run(
            command.main,
            command.DESCRIPTION,
            getattr(command, "define", None),
            getattr(command, "POSITIONAL", None),
            getattr(command, "CHECK_OPS", True),
            taken,
            getattr(command, "FIELDS", None),
            getattr(command, "LOGS_TO", "stderr"),
        )
    printed = capsys.readouterr()
    return subprocess.CompletedProcess(sys.argv, exit_.value.code, printed.out, printed.err)


def described(stdout):
    """The lines of a dry run, and the configuration that follows them."""
    lines, brace, rest = stdout.partition("\n{\n")
    return lines.splitlines(), json.loads(brace + rest)


def assert_user_error(result, *texts):
    """Checks for exit code 2, one line on stderr that contains `texts`, and no traceback."""
    assert result.returncode == 2, result.stdout + result.stderr
    lines = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, result.stderr
    assert "Traceback" not in result.stderr
    for text in texts:
        assert text in lines[0]


def _environment():
    return os.environ | {"PYTHONPATH": ROOT, "TF_CPP_MIN_LOG_LEVEL": "3"}
