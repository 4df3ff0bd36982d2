"""A program from a fork server gets, prints and returns what one from a new interpreter does."""

import json
import os
import signal
import subprocess
import sys

import pytest

from tests import fork_server
from tests.checkout import ROOT

PROGRAM = str(ROOT / "tests" / "programs" / "forked.py")
SERVERS = list(fork_server.PRELOADED)

pytestmark = pytest.mark.process


def run(*arguments, server="tensorflow", cwd=ROOT, timeout=300, **variables):
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | variables
    return fork_server.run(server, arguments, cwd=cwd, env=environment, timeout=timeout)


@pytest.fixture
def waiting():
    """`waiting(way)`: a program that waits for a signal, and its output."""
    started = []

    def start(way):
        reader, writer = os.pipe()
        process = fork_server.Process(
            "tensorflow",
            [PROGRAM, "wait", way],
            cwd=ROOT,
            env=os.environ,
            stdout=writer,
            stderr=writer,
        )
        os.close(writer)
        output = open(reader)  # noqa: SIM115  The fixture closes it.
        started.append((process, output))
        assert output.readline() == "waiting\n"
        return process, output

    yield start
    for process, output in started:
        process.kill()
        output.close()


@pytest.mark.parametrize("form", ["path", "module", "text"])
def test_a_program_gets_what_an_interpreter_gives_it(tmp_path, form):
    arguments = {
        "path": [PROGRAM, "describe"],
        "module": ["-m", "tests.programs.forked", "describe"],
        "text": ["-c", "from tests.programs.forked import describe; describe()", "describe"],
    }[form]
    environment = {"FORKED": "here", "PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
    received = fork_server.run("tensorflow", arguments, cwd=tmp_path, env=environment, timeout=300)
    assert received.returncode == 0, received.stderr
    command = [sys.executable, *arguments]
    cold = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert cold.returncode == 0, cold.stderr
    given, expected = json.loads(received.stdout), json.loads(cold.stdout)
    assert given["loaded"] == ["tensorflow"] and expected["loaded"] == []
    # Where a module is, `-c` stands for the working directory.
    expected["path"] = expected["path"] or str(tmp_path)
    # Python adds LC_CTYPE to the variables of a new interpreter without a locale.
    for name in ("loaded", "environment"):
        del given[name], expected[name]
    assert given == expected
    assert (given["variable"], given["folder"]) == ("here", str(tmp_path))


@pytest.mark.parametrize("server", SERVERS)
def test_each_server_has_loaded_its_modules_and_shares_no_state_between_programs(server):
    first, second = (json.loads(run(PROGRAM, "describe", server=server).stdout) for _ in range(2))
    wanted = {"tensorflow": ["tensorflow"], "pipelines": ["pipelines.config", "tensorflow"]}
    assert first == second and first["loaded"] == wanted[server]
    assert not second["changed"]


def test_exit_code_and_both_streams():
    for code in (0, 2, 75):
        done = run(PROGRAM, "leave", code)
        assert (done.returncode, done.stdout) == (code, "to stdout\nat exit\n")
        assert done.stderr == "to stderr\n"


def test_an_exception_prints_its_traceback():
    done = run(PROGRAM, "fail")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Traceback (most recent call last):\n")
    assert done.stderr.endswith("\nValueError: no such luck\n")


def test_output_can_go_to_a_file(tmp_path):
    with open(tmp_path / "out", "w") as file:
        environment = dict(os.environ)
        fork_server.run(
            "tensorflow",
            [PROGRAM, "leave", "0"],
            cwd=ROOT,
            env=environment,
            timeout=300,
            stdout=file.fileno(),
        )
    assert (tmp_path / "out").read_text() == "to stdout\nat exit\n"


@pytest.mark.parametrize(("way", "code"), [("handled", 75), ("plain", -signal.SIGTERM)])
def test_a_signal_reaches_the_program(waiting, way, code):
    process, output = waiting(way)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(300) == process.wait() == process.poll() == code
    assert output.read() == ""
    process.send_signal(signal.SIGTERM)  # Changes nothing after the end.
    assert process.returncode == code


def test_a_program_that_does_not_end_in_time_is_killed(waiting):
    with pytest.raises(subprocess.TimeoutExpired):
        run(PROGRAM, "wait", "handled", timeout=1)
    process, output = waiting("handled")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.1)
    process.kill()
    assert process.returncode == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
    assert output.read() == ""
