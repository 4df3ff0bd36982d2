"""Worker processes on this machine: their addresses, their output and their end."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading

from pipelines.distribution import joining
from pipelines.distribution.tied_process import tied
from pipelines.errors import RunError

_HOST = "127.0.0.1"
# Well-known services are below.
_LOWEST_PORT = 10_000
# The line of a command that says why it failed.
_ERROR = b"error: "


class Worker:
    """A worker process. Each line of its output begins with its index.

    Lines on stderr that begin with "error: " are kept: several workers may fail for one reason.

    Args:
        command: its command line.
        index: its number.
        addresses: host:port of all workers.
        output: the `Output` that its lines go to.

    Attributes:
        index: its number.
        code: exit code; negative after a signal, None while it runs.
        killed: whether `kill` ended it.
    """

    def __init__(self, command, index, addresses, output):
        self.index, self.code, self.killed = index, None, False
        self._output, self._errors = output, []
        task = {"type": "worker", "index": index}
        config = {"cluster": {"worker": addresses}, "task": task}
        # A process group of its own: Ctrl-C in a terminal reaches the launcher only.
        self._process = subprocess.Popen(
            tied(command),
            env=os.environ | {"TF_CONFIG": json.dumps(config)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
        )
        streams = {self._process.stdout: sys.stdout, self._process.stderr: sys.stderr}
        self._readers = [
            threading.Thread(target=self._copy, args=pair, daemon=True) for pair in streams.items()
        ]
        for reader in self._readers:
            reader.start()

    def has_ended(self) -> bool:
        """Whether it has ended; then all of its output is written, except `errors`."""
        if self.code is None and self._process.poll() is not None:
            for reader in self._readers:
                reader.join(5)  # A process that it has started may hold the pipe open.
            self.code = self._process.returncode
        return self.code is not None

    @property
    def errors(self) -> str:
        """The kept lines, as one line without "error: "."""
        return " ".join(line.removeprefix(_ERROR).decode(errors="replace") for line in self._errors)

    def show_errors(self):
        """Writes the kept lines."""
        for line in self._errors:
            self._write(sys.stderr, line)

    def terminate(self):
        """Sends SIGTERM, if it runs."""
        if not self.has_ended():
            self._process.terminate()

    def kill(self):
        """Ends it and what it has started, if it runs."""
        if not self.has_ended():
            self.killed = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self.has_ended()

    def _copy(self, source, target):
        with source:
            for line in source:
                # Without the name that it gives itself.
                line = line.rstrip(b"\n").removeprefix(b"worker %d: " % self.index)
                if target is sys.stderr and line.startswith(_ERROR):
                    self._errors.append(line)
                else:
                    self._write(target, line)

    def _write(self, target, line):
        self._output.write(target, b"[worker %d] %s\n" % (self.index, line))


class Output:
    """Writes whole lines to stdout and stderr, for several threads.

    Attributes:
        is_closed: whether a reader of the output has ended, as in `| head`; then lines are dropped.
    """

    def __init__(self):
        self.is_closed = False
        self._lock = threading.Lock()

    def write(self, target, line):
        """Writes the bytes of a line to a text stream at once."""
        with self._lock:
            if self.is_closed:
                return
            try:
                target.buffer.write(line)
                target.flush()
            except OSError:
                self.is_closed = True


class LocalWorkers:
    """Starts several workers of one command; `close` kills those that still run.

    Args:
        command: the command line of each.
        count: their number.

    Attributes:
        workers: list of each `Worker`.
        ended: those that have ended, in the order of their ends, as far as `poll` has seen.
        output: their `Output`.
    """

    def __init__(self, command, count):
        self.workers, self.ended, self.output = [], [], Output()
        try:
            addresses = free_addresses(count)
            for index in range(count):
                self.workers.append(Worker(command, index, addresses, self.output))
        except BaseException:
            self.close()
            raise

    def poll(self) -> bool:
        """Whether a worker still runs."""
        new = [x for x in self.workers if x not in self.ended and x.has_ended()]
        # Of those that ended since the last call, a signal comes before what followed from it.
        self.ended += sorted(new, key=lambda worker: worker.code)
        return len(self.ended) < len(self.workers)

    def terminate(self):
        """Sends SIGTERM to the workers that run."""
        for worker in self.workers:
            worker.terminate()

    def close(self):
        """Kills the workers that run."""
        for worker in self.workers:
            worker.kill()


def free_addresses(count) -> list[str]:
    """Different ports of this machine that nothing uses, as host:port.

    They are below those that the system gives to connections: one of these could get a port before
    its worker listens on it.
    """
    ports, found = range(_LOWEST_PORT, max(_first_given_port(), 2 * _LOWEST_PORT)), []
    # Not in order: another job of this machine may choose at the same time.
    for port in random.SystemRandom().sample(ports, len(ports)):
        with contextlib.suppress(OSError):
            joining.listen(port).close()
            found.append(f"{_HOST}:{port}")
        if len(found) == count:
            return found
    raise RunError(f"This machine has no {count} free ports from {ports[0]} to {ports[-1]}.")


def _first_given_port():
    """The lowest port that the system gives to connections."""
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
            return int(file.read().split()[0])
    except OSError:  # Not Linux.
        return 49152  # That of RFC 6335.
