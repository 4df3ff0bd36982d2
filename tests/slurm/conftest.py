"""The cluster of the tests in this folder; a reason to skip where the machine cannot have one."""

import pytest

from tests import nodes
from tests.slurm.cluster import PROGRAMS, Cluster

NODES = 4


@pytest.fixture(scope="session")
def cluster():
    if reason := nodes.missing(PROGRAMS):
        pytest.skip(reason)
    with nodes.running("slurm", lambda folder: Cluster(folder, NODES)) as cluster:
        yield cluster
