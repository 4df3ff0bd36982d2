"""The workers of a run agree: each gives a value, and each gets the values of all.

Under `--strategy=multi_worker` every process runs the same program, and TensorFlow's sums over all
replicas wait for all of them. So a decision that depends on one process, such as a signal, its
clock or its files, must be the same everywhere: it goes through `Group.gather`.

Worker 0, the chief, has a connection to each of the others. Over it they also say that they are
alive, and how they end: a worker that is lost, that hangs or that fails ends all of them.
"""

import collections
import contextlib
import json
import math
import os
import sys
import threading
import time

from pipelines import errors
from pipelines.config.fields import differences
from pipelines.distribution.log_lines import process_name
from pipelines.errors import Interrupted, RunError, UserError, WorkerError

# Seconds without a word from a process, which says something every second. Long calls of
# TensorFlow may hold Python's lock for some seconds.
_SILENCE = 20.0
_BEAT = 1.0
# Seconds in which the main thread may save and end by itself after another worker was lost.
_GRACE = 30.0
# Seconds in which the end of another worker, which breaks a sum over replicas, becomes known here.
_NOTICE = 3.0


class Group:
    """All workers of a run, as one of them sees them. A process alone is a group too.

    Args:
        index: the number of this worker; 0 is the chief, which writes all files.
        addresses: "host:port" of all workers.
        links: index of another worker -> `Link`: the chief's to all, that of the others to it.

    Attributes:
        abort: called with a text when another worker has ended; it breaks off the sum over replicas
            that the main thread may wait for.
    """

    def __init__(self, index=0, addresses=("",), links=None):
        self.index, self.addresses = index, addresses
        self.abort, self._timeout = None, math.inf
        self._links = links or {}
        self._changed = threading.Condition()
        self._inbox = {peer: collections.deque() for peer in self._links}
        self._rounds = dict.fromkeys(self._links, 0)
        self._heard = dict.fromkeys(self._links, time.monotonic())
        self._round, self._moved = 0, time.monotonic()
        self._problem, self._ended, self._is_over = None, set(), False
        for peer, link in self._links.items():
            threading.Thread(target=self._listen, args=(peer, link), daemon=True).start()
        if self._links:
            threading.Thread(target=self._watch, name="workers", daemon=True).start()

    @property
    def count(self) -> int:
        """Number of workers."""
        return len(self.addresses)

    @property
    def is_chief(self) -> bool:
        """Whether this worker writes the files of a run."""
        return self.index == 0

    def name(self, index) -> str:
        """What messages call a worker."""
        return f"worker {index} ({self.addresses[index]})"

    def gather(self, value) -> list:
        """The values of all workers, by index; waits until all have called it as often.

        Args:
            value: what JSON holds. Tuples become lists if there are other workers.

        Raises:
            WorkerError: if another worker has ended, was lost or hangs.
        """
        if not self._links:
            return [value]
        self._round += 1
        if self.is_chief:
            values = [value, *map(self._take, sorted(self._links))]
            self._tell({"values": values})
            values = json.loads(json.dumps(values))
        else:
            self._tell({"value": value})
            values = self._take(0)
        self._moved = time.monotonic()
        return values

    def from_chief(self, function):
        """What `function()` returns in the chief, in all workers; the others do not call it.

        Raises:
            Exception: an error of `pipelines.errors` that the chief's call raises, in all workers.
            WorkerError: as `gather`.
        """
        if not self._links:
            return function()
        result, error = None, None
        if self.is_chief:
            try:
                result = function()
            except (UserError, RunError, Interrupted) as raised:
                error = raised
        said = error and [type(error).__name__, str(error)]
        result, said = self.gather([result, said])[0]
        if error is not None:
            raise error
        if said is not None:
            raise getattr(errors, said[0])(said[1])
        return result

    def compare(self, what, values):
        """Checks that a dictionary is equal in all workers.

        Args:
            what: its name, for the message.
            values: nested dictionaries that JSON holds.

        Raises:
            UserError: if they differ; in all workers.
        """
        if not self._links:
            return
        text = json.dumps(values, sort_keys=True)
        first, *others = self.gather(text)
        for index, other in enumerate(others, 1):
            if other != first:
                changed = differences(json.loads(first), json.loads(other))
                shown = "; ".join(changed[:3]) + "; ..." * (len(changed) > 3)
                raise UserError(
                    f"Workers 0 and {index} have different {what} (worker 0 -> worker {index}): "
                    f"{shown}. Start all workers with the same."
                )

    def cause(self, error, seconds=_NOTICE):
        """The `WorkerError` behind an error of a sum over replicas, or else the error itself.

        Args:
            error: an exception.
            seconds: longest wait for news of other workers.
        """
        if not self._links or isinstance(error, WorkerError):
            return error
        with self._changed:
            self._changed.wait_for(lambda: self._problem, seconds)
            return self._problem or error

    @contextlib.contextmanager
    def explained(self):
        """In a `with` block, replaces an error of TensorFlow by the `WorkerError` behind it."""
        try:
            yield
        except (UserError, RunError, Interrupted, WorkerError):
            raise
        except Exception as error:
            if (cause := self.cause(error)) is error:
                raise
            raise cause from None

    @contextlib.contextmanager
    def watched(self, seconds):
        """In a `with` block, a worker hangs if all together agree on nothing for some seconds."""
        self._moved, self._timeout = time.monotonic(), seconds
        try:
            yield
        finally:
            self._timeout = math.inf

    def leave(self, code, text=""):
        """Says goodbye; the process must end now.

        Args:
            code: its exit code. Unless it is 0, the other workers end with the same.
            text: the reason.
        """
        with self._changed:
            said, self._is_over = self._is_over or self._problem is not None, True
        if self._links and not said:
            reason = f"{self.name(self.index)}: {text or 'ended'}".rstrip()
            self._tell({"left": {"code": code, "text": reason}})
            time.sleep(0.1)  # Data on their way are lost if a connection is cut too early.

    def _tell(self, message, but=None):
        for peer, link in self._links.items():
            if peer != but:
                link.send(message)

    def _take(self, peer):
        """The next value of another worker."""
        with self._changed:
            self._changed.wait_for(lambda: self._problem or self._inbox[peer])
            if self._problem:
                raise self._problem
            return self._inbox[peer].popleft()

    def _listen(self, peer, link):
        """Receives what another worker says, in a thread of its own."""
        with contextlib.suppress(OSError, ValueError):
            while True:
                self._receive(peer, link.receive())
        if peer not in self._ended:
            self._fail(WorkerError(f"{self._named(peer)} was lost: its process has ended."), peer)

    def _receive(self, peer, message):
        with self._changed:
            self._heard[peer] = time.monotonic()
            self._rounds[peer] = message.get("beat", self._rounds[peer])
            for kind in ("value", "values"):
                if kind in message:
                    self._inbox[peer].append(message[kind])
            self._changed.notify_all()
        if (left := message.get("left")) is not None:
            self._ended.add(peer)
            if left["code"]:
                self._fail(WorkerError(left["text"], left["code"]), peer)

    def _watch(self):
        """Says that this process is alive, and looks at the others, in a thread of its own."""
        while not self._is_over:
            self._tell({"beat": self._round})
            now, timeout = time.monotonic(), self._timeout
            for peer, heard in self._heard.items():
                if now - heard > _SILENCE and peer not in self._ended:
                    text = f"{self._named(peer)} was lost: not a word for {_SILENCE:g} seconds."
                    self._fail(WorkerError(text), peer)
            # The chief first, which knows more.
            if now - self._moved > timeout + (0 if self.is_chief else 2 * _BEAT):
                self._fail(WorkerError(self._stuck()))
            time.sleep(min(_BEAT, timeout / 4))

    def _stuck(self):
        """The reason of an end without progress."""
        now, rounds = time.monotonic(), {self.index: self._round, **self._rounds}
        silent = [peer for peer, heard in self._heard.items() if now - heard > 5 * _BEAT]
        behind = [peer for peer, begun in rounds.items() if begun < max(rounds.values())]
        who = " or ".join(map(self._named, silent or behind))
        return (
            f"{who or f'One of {self.count} workers'} hangs: no step, evaluation or "
            f"checkpoint was finished for {self._timeout:g} seconds (train.worker_timeout)."
        )

    def _named(self, peer):
        return "W" + self.name(peer)[1:]

    def _fail(self, problem, peer=None):
        """Ends the work of this process because of another one."""
        with self._changed:
            if self._problem or self._is_over:
                return
            self._problem = problem
            # Before all that may wait: the main thread, which learns of it now, and the others.
            timer = threading.Timer(_GRACE, self._end)
            timer.daemon = True  # The main thread may end before.
            timer.start()
            self._changed.notify_all()
        if self.is_chief:
            self._tell({"left": {"code": problem.code, "text": str(problem)}}, but=peer)
        if self.abort is not None:
            self.abort(str(problem))

    def _end(self):
        """Ends the process, because its main thread does not."""
        print(f"{process_name()}error: {self._problem}", file=sys.stderr, flush=True)
        os._exit(self._problem.code)


_group = Group()


def current_group() -> Group:
    """The workers of this process: after `set_current_group` those, else itself alone."""
    return _group


def set_current_group(group):
    """Sets the `Group` of this process."""
    global _group
    _group = group
