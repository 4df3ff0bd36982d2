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


def slurm(nodes, tasks, node, local, job=7, step=0):
    return {
        "SLURM_PROCID": "1",
        "SLURM_JOB_ID": str(job),
        "SLURM_STEP_ID": str(step),
        "SLURM_STEP_NODELIST": nodes,
        "SLURM_STEP_TASKS_PER_NODE": tasks,
        "SLURM_NODEID": str(node),
        "SLURM_LOCALID": str(local),
    }


def hosts(nodes, count):
    """The hosts of workers, one on each node."""
    return [x.rpartition(":")[0] for x in find(environment=slurm(nodes, count, 0, 0)).addresses]


def test_slurm():
    """The order is that of the nodes; SLURM_PROCID, which follows --distribution, is not read."""
    ports = 10240 + 16 * 7, 10240 + 16 * 7 + 1
    expected = (f"node9:{ports[0]}", f"node9:{ports[1]}", f"node10:{ports[0]}")
    environment = slurm("node[9-10]", "2,1", 1, 0)
    assert find(environment=environment) == Place(expected, 2, "job 7.0 of SLURM")
    assert find(environment=environment | {"SLURM_NODEID": "0", "SLURM_LOCALID": "1"}).index == 1


def test_lists_of_nodes():
    assert hosts("login,node[08-10,12]", "1(x5)") == [
        "login",
        "node08",
        "node09",
        "node10",
        "node12",
    ]
    assert hosts("r[1-2]n[1-2].a,x-1", "1(x5)") == ["r1n1.a", "r1n2.a", "r2n1.a", "r2n2.a", "x-1"]
    assert hosts("a[1,3]b,c[7]", "1(x2),1") == ["a1b", "a3b", "c7"]
    assert hosts("n[098-101]", "1(x4)") == ["n098", "n099", "n100", "n101"]


def test_ports_of_jobs_and_steps():
    """Those of 60 jobs with numbers in sequence, with 20 steps each: no two have a port alike."""
    ports = [
        find(environment=slurm("a", "1", 0, 0, job, step)).split(0)[1]
        for job in range(4_000_000, 4_000_060)
        for step in range(20)
    ]
    assert len(set(ports)) == len(ports)
    assert min(ports) >= 10240
    assert max(ports) + 15 < 32768


@pytest.mark.parametrize(
    "damage",
    [
        {"SLURM_STEP_NODELIST": "node[9-10"},
        {"SLURM_STEP_NODELIST": "node[9-x]"},
        {"SLURM_STEP_NODELIST": ""},
        {"SLURM_STEP_NODELIST": "a,,b"},
        {"SLURM_STEP_TASKS_PER_NODE": "2"},
        {"SLURM_STEP_TASKS_PER_NODE": "2(x,1"},
        {"SLURM_NODEID": "first"},
    ],
)
def test_damaged_slurm_variables(damage):
    with pytest.raises(UserError, match="SLURM's variables name no workers: "):
        find(environment=slurm("node[9-10]", "2,1", 0, 0) | damage)


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
