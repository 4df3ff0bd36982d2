"""oneDNN is on in commands unless the user says otherwise, and a run goes on with what it had."""

import json
import os
import subprocess
import sys

import pytest

from pipelines.cli.command_names import commands
from pipelines.distribution import onednn
from pipelines.runs import manifest
from tests.pipelines.process import ROOT, run_command


@pytest.fixture
def before_tensorflow(monkeypatch):
    """The state of a command that has just started; TensorFlow comes back after the test."""
    monkeypatch.delitem(sys.modules, "tensorflow")
    monkeypatch.delenv(onednn.VARIABLE)
    monkeypatch.setattr(onednn, "_chosen_here", False)
    monkeypatch.setattr(onednn.platform, "machine", lambda: "x86_64")


@pytest.mark.parametrize(("users", "variable"), [(None, "1"), ("", "1"), ("0", "0"), ("no", "no")])
def test_commands_turn_it_on_and_keep_the_users_own_value(
    before_tensorflow, monkeypatch, users, variable
):
    if users is not None:
        monkeypatch.setenv(onednn.VARIABLE, users)
    for again in (True, True):  # A command's frame chooses, and then the command for its run.
        onednn.choose(again)
        assert os.environ[onednn.VARIABLE] == variable
    onednn.choose(False)
    assert os.environ[onednn.VARIABLE] == {"1": "0"}.get(variable, variable)


def test_nothing_is_chosen_too_late_or_for_other_processors(before_tensorflow, monkeypatch):
    with monkeypatch.context() as other:
        other.setattr(onednn.platform, "machine", lambda: "aarch64")
        onednn.choose()
    with monkeypatch.context() as late:
        late.setitem(sys.modules, "tensorflow", object())
        onednn.choose()
    assert onednn.VARIABLE not in os.environ


def write_starts(folder, *starts):
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps({"seed": 0, "data": {}, "starts": starts}))


@pytest.mark.parametrize("depth", [0, 1, 4])
def test_what_a_run_was_started_with(tmp_path, depth):
    """The first start decides: a later one may be a trial with another setting."""
    assert manifest.onednn_of(str(tmp_path / "none"), depth > 0) is True
    for name, starts, expected in (
        ("off", [{"onednn": False}, {"onednn": True}], False),
        ("on", [{"onednn": True}, {"onednn": False}], True),
        ("old", [{"versions": {}}, {"onednn": False}], None),
        ("damaged", [{"onednn": 0}], None),
    ):
        write_starts(tmp_path.joinpath(name, *["run"] * depth), *starts)
        assert manifest.onednn_of(str(tmp_path / name), depth > 0) is expected, name
    # A run is not one of those in folders below.
    assert depth == 0 or manifest.onednn_of(str(tmp_path / "off")) is True
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "manifest.json").write_text("{")
    assert manifest.onednn_of(str(tmp_path / "text")) is None
    assert manifest.onednn_of("gs://bucket/run") is True


def test_an_old_run_keeps_what_tensorflow_chooses(before_tensorflow):
    onednn.choose()
    onednn.choose(None)
    assert onednn.VARIABLE not in os.environ
    assert onednn.describe().endswith("TensorFlow's default for this processor")


def test_a_change_is_told(tmp_path, monkeypatch):
    write_starts(tmp_path / "run", {"onednn": False})
    path = str(tmp_path / "run" / "manifest.json")
    for now in (False, True):
        monkeypatch.setattr(onednn, "is_on", lambda now=now: now)
        change = manifest.onednn_change(path)
        assert bool(change) == now
    assert "started without oneDNN and goes on with it" in change
    assert change.endswith("TF_ENABLE_ONEDNN_OPTS=0")
    # Of an earlier version, whose manifest could not be read before TensorFlow was imported.
    write_starts(tmp_path / "old", {})
    old = str(tmp_path / "old" / "manifest.json")
    assert manifest.onednn_change(old) is None
    monkeypatch.setattr(onednn, "is_chosen", lambda: True)
    for now, words in ((True, "goes on with it; TF_E"), (False, "goes on without it; TF_E")):
        monkeypatch.setattr(onednn, "is_on", lambda now=now: now)
        assert words in manifest.onednn_change(old)


def test_a_command_that_a_command_starts_chooses_itself(before_tensorflow, monkeypatch):
    onednn.choose(False)
    assert onednn.VARIABLE not in onednn.environment_for_commands()
    monkeypatch.setattr(onednn, "_chosen_here", False)  # As if the user had set it.
    assert onednn.environment_for_commands() == dict(os.environ)


@pytest.mark.process
def test_no_command_imports_tensorflow_before_it_chooses():
    names = ", ".join(f"pipelines.{name}" for name in commands())
    code = f"import sys, {names}; print({{'tensorflow', 'keras'}} & set(sys.modules))"
    environment = os.environ | {"PYTHONPATH": ROOT}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"


@pytest.mark.process
def test_tensorflow_reports_what_was_chosen():
    """In new processes: TensorFlow's own word, which `is_on` reads, against its log line."""
    code = (
        "from pipelines.distribution import onednn; onednn.choose({}); "
        "import tensorflow; print(onednn.is_on())"
    )
    for on in (True, False):
        environment = {x: y for x, y in os.environ.items() if x != onednn.VARIABLE}
        environment |= {"PYTHONPATH": ROOT, "TF_CPP_MIN_LOG_LEVEL": "0"}
        done = subprocess.run(
            [sys.executable, "-c", code.format(on)],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == f"{on}\n"
        assert ("oneDNN custom operations are on" in done.stderr) == on


@pytest.mark.process
@pytest.mark.heavy("training")
def test_a_run_goes_on_with_what_it_was_started_with(tmp_path):
    def train(steps, users):
        flags = ["--workdir=run", f"--set=train.steps={steps}", "--set=train.eval_batches=1"]
        flags += ["--extend"] * (tmp_path / "run").exists()
        variables = {onednn.VARIABLE: users, "VIT_ISA": "baseline"}  # Its check imports TensorFlow.
        done = run_command("pretrain", *flags, cwd=tmp_path, cold=True, **variables)
        assert done.returncode == 0, done.stderr
        starts = json.loads((tmp_path / "run" / "manifest.json").read_text())["starts"]
        return done.stdout, starts[-1]["onednn"]

    printed, on = train(2, "0")
    assert on is False and "is off, TF_ENABLE_ONEDNN_OPTS=0" in printed
    printed, on = train(3, "")
    assert on is False and "is off, chosen by the command" in printed
    assert "was started with" not in printed
    printed, on = train(4, "1")
    assert on is True and "started without oneDNN and goes on with it" in printed
