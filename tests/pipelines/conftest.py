"""Fixtures of the tests of `pipelines`."""

import functools
import json
import logging

import pytest

from pipelines.distribution.log_lines import attached
from tests.pipelines import training_runs
from tests.pipelines.process import run_here
from tests.pipelines.training import initial_models


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """`command(module, *arguments, cwd=tmp_path)`: calls a command here, see `run_here`."""

    def run(module, *arguments, cwd=tmp_path):
        return run_here(module, *arguments, monkeypatch=monkeypatch, capsys=capsys, cwd=cwd)

    return run


@pytest.fixture
def printed(command):
    """`printed(module, *arguments, logs=True)`: what a command that ends well prints with --json.

    With `logs=False`, it writes nothing to stderr.
    """

    def run(module, *arguments, logs=True):
        result = command(module, "--json", *arguments)
        assert result.returncode == 0, result.stderr
        assert logs or result.stderr == ""
        return json.loads(result.stdout)

    return run


@pytest.fixture
def each_line():
    """`each_line(function)`: from now on, calls it with each line that `pipelines` logs."""
    handler, functions = logging.Handler(), []

    def emit(record):
        for function in functions:
            function(record.getMessage())

    handler.emit = emit
    with attached(handler):
        yield functions.append


class _Lines(list):
    def take(self):
        """Returns the lines as one text, and removes them."""
        text = "".join(f"{line}\n" for line in self)
        self.clear()
        return text


@pytest.fixture
def logged(each_line, monkeypatch):
    """The list of the lines that `pipelines` logs during the test.

    Without those on compilation, which a slow machine has.
    """
    monkeypatch.setattr("pipelines.runs.progress._SIGN_EVERY", 3600.0)
    lines = _Lines()
    each_line(lines.append)
    return lines


# Serving.


@pytest.fixture
def no_process(monkeypatch):
    """Exports are checked in this process, which spares the seconds of a new one."""
    from pipelines.serving import clean_process
    from tests.pipelines.serving.exports import call_here

    monkeypatch.setattr(clean_process, "call_signatures", call_here)


# Training.


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory):
    """The workdir of a run that all test processes read: `training_runs.finished`."""
    return training_runs.finished(tmp_path_factory)


@pytest.fixture
def uncompiled():
    """Runs steps without compiling them: `training_runs.without_compiling`."""
    with training_runs.without_compiling():
        yield


@pytest.fixture(scope="session")
def photos(tmp_path_factory):
    """A folder with 10 photos of cats and 10 of dogs."""
    folder = tmp_path_factory.mktemp("photos")
    initial_models.write_photos(folder)
    return folder


@pytest.fixture(scope="session")
def initial(tmp_path_factory):
    """`initial(kind)`: `(model, path of its file)` of a key of `initial_models.FILES`."""

    @functools.cache
    def write(kind):
        return initial_models.write_initial(kind, tmp_path_factory.mktemp("initial"))

    return write


@pytest.fixture
def finetune(command):
    """`finetune(*flags)`: fine-tunes in the folder `run`, in this process."""
    return functools.partial(command, "finetune", "--workdir=run")
