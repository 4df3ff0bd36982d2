"""Runs commands as a user does, in processes of their own."""

import os
import signal
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TIMEOUT = 600  # Seconds; generous, because the machine may be busy.


def run_command(module, *arguments, cwd):
    """Runs `python -m pipelines.<module>` to its end; returns the completed process."""
    return subprocess.run(
        _command(module, arguments),
        cwd=cwd,
        env=_environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )


def run_until(module, *arguments, cwd, line, signal_number=signal.SIGTERM):
    """Starts a command, sends a signal when a line of output contains `line`, waits for its end.

    Returns:
        `(exit code, everything printed on stdout)`.
    """
    process = subprocess.Popen(
        _command(module, arguments),
        cwd=cwd,
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    output, sent, deadline = [], False, time.monotonic() + TIMEOUT
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


def assert_user_error(result, *texts):
    """Exit code 2, one line on stderr that says `texts`, no traceback."""
    assert result.returncode == 2, result.stdout + result.stderr
    lines = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, result.stderr
    assert "Traceback" not in result.stderr
    for text in texts:
        assert text in lines[0]


def _command(module, arguments):
    return [sys.executable, "-m", f"pipelines.{module}", *map(str, arguments)]


def _environment():
    return os.environ | {"PYTHONPATH": ROOT, "TF_CPP_MIN_LOG_LEVEL": "3"}
