"""Workers agree, and the end of one is the end of all; here they are threads."""

import concurrent.futures
import contextlib
import queue
import socket
import threading
import time

import pytest

from pipelines.distribution import group as group_module
from pipelines.distribution import signals
from pipelines.distribution.group import Group
from pipelines.distribution.link import Link
from pipelines.errors import Interrupted, InUseError, NonFiniteError, UserError, WorkerError


@pytest.fixture(autouse=True)
def no_exit(monkeypatch):
    """A group ends its process if the main thread does not; this process runs the tests."""
    monkeypatch.setattr(Group, "_end", lambda self: None)


@pytest.fixture
def groups():
    """`groups(count)`: a `Group` for each of some workers, whose links can be closed."""
    made = []

    def make(count):
        addresses = [f"host{index}:80" for index in range(count)]
        pairs = {index: [Link(x) for x in socket.socketpair()] for index in range(1, count)}
        made.append(Group(0, addresses, {index: pair[0] for index, pair in pairs.items()}))
        made.extend(Group(index, addresses, {0: pair[1]}) for index, pair in pairs.items())
        return made

    yield make
    links = [link for group in made for link in group._links.values()]
    for group in made:
        with group._changed:  # A thread that is failing now has begun its wait for `_end`.
            group._is_over = True
    for link in links:
        with contextlib.suppress(OSError):  # A test has closed it.
            link._connection.shutdown(socket.SHUT_RDWR)  # Wakes the thread that reads.
    for link in links:
        link.close()


def together(groups, *functions):
    """The results of functions, or their exceptions; each group calls its own in a thread."""
    if len(functions) == 1:
        functions *= len(groups)
    with concurrent.futures.ThreadPoolExecutor(len(groups)) as pool:
        calls = [pool.submit(call, group) for call, group in zip(functions, groups, strict=True)]
        return [call.exception(30) or call.result() for call in calls]


def test_a_process_alone_agrees_with_itself():
    group = Group()
    assert group.is_chief
    assert group.count == 1
    assert group.gather((1, 2)) == [(1, 2)]
    assert group.from_chief(lambda: 3) == 3
    group.compare("configurations", {"a": 1})
    error = ValueError()
    assert group.cause(error) is error
    group.leave(0)


def test_all_get_the_values_of_all(groups):
    workers = groups(3)
    for number in range(20):
        values = together(workers, lambda group, n=number: group.gather([group.index, n]))
        assert values == [[[0, number], [1, number], [2, number]]] * 3


def test_a_float_keeps_its_bits(groups):
    value = 0.1 + 0.2
    assert together(groups(2), lambda group: group.gather(value)) == [[value, value]] * 2


def test_the_chief_decides(groups):
    def decide(group):
        return group.from_chief(lambda: {"step": group.index})

    assert together(groups(3), decide) == [{"step": 0}] * 3


@pytest.mark.parametrize("kind", [InUseError, NonFiniteError, UserError, Interrupted])
def test_an_error_of_the_chief_is_raised_by_all(groups, kind):
    def fail(group):
        def raise_it():
            raise kind("no")

        group.from_chief(raise_it)

    errors = together(groups(2), fail)
    assert [(type(error), str(error)) for error in errors] == [(kind, "no")] * 2


def test_a_difference_is_named(groups):
    def compare(group):
        group.compare("configurations", {"train": {"steps": 9 + (group.index == 2)}, "seed": 0})

    text = "Workers 0 and 2 have different configurations (worker 0 -> worker 2): train.steps: "
    for error in together(groups(3), compare):
        assert type(error) is UserError
        assert str(error).startswith(f"{text}9 -> 10. ")


def test_a_signal_of_one_stops_all(groups, monkeypatch):
    workers, local = groups(2), threading.local()
    monkeypatch.setattr(signals, "current_group", lambda: local.group)

    def check(group):
        local.group, own = group, signals.Signals()
        own.check()
        own._received = "SIGTERM" if group.index else None
        own.check()

    errors = together(workers, check)
    assert [(type(error), str(error)) for error in errors] == [(Interrupted, "SIGTERM")] * 2


def test_a_lost_worker_ends_all(groups):
    workers = groups(3)
    reasons = queue.Queue()
    workers[0].abort = reasons.put
    workers[1]._links[0]._connection.shutdown(socket.SHUT_RDWR)
    errors = together([workers[0], workers[2]], lambda group: group.gather(0))
    for error in errors:
        assert type(error) is WorkerError
        assert error.code == 76
        assert str(error) == "Worker 1 (host1:80) was lost: its process has ended."
    assert reasons.get(timeout=30) == str(errors[0])


def test_a_chief_that_cannot_reach_the_others_ends_too(groups, monkeypatch):
    ended = threading.Event()
    monkeypatch.setattr(group_module, "_GRACE", 0.1)
    monkeypatch.setattr(Group, "_end", lambda self: ended.set())
    workers, waits = groups(2), threading.Event()
    workers[0]._tell = lambda *_, **__: waits.wait(60)
    workers[1]._is_over = True
    workers[1]._links[0]._connection.shutdown(socket.SHUT_RDWR)
    try:
        assert ended.wait(30)
    finally:
        waits.set()


def test_a_lost_chief_ends_all(groups):
    workers = groups(3)
    workers[0]._is_over = True  # It says nothing about it itself.
    for link in workers[0]._links.values():
        link._connection.shutdown(socket.SHUT_RDWR)
    for error in together(workers[1:], lambda group: group.gather(0)):
        assert "Worker 0 (host0:80) was lost" in str(error)


def test_a_worker_that_fails_ends_all_with_its_code(groups):
    workers = groups(3)
    workers[2].leave(2, "The image a.jpg cannot be decoded.")
    for error in together(workers[:2], lambda group: group.gather(0)):
        assert type(error) is WorkerError
        assert error.code == 2
        assert str(error) == "worker 2 (host2:80): The image a.jpg cannot be decoded."


def test_the_usual_end_is_no_loss(groups):
    workers = groups(3)

    def end(group):
        group.gather(None)
        group.leave(0)
        for link in group._links.values():
            link._connection.shutdown(socket.SHUT_RDWR)
        time.sleep(0.3)
        return group._problem

    assert together(workers, end) == [None] * 3


def test_the_cause_of_a_broken_sum_is_the_lost_worker(groups):
    workers = groups(2)
    workers[1]._links[0]._connection.shutdown(socket.SHUT_RDWR)

    def fail(group):
        with group.explained():
            raise ValueError("Socket closed")

    (error,) = together(workers[:1], fail)
    assert "Worker 1 (host1:80) was lost" in str(error)


def test_a_worker_that_does_not_come_along_hangs(groups):
    workers = groups(3)

    def gather(group):
        time.sleep(1.2)  # In which the others say how far they are.
        with group.watched(1.5):
            group.gather(0)

    def hang(group):
        time.sleep(5)

    errors = together(workers, gather, hang, gather)
    assert errors[1] is None
    for error in (errors[0], errors[2]):
        assert error.code == 76
        assert str(error).startswith("Worker 1 (host1:80) hangs: no step, ")
        assert "for 1.5 seconds (train.worker_timeout)" in str(error)


def test_one_of_all_hangs_if_all_wait_elsewhere(groups):
    def wait(group):
        with group.watched(0.5), group._changed:
            group._changed.wait_for(lambda: group._problem, 20)
        return str(group._problem)

    for text in together(groups(2), wait):
        assert text.startswith("One of 2 workers hangs: ")


def test_a_silent_worker_is_lost(groups, monkeypatch):
    monkeypatch.setattr(group_module, "_SILENCE", 0.5)
    workers = groups(2)
    workers[1]._is_over = True  # It says nothing more, but its connection stays.
    (error,) = together(workers[:1], lambda group: group.gather(0))
    assert str(error) == "Worker 1 (host1:80) was lost: not a word for 0.5 seconds."
