"""Holds the lock of a workdir until SIGTERM.

usage: python -m tests.pipelines.programs.hold_lock WORKDIR
"""

import signal
import sys

from pipelines.runs.lock import only_writer

if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    with only_writer(sys.argv[1]):
        print("locked", flush=True)
        signal.sigwait({signal.SIGTERM})
