"""How the workers of a run find one another, before TensorFlow starts.

Every worker listens on its own address, and worker 0 on its own gets a connection from each of the
others; these connections stay. TensorFlow's servers get the addresses afterwards. By itself
TensorFlow would wait for an hour and not say for whom.
"""

import contextlib
import os
import socket
import threading
import time

from pipelines.config.fields import differences
from pipelines.distribution.group import Group
from pipelines.distribution.link import Link
from pipelines.errors import EXIT_USAGE, UserError, WorkerError, counted

_HELLO = "vit workers"
# Seconds between two tries to reach worker 0, and longest wait for an answer to one message.
_RETRY, _ANSWER = 0.2, 5.0


def join(place, own, seconds) -> Group:
    """Waits for all workers and returns their `Group`; the addresses are free afterwards.

    Args:
        place: the `Place` of this worker.
        own: nested dictionaries that JSON holds, such as versions: equal in all workers.
        seconds: longest wait for the other workers.

    Raises:
        UserError: if the port is in use, two processes have one index or another address than
            their own, or the workers differ in `own` or their addresses.
        WorkerError: if a worker does not come.
    """
    hello = {
        "hello": _HELLO,
        "index": place.index,
        "process": f"process {os.getpid()} on {socket.gethostname()}",
        "workers": list(place.addresses),
        "own": own,
    }
    deadline = time.monotonic() + seconds
    with contextlib.closing(_listen(place)) as server:
        if place.index == 0:
            links = _Chief(place, hello, server, deadline, seconds).links()
        else:
            with _answering(server, hello["process"]):
                links = {0: _reach_chief(place, hello, deadline, seconds)}
    group = Group(place.index, place.addresses, links)
    group.gather(None)  # Now all have given their addresses free.
    return group


def listen(port):
    """A socket that listens on a port of all addresses of this machine, of both versions of IP."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def _listen(place):
    """A socket that listens on the port of this worker."""
    port = place.split(place.index)[1]
    try:
        return listen(port)
    except OSError as error:
        raise UserError(
            f"Worker {place.index} cannot listen on its port {port}: {error.strerror}. Another "
            f"process may have the same --worker_index={place.index}, or an earlier run may not "
            "have ended; else choose another port."
        ) from None


class _Chief:
    """Worker 0, which waits for the others; arguments as for `join`."""

    def __init__(self, place, hello, server, deadline, seconds):
        self._place, self._hello, self._server = place, hello, server
        self._deadline, self._seconds = deadline, seconds
        self._links, self._processes = {}, {0: hello["process"]}

    def links(self):
        """The links to all others, by index."""
        while missing := self._missing():
            try:
                link, hello = self._next_worker(self._deadline)
            except TimeoutError:
                self._refuse(WorkerError(self._absent(missing)))
            self._welcome(link, hello)
        for link in self._links.values():
            link.send({"go": True})
        return self._links

    def _missing(self):
        """The indices of the workers that have not come, or have gone again."""
        for index, link in list(self._links.items()):
            if not link.is_open():
                self._links.pop(index).close()
                del self._processes[index]
        return sorted(set(range(self._place.count)) - set(self._processes))

    def _next_worker(self, deadline):
        """The link to the next worker that comes, and what it says first.

        Raises:
            TimeoutError: if none comes until `deadline`.
        """
        while True:
            self._server.settimeout(max(deadline - time.monotonic(), 1e-3))
            link = Link(self._server.accept()[0])
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                hello = link.receive(_ANSWER)
                if hello["hello"] == _HELLO and hello.keys() == self._hello.keys():
                    return link, hello
            link.close()  # It is another program, or another version.

    def _welcome(self, link, hello):
        index, process = hello["index"], hello["process"]
        self._missing()  # It may have been started again.
        known = self._processes.get(index)
        self._links[index if known is None else -1] = link
        if changed := differences(self._hello["own"], hello["own"]):
            shown = "; ".join(changed[:3]) + "; ..." * (len(changed) > 3)
            self._refuse(
                UserError(
                    f"Workers 0 and {index} differ (worker 0 -> worker {index}): {shown}. Install "
                    "the same on all machines, and start all workers with the same flags."
                )
            )
        if hello["workers"] != list(self._place.addresses):
            self._refuse(
                UserError(
                    f"Workers 0 and {index} have different lists of workers: "
                    f"{','.join(self._place.addresses)} and {','.join(hello['workers'])}. Start "
                    "all with the same list, in the same order."
                )
            )
        if known is not None:
            self._refuse(
                UserError(
                    f"There are two workers {index}: {known}, and {process}. Give each its own "
                    "--worker_index."
                )
            )
        self._call_back(index, process)
        self._processes[index] = process

    def _call_back(self, index, process):
        """Checks that the address of a worker leads to its process."""
        address, found = self._place.addresses[index], None
        try:
            with socket.create_connection(self._place.split(index), _ANSWER) as connection:
                found = Link(connection).receive(_ANSWER)
        except (OSError, ValueError) as error:
            problem = f"cannot be reached from worker 0: {_reason(error)}"
        else:
            problem = "leads to another process"
        if found != process:
            self._refuse(
                UserError(
                    f"Worker {index} is {process}, but its address {address} {problem}. Is its "
                    "--worker_index right, and are the addresses in the order of the workers?"
                )
            )

    def _absent(self, missing):
        names = " and ".join(
            f"worker {index} ({self._place.addresses[index]})" for index in missing
        )
        return (
            f"{names} did not come within {counted(self._seconds, 'second')}. Start all workers, "
            "or wait longer with --worker_wait."
        )

    def _refuse(self, error):
        """Ends all workers that have come or come soon: raises the error, here and there."""
        code = error.code if isinstance(error, WorkerError) else EXIT_USAGE
        links, end = list(self._links.values()), min(self._deadline, time.monotonic() + _ANSWER)
        refused = {"refused": {"code": code, "text": str(error)}}
        for link in links:
            link.send(refused)
        with contextlib.suppress(TimeoutError):
            while len(links) < self._place.count - 1:
                links.append(self._next_worker(end)[0])
                links[-1].send(refused)
        time.sleep(0.1)  # The end of a connection must not overtake the message.
        for link in links:
            link.close()
        raise error


@contextlib.contextmanager
def _answering(server, process):
    """In a `with` block, tells everyone who connects to `server` which process this is."""

    def answer():
        with contextlib.suppress(OSError):  # The server was closed.
            while True:
                connection, _ = server.accept()
                link = Link(connection)
                link.send(process)
                link.close()

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    try:
        yield
    finally:
        # Closing a socket does not wake a thread that waits for it.
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
        thread.join(_ANSWER)


def _reach_chief(place, hello, deadline, seconds):
    """The link to worker 0, after all workers have come."""
    problem = None
    while (left := deadline - time.monotonic()) > 0:
        try:
            link = Link(socket.create_connection(place.split(0), min(left, _ANSWER)))
        except OSError as error:
            problem = _reason(error)
            time.sleep(min(_RETRY, left))
            continue
        link.send(hello)
        try:
            # Worker 0 may have begun to wait later than this one.
            _check_answer(link.receive(seconds + 2 * _ANSWER), place)
            return link
        except (UserError, WorkerError):
            link.close()
            raise
        except (OSError, ValueError) as error:
            link.close()
            problem = _reason(error)
            time.sleep(min(_RETRY, left))
    raise WorkerError(
        f"worker 0 ({place.addresses[0]}) did not answer for {counted(seconds, 'second')}: "
        f"{problem}. Start all workers, or wait longer with --worker_wait."
    )


def _check_answer(answer, place):
    """Checks what the address of worker 0 answers.

    Raises:
        UserError, WorkerError: if worker 0 refuses, or if it is another worker, which answers as in
            `_answering`.
        ValueError: if it is another program, or the own greeting: while nothing listens on a port,
            a system may connect a socket to itself.
    """
    match answer:
        case {"go": True}:
            return
        case {"refused": {"code": code, "text": text}}:
            raise UserError(text) if code == EXIT_USAGE else WorkerError(text, code)
        case str():
            raise UserError(
                f"The address of worker 0, {place.addresses[0]}, leads to {answer}, which is "
                f"another worker. Is --worker_index={place.index} right, and are the addresses in "
                "the order of the workers?"
            )
    raise ValueError("another program answers")


def _reason(error):
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()
