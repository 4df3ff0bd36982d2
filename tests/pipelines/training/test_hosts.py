"""One process drives two hosts, as it does on a slice of TPUs; here they are servers on loopback.

The links of a data set lead to the working directory of the process that opens them, so the pixels
show which process has read an image.
"""

import json
import os

import numpy as np
import pytest

from pipelines.data.sources.open import open_source
from pipelines.runs.workdir import Workdir
from pipelines.training.train import train
from tests.pipelines.encoded import encode
from tests.pipelines.process import run_module
from tests.pipelines.tiny import tiny_experiment, two_replicas
from tests.pipelines.training_runs import without_compiling

# A checkpoint in the middle, and an evaluation that ends within a batch.
OWN = (
    "model.layers=1",
    "data.train_split=train",
    "data.eval_split=train[:21]",
    "train.steps=4",
    "train.checkpoint_every=2",
    "train.eval_every=4",
)
BLACK = encode(np.zeros([8, 8, 3], np.uint8), "PNG")


def images():
    """File name -> bytes of an image, and its class."""
    read = open_source("digits", "train").read(range(96))
    return {
        f"{label}-{index}.png": (image, str(label))
        for index, (image, label) in enumerate(zip(read.images, read.labels, strict=True))
    }


def write(folder, image=None):
    """Writes all images, or one in the place of each."""
    folder.mkdir()
    for name, (own, _) in images().items():
        (folder / name).write_bytes(image or own)
    return folder


def data_set(root, place):
    """A folder of each class, with links to the images at a place."""
    for name, (_, label) in images().items():
        (root / label).mkdir(parents=True, exist_ok=True)
        (root / label / name).symlink_to(os.path.join(place, name))
    return root


@pytest.mark.process
@pytest.mark.heavy("training")
def test_each_host_reads_its_data_and_one_process_writes(tmp_path):
    hosts = [write(tmp_path / name) for name in ("first", "second")]
    client = write(tmp_path / "client", BLACK)
    for folder in (hosts[0], client):  # The second host does not have it.
        write(folder / "more", BLACK)
    result = run_module(
        "tests.pipelines.programs.two_hosts",
        *hosts,
        f"folder:{data_set(tmp_path / 'not_everywhere', '/proc/self/cwd/more')}",
        *OWN,
        f"data.name=folder:{data_set(tmp_path / 'linked', '/proc/self/cwd')}",
        cwd=client,
        cold=True,
        VIT_OPS="reference",  # As on TPUs: the servers do not load the compiled ops.
    )
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["hosts"] == 2
    assert "2 hosts of the TPU read folder:" in found["message"]
    assert "one of them cannot read the first image: " in found["message"]
    assert [len(os.listdir(host)) for host in hosts] == [97, 96]  # No file is new.

    stored = data_set(tmp_path / "stored", hosts[0])
    experiment = tiny_experiment(*OWN, f"data.name=folder:{stored}")
    with without_compiling():
        train(experiment, tmp_path / "run", two_replicas())
    lines, expected = (Workdir(path).read_metrics() for path in (client / "run", tmp_path / "run"))
    for key in ("loss", "eval_loss"):
        received, wanted = ([x[key] for x in each if key in x] for each in (lines, expected))
        assert wanted
        np.testing.assert_allclose(received, wanted, rtol=1e-5)
