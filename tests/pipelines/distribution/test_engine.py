"""Blocks of a batch job, and what is refused before an engine starts; tests/ray has the others."""

import importlib.util
import socket

import numpy as np
import pytest

from pipelines.distribution import sameness
from pipelines.distribution.engine.actor import Actor, Done, Failed
from pipelines.distribution.engine.jobs import blocks
from pipelines.distribution.engine.ray_engine import RayEngine
from pipelines.errors import UserError
from tests.pipelines.process import assert_user_error
from tests.ray.jobs import Failing

COMMANDS = {
    "predict": ("--set=data.name=digits", "--output=a.csv"),
    "make_tfrecords": ("--set=data.name=digits", "--output=records"),
    "dedup": ("--reference=digits", "--query=digits", "--output=near"),
}


def test_blocks_begin_where_batches_begin():
    found = blocks([(0, 33), (33, 40), (50, 51)], multiple=4, smallest=10)
    assert found == [range(0, 12), range(12, 24), range(24, 33), range(33, 40), range(50, 51)]
    # 303 million images, about as JFT-300M has them.
    many = blocks([(0, 303_000_000)], multiple=32)
    assert 19_000 < len(many) <= 20_000 and all(block.start % 32 == 0 for block in many)
    assert many[-1].stop == 303_000_000
    assert sum(map(len, many)) == 303_000_000
    assert blocks([], 8) == []


@pytest.mark.parametrize("name", COMMANDS)
def test_the_package_is_missing(command, monkeypatch, tmp_path, name):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *x: None if name == "ray" else find(name, *x)
    )
    result = command(name, *COMMANDS[name], "--engine=ray")
    assert_user_error(result, "--engine=ray needs the package ray", "pip install 'vit-tf[ray]'")
    for flag in ("--ray_address=a:1", "--ray_cores=2"):
        result = command(name, *COMMANDS[name], flag)
        assert_user_error(result, f"{flag.partition('=')[0]} belongs to --engine=ray")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def with_package(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: "found")


@pytest.mark.parametrize("address", ["host", "auto", "ray://host:10001", "host:port", ":"])
def test_what_is_no_address(with_package, address):
    with pytest.raises(UserError, match=f"--ray_address={address} is no address. .*HOST:PORT"):
        RayEngine(address).__enter__()


def test_nothing_at_an_address(with_package):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(UserError, match=f"no Ray cluster at --ray_address={address}: .*refuse"):
            RayEngine(address).__enter__()


def _outcome(actor, start):
    batch = {"start": np.array([start]), "stop": np.array([start + 2])}
    return actor(batch)["outcome"][0]


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        ("data", "DataError", "The file 7 is damaged."),
        ("system", "RunError", "No such file or directory (/gone)."),
        ("defect", "RunError", "KeyError: 'a defect'."),
    ],
)
def test_errors_of_a_job(kind, error, message):
    program = sameness.program("")
    here = Actor(Failing(kind), program, socket.gethostname())
    assert _outcome(here, 2) == Done(2)
    assert _outcome(here, 4) == Failed(error, message)
    elsewhere = Actor(Failing(kind), program, "head")
    name = socket.gethostname()
    assert _outcome(elsewhere, 4) == Failed(error, f"{message} This is from the machine {name}.")


@pytest.mark.parametrize("name", ["versions", "code", "compiled ops"])
def test_other_programs_are_refused(name):
    program = sameness.program("")
    program[name] = program[name] | {"tensorflow": "1.0"}
    failed = _outcome(Actor(Failing("data"), program, socket.gethostname()), 0)
    assert failed.kind == "UserError"
    assert f"differ from those of the command ({name}" in failed.message
