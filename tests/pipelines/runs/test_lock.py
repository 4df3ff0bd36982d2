"""One process trains in a workdir: others get an error with its id; a killed one leaves no lock."""

import contextlib
import errno
import fcntl
import os
import signal
import socket
import threading

import pytest

from pipelines.errors import InUseError, RunError, UserError
from pipelines.runs.lock import only_writer
from pipelines.runs.workdir import Workdir
from pipelines.training.train import train
from tests import fork_server
from tests.pipelines.process import ROOT
from tests.pipelines.tiny import one_device, tiny_experiment


@contextlib.contextmanager
def holder_of(workdir):
    """A process that holds the lock of a workdir until it gets SIGTERM, or this block ends."""
    reader, writer = os.pipe()
    process = fork_server.Process(
        "pipelines",
        ["-m", "tests.pipelines.programs.hold_lock", workdir],
        cwd=ROOT,
        env=os.environ,
        stdout=writer,
        stderr=writer,
    )
    os.close(writer)
    try:
        with open(reader, encoding="utf-8") as lines:
            assert lines.readline() == "locked\n"
            yield process
    finally:
        process.kill()


def test_a_file_url_is_the_local_path(tmp_path):
    with only_writer(f"file://{tmp_path}/run"):
        assert os.listdir(tmp_path / "run") == ["lock"]
        with pytest.raises(UserError, match="in use by"), only_writer(tmp_path / "run"):
            pass
    assert Workdir(f"file://{tmp_path}/run").path == str(tmp_path / "run")


@pytest.mark.process
def test_a_second_process_is_refused_until_the_first_ends(tmp_path):
    run = tmp_path / "runs" / "a"
    with holder_of(run) as holder:
        text = (
            rf"a is in use by process {holder.pid} on {socket.gethostname()} since 20.* --workdir"
        )
        with pytest.raises(UserError, match=text):
            train(tiny_experiment(), run, one_device())
        # The rejected process has not removed the lock.
        with pytest.raises(UserError, match=text), only_writer(run):
            pass
        holder.send_signal(signal.SIGTERM)
        assert holder.wait(300) == 0
    # The failed start left no files, so the folders that it had made are removed.
    assert os.listdir(tmp_path) == []

    with holder_of(run) as holder:
        holder.send_signal(signal.SIGKILL)
        assert holder.wait(300) == -signal.SIGKILL
    assert os.listdir(run) == ["lock"]
    with only_writer(run):
        with pytest.raises(UserError, match=f"process {os.getpid()} on"), only_writer(run):
            pass
        (run / "result").write_text("")
    assert os.listdir(run) == ["result"]


def test_a_lock_whose_file_has_just_been_removed_is_taken_again(tmp_path, monkeypatch):
    """Its holder ended between opening and locking: the lock must be on the file that exists."""
    flock, taken = fcntl.flock, []

    def slow_flock(descriptor, operation):
        if not taken:
            (tmp_path / "lock").unlink()
        taken.append(descriptor)
        flock(descriptor, operation)

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", slow_flock)
        with only_writer(tmp_path):
            assert len(taken) == 2
            with pytest.raises(UserError, match="is in use"), only_writer(tmp_path):
                pass


def test_a_folder_that_has_just_been_removed_is_created_again(tmp_path, monkeypatch):
    """Its writer left it empty, and ended between the creation of the folder and of the file."""
    open_, opened = os.open, []

    def slow_open(path, flags, mode=0o777):
        opened.append(path)
        if len(opened) == 1:
            os.rmdir(os.path.dirname(path))
        return open_(path, flags, mode)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", slow_open)
        with only_writer(tmp_path / "run"):
            assert os.listdir(tmp_path / "run") == ["lock"]
    assert [os.path.basename(path) for path in opened] == ["lock"] * 2


def test_many_writers_of_one_workdir_hold_it_or_learn_that_it_is_in_use(tmp_path):
    """Each removes the file and the empty folder while the others look at them."""
    count, written, refused = 300, [], []

    def write():
        for index in range(count):
            try:
                with only_writer(tmp_path / str(index) / "run"):
                    written.append(index)
            except InUseError:
                refused.append(index)

    threads = [threading.Thread(target=write) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(written) + len(refused) == 3 * count
    assert set(written) == set(range(count))


def test_the_file_of_another_holder_is_left(tmp_path):
    with only_writer(tmp_path):
        (tmp_path / "lock").unlink()
        (tmp_path / "lock").write_text("of another process")
    assert (tmp_path / "lock").read_text() == "of another process"


@pytest.mark.parametrize("content", ["", "[1]", "{}", "x" * 1000])
def test_a_lock_without_a_name_is_a_lock(tmp_path, content):
    with only_writer(tmp_path):
        (tmp_path / "lock").write_text(content)
        with pytest.raises(UserError, match="is in use by "), only_writer(tmp_path):
            pass


def test_file_systems_without_locks_are_named_and_used(tmp_path, monkeypatch, logged):
    def flock(descriptor, operation):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    with only_writer(tmp_path):
        pass
    assert len(logged) == 1 and "cannot be locked (Function not implemented)" in logged[0]


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.ENOSPC, RunError), (errno.EACCES, UserError)],
)
def test_a_workdir_that_cannot_be_written_is_named(tmp_path, monkeypatch, number, kind):
    def open_(path, flags, mode=0o777):
        raise OSError(number, "no way")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", open_)
        with pytest.raises(kind, match="--workdir .*: no way"):
            with only_writer(tmp_path):
                pass
