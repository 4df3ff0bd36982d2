"""The cluster of the tests in this folder; a reason to skip where the machine cannot have one."""

import pathlib
import shutil
import tempfile

import pytest

from tests.slurm.cluster import Cluster, missing

NODES = 4


@pytest.fixture(scope="session")
def cluster():
    if reason := missing():
        pytest.skip(reason)
    # Paths of sockets are short. Tests that were killed have left a cluster in the same folder.
    folder = pathlib.Path(tempfile.gettempdir()) / "vit_tf_slurm"
    folder.mkdir(exist_ok=True)
    made = Cluster(folder, NODES)
    made("stop")
    try:
        made("start")
        yield made
    finally:
        made("stop")
        shutil.rmtree(folder)
