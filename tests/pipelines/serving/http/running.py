"""A server in a thread of the tests, and its clients."""

import base64
import contextlib
import http.client
import json
import socket
import threading

from pipelines.serving.http import run, server

PREDICT = "/v1/models/vit:predict"


@contextlib.contextmanager
def running(model, **limits):
    """Runs a server; yields it, and stops it."""
    given = {"waiting": 4, "images": 8, "megabytes": 1, "seconds": 30} | limits
    made = run.make_server(model, server.bind("127.0.0.1", 0), "vit", run.Limits(**given))
    made.listen()
    thread = threading.Thread(target=made.run)
    thread.start()
    try:
        yield made
    finally:
        made.stop()
        thread.join(60)
        assert not thread.is_alive()


def address(served):
    """The host and the port of a server."""
    return "127.0.0.1", int(served.url.rstrip("/").rpartition(":")[2])


def connect(served):
    """A connection without HTTP."""
    return socket.create_connection(address(served), timeout=60)


def send(served, method, path, body=None, headers=()):
    """Status, headers and body of an answer."""
    connection = http.client.HTTPConnection(*address(served), timeout=60)
    with contextlib.closing(connection):
        connection.request(method, path, body, dict(headers))
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()


def predict(served, path=PREDICT, **request):
    """Status and JSON value of the answer to a request for predictions."""
    status, headers, body = send(served, "POST", path, json.dumps(request))
    assert headers["Content-Type"] == "application/json"
    return status, json.loads(body)


def as_base64(content):
    """A file as REST takes it."""
    return {"b64": base64.b64encode(content).decode()}
