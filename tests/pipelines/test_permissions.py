"""Files and folders have the permissions that the umask leaves."""

import os
import stat

import pytest

import vit_tf
from pipelines.data.bad_images import BadImages
from pipelines.data.sources.open import open_source
from pipelines.data.sources.record_writer import write_records
from pipelines.runs.workdir import Workdir
from pipelines.serving.saved_model import export
from tests.pipelines.data.spoiled import Spoiled
from tests.pipelines.serving.exports import make
from tests.pipelines.tiny import tiny_experiment


@pytest.fixture(params=[0o022, 0o077, 0o002], ids=oct)
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_everything_that_is_written(tmp_path, umask, no_process):
    model, preprocessing = make()
    vit_tf.save_npz(model, tmp_path / "model.npz", preprocessing)
    export(model, preprocessing, tmp_path / "serving")
    write_records({"test": open_source("digits", "test[:10]")}, tmp_path / "records", 2, "stop")
    run = Workdir(tmp_path / "run")
    run.create(tiny_experiment())
    run.append_non_finite({"step": 1})
    examples = open_source("digits", "train").read(range(200))
    BadImages(tmp_path / "bad.jsonl").record(Spoiled(examples), [3])
    found = {
        path: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*") if path.exists()
    }
    assert len(found) > 15
    for path, mode in found.items():
        assert mode == (0o777 if path.is_dir() else 0o666) & ~umask, path
