"""Signals are recorded; a second Ctrl-C has its default effect again, a second SIGTERM has none."""

import os
import signal
import sys
import time
import weakref

import pytest

from pipelines.distribution.signals import Signals, interruptible
from pipelines.errors import Interrupted


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_handlers_are_given_back(number):
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(each) for each in numbers]
    with Signals() as signals:
        assert not set(before) & {signal.getsignal(each) for each in numbers}
        os.kill(os.getpid(), number)
        assert signal.getsignal(signal.SIGINT) == before[0]
        os.kill(os.getpid(), signal.SIGTERM)  # It does not end the process.
        with pytest.raises(Interrupted, match="SIG(INT|TERM)"):
            signals.check()
        signals.check()
    assert [signal.getsignal(each) for each in numbers] == before


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


def test_a_second_ctrl_c_as_soon_as_the_first_is_reported(monkeypatch):
    def write_and_interrupt(descriptor, text):
        monkeypatch.undo()
        os.write(descriptor, text)
        os.kill(os.getpid(), signal.SIGINT)

    with Signals(), pytest.raises(KeyboardInterrupt):
        monkeypatch.setattr("os.write", write_and_interrupt)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(30)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_a_callback_is_not_lost(number):
    """Python ignores exceptions of such callbacks, also that of a signal."""

    class Anything:
        pass

    held = [Anything()]
    begun = time.monotonic()
    with pytest.raises(Interrupted), interruptible():
        watcher = weakref.ref(held[0], lambda _: os.kill(os.getpid(), number))
        held.clear()
        assert watcher() is None
        while time.monotonic() < begun + 30:
            time.sleep(0.01)


def test_other_ignored_exceptions_are_reported(monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)

    class Anything:
        def __del__(self):
            raise ValueError("in a destructor")

    with interruptible():
        Anything()
    assert [each.exc_type for each in seen] == [ValueError]
    assert sys.unraisablehook == seen.append
