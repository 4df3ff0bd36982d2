"""Handles the signals that stop a run: Ctrl-C and SIGTERM."""

import contextlib
import os
import signal
import sys
import threading

from pipelines.distribution.group import current_group
from pipelines.distribution.log_lines import process_name
from pipelines.errors import Interrupted

# Seconds; a callback has ended then.
_AGAIN = 0.1


@contextlib.contextmanager
def interruptible():
    """A block that Ctrl-C and SIGTERM end at once, with `Interrupted`: it has nothing to save.

    Training inside the block handles both signals by itself and saves first; see `Signals`.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    hook = sys.unraisablehook
    sys.unraisablehook = lambda ignored: (_send_again if _is_signal(ignored) else hook)(ignored)
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(
            "Interrupted. Start the same command again to go on; a training that was running goes "
            "on from its last checkpoint."
        ) from None
    finally:
        sys.unraisablehook = hook
        signal.signal(signal.SIGTERM, previous)


def _is_signal(ignored):
    return ignored.exc_type is KeyboardInterrupt


def _send_again(ignored):
    """Sends a signal again whose exception Python has ignored, because it came in a callback."""
    del ignored
    timer = threading.Timer(_AGAIN, os.kill, (os.getpid(), signal.SIGTERM))
    timer.daemon = True
    timer.start()


class Signals:
    """Records Ctrl-C and SIGTERM, so that a run can check for them between two steps.

    A second Ctrl-C ends the process as usual. A second SIGTERM changes nothing: a scheduler may
    send it to a worker and to the launcher, which sends it on. Outside the main thread, Python
    cannot install handlers, so signals are handled as usual.
    """

    def __init__(self):
        self._received = None
        self._previous = {}

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *exc_info):
        self._restore()

    def _restore(self):
        while self._previous:
            signal.signal(*self._previous.popitem())

    def _receive(self, number, frame):
        del frame
        self._received = signal.Signals(number).name
        # First: a second Ctrl-C may come as soon as the line below can be read.
        if signal.SIGINT in self._previous:
            signal.signal(signal.SIGINT, self._previous.pop(signal.SIGINT))
        # Not print: the signal may have interrupted a print, and print cannot be re-entered.
        with contextlib.suppress(OSError):
            line = f"{process_name()}{self._received}: saving after the running step ...\n"
            os.write(1, line.encode())

    def check(self):
        """Raises `Interrupted` if a signal came to a worker since the last call.

        All workers call it as often, and it raises in all of them.
        """
        received = next(filter(None, current_group().gather(self._received)), None)
        if received:
            self._received = None
            raise Interrupted(received)
