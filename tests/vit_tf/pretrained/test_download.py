"""Published weights come whole or not at all, whatever the server, the disk or the user does."""

import errno
import hashlib
import io
import json
import os
import pathlib
import shutil
import threading
import urllib.error

import numpy as np
import pytest

from tests.vit_tf.pretrained.file_server import serving
from vit_tf.preprocessing import Preprocessing
from vit_tf.pretrained import cache, download, verified
from vit_tf.pretrained.download import DownloadError
from vit_tf.pretrained.progress import DownloadProgress
from vit_tf.pretrained.records import WeightsRecord

PATH = "/vit_models/sam+/tiny.npz"


def npz(seed=0, **more):
    file = io.BytesIO()
    weights = np.random.default_rng(seed).normal(size=20_000).astype(np.float32)
    np.savez(file, weights=weights, **more)
    return file.getvalue()


CONTENT = npz()
RECORD = WeightsRecord(
    name="sam+/tiny",
    model="ViT-Ti/16",
    url=f"https://storage.googleapis.com{PATH}",
    listed_size=len(CONTENT),
    num_classes=1000,
    preprocessing=Preprocessing(image_size=(8, 8)),
)


@pytest.fixture
def server(monkeypatch, tmp_path):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(download, "PAUSE", 0.0)
    with serving(CONTENT) as state:
        monkeypatch.setenv(cache.MIRROR, state.address)
        yield state


def describe(file, path):
    """Stands for the sidecar that `vit_tf.weights` writes."""
    assert os.path.exists(file)
    pathlib.Path(path + ".json").write_text("{}")


def fetch():
    return pathlib.Path(cache.fetch(RECORD, describe))


def cached():
    """The names of the files in the cache, without the lock."""
    folder = pathlib.Path(cache.cache_path(RECORD)).parent
    return {file.name.removeprefix("tiny.npz") for file in folder.glob("*")} - {".lock"}


def part():
    """Where the bytes are written, in a folder that exists."""
    path = pathlib.Path(cache.cache_path(RECORD) + ".part")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def refused(*words):
    """Asserts that the file cannot be had, and that none is there under its own name.

    Returns the message.
    """
    with pytest.raises(DownloadError) as caught:
        fetch()
    message = str(caught.value)
    for word in words:
        assert word in message
    assert message.isprintable() and message.endswith(".") and not message.endswith("..")
    assert "" not in cached()
    return message


def test_a_file_comes_once(server, tmp_path, capsys):
    path = fetch()
    assert path == tmp_path / "keras" / "vit_tf" / "sam+" / "tiny.npz"
    assert path.read_bytes() == CONTENT
    assert cached() == {"", ".json", ".sha256"}
    digest = pathlib.Path(f"{path}.sha256").read_text()
    assert digest == f"{hashlib.sha256(CONTENT).hexdigest()}  tiny.npz\n"
    assert fetch() == path
    assert server.requests == [(None, "/vit_models/sam%2B/tiny.npz")]
    first, last = capsys.readouterr().err.splitlines()
    assert first == "downloading sam+/tiny (0.1 MB)"
    assert "0.1 of 0.1 MB (100%)" in last and last.endswith("MB/s")


def test_progress_has_rate_and_remaining_time(monkeypatch, capsys):
    now = [100.0]
    monkeypatch.setattr("vit_tf.pretrained.progress.time.monotonic", lambda: now[0])
    progress = DownloadProgress("x", 400_000_000, done=100_000_000)
    now[0] += 4
    progress.add(1)
    assert capsys.readouterr().err == "downloading x (400.0 MB), continued at 100.0 MB\n"
    now[0] += 6
    progress.add(99_999_999)
    # 100 MB in 10 seconds leave 200 MB for 20.
    line = "  200.0 of 400.0 MB (50%), 10.0 MB/s, 0:20 left"
    assert capsys.readouterr().err == line + "\n"


@pytest.mark.parametrize("answer", [("slow", 0.02), "no size", "whole"])
def test_patient_downloads(server, answer):
    server.answers = [answer]
    assert fetch().read_bytes() == CONTENT


@pytest.mark.parametrize("answer", [("cut", 30_000), ("stall", 30_000, 0.5)])
def test_a_lost_connection_goes_on_where_it_ended(server, monkeypatch, answer):
    monkeypatch.setattr(download, "TIMEOUT", 0.2)
    server.answers = [answer, ("cut", 10_000)]
    assert fetch().read_bytes() == CONTENT
    ranges = [wanted for wanted, _ in server.requests]
    assert ranges == [None, "bytes=30000-", "bytes=40000-"]


def test_a_later_process_goes_on_where_an_earlier_one_ended(server):
    server.answers = [("cut", 30_000), ("cut", 0)]
    refused(RECORD.name, "30,000 bytes, which are kept", "VIT_WEIGHTS_MIRROR", "tiny.npz")
    assert cached() == {".part", ".part.state"}
    assert fetch().read_bytes() == CONTENT
    assert server.requests[-1][0] == "bytes=30000-"
    assert cached() == {"", ".json", ".sha256"}


def test_a_process_that_ended_before_the_file_got_its_name(server, monkeypatch):
    """While the file was checked: the next one does not download it again."""

    def interrupted(archive):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(cache.NpzArchive, "check_all", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fetch()
    assert len(server.requests) == 1
    assert fetch().read_bytes() == CONTENT
    assert len(server.requests) == 1
    assert cached() == {"", ".json", ".sha256"}


@pytest.mark.parametrize("change", ["another file", "ignores ranges", "no etag"])
def test_a_resume_never_joins_two_files(server, change):
    if change == "no etag":
        server.etag = None
    server.answers = [("cut", 30_000), ("cut", 0)]
    refused("the connection ended")
    if change != "ignores ranges":
        server.content = npz(seed=1)
        server.etag = server.etag and '"second"'
    server.answers = ["whole"] if change == "ignores ranges" else []
    assert fetch().read_bytes() == server.content


def test_a_server_that_sends_another_part_is_refused(server):
    server.answers = [("cut", 30_000), "other part"]
    refused("another part")


@pytest.mark.parametrize("size", ["30000", "None"])
def test_a_part_that_was_not_asked_for_is_refused(server, size):
    headers = f"Content-Range: bytes 0-29999/{size}\r\nETag: {server.etag}"
    server.answers = [("raw", f"HTTP/1.0 206 OK\r\n{headers}\r\n\r\n".encode(), 0)]
    refused("another part", size)


def test_the_rest_of_a_file_of_unknown_size(server):
    server.answers = [("cut", 30_000), ("cut", 0)]
    refused("kept")
    path = pathlib.Path(f"{part()}.state")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"size": None}))
    headers = f"Content-Range: bytes 30000-/None\r\nETag: {server.etag}\r\n\r\n"
    answer = f"HTTP/1.0 206 OK\r\n{headers}".encode() + CONTENT[30_000:]
    server.answers = [("raw", answer, 0)]
    assert fetch().read_bytes() == CONTENT


def test_bytes_that_cannot_be_continued_are_not_called_kept(server):
    server.etag = None
    server.answers = [("cut", 30_000)] * 2
    assert "kept" not in refused("the connection ended after 30,000")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.0 500 \x1b[31mred\x07" + b"x" * 500 + b"\r\n\r\n", "answers 500 [31mredxxx"),
        (b"\x1b[31mnot HTTP\r\n\r\n", "[31mnot HTTP"),
        (b"HTTP/1.0 302 Found\r\nLocation: http://[::1\r\n\r\n", "Invalid IPv6 URL"),
        (b"HTTP/1.0 302 Found\r\nLocation: ?\r\n\r\n", "infinite loop"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", "5000 digits"),
    ],
    ids=["control characters", "no HTTP", "address", "loop", "length"],
)
def test_what_a_server_says_is_quoted_in_one_line(server, answer, words):
    server.answers = [("raw", answer, 0)] * 10
    assert len(refused("Cannot download sam+/tiny", words)) < 500


def test_a_server_that_always_cuts_is_given_up(server):
    server.answers = [("cut", 30_000)] + [("cut", 0)] * 5
    refused("30,000 of", "kept")
    assert len(server.requests) == 2


@pytest.mark.parametrize("size", [2, 10**9])
def test_wrong_sizes_are_refused(server, size):
    """A larger file before it is read; a cut one by its archive, even without a stated size."""
    if size > len(CONTENT):
        server.content = CONTENT + bytes(2**20 + len(CONTENT) // 10)
        refused("more bytes than expected", "sam+/tiny")
        server.answers = ["no size"]
        refused("more bytes than expected", "sam+/tiny")
        return
    server.content = CONTENT[: len(CONTENT) // size]
    refused("tiny.npz is not a readable .npz archive", "Download")
    assert cached() == set()


@pytest.mark.parametrize("kind", ["page", "checksum", "pickle"])
def test_files_that_are_no_weights_are_refused(server, kind):
    damaged = bytearray(CONTENT)
    damaged[len(CONTENT) // 2] ^= 1
    server.content = {
        "page": b"<html>Sign in to this network</html>",
        "checksum": bytes(damaged),
        "pickle": npz(objects=np.array([{}], dtype=object)),
    }[kind]
    words = {"page": "not a zip file", "checksum": "checksum|CRC", "pickle": "pickled objects"}
    with pytest.raises(DownloadError, match=words[kind]):
        fetch()
    assert cached() == set()


def test_a_missing_file_is_named(server):
    server.answers = [("status", 404), ("status", 416)]
    refused("answers 404 Not Found", PATH.rpartition("/")[2])
    refused("answers 416", PATH.rpartition("/")[2])
    assert cached() == set()


@pytest.mark.parametrize(
    "target", ["https://127.0.0.1/tiny.npz", "ftp://127.0.0.1/a.npz", "file:///etc/passwd"]
)
def test_a_redirect_keeps_the_scheme(server, target):
    server.answers = [("redirect", target)]
    refused(target, "302" if target.startswith("file") else "refused")
    server.answers = [("redirect", f"{server.address}/elsewhere.npz")]
    assert fetch().read_bytes() == CONTENT
    assert server.requests[-1][1] == "/elsewhere.npz"


def test_the_body_of_a_redirect_is_not_read(server, monkeypatch):
    """Here it never comes: reading it would end in a timeout."""
    monkeypatch.setattr(download, "TIMEOUT", 0.2)
    headers = f"Location: {server.address}/elsewhere.npz\r\nContent-Length: 1000000000"
    server.answers = [("raw", f"HTTP/1.0 302 Found\r\n{headers}\r\n\r\n".encode(), 0.5)]
    assert fetch().read_bytes() == CONTENT


def test_without_network_the_message_says_what_to_do(server, monkeypatch):
    def unreachable(self, request, timeout):
        raise urllib.error.URLError(OSError(-3, "Temporary failure in name resolution"))

    monkeypatch.setattr(download.urllib.request.OpenerDirector, "open", unreachable)
    monkeypatch.delenv(cache.MIRROR)
    where = "https://storage.googleapis.com/vit_models/sam%2B/tiny.npz"
    refused(where, "Temporary failure in name resolution", "VIT_WEIGHTS_MIRROR")


def test_only_safe_addresses(server, monkeypatch):
    monkeypatch.setenv(cache.MIRROR, "ftp://example.org")
    refused("VIT_WEIGHTS_MIRROR", "ftp://example.org")


@pytest.mark.parametrize("as_url", [False, True])
def test_a_folder_is_a_mirror(server, tmp_path, monkeypatch, as_url):
    folder = tmp_path / "a mirror"
    monkeypatch.setenv(cache.MIRROR, folder.as_uri() if as_url else str(folder))
    refused(str(folder), "No such file")
    (folder / PATH[1:]).parent.mkdir(parents=True)
    (folder / PATH[1:]).write_bytes(CONTENT)
    assert fetch().read_bytes() == CONTENT
    assert server.requests == []


@pytest.mark.parametrize("stopped", [False, True])
def test_a_copy_of_a_folder_forgets_an_earlier_download(server, tmp_path, monkeypatch, stopped):
    """Else a later download would continue the bytes of another file."""
    server.answers = [("cut", 30_000), ("cut", 0)]
    refused("kept")
    (tmp_path / PATH[1:]).parent.mkdir(parents=True)
    (tmp_path / PATH[1:]).write_bytes(npz(seed=1))
    with monkeypatch.context() as patch:
        patch.setenv(cache.MIRROR, str(tmp_path))
        if stopped:
            patch.setattr(download, "_CHUNK", 40_000)
            progress = download.DownloadProgress
            patch.setattr(progress, "add", lambda *_: (_ for _ in ()).throw(SystemExit))
            with pytest.raises(SystemExit):
                fetch()
            assert cached() == {".part"}
        else:
            assert fetch().read_bytes() == npz(seed=1)
            assert cached() == {"", ".json", ".sha256"}
    assert fetch().read_bytes() == (CONTENT if stopped else npz(seed=1))


def test_a_file_that_the_user_put_into_the_cache(server):
    path = pathlib.Path(cache.cache_path(RECORD))
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT[:-9])
    with pytest.raises(DownloadError, match="not a readable"):
        fetch()
    assert path.exists()  # Only the user deletes it.
    path.write_bytes(CONTENT)
    assert fetch() == path
    assert server.requests == []
    assert cached() == {"", ".json", ".sha256"}


def test_a_changed_file_is_refused(server):
    path = fetch()
    path.write_bytes(npz(seed=1))
    with pytest.raises(DownloadError, match="first used"):
        fetch()
    path.unlink()
    server.content, server.etag = npz(seed=1), '"second"'
    refused("not the file that was first used", "delete", "tiny.npz.sha256")
    pathlib.Path(f"{path}.sha256").unlink()
    described = []

    def describe_again(file, path):
        described.append(file)
        describe(file, path)

    assert pathlib.Path(cache.fetch(RECORD, describe_again)).read_bytes() == server.content
    assert len(described) == 1


def test_a_file_that_was_verified_must_be_the_same(server, monkeypatch, tmp_path):
    """The digests in the package come before the digests of the first use."""
    record = {"sha256": hashlib.sha256(npz(seed=1)).hexdigest()}
    record["outputs"] = {"first": [[1.0], [2.0]], "norms": [1.0, 2.0]}
    (tmp_path / "verified.json").write_text(json.dumps({RECORD.name: record}))
    with monkeypatch.context() as patch:
        patch.setattr(verified, "PATH", tmp_path / "verified.json")
        refused("sam+/tiny that was verified", record["sha256"][:12], "not kept", cache.MIRROR)
        assert cached() == set()
        server.content, server.etag = npz(seed=1), '"second"'
        path = fetch()
        assert path.read_bytes() == npz(seed=1)
    assert RECORD.verified is None
    path.unlink()
    pathlib.Path(f"{path}.sha256").unlink()
    server.content, server.etag = CONTENT, '"third"'
    assert fetch() == path  # Trusted on first use.
    monkeypatch.setattr(verified, "PATH", tmp_path / "verified.json")
    with pytest.raises(DownloadError, match=r"verified.* sam\+/tiny"):
        fetch()
    assert path.exists()


@pytest.mark.parametrize("when", ["before", "while", "in small pieces", "quota"])
def test_a_full_disk_leaves_nothing(server, monkeypatch, when):
    if when == "before":
        usage = shutil.disk_usage("/")._replace(free=100)
        monkeypatch.setattr(download.shutil, "disk_usage", lambda path: usage)
        refused("0 MB are free", "KERAS_HOME")
    elif when == "quota":  # At the first write, which is the state's.

        def full(path, write):
            raise OSError(errno.EDQUOT, "Disk quota exceeded")

        monkeypatch.setattr(download, "write_atomically", full)
        refused("Cannot write", "Disk quota exceeded", "KERAS_HOME")
    else:
        if when == "in small pieces":
            monkeypatch.setattr(download, "_CHUNK", 100)
        part().symlink_to("/dev/full")  # Every write fails with ENOSPC.
        refused("No space left on device", "KERAS_HOME")
    assert cached() == set()


def test_a_disk_that_fills_up_after_the_download(server):
    def full(file, path):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(DownloadError, match="No space left on device. Set KERAS_HOME"):
        cache.fetch(RECORD, full)
    assert cached() == set()


def test_space_that_a_new_beginning_frees(server, monkeypatch):
    """The bytes of an earlier download are overwritten if the server has another file."""
    server.answers = [("cut", 30_000), ("cut", 0)]
    refused("kept")
    server.etag = '"second"'
    usage = shutil.disk_usage("/")._replace(free=len(CONTENT) - 30_001)
    monkeypatch.setattr(download.shutil, "disk_usage", lambda path: usage)
    refused("are free", "KERAS_HOME")
    enough = usage._replace(free=usage.free + 1)
    monkeypatch.setattr(download.shutil, "disk_usage", lambda path: enough)
    assert fetch().read_bytes() == CONTENT


@pytest.mark.parametrize("mirror", ["server", "folder"])
def test_a_part_that_cannot_be_written(server, tmp_path, monkeypatch, mirror):
    if mirror == "folder":
        (tmp_path / PATH[1:]).parent.mkdir(parents=True)
        (tmp_path / PATH[1:]).write_bytes(CONTENT)
        monkeypatch.setenv(cache.MIRROR, str(tmp_path))
    part().mkdir()
    refused(f"Cannot write {part()}: Is a directory", "KERAS_HOME")


def test_a_cache_that_cannot_be_written(server, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "file"))
    with pytest.raises(DownloadError, match=r"Cannot write .*Set KERAS_HOME"):
        fetch()


def test_two_at_once_download_once(server, capsys):
    server.answers = [("slow", 0.02)]
    found = []
    threads = [threading.Thread(target=lambda: found.append(fetch())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(server.requests) == 1
    assert found[0] == found[1] and found[0].read_bytes() == CONTENT
    assert "waiting for another process that downloads sam+/tiny" in capsys.readouterr().err
