"""The application: which answer each path has, and what an error looks like."""

import http
import json
import logging

import tensorflow as tf

from pipelines.serving.http.errors import HttpError
from pipelines.serving.http.gate import Busy
from pipelines.serving.http.rest import PREFIX

_log = logging.getLogger(__name__)

_JSON = "application/json"
# Nothing on the page comes from elsewhere, and no other page may contain it.
_SECURITY = [
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
]


class Application:
    """Answers requests.

    Args:
        rest: `Rest`.
        page: `Page`.

    Attributes:
        answered, refused: numbers of requests that were answered, and of those for which there was
            no room. Several threads count, so they may be a little too small.
    """

    def __init__(self, rest, page):
        self._rest, self._page = rest, page
        self.answered = self.refused = 0

    def __call__(self, method, path, encoding, read_body):
        """Answers one request.

        Args:
            method, path: of the request; the path is decoded.
            encoding: Content-Encoding of its body.
            read_body: function that returns its body.

        Returns:
            `http.HTTPStatus`, list of headers, and bytes.
        """
        try:
            media_type, content = self._answer(method, path, encoding, read_body)
            status, headers = http.HTTPStatus.OK, []
        except HttpError as error:
            status, headers = error.status, error.headers
            media_type, content = _JSON, error_body(error)
        except Busy:
            self.refused += 1
            status, headers = http.HTTPStatus.SERVICE_UNAVAILABLE, [("Retry-After", "1")]
            media_type, content = _JSON, error_body("Too many requests wait. Try again later.")
        except (tf.errors.ResourceExhaustedError, MemoryError):
            status, headers = http.HTTPStatus.TOO_MANY_REQUESTS, []
            media_type, content = _JSON, error_body("There is not enough memory. Send less.")
        except Exception:
            _log.exception(f"{method} {path!r:.200} failed")
            status, headers = http.HTTPStatus.INTERNAL_SERVER_ERROR, []
            media_type, content = _JSON, error_body("The server failed; its log has the reason.")
        self.answered += 1
        charset = "; charset=utf-8" if media_type.startswith("text/") else ""
        headers += [
            ("Content-Type", media_type + charset),
            ("Content-Length", str(len(content))),
            ("Cache-Control", "no-store"),
            *_SECURITY,
        ]
        return status, headers, b"" if method == "HEAD" else content

    def _answer(self, method, path, encoding, read_body):
        """The media type and the content of an answer."""
        if encoding != "identity":
            raise HttpError(
                http.HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
                f"Content-Encoding {encoding!r:.40} is not read here. Send the body as it is.",
            )
        if path.startswith(PREFIX):
            return _JSON, self._rest.answer(method, path, read_body)
        if path == "/explain":
            _check_method(method, path, "POST")
            return _JSON, self._page.explain(read_body)
        if path == "/healthz":
            _check_method(method, path, "GET", "HEAD")
            return "text/plain", b"ok\n"
        found = self._page.file(path)
        _check_method(method, path, "GET", "HEAD")
        return found


def error_body(message) -> bytes:
    """The body of an error, as TensorFlow Serving writes it."""
    return json.dumps({"error": str(message)}, ensure_ascii=False).encode("utf-8", "replace")


def _check_method(method, path, *allowed):
    if method not in allowed:
        raise HttpError(
            http.HTTPStatus.METHOD_NOT_ALLOWED,
            f"{path} takes {' and '.join(allowed)}. Received: {method!r:.20}.",
            [("Allow", ", ".join(allowed))],
        )
