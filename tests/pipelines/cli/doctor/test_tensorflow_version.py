"""Commands under a TensorFlow that tf-models-official does not allow: one line, and who goes on."""

import importlib.metadata
import json
import sys
import tomllib

import grimp
import pytest
from packaging.requirements import Requirement

from pipelines.cli import command_names, console
from pipelines.cli.doctor import tensorflow_version
from tests.checkout import ROOT
from tests.pipelines.process import assert_user_error
from tests.pipelines.tiny import as_flags

LINE = (
    "The commands are tested with TensorFlow 2.20 only, which tf-models-official pins, and this is "
    "TensorFlow 2.21.0."
)
FIX = (
    f"Run: {sys.executable} -m pip install 'tensorflow>=2.20,<2.21' "
    "'tf-models-official>=2.20,<2.21'"
)


@pytest.fixture
def versions(monkeypatch):
    """Distribution -> version, of those that are published as TensorFlow; others keep theirs."""
    original, found = importlib.metadata.version, {"tensorflow": "2.21.0"}

    def version(name):
        if not name.startswith("tensorflow") or name == "tensorflow-datasets":
            return original(name)
        if name not in found:
            raise importlib.metadata.PackageNotFoundError(name)
        return found[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    return found


@pytest.fixture
def no_orbit(monkeypatch):
    """There is no tf-models-official, as beside TensorFlow 2.21."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "orbit"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "orbit", None)


@pytest.mark.parametrize(
    ("found", "complains"),
    [
        ({}, False),
        ({"tensorflow": "2.20.0"}, False),
        ({"tensorflow-cpu": "2.20.1"}, False),
        ({"tensorflow": "2.2.0"}, True),
        ({"tensorflow-cpu": "2.21.1"}, True),
        ({"tensorflow": "3.20.0"}, True),
    ],
)
def test_which_versions(versions, found, complains):
    versions.clear()
    versions.update(found)
    assert (tensorflow_version.complaint() is not None) == complains
    [name] = found or ["tensorflow"]
    assert f"install '{name}>=2.20,<2.21' 'tf-models" in tensorflow_version.fix()


def test_the_version_is_that_of_the_requirements():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = map(Requirement, project["dependencies"] + project["optional-dependencies"]["train"])
    ranges = {requirement.name: requirement.specifier for requirement in wanted}
    own = f"{tensorflow_version.VERSION}.0"
    assert ranges["tf-models-official"].contains(own) and ranges["tensorflow"].contains(own)
    assert not ranges["tf-models-official"].contains("2.21.0")
    assert ranges["tensorflow"].contains("2.21.0")


def test_the_commands_that_need_orbit_are_those_that_import_it():
    names = ("pipelines", "vit_tf", "custom_ops")
    graph = grimp.build_graph(*names, include_external_packages=True)
    found = {
        name
        for name in command_names.commands()
        if graph.chain_exists(f"pipelines.{name}", "orbit")
    }
    assert found == tensorflow_version.NEED_ORBIT


@pytest.mark.parametrize("name", sorted(tensorflow_version.NEED_ORBIT))
def test_what_needs_orbit_ends_with_the_line(name, versions, no_orbit, command):
    result = command(name)
    assert_user_error(result)
    assert (result.stdout, result.stderr) == ("", f"error: {LINE} {name} needs both. {FIX}\n")


def test_what_does_not_need_it_begins_with_the_line(versions, no_orbit, command):
    result = command("predict", "--json", "--top=1")
    assert result.returncode == 0, result.stderr
    assert result.stderr.startswith(f"warning: {LINE}\n") and result.stderr.count("warning:") == 1
    assert all(json.loads(line)["top"] for line in result.stdout.splitlines())
    result = command("predict", "--help")
    assert (result.returncode, result.stderr) == (0, "")


def test_orbit_that_is_there_is_used(versions, command):
    result = command("pretrain", "--dry_run", *as_flags())
    assert result.returncode == 0, result.stderr
    assert result.stderr.startswith(f"warning: {LINE}\n")


def test_the_program(versions, no_orbit, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["vit-tf", "plan"])
    monkeypatch.delitem(sys.modules, "pipelines.plan", raising=False)  # As in a new process.
    with pytest.raises(SystemExit) as ended:
        console.main()
    assert (ended.value.code, capsys.readouterr().err) == (
        2,
        f"error: {LINE} plan needs both. {FIX}\n",
    )


def test_doctor_says_it_as_a_hint(versions, no_orbit, command, monkeypatch):
    """What cannot be installed beside this TensorFlow is not called broken."""
    monkeypatch.delenv("VIT_OPS", raising=False)
    monkeypatch.delenv("VIT_ISA", raising=False)
    result = command("doctor", "--json")
    found = json.loads(result.stdout)
    assert (result.returncode, found["broken"]) == (0, [])
    assert result.stderr == "" and found["hints"][0] == f"{LINE} Some do not run. {FIX}"
    assert "tf-models-official" not in found["imports"] | found["requirements"]
    assert found["versions"]["tensorflow"] == "2.21.0"
