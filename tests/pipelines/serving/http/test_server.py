"""The HTTP server: room, limits, slow clients, the end, memory."""

import concurrent.futures
import contextlib
import http.client
import json
import os
import signal
import sys
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from pipelines.errors import UserError
from pipelines.serving import http as ours
from pipelines.serving.http import run, server
from pipelines.serving.http.gate import Busy, Gate
from pipelines.serving.http.model import ServedModel
from tests import fork_server
from tests.pipelines.process import ROOT, assert_user_error
from tests.pipelines.serving.http.running import (
    PREDICT,
    address,
    as_base64,
    connect,
    predict,
    running,
    send,
)

SECONDS = 120  # Generous: the machine may be busy.


# A PNG of one pixel.
PIXEL = tf.io.encode_png(np.zeros([1, 1, 3], np.uint8)).numpy()


class SlowModel(ServedModel):
    """Its signature returns what it gets, when `free` is set."""

    def call(self, signature, value):
        """See `ServedModel.call`."""
        self.owner["began"].release()
        assert self.owner["free"].wait(SECONDS)
        return super().call(signature, value)


@pytest.fixture
def slow():
    function = tf.function(lambda x: {"y": x}, [tf.TensorSpec([None, 1], name="x")])
    signatures = {"serving_default": function.get_concrete_function()}
    owner = {"free": threading.Event(), "began": threading.Semaphore(0)}
    yield SlowModel("slow", signatures, None, 1, owner)
    owner["free"].set()


def until(condition):
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_too_many_are_refused_at_once_and_it_recovers(slow, monkeypatch):
    monkeypatch.setattr("pipelines.serving.http.run.cores", lambda: 2)
    with running(slow, waiting=1) as served, concurrent.futures.ThreadPoolExecutor(3) as clients:
        inside = [clients.submit(predict, served, inputs=[[i]]) for i in range(3)]
        for _ in range(2):
            assert slow.owner["began"].acquire(timeout=SECONDS)
        until(lambda: served.application._rest._gate._waiting)
        status, headers, body = send(served, "POST", PREDICT, b'{"inputs": [[9]]}')
        assert (status, headers["Retry-After"]) == (503, "1")
        assert json.loads(body) == {"error": "Too many requests wait. Try again later."}
        assert send(served, "GET", "/healthz")[::2] == (200, b"ok\n")
        slow.owner["free"].set()
        assert [x.result(SECONDS) for x in inside] == [(200, {"outputs": [[i]]}) for i in range(3)]
        assert predict(served, instances=[[4], [5]]) == (200, {"predictions": [[4.0], [5.0]]})
        assert served.application.refused == 1


def test_the_page_takes_no_place_of_rest(slow, monkeypatch):
    """One image is explained at a time, four wait, and REST answers meanwhile."""
    slow.owner["free"].set()
    with running(slow) as served, concurrent.futures.ThreadPoolExecutor(5) as clients:
        page, free, content = served.application._page, threading.Event(), PIXEL
        decode = page._decoded
        monkeypatch.setattr(page, "_decoded", lambda data: free.wait(SECONDS) and decode(data))
        inside = [clients.submit(send, served, "POST", "/explain", content) for _ in range(5)]
        until(lambda: len(page._own_gate._waiting) == 4)
        assert send(served, "POST", "/explain", content)[0] == 503
        for i in range(6):
            assert predict(served, inputs=[[i]]) == (200, {"outputs": [[i]]})
        free.set()
        assert [x.result(SECONDS)[0] for x in inside] == [200] * 5


def test_first_come_first_served_and_nobody_waits_too_long():
    gate, order, threads = Gate(1, 5, SECONDS), [], []

    def enter(number):
        with gate.entered():
            order.append(number)

    with gate.entered():
        for number in range(5):
            threads.append(threading.Thread(target=enter, args=[number]))
            threads[-1].start()
            until(lambda number=number: len(gate._waiting) == number + 1)
        with pytest.raises(Busy), gate.entered():
            order.append("sixth")
    for thread in threads:
        thread.join(SECONDS)
    assert order == [0, 1, 2, 3, 4]
    gate = Gate(1, 1, 0.05)
    for _ in range(2):
        with gate.entered(), pytest.raises(Busy), gate.entered():
            order.append("impatient")
    assert "impatient" not in order


@pytest.mark.parametrize(
    "parts",
    [
        [b"POST / HTTP/1.1\r\nHos"],
        [b"POST /explain HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n", *[b"a"] * 99],
        [b""],
    ],
    ids=["header", "body", "nothing"],
)
def test_slow_clients_are_dropped(slow, parts):
    """Also one that sends a byte now and then; others are answered meanwhile."""
    begin, dropped = time.monotonic(), False
    with running(slow, seconds=1) as served, connect(served) as client:
        client.settimeout(0.1)
        for index in range(10 * SECONDS):
            with contextlib.suppress(TimeoutError):
                if index < len(parts):
                    client.sendall(parts[index])
                dropped = not client.recv(1)
            if dropped:
                break
            assert send(served, "GET", "/healthz")[0] == 200
        assert dropped and time.monotonic() - begin >= 1


def test_a_large_body_is_refused_though_it_is_sent_to_its_end(slow):
    with running(slow) as served:
        body = b"x" * (4 << 20)
        for sent in (body, iter([body])):  # With its length, and in a chunk.
            status, found, answer = send(served, "POST", PREDICT, sent)
            assert status == 413 and found["Content-Type"] == "application/json"
            assert "Request Entity Too Large" in json.loads(answer)["error"]
        status, _, answer = send(served, "POST", PREDICT, b"", {"Content-Encoding": "gzip"})
        assert status == 415 and "'gzip' is not read here" in json.loads(answer)["error"]


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nothing\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nA: " + b"a" * 40_000 + b"\r\n\r\n", b"431"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n", b"400"),
        (
            b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"a" * 40_000,
            b"431",
        ),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: " + b"1" * 5000 + b"\r\n\r\n", b"400"),
        (b"GET http://[::1 HTTP/1.1\r\nHost: a\r\n\r\n", b"400"),
        (b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", b"505"),
    ],
)
def test_what_is_not_http(slow, data, status):
    with running(slow) as served, connect(served) as client:
        client.sendall(data)
        answer = client.makefile("rb").read()
        assert answer.split()[1] == status
        assert list(json.loads(answer.partition(b"\r\n\r\n")[2])) == ["error"]


def test_a_refused_head_is_answered_without_content(slow):
    with running(slow) as served, connect(served) as client:
        client.sendall(b"HEAD http://[::1 HTTP/1.1\r\nHost: a\r\n\r\n")
        answer = client.makefile("rb").read()
        assert answer.startswith(b"HTTP/1.1 400 ") and answer.endswith(b"\r\n\r\n")


def test_requests_behind_each_other_are_answered_in_order(slow):
    """Empty lines between them count for nothing."""
    with running(slow) as served, connect(served) as client:
        get = b"GET /healthz HTTP/1.1\r\nHost: a\r\n"
        client.sendall(b"\r\n" + get + b"\r\n\r\n" + get + b"Connection: close\r\n\r\n" + get)
        answer = client.makefile("rb").read()
        assert answer.count(b"200 OK") == 2 and answer.endswith(b"\r\n\r\nok\n")
        assert answer.count(b"Connection: close") == 1


def test_a_client_that_waits_before_it_sends_a_body(slow):
    slow.owner["free"].set()
    with running(slow) as served, connect(served) as client:
        header = f"POST {PREDICT} HTTP/1.1\r\nHost: a\r\nContent-Length: 16\r\n"
        client.sendall(f"{header}Expect: 100-continue\r\nConnection: close\r\n\r\n".encode())
        assert client.recv(1000).startswith(b"HTTP/1.1 100 ")
        client.sendall(b'{"inputs":[[8]]}')
        assert client.makefile("rb").read().endswith(b'{"outputs":[[8.0]]}')


@contextlib.contextmanager
def running_alone(application, **limits):
    """A server of another application."""
    given = {"threads": 1, "most_bytes": 10, "seconds": SECONDS} | limits
    made = server.Server(application, server.bind("127.0.0.1", 0), **given)
    made.listen()
    thread = threading.Thread(target=made.run)
    thread.start()
    yield made
    made.stop()
    thread.join(SECONDS)
    assert not thread.is_alive()


def test_clients_that_do_not_read_are_dropped():
    size = 64 << 20  # More than the system keeps.

    def application(*request):
        return http.HTTPStatus.OK, [("Content-Length", str(size))], bytes(size)

    with running_alone(application, seconds=1) as served, connect(served) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        until(lambda: served._connections)
        until(lambda: not served._connections)
        received = 0
        with contextlib.suppress(ConnectionResetError):
            while data := client.recv(1 << 20):
                received += len(data)
        assert received < size


def test_too_many_connections_are_refused(monkeypatch):
    monkeypatch.setattr(server, "_SPARE_CONNECTIONS", 0)
    with running_alone(None) as served, connect(served):
        until(lambda: served._connections)
        status, headers, body = send(served, "GET", "/")
        assert (status, headers["Retry-After"]) == (503, "1")
        assert "Too many connections" in json.loads(body)["error"]


def test_what_has_come_is_answered_at_the_end(slow):
    """Computed and half sent; a kept-alive connection ends, and new ones fail."""
    with running(slow) as served:
        idle = http.client.HTTPConnection(*address(served), timeout=SECONDS)
        idle.request("GET", "/healthz")
        assert idle.getresponse().read() == b"ok\n"
        with concurrent.futures.ThreadPoolExecutor(1) as clients, connect(served) as half:
            computed = clients.submit(predict, served, inputs=[[7]])
            assert slow.owner["began"].acquire(timeout=SECONDS)
            half.sendall(
                f"POST {PREDICT} HTTP/1.1\r\nHost: a\r\nContent-Length: 16\r\n\r\n".encode()
            )
            until(lambda: len(served._connections) == 3)
            served.stop()
            until(lambda: served._bound.fileno() < 0)
            with pytest.raises(OSError):
                connect(served)
            half.sendall(b'{"inputs":[[8]]')
            half.sendall(b"}")
            slow.owner["free"].set()
            assert computed.result(SECONDS) == (200, {"outputs": [[7.0]]})
            answer = half.makefile("rb").read()
            assert b"200 OK" in answer and answer.endswith(b'{"outputs":[[8.0]]}')
            assert b"Connection: close" in answer
        idle.close()


def _empty(*request):
    return http.HTTPStatus.OK, [("Content-Length", "0")], b""


def test_requests_of_the_last_moment_are_answered(monkeypatch):
    """Also for connections that nobody has accepted; a client that stays holds nothing."""
    monkeypatch.setattr(server, "_LINGER", 10 * SECONDS)
    for _ in range(5):
        with contextlib.ExitStack() as opened, running_alone(_empty) as served:
            clients = [opened.enter_context(connect(served)) for _ in range(8)]
            for client in clients:
                client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            served.stop()
            for client in clients:
                assert client.recv(1000).startswith(b"HTTP/1.1 200 OK\r\n")


def test_a_body_that_the_disk_does_not_take(monkeypatch, caplog):
    class Full:
        def __init__(self, size):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *exc_info):
            pass

        def write(self, data):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(server.tempfile, "SpooledTemporaryFile", Full)
    with running_alone(_empty) as served:
        status, _, body = send(served, "POST", "/", b"x")
        assert status == 507 and "No space left" in json.loads(body)["error"]
    assert "cannot be kept" in caplog.text


def test_the_address(slow):
    with running(slow) as served:
        port = address(served)[1]
        for host, message in (("127.0.0.1", "in use"), ("192.0.2.1", "address")):
            with pytest.raises(UserError, match=f"--host={host} --port={port}: .*{message}"):
                server.bind(host, port)
    with pytest.raises(UserError, match="no.such.host.invalid"):
        server.bind("no.such.host.invalid", 0)
    with server.bind("127.0.0.1", 0) as first:
        made = run.make_server(slow, first, "vit", run.Limits(1, 1, 1, 1))
        with server.bind("127.0.0.1", first.getsockname()[1]) as second:
            second.listen()
            with pytest.raises(UserError, match="Cannot listen on --host=127.0.0.1 .* in use"):
                made.listen()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--name=a/b"], "--name=a/b is not possible. Use letters"),
        (["--port=70000"], "port"),
        (["--max_pixels=5"], "--max_pixels must be from 256"),
        (["--precision=bfloat16"], "--precision=bfloat16 needs --fused"),
        (["--model=/nothing"], "/nothing"),
    ],
)
def test_wrong_flags(command, flags, message):
    assert_user_error(command("serve", "--port=0", *flags), message)


@pytest.mark.parametrize("flag", ["--fused", "--labels=names.txt", "--max_pixels=99"])
def test_flags_that_an_export_decides(command, exported, flag):
    path = exported.folder / "portable"
    done = command("serve", "--port=0", "--model", path, flag)
    assert_user_error(done, f"{flag.partition('=')[0]} is for models that are not exported")


def test_without_h11(command, monkeypatch):
    monkeypatch.delitem(sys.modules, server.__name__)
    monkeypatch.delattr(ours, "server")
    monkeypatch.setitem(sys.modules, "h11", None)
    assert_user_error(command("serve", "--port=0"), "needs h11", "pip install '.[train,serve]'")


# Wrong requests of a megabyte, which would take far more as Python's objects or texts of NumPy.
HOSTILE = [
    b"[" * 500_000,
    b'{"inputs": [' + b"[0]," * 200_000 + b"[0]]}",
    b'{"inputs": [[' + b"[]," * 300_000 + b"[]]]}",
    b'{"inputs": [["' + b"a" * 900_000 + b'"' + b", 0" * 500 + b"]]}",
    json.dumps({"signature_name": "serving_bytes", "inputs": [{"b64": "A" * 900_000}]}).encode(),
]
MOST_BYTES = 250e6  # Beyond what the warm server takes.


@pytest.mark.process
def test_the_command(tmp_path):
    """Warm when /healthz answers, little memory, and an end without an error after SIGTERM."""
    log = tmp_path / "log"
    with open(log, "w") as out:
        process = fork_server.Process(
            "pipelines",
            ["-m", "pipelines.serve", "--port=0", "--max_pixels=1000000", "--max_mb=1"],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": ROOT, "TF_CPP_MIN_LOG_LEVEL": "3"},
            stdout=out.fileno(),
            stderr=out.fileno(),
        )
    try:
        until(lambda: "Ctrl-C" in log.read_text() or process.poll() is not None)
        assert "Ctrl-C" in log.read_text(), log.read_text()
        count = attack(process, log)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(10 * SECONDS) == 0
    finally:
        process.kill()
    end = log.read_text().splitlines()[-2:]
    assert end == ["SIGTERM: answering what has come", f"ended: {count} requests answered"]


def attack(process, log):
    """Sends wrong requests twice; returns the number of requests."""
    page = next(x for x in log.read_text().splitlines() if x.startswith("page: "))

    class Served:
        url = page

    assert send(Served, "GET", "/healthz")[0] == 200
    bomb = tf.io.encode_png(np.zeros([3000, 3000, 3], np.uint8)).numpy()
    bombs = {"signature_name": "serving_bytes", "inputs": [as_base64(bomb)]}
    requests = [(PREDICT, body) for body in (*HOSTILE, json.dumps(bombs).encode())]
    requests += [("/explain", bomb), ("/explain", bomb[: len(bomb) // 2])]
    before = memory(process.pid)
    for path, body in 2 * requests:
        assert send(Served, "POST", path, body)[0] == 400
    assert memory(process.pid) < before + MOST_BYTES
    assert predict(Served, inputs=[[[[0, 0, 0]]]])[0] == 200
    return 2 * len(requests) + 2


def memory(pid):
    """The most resident bytes that a process has had."""
    with open(f"/proc/{pid}/status") as file:
        [line] = [x for x in file if x.startswith("VmHWM")]
    return int(line.split()[1]) * 1024
