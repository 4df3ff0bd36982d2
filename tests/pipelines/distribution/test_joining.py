"""Workers find one another, or one sentence says what is wrong; here they are threads."""

import concurrent.futures
import contextlib
import itertools
import socket
import threading
import time

import pytest

from pipelines.distribution import joining
from pipelines.distribution.group import Group
from pipelines.distribution.link import Link
from pipelines.distribution.local_workers import free_addresses
from pipelines.distribution.places import Place
from pipelines.errors import UserError, WorkerError


@pytest.fixture(autouse=True)
def no_exit(monkeypatch):
    monkeypatch.setattr(Group, "_end", lambda self: None)


@pytest.fixture
def join(monkeypatch):
    """`join(calls)`: what `joining.join` returns or raises for each of its arguments."""
    made = []

    def attempt(delay, *arguments):
        time.sleep(delay)
        made.append(joining.join(*arguments))
        return made[-1]

    def run(calls, delays=None):
        with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
            delays = delays or [0] * len(calls)
            waiting = [
                pool.submit(attempt, delay, *call)
                for delay, call in zip(delays, calls, strict=True)
            ]
            return [each.exception(60) or each.result() for each in waiting]

    yield run
    links = [link for group in made for link in group._links.values()]
    for group in made:
        with group._changed:  # A thread that is failing now has begun its wait for `_end`.
            group._is_over = True
    for link in links:
        link.end()  # Wakes the thread that reads.
    for link in links:
        link.close()


@pytest.fixture
def processes(monkeypatch):
    """Gives each thread a process of its own, as far as the messages are concerned."""
    numbers = itertools.count()
    monkeypatch.setattr(joining.os, "getpid", lambda: next(numbers))


HAS_BOTH = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 on this machine")


@pytest.mark.parametrize(
    ("delays", "host"),
    [
        ([0, 0, 0], "127.0.0.1"),
        ([0.5, 0, 0.3], "127.0.0.1"),
        pytest.param([0, 0, 0], "[::1]", marks=HAS_BOTH),
    ],
)
def test_workers_meet_in_any_order(join, processes, delays, host):
    addresses = tuple(text.replace("127.0.0.1", host) for text in free_addresses(3))
    groups = join([(Place(addresses, index), {}, 20) for index in range(3)], delays)
    assert [group.index for group in groups] == [0, 1, 2]
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        values = list(pool.map(lambda group: group.gather(group.index), groups))
    assert values == [[0, 1, 2]] * 3
    # The addresses are free for TensorFlow while the connections stay.
    for address in addresses:
        joining.listen(int(address.rpartition(":")[2])).close()


@pytest.mark.parametrize(
    "said",
    [
        "PRI * HTTP/2.0\r\n\r\n",
        '{"hello": "vit workers"}\n',
        "[]\n",
        '"x"\n',
        '{"hello": "vit workers", "job": "", "index": 1, "process": "", "workers": [], "own": {}, '
        '"refused": []}\n',
    ],
)
def test_another_program_is_ignored(join, processes, said):
    addresses = tuple(free_addresses(2))

    def intrude():
        end = time.monotonic() + 5
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                with socket.create_connection(Place(addresses, 0).split(0)) as connection:
                    connection.sendall(said.encode())
                    return

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        intruder = pool.submit(intrude)
        groups = join([(Place(addresses, index), {}, 20) for index in range(2)], [0, 1])
        intruder.result()
    assert [type(group) for group in groups] == [Group, Group]


def test_a_worker_that_does_not_come_is_named(join, processes):
    addresses = tuple(free_addresses(3))
    errors = join([(Place(addresses, index), {}, 1) for index in (0, 2)])
    for error in errors:
        assert type(error) is WorkerError
        assert error.code == 76
        assert f"worker 1 ({addresses[1]}) did not come within 1 second" in str(error)


def test_an_absent_chief_is_named(join, processes):
    addresses = tuple(free_addresses(2))
    (error,) = join([(Place(addresses, 1), {}, 1)])
    assert type(error) is WorkerError
    assert f"worker 0 ({addresses[0]}) did not answer for 1 second: " in str(error)


def test_the_address_of_the_chief_leads_to_another_worker(join, processes):
    """All hosts have one port, and that of worker 0 was started with the index 1."""
    port = Place(tuple(free_addresses(1)), 0).split(0)[1]
    (error,) = join([(Place((f"127.0.0.1:{port}", f"127.0.0.2:{port}"), 1), {}, 20)])
    assert type(error) is UserError
    assert f"The address of worker 0, 127.0.0.1:{port}, leads to process " in str(error)
    assert "Is --worker_index=1 right" in str(error)


def test_what_sends_the_greeting_back_is_no_chief(join, processes):
    """As a socket that the system has connected to itself."""
    addresses = tuple(free_addresses(2))

    def echo(server):
        with contextlib.suppress(TimeoutError):
            while True:
                with contextlib.closing(Link(server.accept()[0])) as link:
                    link.send(link.receive(5))

    with socket.create_server(("", Place(addresses, 0).split(0)[1])) as server:
        server.settimeout(2)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            pool.submit(echo, server)
            (error,) = join([(Place(addresses, 1), {}, 1)])
    assert type(error) is WorkerError
    assert str(error).endswith(
        "another program answers. Start all workers, or wait longer with --worker_wait."
    )


def test_a_port_in_use(join):
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        (error,) = join([(Place(("localhost:1", f"localhost:{port}"), 1), {}, 1)])
    assert type(error) is UserError
    assert f"Worker 1 cannot listen on its port {port}: Address already in use" in str(error)
    assert "--worker_index=1" in str(error)


def test_a_port_in_use_ends_all(join, processes):
    """Worker 1 tells worker 0, which tells worker 2; worker 0 tells all without a port."""
    for index in (1, 0):
        addresses = tuple(free_addresses(3))
        with socket.create_server(("", Place(addresses, index).split(index)[1])):
            errors = join([(Place(addresses, each), {}, 20) for each in range(3)], [0, 0, 1])
        for error in errors:
            assert type(error) is UserError
            assert f"Worker {index} cannot listen on its port" in str(error)


def test_a_refusal_while_a_worker_connects_leaves_no_connection(monkeypatch, processes):
    """Another worker says it when there is no link to worker 0 that it could end."""
    made, connect, error = [], socket.create_connection, UserError("another worker cannot")
    chief = joining._ChiefOfOthers()

    def connect_meanwhile(*arguments):
        made.append(connect(*arguments))
        chief.refuse(error, 2)
        return made[-1]

    monkeypatch.setattr(joining.socket, "create_connection", connect_meanwhile)
    with socket.create_server(("", 0)) as server:
        place = Place((f"127.0.0.1:{server.getsockname()[1]}", "localhost:1"), 1)
        with pytest.raises(UserError) as raised:
            joining._reach_chief(place, {}, time.monotonic() + 5, 5, chief)
    assert raised.value is error
    assert [x.fileno() for x in made] == [-1]


def test_the_port_of_a_job_step_is_tried_again_by_the_next_step(join):
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        place = Place(("localhost:1", f"localhost:{port}"), 1, "job 7.0 of SLURM")
        (error,) = join([(place, {}, 1)])
    assert type(error) is WorkerError
    assert error.code == 76
    assert f"its port {port}" in str(error)


def test_an_unknown_name_of_a_node_ends_all(monkeypatch, join, processes):
    """The name of worker 2 has no address on worker 1; elsewhere names may come later."""
    monkeypatch.setattr(joining, "_NAMES", 0)
    addresses = (*free_addresses(2), "node.invalid:1")
    threads, find = {}, socket.getaddrinfo

    def names(host, *rest, **options):
        if host == "node.invalid" and not threads.setdefault(threading.get_ident(), len(threads)):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return find("127.0.0.1" if host == "node.invalid" else host, *rest, **options)

    monkeypatch.setattr(joining.socket, "getaddrinfo", names)
    job = "job 7.0 of SLURM"
    errors = join([(Place(addresses, index, job), {}, 2) for index in (1, 0)], [0, 0.5])
    for error in errors:
        assert type(error) is UserError
        assert str(error).startswith("Worker 1 does not know the address of worker 2: the name ")
        assert "node.invalid, a node of job 7.0 of SLURM" in str(error)


def test_a_worker_that_does_not_know_worker_0_ends_all(monkeypatch, join, processes):
    """Worker 1 tells worker 2, which passes it on."""
    monkeypatch.setattr(joining, "_NAMES", 0)
    (other,), addresses = free_addresses(1), free_addresses(2)
    addresses = (f"node.invalid:{other.rpartition(':')[2]}", *addresses)
    blind, find = [], socket.getaddrinfo

    def names(host, *rest, **options):
        if host == "node.invalid" and threading.get_ident() in blind:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return find("127.0.0.1" if host == "node.invalid" else host, *rest, **options)

    check = joining._check_names

    def check_blindly(place):
        blind.extend([threading.get_ident()] * (place.index == 1))
        check(place)

    connect = socket.create_connection

    def connect_by_name(address, *rest):
        if address[0] != "node.invalid":
            return connect(address, *rest)
        names(*address)
        return connect(("127.0.0.1", address[1]), *rest)

    monkeypatch.setattr(joining, "_check_names", check_blindly)
    monkeypatch.setattr(joining.socket, "getaddrinfo", names)
    monkeypatch.setattr(joining.socket, "create_connection", connect_by_name)
    errors = join([(Place(addresses, index, "job 7.0"), {}, 10) for index in range(3)])
    for error in errors:
        assert type(error) is UserError
        assert str(error).startswith("Worker 1 does not know the address of worker 0: the name ")


def test_a_worker_that_is_started_twice_ends_alone(monkeypatch, join, processes):
    """The second worker 1 cannot listen; the others wait for worker 2, which comes later."""
    addresses = tuple(free_addresses(3))
    calls = [(Place(addresses, index), {}, 20) for index in (0, 1, 1, 2)]
    chief, first, second, last = join(calls, [0, 0, 1, 3])
    assert [type(x) for x in (chief, first, last)] == [Group] * 3
    assert type(second) is UserError
    assert "Worker 1 cannot listen on its port" in str(second)


def test_workers_of_two_jobs_do_not_meet(join, processes):
    """Their addresses are the same in part; each job waits for its own workers."""
    first, second, third = free_addresses(3)
    jobs = [((first, second), "job 7.0 of SLURM"), ((third, second), "job 8.0 of SLURM")]
    calls = [(Place(addresses, 0, job), {}, 3) for addresses, job in jobs]
    # Worker 1 of job 7 has the address that job 8 knows too.
    calls.append((Place(*[jobs[0][0], 1, jobs[0][1]]), {}, 3))
    chief, other, worker = join(calls)
    assert [type(chief), type(worker)] == [Group, Group]
    assert type(other) is WorkerError
    assert "worker 1" in str(other)


def test_a_worker_of_another_job_is_no_worker_of_this_one(join, processes):
    """It has the port of worker 0, and waits itself: this job waits, and says for whom."""
    addresses = tuple(free_addresses(2))
    calls = [(Place(addresses, 0, "job 7.0"), {}, 1), (Place(addresses, 1, "job 8.0"), {}, 1)]
    errors = join(calls)
    assert [type(error) for error in errors] == [WorkerError, WorkerError]


def test_different_lists(join, processes):
    chief, first, other = free_addresses(3)
    errors = join([(Place((chief, first), 0), {}, 5), (Place((chief, other), 1), {}, 5)])
    for error in errors:
        assert type(error) is UserError
        text = f"Workers 0 and 1 have different lists of workers: {chief},{first} and {chief},"
        assert str(error).startswith(text)


def test_two_workers_with_one_index(monkeypatch, join, processes):
    """As on two machines, where both can listen on the port."""
    addresses = tuple(free_addresses(3))
    listen = joining._listen

    def anywhere(place):
        try:
            return listen(place)
        except UserError:
            return socket.create_server(("", 0))

    monkeypatch.setattr(joining, "_listen", anywhere)
    calls = [(Place(addresses, index), {}, 5) for index in (0, 1, 1)]
    errors = join(calls, [0, 0, 0.5])
    for error in errors:
        assert type(error) is UserError
        assert str(error).startswith("There are two workers 1: process ")
        assert "Give each its own --worker_index" in str(error)


def test_a_worker_that_is_started_again_while_others_are_missing(join, processes):
    addresses = tuple(free_addresses(3))

    def come_and_go():
        place = Place(addresses, 1)
        hello = {"hello": "vit workers", "job": "", "index": 1, "process": "gone"}
        hello |= {"workers": [*addresses], "own": {}}
        with socket.create_server(("", place.split(1)[1])) as server:
            with joining._answering(server, hello):
                link = Link(socket.create_connection(place.split(0)))
                link.send(hello)
                time.sleep(0.5)
                link.close()

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        first = pool.submit(lambda: (time.sleep(0.5), come_and_go()))
        calls = [(Place(addresses, index), {}, 20) for index in range(3)]
        groups = join(calls, [0, 2, 2])
        first.result()
    assert [type(group) for group in groups] == [Group] * 3


def test_a_wrong_index(monkeypatch, join, processes):
    """Workers 1 and 2 are on each other's machines, so their addresses lead to the other one."""
    addresses = tuple(free_addresses(3))
    listen = joining._listen
    swapped = {0: 0, 1: 2, 2: 1}
    monkeypatch.setattr(
        joining, "_listen", lambda place: listen(Place(place.addresses, swapped[place.index]))
    )
    errors = join([(Place(addresses, index), {}, 20) for index in range(3)])
    for error in errors:
        assert type(error) is UserError
        assert "leads to another process" in str(error) or "cannot be reached" in str(error)
        assert "Is its --worker_index right" in str(error)


def test_different_programs(join, processes):
    addresses = tuple(free_addresses(2))
    own = [{"code": {"a.py": "1", "b.py": "2"}}, {"code": {"a.py": "1", "b.py": "3"}}]
    errors = join([(Place(addresses, index), own[index], 5) for index in range(2)])
    for error in errors:
        assert type(error) is UserError
        assert "Workers 0 and 1 differ (worker 0 -> worker 1): code.b.py: '2' -> '3'" in str(error)
