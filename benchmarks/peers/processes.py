"""The processes of the systems. Each is stopped while it has nothing to do.

Their threads spin for some time after their work, which would slow down the one that is measured.
"""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading

import numpy as np

from benchmarks.peers.files import PEERS, ROOT
from benchmarks.peers.machine import choose_cpus
from benchmarks.peers.systems import SYSTEMS, TOLERANCE, environment

# Seconds after which a process is ended that does not answer, beside those that it shall measure.
MOST_SECONDS = 900
_ENDED = "its process ended without an answer"


class WorkerError(Exception):
    """A system cannot run; the message is the reason."""


class Worker:
    """A system in a process of its own; see `worker.py`.

    Attributes:
        versions: package -> version.
    """

    def __init__(self, system, folder, threads, isa=None):
        """Starts the process and loads the model.

        Args:
            system: row of `SYSTEMS`.
            folder: the files of the model.
            threads: number of threads.
            isa: value of `--isa`.

        Raises:
            WorkerError: if the system is not installed or cannot load the model.
        """
        python = pathlib.Path(sys.executable) if system.ours else PEERS
        if not python.exists():
            raise WorkerError("there is no .venv-peers; `make peers` creates it")
        settings = {
            "kind": system.kind,
            "folder": str(folder),
            "threads": threads,
            "cpus": choose_cpus(threads),
            "options": system.options | {"dtype": system.dtype},
        }
        command = [python, "-m", "benchmarks.peers.worker", json.dumps(settings)]
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | environment(threads, isa, system.onednn),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        try:
            self.versions = self._answer()["versions"]
        except BaseException:
            self.close()
            raise

    def ask(self, **request):
        """The answer to a request; the process runs only for this time.

        Raises:
            WorkerError: if the process answers with an error, ends, or takes too long.
        """
        self._signal(signal.SIGCONT)
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise WorkerError(_ENDED) from None
        return self._answer(MOST_SECONDS + request.get("seconds", 0))

    def close(self):
        self._signal(signal.SIGKILL)
        self._process.wait()
        # A request may be left that a process which had ended did not read.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()

    def _answer(self, most_seconds=MOST_SECONDS):
        timer = threading.Timer(most_seconds, self._signal, [signal.SIGKILL])
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        self._signal(signal.SIGSTOP)
        if not line:
            raise WorkerError(_ENDED)
        answer = json.loads(line)
        if "error" in answer:
            # OpenVINO puts the places in its sources before the reason.
            raise WorkerError(answer["error"].strip().splitlines()[-1])
        return answer

    def _signal(self, number):
        """Sends a signal to the process and the processes that it started."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, number)


def check_logits(worker, name, folder, batch):
    """Prepares a batch; the difference of its logits, as a fraction of the largest.

    Ends the program if it is more than rounding: the system computes something else.
    """
    _, received = _ask_for_logits(worker, folder, batch=batch)
    return _difference(name, folder, received, np.arange(batch))


def check_load(worker, name, folder, clients, seconds):
    """Runs a system under load: client `i` sends image `i`; after the last image, the first again.

    Ends the program if the logits of a client's last call differ by more than rounding.

    Returns:
        `(answer, difference)`: of `worker.load`, and of the logits as in `check_logits`.
    """
    answer, received = _ask_for_logits(worker, folder, clients=clients, seconds=seconds)
    return answer, _difference(name, folder, received, np.arange(clients))


def _ask_for_logits(worker, folder, **request):
    path = folder / f"received-{os.getpid()}.npy"
    try:
        answer = worker.ask(images=str(folder / "images.npy"), logits=str(path), **request)
        return answer, np.load(path)
    finally:
        path.unlink(missing_ok=True)


def _difference(name, folder, received, images):
    tolerance, logits = TOLERANCE[SYSTEMS[name].dtype], np.load(folder / "logits.npy")
    expected = logits[images % len(logits)]
    difference = float(np.abs(received - expected).max() / np.abs(expected).max())
    if not difference <= tolerance:
        sys.exit(
            f"error: {name}: the logits of {folder.parent.name} differ by {difference:.1e} of the "
            f"largest (allowed: {tolerance:.0e})."
        )
    return difference
