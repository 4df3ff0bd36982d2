"""Runs commands as a user does, in separate processes, or faster in this process."""

import importlib
import os
import signal
import subprocess
import sys
import time

import pytest

from pipelines import cli, shared_flags

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TIMEOUT = 600  # Seconds; generous, because the machine may be busy.


def run_command(module, *arguments, cwd, **variables):
    """Runs `python -m pipelines.<module>` to its end; returns the completed process."""
    return run_module(f"pipelines.{module}", *arguments, cwd=cwd, **variables)


def run_module(module, *arguments, cwd, stdout=subprocess.PIPE, **variables):
    """Runs `python -m <module>` to its end, with these environment variables too."""
    return subprocess.run(
        _command(module, arguments),
        cwd=cwd,
        env=_environment() | variables,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT,
    )


def run_until(module, *arguments, cwd, line, signal_number=signal.SIGTERM):
    """Starts a command, sends a signal when a line of output contains `line`, waits for its end.

    Returns:
        `(exit code, everything printed on stdout)`.
    """
    output, sent, deadline = [], False, time.monotonic() + TIMEOUT
    with subprocess.Popen(
        _command(f"pipelines.{module}", arguments),
        cwd=cwd,
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            for text in process.stdout:
                output.append(text)
                if line in text and not sent:
                    process.send_signal(signal_number)
                    sent = True
                assert time.monotonic() < deadline, "".join(output)
            return process.wait(timeout=TIMEOUT), "".join(output)
        finally:
            process.kill()


def run_here(module, *arguments, monkeypatch, capsys, cwd):
    """Calls the command in this process, where TensorFlow is already loaded, on one device.

    With replicas, a step that fails between their collectives would break all later ones.

    Returns:
        The same as `run_command`.
    """
    command = importlib.import_module(f"pipelines.{module}")
    monkeypatch.chdir(cwd)
    taken = getattr(command, "SHARED_FLAGS", shared_flags.SHARED_FLAGS)
    one_device = ["--strategy=one_device"] if "strategy" in taken else []
    monkeypatch.setattr(sys, "argv", [module, *one_device, *map(str, arguments)])
    capsys.readouterr()
    with pytest.raises(SystemExit) as exit_:
        cli.run(
            command.main,
            command.DESCRIPTION,
            getattr(command, "define", None),
            getattr(command, "POSITIONAL", None),
            getattr(command, "CHECK_OPS", True),
            taken,
            getattr(command, "FIELDS", None),
        )
    printed = capsys.readouterr()
    return subprocess.CompletedProcess(sys.argv, exit_.value.code, printed.out, printed.err)


def assert_user_error(result, *texts):
    """Checks for exit code 2, one line on stderr that contains `texts`, and no traceback."""
    assert result.returncode == 2, result.stdout + result.stderr
    lines = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, result.stderr
    assert "Traceback" not in result.stderr
    for text in texts:
        assert text in lines[0]


def _command(module, arguments):
    return [sys.executable, "-m", module, *map(str, arguments)]


def _environment():
    return os.environ | {"PYTHONPATH": ROOT, "TF_CPP_MIN_LOG_LEVEL": "3"}
