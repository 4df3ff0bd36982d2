"""The script of docs/cluster.md on a real SLURM cluster, each node of which is a namespace.

Whatever ends a job in between, it goes on, and its model is that of one device.
"""

import re
import time

import numpy as np
import pytest

from pipelines.training.train import train
from tests.pipelines.tiny import arrays, as_flags, losses, one_device, tiny_experiment

pytestmark = [pytest.mark.slurm, pytest.mark.process, pytest.mark.heavy("slurm")]

SETTINGS = (
    "model.layers=1",
    "data.eval_split=none",
    # AdamW would divide the noise of gradients that are nearly 0.
    "optimizer.name=sgd",
    "optimizer.learning_rate=0.01",
    "train.deterministic=true",
    "train.batch_size=64",
    "train.steps=300",
    "train.checkpoint_every=10",
)
LOSS, WEIGHT = 2e-6, 5e-6
# Two jobs fit on a node.
HALF = ("--gpus-per-task=2", "--cpus-per-task=8")


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The run of one device."""
    workdir = tmp_path_factory.mktemp("slurm") / "one"
    train(tiny_experiment(*SETTINGS), workdir, one_device())
    return workdir


def flags():
    return as_flags(*SETTINGS)


def assert_equal(workdir, expected):
    np.testing.assert_allclose(losses(workdir), losses(expected), rtol=LOSS)
    received, wanted = arrays(workdir), arrays(expected)
    assert received.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(received[name], value, atol=WEIGHT, err_msg=name)


def assert_lines_are_named_once(log):
    assert re.search(r"^worker \d+: (step \d|error: )", log, re.MULTILINE)
    assert not re.search(r"^(step|error|SIG|.*worker \d+: worker)", log, re.MULTILINE), log
    # Worker 0 tells the steps.
    assert not re.search(r"^worker [1-9]\d*: step ", log, re.MULTILINE), log


def test_four_nodes_one_of_which_loses_its_power(cluster, tmp_path, expected):
    """The script as it stands; SLURM queues the job again, and it goes on when the node is back."""
    job = cluster.submit(tmp_path / "four", flags())
    job.wait_for_step(50)
    cluster("crash", "node4")
    job.wait(lambda job: "not a word for 20 seconds" in job.log)
    job.wait_for_requeue(1)
    cluster("boot", "node4")
    assert job.end() == "0:0", job.log
    assert job.log.count("resuming from step") == 1
    assert_lines_are_named_once(job.log)
    assert_equal(job.workdir, expected)


def test_two_jobs_on_the_same_nodes(cluster, tmp_path, expected):
    """One has two tasks on each node, dealt in turn."""
    half = ("--nodes=2", "--nodelist=node1,node2", *HALF)
    plain = cluster.submit(tmp_path / "plain", flags(), *half)
    cyclic = ("--ntasks-per-node=2", "--distribution=cyclic")
    dealt = cluster.submit(tmp_path / "dealt", flags(), *half, *cyclic)
    plain.wait(lambda job: job.state == dealt.state == "RUNNING")
    for job in (plain, dealt):
        assert job.end() == "0:0", job.log
        assert_equal(job.workdir, expected)


def test_signals_kills_and_a_broken_link(cluster, tmp_path, expected):
    job = cluster.submit(tmp_path / "job", flags(), "--nodes=2")
    # While both prepare: TensorFlow has its own handler of the signal by then.
    job.wait(lambda job: "2 replicas on CPU of 2 workers" in job.log)
    cluster.ask("scancel", "--signal=TERM", job.number)
    job.wait_for_requeue(1)
    job.wait_for_step(40)
    cluster("on", "node2", "pkill", "-KILL", "-f", "pipelines.pretrain")
    job.wait_for_starts(2)
    job.wait_for_step(80)
    cluster("cut", "node2")
    job.wait(lambda job: "not a word for 20 seconds" in job.log)
    time.sleep(20)
    cluster("heal", "node2")
    job.wait_for_starts(3)
    job.wait_for_step(140)
    cluster.ask("scancel", "--signal=TERM", job.number)
    job.wait_for_requeue(2)
    job.wait_for_step(200)
    cluster.ask("scontrol", "requeue", job.number)
    job.wait_for_requeue(3)
    assert job.end() == "0:0", job.log
    assert_lines_are_named_once(job.log)
    assert_equal(job.workdir, expected)


def test_a_name_that_one_node_does_not_know_ends_the_job(cluster, tmp_path):
    """All workers end with 2, and the loop does not try again."""
    names = "cp /etc/hosts /tmp/vit_tf_hosts; grep -v node1 /tmp/vit_tf_hosts > /etc/hosts"
    cluster("on", "node2", "sh", "-c", names)
    try:
        nodes = ("--nodes=3", "--nodelist=node1,node2,node3")
        job = cluster.submit(tmp_path / "job", flags(), *nodes)
        assert job.end() == "2:0", job.log
    finally:
        cluster("on", "node2", "sh", "-c", "cat /tmp/vit_tf_hosts > /etc/hosts")
    assert job.log.count("error: Worker 1 does not know the address of worker 0: ") == 3, job.log
