"""Starts Python programs in a tenth of a second: forks them from a process that has TensorFlow.

A server imports modules once. For each program it forks a process before TensorFlow starts threads
or devices, so the program finds the state of a fresh interpreter, only with these modules loaded.
It ends like an interpreter too: exit code, traceback, `atexit`, signals.

Variables that a module reads when it is imported, such as `TF_CPP_MIN_LOG_LEVEL`, `KERAS_HOME` or
`TFDS_DATA_DIR`, have the values of the server. Start such programs, and those whose memory, imports
or start are tested, in a new interpreter.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types

# Modules that a server imports. "tensorflow": nothing of this project, so that a program may import
# the packages from another folder.
PRELOADED = {"tensorflow": ("tensorflow",), "pipelines": ("tensorflow", "keras", "pipelines")}
_LARGEST_MESSAGE = 1 << 18
_servers = {}
# Environment of the servers; None takes the process's environment at the start. It must not depend
# on the test that starts the server.
environment = None


def run(server, arguments, *, cwd, env, timeout, stdout=None):
    """Runs a program to its end, as `subprocess.run([sys.executable, *arguments], ...)` would.

    Args:
        server: a key of `PRELOADED`.
        arguments: `-m module ...`, `-c text ...` or `path ...`.
        cwd: its working directory.
        env: its environment.
        timeout: seconds after which it is killed.
        stdout: a file descriptor; None captures the output.

    Returns:
        A `subprocess.CompletedProcess` with text.

    Raises:
        subprocess.TimeoutExpired: if the program was killed.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        files = (out.fileno() if stdout is None else stdout, err.fileno())
        process = Process(server, arguments, cwd=cwd, env=env, stdout=files[0], stderr=files[1])
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        for file in (out, err):
            file.seek(0)
        return subprocess.CompletedProcess(arguments, code, out.read(), err.read())


@contextlib.contextmanager
def python_command(server, folder):
    """Puts a program `python` into a folder that starts `-m` and `-c` programs as `run` does.

    For shell scripts: with the folder first in `PATH`, their programs are forked from the server.

    Args:
        server: a key of `PRELOADED`.
        folder: an existing empty folder; its path plus 7 characters is a socket's path.
    """
    program, address = os.path.join(folder, "python"), os.path.join(folder, "socket")
    with open(program, "w", opener=lambda path, flags: os.open(path, flags, 0o755)) as file:
        file.write(f"#!{sys.executable} -IS\n{_COMMAND.format(sys.executable, address)}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as requests:
        requests.bind(address)
        requests.listen()
        thread = threading.Thread(target=_answer, args=(server, requests))
        thread.start()
        try:
            yield
        finally:
            requests.shutdown(socket.SHUT_RDWR)  # Ends the thread.
            thread.join()


# Other programs, such as `python -`, are left to the interpreter.
_COMMAND = """\
import json, os, socket, sys

if sys.argv[1:2] not in (["-m"], ["-c"]):
    os.execv({0!r}, [{0!r}, *sys.argv[1:]])
request = {{"arguments": sys.argv[1:], "cwd": os.getcwd(), "env": dict(os.environ)}}
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
    server.connect({1!r})
    socket.send_fds(server, [json.dumps(request).encode()], [1, 2])
    sys.exit(int(server.recv(16)) % 256)
"""


def _answer(server, requests):
    """Starts the programs of `python_command` one after the other, and sends their exit codes."""
    with contextlib.suppress(OSError):  # The socket is closed.
        while True:
            connection, _ = requests.accept()
            with connection:
                message, files, _, _ = socket.recv_fds(connection, _LARGEST_MESSAGE, 2)
                program = Process(server, **json.loads(message), stdout=files[0], stderr=files[1])
                for file in files:
                    os.close(file)
                connection.send(str(program.wait()).encode())


class Process:
    """A running program, with the part of the interface of `subprocess.Popen` that tests use."""

    def __init__(self, server, arguments, *, cwd, env, stdout, stderr):
        request = {"arguments": [*map(str, arguments)], "cwd": str(cwd), "env": dict(env)}
        self.args, self.returncode = request["arguments"], None
        self._reports, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            message = [json.dumps(request).encode()]
            socket.send_fds(_server(server), message, [stdout, stderr, theirs.fileno()])
        self.pid = self._report()

    def wait(self, timeout=None):
        """The exit code; negative after a signal, as `subprocess` has it."""
        if self.returncode is None:
            self._reports.settimeout(timeout)
            try:
                status = self._report()
            except TimeoutError:
                raise subprocess.TimeoutExpired(self.args, timeout) from None
            self.returncode = os.waitstatus_to_exitcode(status)
            self._reports.close()
        return self.returncode

    def poll(self):
        """The exit code, or None while the program runs."""
        try:
            return self.wait(1e-3)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number):
        """Sends a signal, unless the program has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # It has just ended.
                os.kill(self.pid, number)

    def kill(self):
        """Ends the program, if it still runs, and waits for its end."""
        self.send_signal(signal.SIGKILL)
        self.wait()

    def _report(self):
        message = self._reports.recv(_LARGEST_MESSAGE)
        assert message, f"the fork server lost {self.args}"
        return json.loads(message)


def _server(name):
    """The socket of a server, which is started at its first use and ends with this process."""
    if name not in _servers:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.fork_server", name, str(theirs.fileno())],
                cwd=os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
                pass_fds=[theirs.fileno()],
                env=environment,
            )
        _servers[name] = ours
        atexit.register(_stop, ours, process)
    return _servers[name]


def _stop(requests, process):
    requests.close()
    process.wait()


def _serve(requests):
    """Forks a process for each request; returns the request in the new process."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Nobody waits for the watchers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the tests, and this with them.
    while True:
        message, files, _, _ = socket.recv_fds(requests, _LARGEST_MESSAGE, 3)
        if not message:
            sys.exit()
        stdout, stderr, reports = files
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            requests.close()
            if program := os.fork():
                _watch(program, socket.socket(fileno=reports))
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.close(reports)
            os.dup2(stdout, 1)
            os.dup2(stderr, 2)
            os.close(stdout)
            os.close(stderr)
            # This process may have a pipe where the server has a file, which can seek.
            sys.stdout = os.fdopen(1, "w", closefd=False)
            return json.loads(message)
        for file in files:
            os.close(file)


def _watch(program, reports):
    """Reports the number of a process, and when it ends, its status."""
    with contextlib.suppress(OSError):  # The test has ended before the program.
        reports.send(json.dumps(program).encode())
        _, status = os.waitpid(program, 0)
        reports.send(json.dumps(status).encode())
    os._exit(0)


def _run(arguments, cwd, env):
    """Runs a program as the interpreter would, in this process."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    kind = arguments[0]
    first = cwd if kind in ("-m", "-c") else os.path.dirname(os.path.abspath(kind))
    folders = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:1] = [first, *folders]
    if kind == "-m":
        sys.argv = arguments[1:]  # `run_module` replaces the name by the path of the module.
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv = ["-c", *arguments[2:]]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(arguments[1], "<string>", "exec"), vars(main))
    else:
        sys.argv = arguments
        runpy.run_path(kind, run_name="__main__")


def _import_all(name):
    """Imports a module, and a package's modules that can be imported without being started."""
    module = importlib.import_module(name)
    if name == "pipelines":
        for info in pkgutil.walk_packages(module.__path__, f"{name}."):
            if info.ispkg or info.name.count(".") > 1:
                importlib.import_module(info.name)


if __name__ == "__main__":
    for preloaded in PRELOADED[sys.argv[1]]:
        _import_all(preloaded)
    # Otherwise the end of each program spends a second on a search for garbage in the modules.
    gc.freeze()
    _run(**_serve(socket.socket(fileno=int(sys.argv[2]))))
