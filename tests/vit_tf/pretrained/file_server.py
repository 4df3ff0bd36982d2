"""A local HTTP server of one file that misbehaves as a test asks it to."""

import contextlib
import http.server
import threading
import time


class FileServer:
    """A server of files, and the list of its requests.

    Attributes:
        content, etag: the file.
        answers: one entry for each of the next requests; afterwards the server answers well.
            "whole": ignores ranges; ("cut", n): closes after n bytes; ("stall", n, seconds): pauses
            after n bytes; ("slow", seconds): pauses after each tenth; ("status", code);
            ("redirect", url); "other part": the range is wrong; "no size": no Content-Length;
            ("raw", bytes, seconds): sends these bytes and closes after a pause.
        requests: the headers Range and path of each request.
        address: of the server.
    """

    def __init__(self, content):
        self.content, self.etag = content, '"first"'
        self.answers, self.requests, self.address = [], [], ""


def _handler(state):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            wanted = self.headers.get("Range")
            state.requests.append((wanted, self.path))
            answer = state.answers.pop(0) if state.answers else "well"
            kind, *values = answer if isinstance(answer, tuple) else (answer,)
            with contextlib.suppress(ConnectionError):
                if kind == "status":
                    self.send_error(*values)
                elif kind == "raw":
                    self.wfile.write(values[0])
                    self.wfile.flush()
                    time.sleep(values[1])
                elif kind == "redirect":
                    self.send_response(302)
                    self.send_header("Location", *values)
                    self.end_headers()
                else:
                    self.send_file(kind, values, wanted)

        def send_file(self, kind, values, wanted):
            same = self.headers.get("If-Range") == state.etag
            total, begin = len(state.content), 0
            if wanted and same and kind != "whole":
                begin = int(wanted.removeprefix("bytes=").rstrip("-"))
                shift = 1 if kind == "other part" else 0
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {begin - shift}-{total - 1}/{total}")
            else:
                self.send_response(200)
            if state.etag:
                self.send_header("ETag", state.etag)
            body = state.content[begin:]
            if kind != "no size":
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if kind == "cut":
                self.wfile.write(body[: values[0]])
            elif kind == "stall":
                self.wfile.write(body[: values[0]])
                self.wfile.flush()
                time.sleep(values[1])
            elif kind == "slow":
                step = len(body) // 10 + 1
                for place in range(0, len(body), step):
                    self.wfile.write(body[place : place + step])
                    self.wfile.flush()
                    time.sleep(values[0])
            else:
                self.wfile.write(body)

        def log_message(self, *arguments):
            del arguments

    return Handler


@contextlib.contextmanager
def serving(content):
    """Yields a running `FileServer`."""
    state = FileServer(content)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(state))
    server.daemon_threads = True
    state.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.01), daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
