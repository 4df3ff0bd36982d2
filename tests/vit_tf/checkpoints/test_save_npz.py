"""Saving a published file is atomic, whatever fails."""

import json
import resource

import numpy as np
import pytest

import vit_tf
from tests.vit_tf import tiny
from tests.vit_tf.checkpoints.npz_files import saved


def test_a_failed_save_leaves_the_old_file(tmp_path):
    """When the disk is full, the old file stays and no other file is left."""
    path = saved(tiny.shared(seed=1), tmp_path / "model.npz")
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before[path]) // 2, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            vit_tf.save_npz(tiny.shared(seed=2), path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before
    vit_tf.save_npz(tiny.shared(seed=2), path)
    assert path.read_bytes() != before[path]


@pytest.mark.parametrize("step", ["os.fsync", "os.replace"])
def test_a_crash_while_saving_leaves_the_old_file(step, tmp_path, monkeypatch):
    path = saved(tiny.shared(seed=1), tmp_path / "model.npz")
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}

    def crash(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(step, crash)
        with pytest.raises(KeyboardInterrupt):
            vit_tf.save_npz(tiny.shared(seed=2), path)
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_first_save_that_fails_leaves_nothing(tmp_path):
    with pytest.raises(FileNotFoundError, match="missing"):
        vit_tf.save_npz(tiny.shared(), tmp_path / "missing" / "model.npz")
    assert not list(tmp_path.iterdir())


def test_saving_over_a_file_replaces_it(tmp_path):
    """This includes a larger file and its sidecar."""
    path = saved(tiny.shared(seed=1, layers=4, image_size=16), tmp_path / "model.npz")
    model = tiny.shared(seed=2)
    vit_tf.save_npz(model, path)
    fresh = tiny.shared(seed=3)
    vit_tf.load_npz(fresh, path, head="keep")
    np.testing.assert_array_equal(fresh(tiny.images()), model(tiny.images()))
    assert json.loads((tmp_path / "model.npz.json").read_text())["grid"] == [2, 3]
