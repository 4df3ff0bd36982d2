"""What the Dockerfile names exists, and the container that it describes serves without root."""

import json
import re
import shlex
import subprocess
import sys
import tomllib

import pytest
from absl import flags

import vit_tf
from pipelines import serve
from pipelines.cli.command_names import commands
from pipelines.serving.http.model import ServedModel
from tests.checkout import ROOT
from tests.pipelines.serving.http.running import address, running

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def instructions():
    """Lists of instruction and text, with continued lines joined."""
    text = re.sub(r"(?m)^#.*\n", "", (ROOT / "Dockerfile").read_text()).replace("\\\n", "")
    return [line.split(None, 1) for line in text.splitlines() if line]


@pytest.fixture(scope="module")
def last_stage(instructions):
    begin = max(i for i, (name, _) in enumerate(instructions) if name == "FROM")
    return instructions[begin:]


def of(instructions, name):
    return [text for other, text in instructions if other == name]


def test_it_copies_what_exists_and_is_sent(instructions):
    sent = (ROOT / ".dockerignore").read_text().splitlines()
    assert next(x for x in sent if not x.startswith("#")) == "*"
    copied = [text.split()[:-1] for text in of(instructions, "COPY") if "--from" not in text]
    copied = sum(copied, [])
    assert sorted(copied) == sorted(x[1:] for x in sent if x.startswith("!"))
    assert {"custom_ops", "vit_tf", "pipelines", "setup.py"} <= set(copied)
    assert all((ROOT / name).exists() for name in copied)


def test_it_stands_on_the_python_of_the_lock_file(instructions):
    images = {text.split()[0] for text in of(instructions, "FROM")} - {"packages", "wheel"}
    assert images == {"python:3.11-slim-bookworm"}
    assert "Python 3.11" in (ROOT / "requirements.lock").read_text().splitlines()[0]
    for text in of(instructions, "RUN"):
        for install in re.findall(r"pip install [^&]*", text):
            assert "--constraint requirements.lock" in install or "--no-deps" in install


def test_it_installs_what_training_and_serving_require(instructions):
    [program] = re.findall(
        r'python -c "([^"]*)" > required.txt', "\n".join(of(instructions, "RUN"))
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    extras = PROJECT["optional-dependencies"]
    required = [*PROJECT["dependencies"], *extras["train"], *extras["serve"]]
    assert done.stdout.splitlines() == required


def test_it_runs_without_root_and_without_a_compiler(last_stage):
    [user] = of(last_stage, "USER")
    assert int(user) > 0
    names = [name for name, _ in last_stage]
    assert "RUN" not in names[names.index("USER") :]
    [run] = of(last_stage, "RUN")
    assert f"--uid {user} " in run and "is_compiled()" in run
    assert not re.search(r"apt-get|g\+\+", run)


def test_it_serves_where_the_health_check_looks(last_stage):
    [program] = json.loads(of(last_stage, "ENTRYPOINT")[0])
    name, *arguments = json.loads(of(last_stage, "CMD")[0])
    assert program in PROJECT["scripts"] and name in commands()
    values = flags.FlagValues()
    serve.define(values)
    assert values([program, *arguments]) == [program]
    assert values.host == "0.0.0.0"
    [port] = of(last_stage, "EXPOSE")
    assert values.port == int(port)

    [check] = of(last_stage, "HEALTHCHECK")
    python, flag, text = json.loads(check.partition(" CMD ")[2])
    assert (python, flag) == ("python", "-c") and f"127.0.0.1:{port}/" in text
    with running(ServedModel("none", {}, None, 1, None)) as served:
        asked = text.replace(port, str(address(served)[1]))
        exec(asked)
        with pytest.raises(OSError):
            exec(asked.replace("/healthz", "/health"))
    with pytest.raises(OSError):
        exec(asked)


def test_its_labels_have_the_version_of_the_source(last_stage):
    labels = dict(x.split("=") for x in shlex.split(of(last_stage, "LABEL")[0]))
    assert labels["org.opencontainers.image.version"] == "${VERSION}"
    assert labels["org.opencontainers.image.licenses"] == PROJECT["license"]
    assert "VERSION" in of(last_stage, "ARG")
    # A wheel of another version does not match.
    assert '"/wheels/vit_tf-${VERSION}-"*.whl' in of(last_stage, "RUN")[0]
    assert f"VERSION={vit_tf.__version__} " in (ROOT / "Dockerfile").read_text()
