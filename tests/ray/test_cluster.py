"""Predictions on three Ray nodes, which are network namespaces: the bytes stay, whatever ends."""

import os
import pathlib

import pytest

from tests import nodes
from tests.pipelines import encoded
from tests.pipelines.process import run_command
from tests.ray.cluster import ADDRESS, Cluster

pytestmark = [pytest.mark.heavy("ray"), pytest.mark.process]

# Each file is a block. The images are so large that an actor needs a while for a block.
FILES, IMAGES, SIDE = 20, 80, 2000


@pytest.fixture(scope="module")
def cluster():
    if reason := nodes.missing({}):
        pytest.skip(reason)
    with nodes.running("ray", Cluster) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    """What is predicted: a folder of large images."""
    folder = tmp_path_factory.mktemp("photos")
    for index in range(IMAGES):
        path = folder / f"{index:03}.png"
        if index < 4:
            path.write_bytes(encoded.encode(encoded.pixels(SIDE, SIDE, index) // 64, "PNG"))
        else:
            os.link(folder / f"{index % 4:03}.png", path)
    return f"--shards={FILES}", str(folder)


@pytest.fixture(scope="module")
def local(flags, tmp_path_factory):
    """The contents of the files of one process."""
    folder = tmp_path_factory.mktemp("local")
    result = run_command("predict", *flags, f"--output={folder / 'p.csv'}", cwd=folder)
    assert result.returncode == 0, result.stderr
    return _contents(folder)


def _contents(folder):
    return {path.name: path.read_bytes() for path in pathlib.Path(folder).iterdir()}


def test_a_process_is_killed(cluster, flags, local, tmp_path):
    run = cluster.predict("node1", tmp_path / "p.csv", *flags)
    run.wait_for_parts(3)
    [actor] = cluster.actors("node2")
    cluster("on", "node2", "kill", "-KILL", actor)
    code, err = run.end()
    assert code == 0, err
    assert _contents(tmp_path) == local and len(local) == FILES


def test_a_node_loses_its_power(cluster, flags, local, tmp_path):
    run = cluster.predict("node1", tmp_path / "p.csv", *flags)
    run.wait_for_parts(3)
    assert cluster.actors("node3")
    cluster("crash", "node3")
    code, err = run.end()
    assert code == 0, err
    assert _contents(tmp_path) == local
    cluster("boot", "node3")


def _end_by_head(run):
    """Waits for the end of a command whose head was lost; returns how many images are done."""
    code, err = run.end()
    assert code == 76, err
    [error] = [line for line in err.splitlines() if line.startswith("error: ")]
    assert error.startswith(f"error: The head of the Ray cluster at {ADDRESS} was lost. Start")
    assert "Traceback" not in err
    return run.done


def test_the_head_loses_its_power_twice(cluster, flags, local, tmp_path):
    """The second time it is back at once. What is done is kept by the next call."""
    run = cluster.predict("node2", tmp_path / "p.csv", *flags)
    run.wait_for_parts(3)
    cluster("crash", "node1")
    done = _end_by_head(run)
    cluster("restart")
    run = cluster.predict("node2", tmp_path / "p.csv", *flags)
    run.wait_for_parts(run.parts + 3)
    cluster("crash", "node1")
    cluster("boot", "node1")
    more = _end_by_head(run)
    assert IMAGES > more > done > 0
    cluster("restart")
    code, err = cluster.predict("node1", tmp_path / "p.csv", *flags).end()
    assert code == 0, err
    assert f"going on with {tmp_path / 'p.csv'}.partial: {more} of {IMAGES} images" in err
    assert _contents(tmp_path) == local
