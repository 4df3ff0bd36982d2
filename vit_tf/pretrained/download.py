"""Downloads one file over HTTP, and goes on where an earlier download ended.

The bytes are written to a file of their own, which the caller renames after checking it. Beside it,
`<file>.state` tells whether the server still has the same file: its ETag (or
Last-Modified) and its size.
"""

import contextlib
import errno
import http.client
import json
import os
import shutil
import time
import urllib.error
import urllib.parse
import urllib.request

from vit_tf.files.atomic_file import write_atomically
from vit_tf.files.json_object import read_json_object
from vit_tf.pretrained.progress import DownloadProgress

_CHUNK = 2**20
_MOST_REDIRECTS = 5
# Seconds without any byte after which a connection counts as lost.
TIMEOUT = 30.0
# Seconds before a lost connection is made again.
PAUSE = 1.0


class DownloadError(OSError):
    """Weights that cannot be had; the message gives the reason and the fix."""


class _Lost(Exception):
    """The connection failed or ended early; the received part is in the file."""


def download(url, path, most_bytes, name) -> None:
    """Downloads `url` to `path`. A lost connection is made again as long as it brings bytes.

    Args:
        url: of the scheme http, https or file.
        path: file to write; the part from an earlier download is kept if the server still has
            the same file and sends the rest.
        most_bytes: a larger file is refused.
        name: for messages.

    Raises:
        DownloadError: if the file cannot be downloaded or written. Unless the disk is full, `path`
            keeps the received part.
    """
    if url.startswith("file:"):
        _copy(_local_path(url), path, most_bytes, name)
        return
    while True:
        before = _size(path)
        try:
            _receive(url, path, most_bytes, name)
            break
        except _Lost as error:
            if _size(path) <= before:
                resumes = _size(path) and _read_state(path).get("validator")
                kept = f" after {_size(path):,} bytes, which are kept" if resumes else ""
                raise DownloadError(
                    f"Cannot download {name} from {url}: {error}{kept}. Try again, put the file "
                    f"at {path.removesuffix('.part')}, or set VIT_WEIGHTS_MIRROR to a folder or "
                    "server that has it."
                ) from None
            time.sleep(PAUSE)


def remove_state(path) -> None:
    """Deletes the files with which `download` resumes `path`; call it once the file is complete."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_state_path(path))


def _receive(url, path, most_bytes, name):
    """Downloads the missing part with one request; raises `_Lost` if the connection fails."""
    have, state = _size(path), _read_state(path)
    if have and state.get("size") == have:
        return  # Complete: the process ended before the file got its name.
    headers = {"User-Agent": "vit_tf", "Accept-Encoding": "identity"}
    if have and state.get("url") == url and state.get("validator"):
        headers |= {"Range": f"bytes={have}-", "If-Range": state["validator"]}
    opener = urllib.request.build_opener(_SameScheme)
    try:
        with opener.open(urllib.request.Request(url, headers=headers), timeout=TIMEOUT) as response:
            begin, total = _extent(response, have if "Range" in headers else 0, state)
            if total is not None:
                _check_size(total, most_bytes, name, url)
                _check_space(path, total, name)
            if begin == 0:
                with _writing(path):
                    _write_state(path, url, response, total)
            progress = DownloadProgress(name, total, begin)
            done = begin
            with _opened(path, "ab" if begin else "wb") as file:
                # `read1` returns received bytes; `read` would lose them if the connection ends.
                while chunk := response.read1(_CHUNK):
                    done += len(chunk)
                    _check_size(done, most_bytes if total is None else total, name, url)
                    _write(file, chunk, path)
                    progress.add(len(chunk))
            progress.close()
    except DownloadError:
        raise
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:  # The file on the server is shorter than the received part.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        raise DownloadError(
            f"Cannot download {name}: {url} answers {error.code} {_one_line(error.reason)}."
        ) from None
    # ValueError: a header that cannot be read, such as an invalid address of a redirect.
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _Lost(_reason(error)) from None
    if total is not None and done < total:
        raise _Lost(f"the connection ended after {done:,} of {total:,} bytes")


def _extent(response, have, state):
    """The first byte of a response in the file, and the size of the file or None."""
    length = response.headers.get("Content-Length", "")
    length = int(length) if length.isdecimal() else None
    if response.status != 206:
        return 0, length
    sent, _, total = response.headers.get("Content-Range", "").partition("/")
    same = have and state.get("validator") == _validator(response)
    if not same or total != str(state.get("size")) or not sent.startswith(f"bytes {have}-"):
        raise DownloadError(
            f"{response.url:.200} sends another part of the file than the one asked for "
            f"({sent[:40]!r} of {total[:20]!r}). Download it again; if that fails, delete the file "
            "that ends with .part in the cache."
        )
    return have, state["size"]


class _SameScheme(urllib.request.HTTPRedirectHandler):
    """Follows a redirect only if the scheme stays."""

    max_redirections = _MOST_REDIRECTS

    def http_error_302(self, req, fp, code, msg, headers):
        """Follows a redirect; see the base class, which would read the body, whatever its size."""
        fp.close()
        return super().http_error_302(req, fp, code, msg, headers)

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        """The request for the new address; see the base class."""
        old, new = (urllib.parse.urlsplit(url).scheme for url in (req.full_url, newurl))
        if old != new:
            raise DownloadError(
                f"{req.full_url} redirects to {newurl:.200}: from {old} to {new}, which is refused."
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _copy(source, path, most_bytes, name):
    """Copies a file of a local mirror."""
    try:
        total = os.path.getsize(source)
        with open(source, "rb") as origin:
            _check_size(total, most_bytes, name, source)
            _check_space(path, total, name)
            progress = DownloadProgress(name, total)
            with contextlib.suppress(FileNotFoundError):  # It describes another file from here on.
                os.unlink(_state_path(path))
            with _opened(path, "wb") as file:
                while chunk := origin.read(_CHUNK):
                    _write(file, chunk, path)
                    progress.add(len(chunk))
            progress.close()
    except DownloadError:
        raise
    except OSError as error:
        raise DownloadError(f"Cannot read {name} at {source}: {error.strerror}.") from None


def _local_path(url):
    return urllib.request.url2pathname(urllib.parse.urlsplit(url).path)


def _check_size(size, most_bytes, name, url):
    if size > most_bytes:
        raise DownloadError(
            f"{url} has more bytes than expected for {name}: at least {size:,}, expected at most "
            f"{most_bytes:,}."
        )


def _check_space(path, total, name):
    """Raises unless the file fits; an earlier part is either continued or overwritten."""
    needed = total - _size(path)
    free = shutil.disk_usage(os.path.dirname(path)).free
    if free < needed:
        raise DownloadError(
            f"{name} needs {needed / 1e6:,.0f} MB in {os.path.dirname(path)}, where "
            f"{free / 1e6:,.0f} MB are free. Free some space, or set KERAS_HOME to another folder."
        )


def _opened(path, mode):
    with _writing(path):
        return open(path, mode, buffering=0)  # Closing writes nothing more, so it cannot fail.


def _write(file, chunk, path):
    with _writing(path):
        while chunk:
            chunk = chunk[file.write(chunk) :]


@contextlib.contextmanager
def _writing(path):
    """Raises `DownloadError` for errors of the block; a full disk leaves nothing of the file."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            for left in (path, _state_path(path)):
                with contextlib.suppress(OSError):
                    os.unlink(left)
        raise DownloadError(
            f"Cannot write {path}: {error.strerror}. Free some space, or set KERAS_HOME to another "
            "folder."
        ) from None


def _reason(error):
    """The cause of a failed connection in a few words."""
    cause = getattr(error, "reason", error)
    return getattr(cause, "strerror", None) or _one_line(str(cause)) or type(cause).__name__


def _one_line(text):
    """The first line of a text of the server, cut, without control characters."""
    first = "".join(character for character in text.partition("\n")[0] if character.isprintable())
    return first[:100].rstrip(".")


def _validator(response):
    """The ETag or date that tells whether a file has changed, not a weak ETag; None without one."""
    etag = response.headers.get("ETag")
    if etag and not etag.startswith("W/"):
        return etag
    return response.headers.get("Last-Modified")


def _state_path(path):
    return path + ".state"


def _read_state(path):
    try:
        state = read_json_object(_state_path(path))
    except ValueError:
        return {}
    return {} if state is None else {name: state.raw(name) for name in state}


def _write_state(path, url, response, total):
    state = {"url": url, "validator": _validator(response), "size": total}
    write_atomically(_state_path(path), lambda file: file.write(json.dumps(state).encode()))


def _size(path):
    return os.path.getsize(path) if os.path.exists(path) else 0
