"""The launcher with stand-ins as workers: output, restarts, errors, signals and its own end."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from pipelines.distribution import launcher
from pipelines.errors import RunError, UserError, WorkerError
from tests.pipelines.process import ROOT

LOST = ["exit 76"]
DONE = ["exit 0"]


@pytest.fixture
def launch(tmp_path, monkeypatch):
    """`launch(attempt, ...)`: runs the launcher here; an attempt has the steps of each worker."""
    monkeypatch.setenv("PYTHONPATH", ROOT)

    def run(*plan, **settings):
        command = [sys.executable, "-m", "tests.pipelines.programs.stand_in"]
        arguments = [str(tmp_path), json.dumps(plan)]
        launcher.launch([*command, *arguments], len(plan[0]), **{"pause": 0.0} | settings)

    return run


def started(folder):
    """What each worker has written, by its attempt and index."""
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}


def test_each_line_begins_with_the_index_of_its_worker(launch, tmp_path, capfd):
    launch([["out a b", "out ", "err c"], ["err d", "out worker 1: [x]", "exit 0"], DONE])
    printed = capfd.readouterr()
    assert sorted(printed.out.splitlines()) == ["[worker 0] ", "[worker 0] a b", "[worker 1] [x]"]
    assert sorted(printed.err.splitlines()) == ["[worker 0] c", "[worker 1] d"]
    configs = [started(tmp_path)[f"0-{index}"]["config"] for index in range(3)]
    addresses = configs[0]["cluster"]["worker"]
    assert all(config["cluster"] == {"worker": addresses} for config in configs)
    assert [config["task"] for config in configs] == [
        {"type": "worker", "index": index} for index in range(3)
    ]
    hosts, ports = zip(*(address.split(":") for address in addresses), strict=True)
    assert set(hosts) == {"127.0.0.1"} and len(set(ports)) == 3
    first_given = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(int(port) < first_given for port in ports)


@pytest.mark.parametrize("lost", [["kill 9"], ["kill 15"], ["kill 11"], LOST])
def test_a_job_starts_again_after_a_worker_is_lost(launch, tmp_path, logged, capfd, lost):
    """The other worker finds it out a moment later."""
    first, second = (
        [f"follow {index}", "sleep 0.1", f"err error: Worker {index} is lost.", "exit 76"]
        for index in (1, 0)
    )
    launch([first, lost], [lost, second], [DONE, DONE])
    assert sorted(started(tmp_path)) == ["0-0", "0-1", "1-0", "1-1", "2-0", "2-1"]
    restarts = [line for line in logged if "restart" in line]
    assert len(restarts) == 2 and restarts[0].startswith("worker 1 ")
    assert restarts[1].startswith("worker 0 ") and "restart 2 of at most 10" in restarts[1]
    printed = capfd.readouterr().err
    assert "[worker 0] error: Worker 1 is lost." in printed


def test_a_failure_that_follows_from_a_loss_is_no_failure(launch, tmp_path):
    """As a runtime that aborts, or an error that no one has named."""
    launch([["follow 1", "exit 1"], ["kill 9"]], [DONE, ["follow 0", "exit 0"]])
    assert len(started(tmp_path)) == 4


def test_restarts_have_an_end_and_pauses_grow(launch, tmp_path, monkeypatch):
    pauses = []
    monkeypatch.setattr(launcher, "_pause", lambda seconds, signals: pauses.append(seconds))
    with pytest.raises(WorkerError, match="worker 0 lost another one, and --restarts=8 allows"):
        launch(*[[LOST]] * 9, restarts=8, pause=1.0)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    assert len(started(tmp_path)) == 9


def test_a_long_attempt_starts_the_pauses_again(launch, monkeypatch):
    pauses = []
    monkeypatch.setattr(launcher, "_LONGEST_PAUSE", 0.02)
    monkeypatch.setattr(launcher, "_pause", lambda seconds, signals: pauses.append(seconds))
    long = [["sleep 0.3", "exit 76"]]
    launch(*[long] * 3, [DONE], pause=0.01)
    assert pauses == [0.01] * 3


@pytest.mark.parametrize(
    ("code", "error"), [(2, UserError), (1, RunError), (130, RunError)], ids=str
)
def test_an_error_ends_the_job_with_one_message(launch, tmp_path, capfd, code, error):
    """Once, although two workers have it; a worker that goes on is stopped."""
    first = ["meet 4", "err a line", "err error: There is no folder a.", f"exit {code}"]
    same = ["deaf", "follow 0", "err error: worker 0 (a:1): There is no folder a.", f"exit {code}"]
    other = ["deaf", "follow 0", "err error: Another one.", f"exit {code}"]
    begin = time.monotonic()
    with pytest.raises(error, match="^There is no folder a.$"):
        launch([first, same, other, ["sleep 60"]], grace=30)
    assert time.monotonic() - begin < 20
    printed = capfd.readouterr().err
    assert "There is no folder" not in printed and "[worker 0] a line\n" in printed
    assert "[worker 2] error: Another one." in printed
    assert len(started(tmp_path)) == 4


def test_a_failure_without_a_message(launch):
    with pytest.raises(RunError, match="^Worker 1 ended with exit code 3.$"):
        launch([["follow 1", "sleep 0.1", "exit 76"], ["exit 3"]])


def test_workers_that_do_not_find_out_a_loss_are_killed(launch, tmp_path):
    launch([["deaf", "sleep 60"], ["meet 2", "kill 9"]], [DONE, DONE], grace=0.3)
    assert len(started(tmp_path)) == 4
    assert is_gone(started(tmp_path)["0-0"]["pid"])


def is_gone(pid):
    """Whether a process has ended, or is a zombie that nobody has waited for."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return text.rpartition(")")[2].split()[0] == "Z"


def wait_for(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def process(tmp_path):
    """`process(plan, *flags)`: the command with stand-ins, when all of them have started."""
    running = []

    def start(plan, *flags):
        (tmp_path / "workers").mkdir()
        command = [sys.executable, "-m", "tests.pipelines.programs.launched"]
        flags = [f"--local_workers={len(plan[0])}", *flags]
        running.append(
            subprocess.Popen(
                [*command, tmp_path / "workers", json.dumps(plan), *flags],
                env=os.environ | {"PYTHONPATH": ROOT},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        wait_for(lambda: len(started(tmp_path / "workers")) == len(plan[0]))
        return running[0]

    yield start
    for each in running:
        each.kill()
        each.communicate()


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("steps", "code", "text"),
    [
        ("save", 75, "Interrupted. Start the same command again"),
        ("deaf", 76, "error: Worker 0, 1 did not end within 0.5 s and was killed. Start the same"),
        ("sleep 60", 130, "Interrupted before there was anything new to save."),
    ],
)
def test_a_signal_ends_all_workers(process, tmp_path, number, steps, code, text):
    launched = process([[[steps, "sleep 60"]] * 2], "--grace_seconds=0.5")
    launched.send_signal(number)
    _, errors = launched.communicate(timeout=60)
    assert launched.returncode == code
    assert text in errors and "Traceback" not in errors
    assert all(is_gone(worker["pid"]) for worker in started(tmp_path / "workers").values())


@pytest.mark.process
def test_a_second_ctrl_c_kills_the_workers(process, tmp_path):
    launched = process([[["deaf", "sleep 60"]] * 2])
    launched.send_signal(signal.SIGINT)
    assert launched.stdout.readline().startswith("SIGINT: saving")
    launched.send_signal(signal.SIGINT)
    launched.communicate(timeout=50)
    assert launched.returncode == 130
    assert all(is_gone(worker["pid"]) for worker in started(tmp_path / "workers").values())


@pytest.mark.process
def test_workers_that_were_interrupted_by_others_are_not_started_again(process, tmp_path):
    launched = process([[["save"], ["save"]]])
    for worker in started(tmp_path / "workers").values():
        os.kill(worker["pid"], signal.SIGTERM)
    _, errors = launched.communicate(timeout=60)
    assert launched.returncode == 75 and "Interrupted. Start the same command" in errors


@pytest.mark.process
def test_a_signal_in_a_pause(process):
    launched = process([[LOST]], "--restart_seconds=30")
    for line in launched.stderr:
        if "restart 1 of" in line:
            break
    launched.send_signal(signal.SIGTERM)
    _, errors = launched.communicate(timeout=20)
    assert launched.returncode == 75 and "Interrupted between two attempts" in errors


@pytest.mark.process
def test_a_killed_launcher_leaves_no_worker(process, tmp_path):
    launched = process([[["deaf", "sleep 60"], ["save"]]])
    launched.kill()
    pids = [worker["pid"] for worker in started(tmp_path / "workers").values()]
    wait_for(lambda: all(map(is_gone, pids)))


@pytest.mark.process
def test_a_reader_that_has_ended_ends_the_job(process, tmp_path):
    """As in `| head`."""
    launched = process([[["save"], ["sleep 0.5", "out a", "exit 76"]]])
    launched.stdout.close()
    launched.stdout = None
    launched.communicate(timeout=60)
    assert launched.returncode == 75
    assert len(started(tmp_path / "workers")) == 2
