"""The HTTP server around the application: waitress, with limits on slow clients, and a soft end.

Waitress reads requests in one thread without blocking, so a slow client holds no other thread.
"""

import contextlib
import socket
import time

from waitress import wasyncore
from waitress.adjustments import Adjustments
from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser
from waitress.server import TcpWSGIServer
from waitress.task import ErrorTask, ThreadedTaskDispatcher, WSGITask
from waitress.utilities import BadRequest

from pipelines.errors import UserError
from pipelines.serving.http.app import error_body

# Open connections beyond those whose requests run or wait; further ones are not accepted.
_SPARE_CONNECTIONS = 200
# Bytes of a body that are kept in memory; the rest goes to a temporary file.
_IN_MEMORY = 64 * 2**10
# Of a header, and of what is between and behind the chunks of a body.
_MOST_HEADER_BYTES = 16 * 2**10
# Threads beyond those that compute or wait: they refuse, and send the files of the page.
_SPARE_THREADS = 8
# Seconds after which the server looks for clients that are too slow.
_LOOK = 1.0
# Seconds in which a client may still send the rest of a request that is refused.
_LINGER = 5.0
# Seconds for which a connection is kept at the end, since its next request may be on the way.
_QUIET = 1.0


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
        raise _cannot_listen(host, port, error) from None


def _cannot_listen(host, port, error):
    reason = getattr(error, "strerror", None) or error
    return UserError(
        f"Cannot listen on --host={host} --port={port}: {reason}. Choose another --port (0 takes a "
        "free one), or an address of this machine."
    )


class Server(TcpWSGIServer):
    """Answers requests until `stop` is called.

    Args:
        application: WSGI application.
        bound: the result of `bind`.
        threads: how many requests the application answers or keeps waiting at a time.
        most_bytes: the largest body of a request.
        seconds: for a whole request to arrive, and for an answer to be read.
    """

    def __init__(self, application, bound, *, threads, most_bytes, seconds):
        adjustments = Adjustments(
            sockets=[bound],
            threads=threads + _SPARE_THREADS,
            connection_limit=threads + _SPARE_CONNECTIONS,
            backlog=threads + _SPARE_CONNECTIONS,
            max_request_body_size=most_bytes,
            max_request_header_size=_MOST_HEADER_BYTES,
            inbuf_overflow=_IN_MEMORY,
            channel_timeout=seconds,
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
            _start=False,
            _sock=bound,
            dispatcher=dispatcher,
            adj=adjustments,
            sockinfo=address,
            bind_socket=False,
        )
        self.channel_class = _Channel
        self.stops = False
        self._ends = False
        self._seconds = seconds

    @property
    def url(self) -> str:
        """Where the page is."""
        host = f"[{self.effective_host}]" if ":" in self.effective_host else self.effective_host
        return f"http://{host}:{self.effective_port}/"

    def listen(self):
        """Opens the port.

        Raises:
            UserError: if another process has opened it since `bind`.
        """
        try:
            self.accept_connections()
        except OSError as error:
            raise _cannot_listen(self.effective_host, self.effective_port, error) from None

    def run(self):
        """Answers requests; returns after `stop`, when all that have come are answered."""
        while not self.stops:
            wasyncore.poll2(_LOOK, self._map)
        before = -1
        while before < len(self.active_channels):  # What the system has accepted.
            before = len(self.active_channels)
            self.handle_accept()
        wasyncore.dispatcher.close(self)
        wasyncore.poll2(0, self._map)  # Reads what has come, before idle connections are closed.
        self._ends = True
        while self.active_channels:
            self.maintenance(time.time())
            wasyncore.poll2(_LOOK / 10, self._map)
        self.task_dispatcher.shutdown()
        self.trigger.close()

    def stop(self):
        """Lets `run` return; may be called in a signal handler, also before `run`."""
        if not self.stops:
            self.stops = True
            self.pull_trigger()

    def maintenance(self, now):
        """Closes connections that are idle or too slow; at the end, all without a request."""
        super().maintenance(now)
        for channel in list(self.active_channels.values()):
            if channel.is_too_slow(now, self._seconds) or (self._ends and channel.is_idle(now)):
                channel.will_close = True


class _Parser(HTTPRequestParser):
    """Reads a request; whatever it is, waitress's own parser may raise no other error."""

    def received(self, data):
        try:
            used = super().received(data)
        except ValueError as error:
            return self._refused(f"The header cannot be read: {error}", data)
        parts = (getattr(self.body_rcv, name, b"") for name in ("control_line", "trailer"))
        if sum(map(len, parts)) > _MOST_HEADER_BYTES:
            return self._refused("The lines between chunks are too long", data)
        return used

    def _refused(self, reason, data):
        self.error, self.completed = BadRequest(reason), True
        return len(data)


class _Task(WSGITask):
    def execute(self):
        if self.channel.server.stops or self.channel.has_more:
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
    """A connection, with one request at a time."""

    task_class = _Task
    error_task_class = _ErrorTask
    parser_class = _Parser
    is_refused = False
    has_more = False  # Whether the client has sent something behind a request.
    _lingers_from = None
    _arrives_from = None  # When the first byte of a request came that is not complete.
    _sends_from = None  # When an answer was first seen that the client has not read.

    def received(self, data):
        self._sends_from = None  # Waitress reads nothing while it sends.
        result = super().received(data)
        with self.requests_lock:
            if self.requests and (len(self.requests) > 1 or self.request is not None):
                # Without an answer to the first request, a client cannot know that the next one is
                # read. It is dropped; the connection ends after the answer.
                for request in (*self.requests[1:], self.request):
                    if request is not None:
                        request.close()
                self.request, self.has_more = None, True
                del self.requests[1:]
        if self.request is None:
            self._arrives_from = None
        elif self._arrives_from is None:
            self._arrives_from = time.time()
        return result

    def is_too_slow(self, now, seconds):
        """Whether its request or the reading of an answer takes longer than some seconds."""
        if self._lingers_from is not None:
            return self._lingers_from < now - _LINGER
        if not self.total_outbufs_len:
            self._sends_from = None
        elif self._sends_from is None:
            self._sends_from = now
        begins = (self._arrives_from, self._sends_from)
        return any(begin is not None and begin < now - seconds for begin in begins)

    def is_idle(self, now):
        """Whether it has no request, and none has come for a while."""
        is_quiet = self.last_activity < now - _QUIET
        return is_quiet and not (self.requests or self.request or self.total_outbufs_len)

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
