"""A connection between two workers: JSON objects, one per line."""

import contextlib
import json
import socket
import threading

# Bytes of a message; larger ones are those of another program.
_LARGEST = 1 << 28


class Link:
    """Sends and receives JSON values over a connected socket.

    Args:
        connection: the `socket.socket`; the link closes it.
    """

    def __init__(self, connection):
        self._connection = connection
        self._file = connection.makefile("rb")
        self._sending = threading.Lock()

    def send(self, message):
        """Sends a message; does nothing if the other side is gone, which `receive` reports."""
        line = json.dumps(message).encode() + b"\n"
        with self._sending, contextlib.suppress(OSError):
            self._connection.sendall(line)

    def receive(self, seconds=None):
        """Returns the next message.

        Args:
            seconds: longest wait; None waits for ever.

        Raises:
            OSError: if the connection has ended, or after `seconds`.
            ValueError: if something else than a message comes.
        """
        self._connection.settimeout(seconds)
        line = self._file.readline(_LARGEST)
        if not line:
            raise ConnectionError("the connection was closed")
        if not line.endswith(b"\n"):
            raise ValueError("it does not send lines of JSON")
        return json.loads(line)

    def is_open(self) -> bool:
        """Whether the other side has not closed the connection; it must have nothing to say."""
        self._connection.settimeout(0)
        try:
            return bool(self._connection.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def end(self):
        """Ends a `receive` of another thread, which raises OSError."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self):
        """Ends the connection."""
        self._file.close()
        self._connection.close()
