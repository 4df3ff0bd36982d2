"""The lease of a workdir behind a URL, with times of milliseconds."""

import contextlib
import json
import threading
import time

import pytest

from pipelines.errors import RunError, UserError
from pipelines.runs import lease
from pipelines.runs.lock import only_writer
from vit_tf.files import storage

TIMES = lease.Times(renew=0.02, stale=0.4, settle=0.01, poll=0.01)
# Renews so rarely that others take it for dead, also on a busy machine.
DEAD = lease.Times(renew=20.0, stale=0.4, settle=0.2, poll=0.01)
OTHER = {"id": "other", "pid": 7, "host": "far", "since": "2026-01-01"}


@pytest.fixture
def workdir(request):
    url = f"ram://lease/{request.node.name}"
    storage.make_folders(url)
    return url


def write(workdir, values):
    text = json.dumps(values).encode()
    storage.write_object(f"{workdir}/lease.json", lambda file: file.write(text))


def read(workdir):
    return json.loads(storage.read(f"{workdir}/lease.json", 4096))


def test_a_lease_is_written_renewed_and_deleted(workdir, logged):
    with lease.Lease(workdir, TIMES) as held:
        before = read(workdir)
        deadline = time.monotonic() + 300
        while read(workdir) == before:
            assert time.monotonic() < deadline
        held.check()
        assert read(workdir)["id"] == before["id"]
    assert storage.list_names(workdir) == [] and logged == []


def test_a_lease_is_deleted_after_an_interruption(workdir):
    with contextlib.suppress(KeyboardInterrupt), lease.Lease(workdir, TIMES):
        raise KeyboardInterrupt
    assert storage.list_names(workdir) == []


def test_a_start_waits_until_the_holder_ends(workdir, each_line, logged):
    write(workdir, OTHER)
    remove = threading.Timer(0.05, storage.remove, [f"{workdir}/lease.json"])
    each_line(lambda line: remove.start())
    with lease.Lease(workdir, lease.Times(renew=0.1, stale=30, settle=0, poll=0.01)):
        assert read(workdir)["id"] != "other"
    (line,) = logged
    assert line.startswith(f"{workdir} is in use by process 7 on far since 2026-01-01: waiting")
    assert "at most 30 s" in line


@pytest.mark.parametrize("content", [OTHER, {}, [1]])
def test_a_start_takes_the_lease_of_a_dead_holder(workdir, content, logged):
    write(workdir, content)
    begin = time.monotonic()
    with lease.Lease(workdir, TIMES):
        assert time.monotonic() - begin >= TIMES.stale
    assert len(logged) == 2 and "taking it" in logged[1]


def test_the_clock_of_the_holder_does_not_matter(workdir):
    """Its times are a year ahead or behind; only changes of the file count."""
    for ahead in (-3e7, 3e7):
        write(workdir, OTHER | {"renewed": time.time() + ahead})
        begin = time.monotonic()
        with lease.Lease(workdir, TIMES):
            assert time.monotonic() - begin >= TIMES.stale


def test_a_holder_that_renews_is_named(workdir):
    with lease.Lease(workdir, TIMES):
        own = read(workdir)
        text = f"{own['pid']} on {own['host']} .*renews"
        slow = lease.Times(renew=9, stale=20, settle=0, poll=0.1)
        with pytest.raises(UserError, match=text), lease.Lease(workdir, slow):
            pass
        assert read(workdir)["id"] == own["id"]


def test_of_two_starts_at_the_same_time_one_trains(workdir, monkeypatch, logged):
    """Both have seen no lease; the second one overwrites the first one's."""
    sleep = time.sleep

    def settle(seconds):
        monkeypatch.setattr(lease.time, "sleep", sleep)
        write(workdir, OTHER)

    monkeypatch.setattr(lease.time, "sleep", settle)
    with lease.Lease(workdir, TIMES):  # The other one dies.
        assert "in use by process 7 on far" in logged[0]


def test_a_start_whose_write_is_late_waits_for_a_renewal_of_the_other(workdir, monkeypatch):
    """Both have seen no lease; the second one writes after the first one has settled."""
    times = lease.Times(renew=0.3, stale=20, settle=0.05, poll=0.01)
    write_now, looked, settled = lease.Lease._write, threading.Event(), threading.Event()
    second = lease.Lease(workdir, times)

    def write_late(self):
        if self is second and not looked.is_set():
            looked.set()
            assert settled.wait(300)
        write_now(self)

    monkeypatch.setattr(lease.Lease, "_write", write_late)
    holders = []

    def start():
        # It is refused if the first one renewed its lease at the same moment.
        with contextlib.suppress(UserError), second:
            holders.append(second)
            with contextlib.suppress(RunError):
                first.check()
                holders.append(first)

    thread = threading.Thread(target=start)
    thread.start()
    assert looked.wait(300)
    with lease.Lease(workdir, times) as first:
        settled.set()
        thread.join()
        if not holders:
            first.check()
            holders.append(first)
    assert len(holders) == 1


def test_a_holder_that_lost_its_lease_ends_before_it_writes(workdir):
    with lease.Lease(workdir, DEAD) as first:
        with lease.Lease(workdir, DEAD) as second:
            second.check()
            first._renew()  # The thread does this once a minute.
            with pytest.raises(RunError, match="taken over by process") as error:
                first.check()
            assert "renew" not in str(error.value)
            second.check()
        with pytest.raises(RunError, match="taken over"):
            first.check()
        assert storage.list_names(workdir) == []
    with lease.Lease(workdir, DEAD) as third:
        storage.remove(f"{workdir}/lease.json")
        third._renew()
        with pytest.raises(RunError, match="lease.json.*deleted"):
            third.check()
        assert storage.list_names(workdir) == []


def test_a_machine_that_slept_looks_before_it_writes(workdir, monkeypatch):
    with lease.Lease(workdir, DEAD) as held:
        write(workdir, OTHER)
        held.check()  # The next renewal would find it.
        now = time.time
        monkeypatch.setattr(lease.time, "time", lambda: now() + 3600)
        with pytest.raises(RunError, match="process 7 on far"):
            held.check()
    assert read(workdir) == OTHER


def test_a_store_that_cannot_be_reached_for_a_while_ends_nothing(workdir, monkeypatch):
    with lease.Lease(workdir, DEAD) as held:
        before = read(workdir)
        with monkeypatch.context() as patch:
            patch.setattr(storage, "read", lambda *_: (_ for _ in ()).throw(OSError(5, "network")))
            now = time.time
            patch.setattr(lease.time, "time", lambda: now() + 3600)
            held.check()
        held.check()
        assert read(workdir)["id"] == before["id"]


def test_a_refused_start_removes_the_folder_that_it_made(monkeypatch):
    monkeypatch.setattr(lease, "TIMES", TIMES)
    url = "ram://lease/refused/run"
    with contextlib.suppress(ValueError), only_writer(url) as check:
        check()
        assert storage.list_names(url) == ["lease.json"]
        raise ValueError
    assert not storage.exists(url)


@pytest.mark.parametrize("url", ["s3://bucket/run", "ram://lease/file"])
def test_a_workdir_that_cannot_be_made(url):
    storage.write_object("ram://lease/file", lambda file: file.write(b"x"))
    with pytest.raises(UserError, match=f"--workdir {url}: .*file"):
        with only_writer(url):
            pass
