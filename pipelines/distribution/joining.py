"""How the workers of a run find one another, before TensorFlow starts.

Every worker listens on its own address, and worker 0 on its own gets a connection from each of the
others; these connections stay. TensorFlow's servers get the addresses afterwards. By itself
TensorFlow would wait for an hour and not say for whom.
"""

import contextlib
import logging
import os
import socket
import threading
import time

from pipelines.config.fields import differences
from pipelines.distribution.group import Group
from pipelines.distribution.link import Link
from pipelines.distribution.refusals import (
    ANSWER,
    RETRY,
    end_of_telling,
    error_of,
    refusal_of,
    tell_others,
)
from pipelines.errors import UserError, WorkerError, counted

_log = logging.getLogger(__name__)

_HELLO = "vit workers"
# Seconds in which the name of a node of a scheduler must be known. A name server that is away for a
# moment gives the same error as one that does not know the name.
_NAMES = 30.0


def join(place, own, seconds) -> Group:
    """Waits for all workers and returns their `Group`; the addresses are free afterwards.

    Args:
        place: the `Place` of this worker.
        own: nested dictionaries that JSON holds, such as versions: equal in all workers.
        seconds: longest wait for the other workers.

    Raises:
        UserError: if the port is in use, the name of a node is unknown, two processes have one
            index or another address than their own, or the workers differ in `own` or their
            addresses; in all workers.
        WorkerError: if a worker does not come, or the port of a job step is in use: another step
            gets another one.
    """
    hello = {
        "hello": _HELLO,
        "job": place.job,
        "index": place.index,
        "process": f"process {os.getpid()} on {socket.gethostname()}",
        "workers": list(place.addresses),
        "own": own,
    }
    deadline = time.monotonic() + seconds
    try:
        _check_names(place)
        opened = _listen(place)
    except (UserError, WorkerError) as error:
        tell_others(place, hello, error, deadline)
        raise
    with contextlib.closing(opened) as server:
        if place.index == 0:
            links = _Chief(place, hello, server, deadline, seconds).links()
        else:
            with _answering(server, hello) as chief:
                try:
                    links = {0: _reach_chief(place, hello, deadline, seconds, chief)}
                except (UserError, WorkerError) as error:
                    if error is chief.error and chief.refuser != 0:
                        passed_on = hello | {"index": chief.refuser}
                        tell_others(place, passed_on, error, deadline)
                    raise
    group = Group(place.index, place.addresses, links)
    group.gather(None)  # Now all have given their addresses free.
    return group


def _check_names(place):
    """Checks that a name server knows the nodes of a scheduler.

    It knows them before the job starts. Elsewhere a name may come with its worker: Kubernetes gives
    a pod its name when the pod starts.

    Raises:
        UserError: if a name is unknown.
    """
    if not place.job:
        return
    end = time.monotonic() + _NAMES
    for index in range(place.count):
        host, port = place.split(index)
        while True:
            try:
                socket.getaddrinfo(host, port)
                break
            except socket.gaierror as error:
                if time.monotonic() > end:
                    raise UserError(
                        f"Worker {place.index} does not know the address of worker {index}: the "
                        f"name {host}, a node of {place.job}, has none here "
                        f"({_reason(error)}). Enter it in DNS or /etc/hosts of all nodes, or name "
                        "the workers by --workers and --worker_index."
                    ) from None
            time.sleep(RETRY)


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
        reason = f"Worker {place.index} cannot listen on its port {port}: {error.strerror}. "
        if place.job:
            raise WorkerError(
                f"{reason}Another process of this node uses it. The next step of the job gets "
                "another port: start all workers again."
            ) from None
        raise UserError(
            f"{reason}Another process may have the same --worker_index={place.index}, or an "
            "earlier run may not have ended; else choose another port."
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
            if "refused" not in hello:
                self._welcome(link, hello)
            elif hello["index"] in self._processes:  # It was started twice.
                link.send({"told": True})
                link.close()
            else:
                link.send({"told": True})
                self._links[-1] = link
                self._refuse(error_of(hello["refused"]))
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
                hello = link.receive(ANSWER)
                if _is_of(hello, self._hello):
                    return link, hello
            link.close()  # It is another program, or another version, or of another job.

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
            connection = socket.create_connection(self._place.split(index), ANSWER)
            with contextlib.closing(Link(connection)) as link:
                found = link.receive(ANSWER)
        except (OSError, ValueError) as error:
            problem = f"cannot be reached from worker 0: {_reason(error)}"
        else:
            problem = "leads to another process"
        if found != {"here": process, "job": self._place.job}:
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
        links = list(self._links.values())
        end = min(self._deadline, end_of_telling(self._place))
        refused = {"refused": refusal_of(error)}
        for link in links:
            link.send(refused)
        if len(links) < self._place.count - 1 and time.monotonic() < end:
            _log.info(f"{error} Telling the workers that have not come ...")
        with contextlib.suppress(TimeoutError):
            while len(links) < self._place.count - 1:
                links.append(self._next_worker(end)[0])
                links[-1].send(refused)
        time.sleep(0.1)  # The end of a connection must not overtake the message.
        for link in links:
            link.close()
        raise error


def _is_of(hello, own):
    """Whether a greeting is that of a worker of the same job and the same version."""
    match hello:
        case {"refused": {"code": int(), "text": str()}, **rest}:
            pass
        case dict() as rest if "refused" not in rest:
            pass
        case _:
            return False
    return rest.keys() == own.keys() and all(rest[key] == own[key] for key in ("hello", "job"))


@contextlib.contextmanager
def _answering(server, own):
    """In a `with` block, tells everyone who connects to `server` which process this is.

    Yields a `_ChiefOfOthers`: another worker may say here that it cannot take part.
    """
    chief = _ChiefOfOthers()

    def answer():
        with contextlib.suppress(OSError):  # The server was closed.
            while True:
                connection, _ = server.accept()
                with contextlib.closing(Link(connection)) as link:
                    link.send({"here": own["process"], "job": own["job"]})
                    with contextlib.suppress(OSError, ValueError):
                        hello = link.receive(1)
                        if _is_of(hello, own) and "refused" in hello:
                            chief.refuse(error_of(hello["refused"]), hello["index"])
                            link.send({"told": True})

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    try:
        yield chief
    finally:
        # Closing a socket does not wake a thread that waits for it.
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
        thread.join(ANSWER)


class _ChiefOfOthers:
    """Worker 0, as another worker knows it.

    Attributes:
        link: the `Link` to what listens on its address, or None.
        error: why a worker cannot take part, or None.
        refuser: the index of that worker.
    """

    def __init__(self):
        self.link = self.error = self.refuser = None

    def refuse(self, error, refuser):
        """Takes the error; ends the wait for worker 0 or what listens on its address."""
        self.refuser = refuser
        self.error = error
        if self.link is not None:
            self.link.end()


def _reach_chief(place, hello, deadline, seconds, chief):
    """The link to worker 0, after all workers have come."""
    problem = None
    while (left := deadline - time.monotonic()) > 0:
        if chief.error is not None:
            raise chief.error
        try:
            link = chief.link = Link(socket.create_connection(place.split(0), min(left, ANSWER)))
        except OSError as error:
            problem = _reason(error)
            time.sleep(min(RETRY, left))
            continue
        if chief.error is not None:  # It came while there was no link that it could end.
            link.close()
            continue
        link.send(hello)
        try:
            # Worker 0 may have begun to wait later than this one.
            _check_answer(link.receive(seconds + 2 * ANSWER), place)
            return link
        except (UserError, WorkerError):
            link.close()
            raise
        except (OSError, ValueError) as error:
            link.close()
            problem = _reason(error)
            time.sleep(min(RETRY, left))
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
        case {"refused": refusal}:
            raise error_of(refusal)
        case {"here": process, "job": place.job}:
            raise UserError(
                f"The address of worker 0, {place.addresses[0]}, leads to {process}, which is "
                f"another worker. Is --worker_index={place.index} right, and are the addresses in "
                "the order of the workers?"
            )
    raise ValueError("another program answers")


def _reason(error):
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()
