"""Signals are recorded and handled once; then they have their default effect again."""

import os
import signal

import pytest

from pipelines.errors import Interrupted
from pipelines.runs.signals import Signals


def test_signal_handlers_are_given_back():
    before = signal.getsignal(signal.SIGTERM)
    with Signals() as signals:
        assert signal.getsignal(signal.SIGTERM) != before
        os.kill(os.getpid(), signal.SIGTERM)
        # A second signal has its default effect again.
        assert signal.getsignal(signal.SIGTERM) == before
        with pytest.raises(Interrupted, match="SIGTERM"):
            signals.check()
        signals.check()
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_signal_in_the_middle_of_a_print(monkeypatch):
    """A signal handler must not write to an output stream that the main program is writing to."""

    class Printing:
        def write(self, text):
            raise RuntimeError("reentrant call")

        flush = write

    monkeypatch.setattr("sys.stdout", Printing())
    with Signals() as signals:
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(Interrupted, match="SIGINT"):
            signals.check()
