"""The same functions on a local disk and on `ram://`, TensorFlow's file system in memory."""

import os

import pytest
import tensorflow as tf

from vit_tf.files import storage
from vit_tf.files.atomic_file import write_atomically


@pytest.fixture(params=["local", "ram"])
def folder(request, tmp_path):
    """An empty folder; its URL ends with the name of the test."""
    if request.param == "local":
        return str(tmp_path)
    url = f"ram://storage/{request.node.name}"
    storage.make_folders(url)
    return url


def test_files_and_folders(folder):
    file = storage.join(folder, "a.txt")
    assert not storage.exists(file) and not storage.is_file(file) and not storage.is_folder(file)
    for content in (b"a long text", b"short", b""):  # Replaced, not appended or overwritten.
        write_atomically(file, lambda out, content=content: out.write(content))
        assert storage.read(file, 100) == content
        assert b"".join(storage.chunks(file)) == content
        assert storage.size_and_time(file)[0] == len(content)
        with storage.open_local(file) as copy:
            assert copy.seek(0, os.SEEK_END) == len(content)
    assert storage.exists(file) and storage.is_file(file) and not storage.is_folder(file)
    assert storage.is_folder(folder) and not storage.is_file(folder)

    storage.make_folders(storage.join(folder, "b/c"))
    storage.make_folders(storage.join(folder, "b/c"))
    assert storage.list_names(folder) == ["a.txt", "b"]
    storage.remove(file)
    storage.remove_folder(storage.join(folder, "b"))
    storage.remove_folder(storage.join(folder, "b"))
    assert storage.list_names(folder) == []


def test_errors_are_of_the_operating_system_and_name_the_path(folder):
    missing, file = storage.join(folder, "none"), storage.join(folder, "file")
    write_atomically(file, lambda out: out.write(b"x"))
    for function in (
        storage.list_names,
        storage.open_local,
        storage.remove,
        storage.size_and_time,
        lambda path: storage.read(path, 1),
        lambda path: list(storage.chunks(path)),
    ):
        with pytest.raises(FileNotFoundError) as error:
            function(missing)
        assert error.value.filename == missing and error.value.strerror
    with pytest.raises(OSError) as error:
        storage.make_folders(file)
    assert error.value.filename == file


def test_an_unknown_scheme_is_named():
    for function in (storage.exists, storage.is_folder, storage.make_folders, storage.open_local):
        with pytest.raises(OSError, match="no file system for s3://") as error:
            function("s3://bucket/a")
        assert error.value.filename == "s3://bucket/a"


def test_folders_of_a_url_are_listed_and_copied(tmp_path):
    url = "ram://storage/copied"
    for name in ("x/1.jpg", "x/2.txt", "marker"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    written = []
    with pytest.MonkeyPatch.context() as patch:
        upload = storage.upload
        patch.setattr(storage, "upload", lambda a, b: (written.append(b), upload(a, b)))
        storage.upload_folder(tmp_path, url, last=["marker"])
    assert written == [f"{url}/{name}" for name in ("x/1.jpg", "x/2.txt", "marker")]
    assert storage.list_folder(url) == (["x"], ["marker"])
    assert storage.list_folder(f"{url}/x", [".jpg"]) == ([], ["1.jpg", "2.txt"])
    (tmp_path / "again").mkdir()
    storage.download_folder(f"{url}/x", tmp_path / "again")
    assert (tmp_path / "again/1.jpg").read_bytes() == b"x/1.jpg"


def test_an_object_is_replaced_by_a_whole_one_or_not_at_all(monkeypatch):
    url = "ram://storage/whole"
    storage.write_object(url, lambda file: file.write(b"old"))

    def stop(file):
        file.write(b"new")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        storage.write_object(url, stop)
    assert storage.read(url, 100) == b"old"

    class Cut(tf.io.gfile.GFile):
        """A file whose second part fails, after which the first part replaces the object."""

        def write(self, file_content):
            if len(file_content) > 1:
                super().write(file_content[:1])
                raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(tf.io.gfile, "GFile", Cut)
        storage.write_object(url, lambda file: file.write(b"new"))
    assert storage.read(url, 100) == b"new"

    def fail(path, target, overwrite):
        raise tf.errors.UnavailableError(None, None, "the store is gone")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="the store is gone"):
        patch.setattr(tf.io.gfile, "copy", fail)
        storage.write_object(url, lambda file: file.write(b"newer"))
    assert storage.read(url, 100) == b"new"


def test_images_of_a_walk_cost_no_request_each(monkeypatch):
    for name in ("a.jpg", "deep/b.jpg", "deep/c"):
        storage.make_folders(f"ram://storage/walk/{name}".rpartition("/")[0])
        storage.write_object(f"ram://storage/walk/{name}", lambda file: file.write(b"x"))
    asked, is_folder = [], storage.is_folder
    monkeypatch.setattr(storage, "is_folder", lambda url: asked.append(url) or is_folder(url))
    found = list(storage.walk("ram://storage/walk", [".jpg"]))
    deep = "ram://storage/walk/deep"
    assert found == [("ram://storage/walk", ["deep"], ["a.jpg"]), (deep, [], ["b.jpg", "c"])]
    assert asked == [deep, f"{deep}/c"]


def test_object_stores_mark_folders_in_a_listing(monkeypatch):
    """As Google Cloud Storage does; a folder may also have an object of its own, without a name."""
    monkeypatch.setattr(tf.io.gfile, "listdir", lambda url: ["", "b/", "a.jpg"])
    asked = []
    monkeypatch.setattr(storage, "is_folder", asked.append)
    assert storage.list_folder("ram://x", [".jpg"]) == (["b"], ["a.jpg"])
    assert storage.list_names("ram://x") == ["a.jpg", "b"]
    assert asked == []


def test_urls_and_local_paths_are_told_apart_and_joined():
    urls = ("gs://bucket/run", "ram://x", "s3a+b://x")
    assert all(map(storage.is_url, urls))
    assert not any(map(storage.is_url, ("/a", "a:/b", "folder:gs://bucket/x", "", "C:/x")))
    assert storage.absolute("gs://bucket/run/") == "gs://bucket/run"
    assert storage.absolute("file:///data/run/") == storage.absolute("FILE:///data/run")
    assert storage.absolute("file:///data/run") == storage.normal("file:///data/run") == "/data/run"
    assert storage.normal("a/../b/") == "a/../b/" and storage.normal("ram://x/") == "ram://x"
    assert storage.absolute("a/../b/") == os.path.join(os.getcwd(), "b")
    assert storage.join("/data", "gs://bucket/x") == "gs://bucket/x"
    assert storage.join("gs://bucket/x", "y") == "gs://bucket/x/y"
    assert storage.join("/data", "/other") == "/other"
