"""The frame of the commands: what ends `main` decides the exit code and the one line on stderr."""

import contextlib
import sys

import pytest

from pipelines.cli import command
from pipelines.errors import Interrupted, RunError, UserError, WorkerError


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (None, 0, ""),
        (UserError("Wrong name."), 2, "error: Wrong name."),
        (RunError("The loss is not finite."), 1, "error: The loss is not finite."),
        (WorkerError("Worker 1 is lost."), 76, "error: Worker 1 is lost."),
        (OSError(28, "No space left on device", "a.npz"), 1, "error: No space left on device"),
        (Interrupted("Saved at step 3."), 75, "Saved at step 3."),
        (KeyboardInterrupt(), 130, "Interrupted before there was anything new to save."),
        (ImportError("No module named 'orbit'", name="orbit"), 1, "pipelines.doctor"),
    ],
)
def test_exit_codes(error, code, line, monkeypatch, capsys):
    def main(values, arguments):
        if error:
            raise error

    ended = []
    monkeypatch.setattr("sys.argv", ["command"])
    monkeypatch.setattr("os._exit", sys.exit)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("atexit._run_exitfuncs", lambda: ended.append(True))
    with pytest.raises(SystemExit) as end:
        command.run(main, "A command.", shared_flags=())
    assert end.value.code == code and (ended or code in (1, 2, 76))
    printed = capsys.readouterr().err
    assert line in printed and "Traceback" not in printed
    assert printed.startswith("error: ") == (code in (1, 2, 76))


def test_a_fault_of_the_program_keeps_its_traceback(monkeypatch):
    def main(values, arguments):
        raise AttributeError("a fault")

    monkeypatch.setattr("sys.argv", ["command"])
    with pytest.raises(AttributeError, match="a fault"):
        command.run(main, "A command.", shared_flags=())


def test_a_full_disk_behind_stdout_is_not_silent(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["command"])
    monkeypatch.setattr("os._exit", sys.exit)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("atexit._run_exitfuncs", lambda: None)
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(SystemExit) as end:
            command.run(lambda *_: print("a result"), "A command.", shared_flags=())
        assert end.value.code == 1
        with contextlib.suppress(OSError):
            full.close()
    assert capsys.readouterr().err == "error: Cannot write to stdout: No space left on device.\n"
