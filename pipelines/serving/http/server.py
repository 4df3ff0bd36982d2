"""The HTTP server around the application: h11 reads HTTP/1.1, asyncio the connections.

One thread reads all requests, so a slow client holds no other thread; each step of a connection has
a deadline, however many bytes come until then. Other threads compute the answers.
"""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import email.utils
import http
import logging
import socket
import tempfile
import urllib.parse
from typing import Any

import h11

from pipelines.errors import UserError
from pipelines.serving.http.app import error_body

_log = logging.getLogger(__name__)

# Open connections beyond those whose requests run or wait; further ones are answered 503.
_SPARE_CONNECTIONS = 200
# Bytes of a body that are kept in memory; the rest goes to a temporary file.
_IN_MEMORY = 64 * 2**10
# Of a header, or of a line between the chunks of a body, before another part is read.
_MOST_HEADER_BYTES = 16 * 2**10
# Bytes that are read at a time.
_READ = 16 * 2**10
# Threads beyond the ones that compute or wait: they refuse, and send the files of the page.
_SPARE_THREADS = 8
# Seconds in which a client that was refused may still send before its connection is closed.
_LINGER = 5.0
# Seconds in which asyncio takes the connections that the system has accepted.
_ACCEPT = 0.05
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


class Server:
    """Answers requests until `stop` is called.

    Args:
        application: `Application`.
        bound: the result of `bind`.
        threads: how many requests the application answers or keeps waiting at a time.
        most_bytes: the largest body of a request.
        seconds: for a whole request to arrive, and for an answer to be read.
    """

    def __init__(self, application, bound, *, threads, most_bytes, seconds):
        self.application = application
        self.stops = False
        self._bound, self._most_bytes, self._seconds = bound, most_bytes, seconds
        self._most_connections = threads + _SPARE_CONNECTIONS
        self._threads = concurrent.futures.ThreadPoolExecutor(threads + _SPARE_THREADS)
        self._loop = None
        # The tasks of all connections, and of those without a request.
        self._connections, self._idle = set(), set()

    @property
    def url(self) -> str:
        """Where the page is."""
        host, port = self._bound.getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/"

    def listen(self):
        """Opens the port.

        Raises:
            UserError: if another process has opened it since `bind`.
        """
        try:
            self._bound.listen(self._most_connections)
        except OSError as error:
            host, port = self._bound.getsockname()[:2]
            raise _cannot_listen(host, port, error) from None

    def run(self):
        """Answers requests; returns after `stop`, when all that have come are answered."""
        asyncio.run(self._run())

    def stop(self):
        """Lets `run` return; may be called in a signal handler, also before `run`."""
        self.stops = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stopped.set)

    async def _run(self):
        self._stopped, self._loop = asyncio.Event(), asyncio.get_running_loop()
        if self.stops:
            self._stopped.set()
        listening = await asyncio.start_server(
            self._accepted, sock=self._bound, limit=_READ, backlog=self._most_connections
        )
        await self._stopped.wait()
        await asyncio.sleep(_ACCEPT)
        listening.close()
        await asyncio.sleep(_ACCEPT)
        if self._connections:
            await asyncio.wait(self._connections, timeout=_QUIET)
        for task in self._idle:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        self._loop = None
        self._threads.shutdown()

    async def _accepted(self, reader, writer):
        """Serves a connection, until one of the two sides ends it or the client is too slow."""
        task = asyncio.current_task()
        self._connections.add(task)
        try:
            # Idle connections are canceled at the end.
            with contextlib.suppress(ConnectionError, TimeoutError, asyncio.CancelledError):
                await self._serve(reader, writer)
        finally:
            self._connections.discard(task)
            self._idle.discard(task)
            writer.transport.abort()

    async def _serve(self, reader, writer):
        writer.transport.set_write_buffer_limits(0)  # `drain` waits until everything is sent.
        rest = b""
        while True:
            connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_MOST_HEADER_BYTES)
            with tempfile.SpooledTemporaryFile(_IN_MEMORY) as body:
                request = _Request(body)
                try:
                    if not await self._receive(connection, reader, writer, request, rest):
                        return
                    status, headers, content = await asyncio.get_running_loop().run_in_executor(
                        self._threads,
                        self.application,
                        *(request.method, request.path, request.encoding, body.read),
                    )
                    closes = self.stops
                except h11.RemoteProtocolError as error:
                    status, headers, content = _refusal(error)
                    if request.method == "HEAD":
                        content = b""
                    closes = True
            headers = [*headers, ("Date", email.utils.formatdate(usegmt=True))]
            if closes:
                headers.append(("Connection", "close"))
            answer = h11.Response(
                status_code=status.value, reason=status.phrase.encode(), headers=headers
            )
            events = answer, h11.Data(content), h11.EndOfMessage()
            await self._send(writer, *map(connection.send, events))
            rest, _ = connection.trailing_data
            if not connection.our_state is connection.their_state is h11.DONE:
                break
        if connection.their_state is not h11.MUST_CLOSE:
            # A client that still sends when the connection is closed may never see why it was
            # refused: what it sends is read and dropped for a while.
            writer.write_eof()
            async with asyncio.timeout(_QUIET if self.stops else _LINGER):
                while await reader.read(_READ):
                    pass

    async def _send(self, writer, *parts):
        writer.writelines(parts)
        async with asyncio.timeout(self._seconds):
            await writer.drain()

    async def _receive(self, connection, reader, writer, request, rest) -> bool:
        """Reads a `_Request`; False if the client ends the connection.

        Args:
            connection: new `h11.Connection`.
            reader, writer: of the connection.
            request: is filled.
            rest: what was read behind the request before.

        Raises:
            h11.RemoteProtocolError: if it is no HTTP or too large, with the status of the answer.
            TimeoutError: if it takes too long.
        """
        if len(self._connections) > self._most_connections:
            raise h11.RemoteProtocolError("Too many connections are open", error_status_hint=503)
        size, now = 0, asyncio.get_running_loop().time
        async with asyncio.timeout(self._seconds) as deadline:
            # Empty lines before a request count for nothing (RFC 9112, 2.2).
            while not (rest := rest.lstrip(b"\r\n")):
                self._idle.add(task := asyncio.current_task())
                if self.stops:
                    deadline.reschedule(now() + _QUIET)
                rest = await reader.read(_READ)
                self._idle.discard(task)
                if not rest:
                    return False
            deadline.reschedule(now() + self._seconds)
            connection.receive_data(rest)
            while True:
                event = connection.next_event()
                if event is h11.NEED_DATA:
                    if connection.they_are_waiting_for_100_continue:
                        go_on = h11.InformationalResponse(status_code=100, headers=[])
                        await self._send(writer, connection.send(go_on))
                    connection.receive_data(await reader.read(_READ))
                elif isinstance(event, h11.Request):
                    self._check_size(request.read_head(event))
                elif isinstance(event, h11.Data):
                    size += len(event.data)
                    self._check_size(size)
                    request.keep(event.data)
                elif isinstance(event, h11.EndOfMessage):
                    request.body.seek(0)
                    return True
                else:
                    return False

    def _check_size(self, size):
        if size > self._most_bytes:
            raise h11.RemoteProtocolError(
                f"The body has more than {self._most_bytes:,} bytes", error_status_hint=413
            )


@dataclasses.dataclass
class _Request:
    """What a client asks; `body` is a file."""

    body: Any
    method: str = ""
    path: str = ""
    encoding: str = "identity"

    def read_head(self, event) -> int:
        """Takes an `h11.Request`; returns the size of the body that it states, 0 for none."""
        self.method, headers = event.method.decode(), dict(event.headers)
        if event.http_version not in (b"1.0", b"1.1"):
            version = event.http_version.decode()
            raise h11.RemoteProtocolError(f"HTTP {version} is not 1.1", error_status_hint=505)
        try:
            self.path = urllib.parse.unquote(urllib.parse.urlsplit(event.target.decode()).path)
        except ValueError as error:
            raise h11.RemoteProtocolError(f"The address cannot be read: {error}") from None
        if encoding := headers.get(b"content-encoding"):
            self.encoding = encoding.decode("latin-1").lower()
        return int(headers.get(b"content-length", 0))

    def keep(self, data):
        """Adds to the body."""
        try:
            self.body.write(data)
        except OSError as error:
            # Such as a full disk of temporary files.
            _log.error(f"The body of a request cannot be kept: {error}")
            raise h11.RemoteProtocolError(
                f"The server cannot keep the body: {error.strerror}", error_status_hint=507
            ) from None


def _refusal(error):
    """The answer to a request that is not HTTP or too large: JSON, as all errors."""
    status = http.HTTPStatus(error.error_status_hint)
    content = error_body(f"{status.phrase}: {error}.")
    headers = [("Content-Type", "application/json"), ("Content-Length", str(len(content)))]
    if status == http.HTTPStatus.SERVICE_UNAVAILABLE:
        headers.append(("Retry-After", "1"))
    return status, headers, content
