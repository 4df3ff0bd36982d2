"""Command lines of processes that end with the process that starts them."""

import os
import sys

# Runs in an interpreter that becomes the command. `preexec_fn` of `subprocess` would do it without
# one, but it is unsafe where other threads run.
_TIE = """
import ctypes, os, signal, sys
starter, *command = sys.argv[1:]
if sys.platform == "linux":
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(starter):
        sys.exit("the process that started this one has ended")
os.execv(command[0], command)
"""


def tied(command) -> list[str]:
    """The command line of a process that Linux kills when the calling thread ends, however.

    Args:
        command: its command line, with the path of the program.
    """
    return [sys.executable, "-I", "-S", "-c", _TIE, str(os.getpid()), *command]
