"""Answers that are errors."""

import http


class HttpError(Exception):
    """An error of a client, or a refusal.

    Args:
        status: `http.HTTPStatus`.
        message: one sentence that says what was expected.
        headers: further headers of the answer.
    """

    def __init__(self, status: http.HTTPStatus, message: str, headers=()):
        super().__init__(message)
        self.status, self.headers = status, list(headers)


def bad_request(message) -> HttpError:
    """What a client sent is wrong."""
    return HttpError(http.HTTPStatus.BAD_REQUEST, message)


def not_found(message) -> HttpError:
    """There is nothing of this name."""
    return HttpError(http.HTTPStatus.NOT_FOUND, message)
