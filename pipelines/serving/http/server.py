"""The HTTP server around the application: waitress, with limits on slow clients, and a soft end.

Waitress reads requests in one thread without blocking, so a slow client holds no other thread.
"""

import contextlib
import logging
import math
import socket
import time

from waitress import wasyncore
from waitress.adjustments import Adjustments
from waitress.channel import HTTPChannel
from waitress.server import TcpWSGIServer
from waitress.task import ErrorTask, ThreadedTaskDispatcher, WSGITask

from pipelines.errors import UserError
from pipelines.serving.http.app import error_body

_log = logging.getLogger(__name__)

# Open connections; further ones wait to be accepted.
_MOST_CONNECTIONS = 250
# Bytes of a body that are kept in memory; the rest goes to a temporary file.
_IN_MEMORY = 64 * 2**10
_MOST_HEADER_BYTES = 16 * 2**10
# Threads beyond those that compute or wait: they refuse, and send the files of the page.
_SPARE_THREADS = 8
# Seconds after which the server looks for clients that are too slow.
_LOOK = 1.0
# Seconds in which a client may still send the rest of a request that is refused.
_LINGER = 5.0
# Seconds for which a new connection is kept at the end, since its request may be on the way.
_NEW = 1.0


def bind(host, port) -> socket.socket:
    """A socket that is bound, and does not listen yet.

    Args:
        host: name or address of this machine.
        port: 0 takes a free one.

    Raises:
        UserError: if it is in use, or not of this machine.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        with contextlib.ExitStack() as stack:
            bound = stack.enter_context(socket.socket(family, kind, protocol))
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            stack.pop_all()
            return bound
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"Cannot listen on --host={host} --port={port}: {reason}. Choose another --port (0 "
            "takes a free one), or an address of this machine."
        ) from None


class Server(TcpWSGIServer):
    """Answers requests until `stop` is called.

    Args:
        application: WSGI application.
        bound: the result of `bind`.
        threads: how many requests the application answers or keeps waiting at a time.
        most_bytes: the largest body of a request.
        seconds: for a whole request to arrive.
    """

    def __init__(self, application, bound, *, threads, most_bytes, seconds):
        adjustments = Adjustments(
            sockets=[bound],
            threads=threads + _SPARE_THREADS,
            connection_limit=_MOST_CONNECTIONS,
            backlog=_MOST_CONNECTIONS,
            max_request_body_size=most_bytes,
            max_request_header_size=_MOST_HEADER_BYTES,
            inbuf_overflow=_IN_MEMORY,
            channel_timeout=math.ceil(seconds),
            cleanup_interval=_LOOK,
            asyncore_use_poll=True,
            ident=None,
            clear_untrusted_proxy_headers=False,  # Nothing reads them.
        )
        dispatcher = ThreadedTaskDispatcher()
        dispatcher.set_thread_count(adjustments.threads)
        address = (bound.family, bound.type, bound.proto, bound.getsockname())
        super().__init__(
            application,
            map={},
            _sock=bound,
            dispatcher=dispatcher,
            adj=adjustments,
            sockinfo=address,
            bind_socket=False,
        )
        self.channel_class = _Channel
        self.stops = False
        self._seconds = seconds

    @property
    def url(self) -> str:
        """Where the page is."""
        host = f"[{self.effective_host}]" if ":" in self.effective_host else self.effective_host
        return f"http://{host}:{self.effective_port}/"

    def run(self):
        """Answers requests; returns after `stop`, when all that have come are answered."""
        while not self.stops:
            wasyncore.poll2(_LOOK, self._map)
        self._accept_waiting()
        wasyncore.dispatcher.close(self)
        while self.active_channels:
            self.maintenance(time.time())
            wasyncore.poll2(_LOOK / 10, self._map)
        self.task_dispatcher.shutdown()
        self.trigger.close()

    def stop(self):
        """Lets `run` return; may be called in a signal handler."""
        if not self.stops:
            self.stops = True
            self.pull_trigger()

    def maintenance(self, now):
        """Closes connections that are idle or too slow; at the end, all without a request."""
        super().maintenance(now)
        for channel in list(self.active_channels.values()):
            if channel.is_too_slow(now - self._seconds) or (self.stops and channel.is_idle(now)):
                channel.will_close = True

    def _accept_waiting(self):
        """Takes the connections that the system has already accepted."""
        before = -1
        while before < len(self.active_channels) < _MOST_CONNECTIONS:
            before = len(self.active_channels)
            self.handle_accept()


class _Task(WSGITask):
    def execute(self):
        if self.channel.server.stops:
            self.set_close_on_finish()
        super().execute()


class _ErrorTask(ErrorTask):
    """The answer to a request that is not HTTP or too large: JSON, as all errors."""

    def execute(self):
        self.channel.is_refused = True
        error = self.request.error
        content = error_body(f"{error.reason}: {error.body}.")
        self.status = f"{error.code} {error.reason}"
        self.content_length = len(content)
        self.response_headers += [("Content-Type", "application/json")]
        self.set_close_on_finish()
        self.write(content)


class _Channel(HTTPChannel):
    """A connection."""

    task_class = _Task
    error_task_class = _ErrorTask
    is_refused = False
    _lingers_from = None
    _begin = None  # When the first byte of a request came that is not complete.

    def received(self, data):
        result = super().received(data)
        if self.request is None:
            self._begin = None
        elif self._begin is None:
            self._begin = time.time()
        return result

    def is_too_slow(self, limit):
        """Whether its request began before a time, or the client has not read the end."""
        if self._lingers_from is not None:
            return self._lingers_from < time.time() - _LINGER
        return self._begin is not None and self._begin < limit

    def is_idle(self, now):
        """Whether it has no request, and none is expected."""
        is_new = self.last_activity == self.creation_time and now - self.creation_time < _NEW
        return not (self.requests or self.request or self.total_outbufs_len or is_new)

    # A client that still sends when the connection is closed may never see why it was refused:
    # after the answer, what it sends is read and dropped for a while.

    def readable(self):
        return super().readable() if self._lingers_from is None else not self.will_close

    def handle_read(self):
        if self._lingers_from is None:
            super().handle_read()
            return
        try:
            if self.recv(self.adj.recv_bytes):
                return
        except OSError:
            pass
        self.will_close = True

    def handle_write(self):
        lingers = self.is_refused and self.close_when_flushed and not self.will_close
        if lingers:
            self.close_when_flushed = False
        super().handle_write()
        if not lingers or not self.connected:
            return
        if self.total_outbufs_len:
            self.close_when_flushed = True
            return
        self._lingers_from = time.time()
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            self.will_close = True
