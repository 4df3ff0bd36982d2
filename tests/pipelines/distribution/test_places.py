"""Flags, TF_CONFIG and SLURM's variables name the workers."""

import json
import re

import pytest

from pipelines.distribution.places import Place, find
from pipelines.errors import UserError


def config(cluster, job, index):
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})}


TWO = {"worker": ["a:1", "b:2"]}


def test_flags():
    assert find("a:1, [::1]:2", 1, {}) == Place(("a:1", "[::1]:2"), 1)
    assert find("a:1,[::1]:2", 1, {}).split(1) == ("::1", 2)
    # They come before the environment.
    assert find("a:1,b:2", 0, config(TWO, "worker", 1)).index == 0


def test_tf_config():
    assert find(environment=config(TWO, "worker", 1)) == Place(("a:1", "b:2"), 1)
    chief = {"chief": ["c:3"], **TWO}
    assert find(environment=config(chief, "chief", 0)) == Place(("c:3", "a:1", "b:2"), 0)
    assert find(environment=config(chief, "worker", 1)).index == 2


def slurm(nodes, tasks, rank, monkeypatch):
    variables = {
        "SLURM_PROCID": str(rank),
        "SLURM_STEP_NUM_TASKS": "3",
        "SLURM_STEP_NODELIST": nodes,
        "SLURM_STEP_TASKS_PER_NODE": tasks,
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    return variables


def test_slurm(monkeypatch):
    variables = slurm("node[9-10]", "2,1", 2, monkeypatch)
    expected = ("node9:8888", "node9:8889", "node10:8888")
    assert find(environment=variables) == Place(expected, 2)
    assert variables["SLURM_PROCID"] == "2"


def test_damaged_slurm_variables(monkeypatch):
    variables = slurm("node[9-10", "2,1", 2, monkeypatch)
    with pytest.raises(UserError, match="SLURM's variables name no workers"):
        find(environment=variables)


@pytest.mark.parametrize(
    ("workers", "index", "environment", "message"),
    [
        (None, None, {}, "--strategy=multi_worker needs the addresses of all workers: --workers="),
        ("a:1,b:2", None, {}, "--workers and --worker_index belong together"),
        (None, 1, {}, "--workers and --worker_index belong together"),
        ("a:1,b:2", 2, {}, "There is no worker 2: 2 workers have the indices 0 to 1"),
        ("a:1,b:2", -1, {}, "There is no worker -1"),
        ("a:1,b", 0, {}, "The address of worker 1 must be HOST:PORT. Received: 'b'"),
        ("a:1,b:70000", 0, {}, "Received: 'b:70000'"),
        ("a:1,", 0, {}, "Received: ''"),
        ("a:1,a:1", 0, {}, "Two workers have the same address: a:1,a:1"),
        (None, None, {"TF_CONFIG": "{"}, "TF_CONFIG is not as TensorFlow expects it"),
        (None, None, {"TF_CONFIG": "[]"}, "TF_CONFIG is not as TensorFlow expects it"),
        (None, None, config(TWO, "worker", 2), "no address for the task 'worker' 2"),
        (None, None, config({**TWO, "ps": ["c:3"]}, "ps", 0), "TF_CONFIG has the task 'ps'"),
    ],
)
def test_wrong_places(workers, index, environment, message):
    with pytest.raises(UserError, match=re.escape(message)):
        find(workers, index, environment)
