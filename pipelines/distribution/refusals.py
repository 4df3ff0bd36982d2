"""What a worker that cannot take part in a run tells the others, so that all end with one code."""

import contextlib
import logging
import socket
import time

from pipelines.distribution.link import Link
from pipelines.errors import EXIT_USAGE, UserError, WorkerError

_log = logging.getLogger(__name__)

# Seconds between two tries to reach a worker, and longest wait for an answer to one message.
RETRY, ANSWER = 0.2, 5.0
# Seconds in which the workers of a scheduler, which starts all of them, come.
_LATE = 30.0


def tell_others(place, hello, error, latest):
    """Tells the others that this worker cannot take part; it is enough if worker 0 knows it.

    Another worker passes it on: the address of worker 0 may be what is unknown here.

    Args:
        place: the `Place` of this worker.
        hello: its greeting.
        error: UserError or WorkerError.
        latest: time of `time.monotonic` at which it gives up.
    """
    _log.info(f"{error} Telling the other workers ...")
    message = hello | {"refused": refusal_of(error)}
    left = set(range(place.count)) - {place.index}
    deadline = min(latest, end_of_telling(place))
    while left and time.monotonic() < deadline:
        for index in sorted(left):
            with contextlib.suppress(OSError):
                link = Link(socket.create_connection(place.split(index), 1))
                with contextlib.closing(link):
                    link.send(message)
                    if _is_told(link):
                        left.discard(index)
                        if index == 0:
                            return
        time.sleep(RETRY)


def end_of_telling(place) -> float:
    """Time of `time.monotonic` until which the others may come, to be told."""
    return time.monotonic() + (_LATE if place.job else ANSWER)


def _is_told(link):
    """Whether the other side answers as a worker that ends now."""
    with contextlib.suppress(OSError, ValueError):
        while True:
            answer = link.receive(ANSWER)
            if isinstance(answer, dict) and answer.keys() <= {"told", "refused"}:
                return True
    return False


def refusal_of(error) -> dict:
    """An error as JSON holds it."""
    code = error.code if isinstance(error, WorkerError) else EXIT_USAGE
    return {"code": code, "text": str(error)}


def error_of(refusal):
    """The error of a refusal."""
    code, text = refusal["code"], refusal["text"]
    return UserError(text) if code == EXIT_USAGE else WorkerError(text, code)
