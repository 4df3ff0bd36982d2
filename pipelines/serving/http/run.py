"""Serves a model until a signal comes."""

import dataclasses
import logging
import signal
import time

from pipelines.data.decoding import cores
from pipelines.errors import counted
from pipelines.serving.http.app import Application
from pipelines.serving.http.gate import Gate
from pipelines.serving.http.page import Page
from pipelines.serving.http.rest import Rest
from pipelines.serving.http.samples import samples
from pipelines.serving.http.server import Server

_log = logging.getLogger(__name__)

# Requests that are computed at a time: one reads its body while another one computes.
_FEWEST, _MOST = 2, 8
_SIGNALS = signal.SIGTERM, signal.SIGINT


@dataclasses.dataclass(frozen=True)
class Limits:
    """What clients may ask of the server.

    Attributes:
        waiting: requests that wait for others; further ones are answered 503.
        images: in a request.
        megabytes: of the body of a request, 2**20 bytes each.
        seconds: for a whole request to arrive, to wait for others, and to read an answer.
    """

    waiting: int
    images: int
    megabytes: int
    seconds: int


def make_server(model, bound, name, limits) -> Server:
    """A server that does not listen yet.

    Args:
        model: `ServedModel`.
        bound: the result of `server.bind`.
        name: of the model in the paths of the REST interface.
        limits: `Limits`.
    """
    running = min(max(cores(), _FEWEST), _MOST)
    gate = Gate(running, limits.waiting, limits.seconds)
    rest = Rest(model, name, gate, limits.images)
    return Server(
        Application(rest, Page(model, name, gate, samples(), limits.seconds)),
        bound,
        threads=running + limits.waiting,
        most_bytes=limits.megabytes * 2**20,
        seconds=limits.seconds,
    )


def run(model, bound, name, limits):
    """Serves a model until SIGTERM or SIGINT; then what has come is answered, and nothing else.

    A second signal ends the process at once. For the arguments see `make_server`.
    """
    begin = time.perf_counter()
    model.warm_up()
    server = make_server(model, bound, name, limits)

    def stop(number, _):
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        _log.info(f"{signal.Signals(number).name}: answering what has come")
        server.stop()

    for each in _SIGNALS:
        signal.signal(each, stop)
    server.listen()
    _log.info(
        f"warm after {time.perf_counter() - begin:.1f} s\n"
        f"page: {server.url}\n"
        f"REST: {server.url}v1/models/{name}:predict\n"
        "Ctrl-C ends it. For trying on this machine; TensorFlow Serving is for production."
    )
    server.run()
    application = server.application
    refused = f", {application.refused:,} of them with 503" if application.refused else ""
    _log.info(f"ended: {counted(application.answered, 'request')} answered{refused}")
