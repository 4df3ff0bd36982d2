"""Runs programs that end with all that they have started."""

import contextlib
import os
import signal
import subprocess
import threading

_lock, _running, _stopping = threading.Lock(), set(), threading.Event()


def run(command, *, cwd, env, output, timeout=None):
    """Runs a program in a process group of its own, which is killed when the program has ended.

    Args:
        command: the program and its arguments.
        cwd: its working directory.
        env: its environment.
        output: file for what it prints.
        timeout: seconds after which it is killed; None waits.

    Returns:
        The exit code, negative after a signal; None after the time-out.

    Raises:
        KeyboardInterrupt: after `stop`.
    """
    with open(output, "w") as file, _lock:
        if _stopping.is_set():
            raise KeyboardInterrupt
        process = subprocess.Popen(
            [*map(str, command)],
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        _running.add(process)
    try:
        code = process.wait(timeout)
    except subprocess.TimeoutExpired:
        code = None
    finally:
        _kill(process)
        with _lock:
            _running.remove(process)
    if _stopping.is_set():
        raise KeyboardInterrupt
    return code


def stop():
    """Ends all programs that run, and prevents further ones: of threads that `run` waits in."""
    with _lock:
        _stopping.set()
        for process in _running:
            _kill(process)


def _kill(process):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
