"""`.ci/setup` and `.ci/packages`, with imitations of Python, apt-get and id."""

import os
import pathlib
import shutil
import signal
import subprocess
import time

import pytest

from tests.checkout import ROOT

pytestmark = pytest.mark.process

PYTHON = pathlib.Path(__file__).parent / "programs" / "python"
SECONDS = 300  # A set-up that hangs fails.


class Checkout:
    """A folder with the scripts, and with commands that come before the machine's commands."""

    def __init__(self, folder):
        self.folder, self.commands = folder / "checkout", folder / "commands"
        self.commands.mkdir()
        shutil.copytree(ROOT / ".ci", self.folder / ".ci")
        (self.folder / "requirements.lock").write_text("numpy==2.0.0\n")
        # The scripts ask every second whether pip has ended.
        self.imitate("sleep", "exec /bin/sleep 0.02")

    def imitate(self, name, script):
        (self.commands / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.commands / name).chmod(0o755)

    def start(self, script="setup", *arguments, path=None, **environment):
        """Starts a script; in `environment` PIP and OPS are commands: see programs/python."""
        variables = {"PIP": "true", "OPS": "true", "PYTHON": str(PYTHON), "CXX": "g++"}
        variables |= {"CALLS": str(self.folder / "calls"), "PATH": path or os.environ["PATH"]}
        variables |= environment
        variables["PATH"] = f"{self.commands}:{variables['PATH']}"
        return subprocess.Popen(
            [self.folder / ".ci" / script, *arguments],
            env=variables,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments, **environment):
        """Runs a script; returns its exit code and what it said."""
        process = self.start(*arguments, **environment)
        _, said = process.communicate(timeout=SECONDS)
        return process.returncode, said

    def count(self, call):
        """How often the imitations were called with a text in the command line."""
        return (self.folder / "calls").read_text().count(call)

    def wait_for(self, name):
        """Waits for a file that a command of a running script creates."""
        end = time.monotonic() + SECONDS
        while not (self.folder / name).exists():
            assert time.monotonic() < end, name
            time.sleep(0.01)


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path)


def test_the_environment_is_created_once(checkout):
    code, said = checkout.run()
    assert code == 0 and "creating .venv with Python 3.11.2" in said and "done in" in said
    assert checkout.run() == (0, "")
    assert checkout.count("-m venv .venv") == 1
    assert checkout.count("--no-build-isolation --editable .") == 1
    assert checkout.count("-m custom_ops.build_ops") == 1


def test_another_lock_file_and_another_folder_create_it_again(checkout):
    assert checkout.run()[0] == 0
    (checkout.folder / "requirements.lock").write_text("numpy==2.0.1\n")
    assert checkout.run()[0] == 0 and checkout.count("-m venv .venv") == 2
    checkout.folder = checkout.folder.rename(checkout.folder.with_name("moved"))
    assert checkout.run()[0] == 0 and checkout.count("-m venv .venv") == 3


def test_another_tensorflow_has_an_environment_and_a_library_of_its_own(checkout):
    assert checkout.run()[0] == 0
    code, said = checkout.run("setup", "2.21")
    missing = "setup: there is no requirements-tf2.21.lock, only requirements.lock.\n"
    assert (code, said) == (1, missing)
    (checkout.folder / "requirements-tf2.21.lock").write_text("numpy==2.0.0\n")
    library = checkout.folder / "build" / "tensorflow-2.21" / "_vit_ops.so"
    writes = 'echo "$VIT_OPS_LIBRARY" >> "$CALLS"; > "$VIT_OPS_LIBRARY"'
    code, said = checkout.run("setup", "2.21", OPS=writes)
    assert code == 0 and "creating .venv-tf2.21 with Python 3.11.2" in said
    assert library.exists() and checkout.count(str(library)) == 1
    assert checkout.count("-r requirements-tf2.21.lock") == 1
    for arguments in ((), ("setup", "2.21")):
        assert checkout.run(*arguments) == (0, "")
    assert checkout.count("-m venv ") == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_set_up_is_repeated(checkout, number):
    process = checkout.start(PIP="touch installing; /bin/sleep 60")
    checkout.wait_for("installing")
    os.killpg(process.pid, number)
    process.communicate(timeout=SECONDS)
    assert process.returncode == (-9 if number == signal.SIGKILL else 130)
    # The incomplete folder must not count as an environment.
    assert (checkout.folder / ".venv" / "bin" / "python").exists()
    code, said = checkout.run()
    assert code == 0 and "creating .venv" in said
    assert checkout.count("-m venv .venv") == 2
    assert checkout.run() == (0, "")


def test_of_two_at_once_one_waits_for_the_other(checkout):
    first = checkout.start(PIP="touch installing; until [ -e go ]; do /bin/sleep 0.02; done")
    checkout.wait_for("installing")
    second = checkout.start()
    waiting = "setup: another set-up is running in this folder; waiting for it\n"
    assert second.stderr.readline() == waiting
    (checkout.folder / "go").touch()
    for process in (first, second):
        _, said = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, said
    assert said == ""
    assert checkout.count("-m venv .venv") == checkout.count("-r requirements.lock") == 1


def test_pip_is_tried_three_times(checkout):
    code, said = checkout.run(PIP="echo no network; exit 1")
    assert code == 1 and said.count("pip stopped (no network); trying again") == 2
    assert "pip could not install requirements.lock: no network (full output in build/set" in said
    assert checkout.count("-r requirements.lock") == 3
    twice = '[ "$(grep -c requirements.lock "$CALLS")" = 5 ]'
    code, said = checkout.run(PIP=twice)
    assert code == 0 and said.count("trying again") == 1


def test_without_compiled_ops_the_environment_is_ready(checkout):
    message = "the compiled ops are missing or old. Slower TensorFlow ops replace them until `make"
    for _ in range(2):
        code, said = checkout.run(OPS="false")
        assert code == 0 and message in said
    assert checkout.count("-m venv .venv") == 1
    assert checkout.run(OPS="true") == (0, "")
    assert checkout.run(OPS="false") == (0, "")


def test_without_a_suitable_python_the_fix_is_told(checkout):
    code, said = checkout.run(PYTHON="/nonexistent/python")
    assert code == 1 and "none of '/nonexistent/python' is suitable: install python3.11" in said


@pytest.fixture
def bare(checkout):
    """A path with the few commands that `.ci/packages` needs, and imitations."""
    for name in ("bash", "cut", "dirname", "ls", "mkdir", "tail"):
        (checkout.commands / name).symlink_to(shutil.which(name))
    return str(checkout.commands)


def test_packages_that_are_there_need_no_root(checkout, bare):
    checkout.imitate("bazel", "exit 1")
    checkout.imitate("id", "echo 1000")
    assert checkout.run("packages", "bazel", path=bare) == (0, "")


def test_other_users_get_the_command_that_installs_packages(checkout, bare):
    checkout.imitate("id", "echo 1000")
    code, said = checkout.run("packages", "bazel", "clang++", "libclang_rt", path=bare)
    command = "sudo apt-get install -y bazel-bootstrap clang libclang-rt-dev"
    assert code == 1 and said.endswith(f"Install with: {command}\n")


def test_root_installs_packages_and_updates_the_lists_if_that_fails(checkout, bare):
    checkout.imitate("id", "echo 0")
    # The first call fails.
    checkout.imitate("apt-get", 'echo "$*" >> "$CALLS"; [ -e lists ] || { > lists; exit 1; }')
    code, said = checkout.run("packages", "bazel", path=bare)
    assert code == 0 and "installing bazel-bootstrap" in said
    install = "install -y --no-install-recommends bazel-bootstrap\n"
    assert (checkout.folder / "calls").read_text() == f"{install}update\n{install}"
    checkout.imitate("apt-get", "echo no such package; exit 100")
    code, said = checkout.run("packages", "bazel", path=bare)
    assert code == 1 and said.endswith("packages: apt-get failed: no such package\n")
