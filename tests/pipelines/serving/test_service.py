"""From a checkpoint to a service with TensorFlow only: all processes are real."""

import json
import os
import stat
import subprocess
import sys

import numpy as np
import pytest

import vit_tf
from pipelines.serving import clean_process, clean_process_main
from tests.checkout import ROOT
from tests.pipelines import encoded
from tests.pipelines.process import TIMEOUT, assert_user_error, run_command
from tests.pipelines.serving.exports import CLASSES, make

pytestmark = pytest.mark.process

SERVICE = ROOT / "tests" / "pipelines" / "programs" / "service.py"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """`(folder, where, printed)`: the command has exported a checkpoint, then it was moved."""
    folder = tmp_path_factory.mktemp("service")
    model, preprocessing = make()
    vit_tf.save_npz(model, folder / "model.npz", preprocessing, CLASSES)
    paths = ("--model", folder / "model.npz", "--output", folder / "new" / "out")
    done = run_command("export", "--format=both", *paths, cwd=folder)
    assert done.returncode == 0, done.stderr
    (folder / "new" / "out").rename(folder / "elsewhere")
    return folder / "elsewhere", folder / "new" / "out", done.stdout


@pytest.fixture(scope="module")
def served(written, tmp_path_factory):
    """The requests that the service received."""
    image = tmp_path_factory.mktemp("service") / "image"
    image.write_bytes(encoded.every_format()[0][0])
    # -I: no current directory, no PYTHONPATH, no user packages.
    done = subprocess.run(
        [sys.executable, "-I", SERVICE, written[0], image],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_command_says_how_to_load_what_it_wrote(written):
    folder, where, printed = written
    assert sorted(os.listdir(folder)) == ["fused", "portable"]
    for form in ("portable", "fused"):
        assert f"wrote {where / form}" in printed
        assert f"tf.saved_model.load({str(where / form)!r})" in printed
        assert stat.S_IMODE((folder / form).stat().st_mode) == 0o755
    loader = where / "fused" / "assets.extra" / "load_ops.py"
    assert printed.count(f"runpy.run_path({str(loader)!r})") == 1
    signatures = ("serving_default", "serving_uint8", "serving_bytes", "serving_bytes_lenient")
    for part in ("MB", ", ".join(signatures), "attend", "largest difference"):
        assert printed.count(part) >= 2


def test_a_portable_export_needs_tensorflow_only(served):
    assert served["unknown"] == [] and served["ours"] == []
    assert "MatMul" in served["ops"] or "BatchMatMulV2" in served["ops"]
    assert not [op for op in served["ops"] if op.startswith("Vit")]


def test_a_fused_export_needs_its_loader(served):
    assert served["refusal"].startswith("Op type not registered 'Vit")


@pytest.mark.parametrize("way", ["eager", "session", "fused"])
def test_the_service_computes_what_the_model_computes(served, way):
    model, preprocessing = make()
    _, image = encoded.every_format()[0]
    logits = model(preprocessing(image)[None])[0]
    np.testing.assert_allclose(served[way], logits, rtol=0, atol=2e-5 * np.abs(logits).max())
    assert served["valid"] == [[True, False]] * 2


def test_the_service_says_which_shape_it_takes(served):
    for images, image_bytes in served["errors"]:
        assert "expected images of shape [batch, height, width, 3]" in images
        assert "received the shape] [1 20 30 4]" in images
        assert "expected image_bytes of shape [batch]" in image_bytes


def test_the_memory_of_a_service_stays_flat(served):
    """A leak of the smallest tensor of a request, 786 kB of images, would be 236 MB."""
    assert served["growth"] < 100e6


def test_predict_does_not_load_the_library_inside_an_export(written, tmp_path):
    """A fused export needs the installed one."""
    model = written[0] / "fused"
    (tmp_path / "image.png").write_bytes(encoded.every_format()[0][0])
    without = {"VIT_OPS_LIBRARY": str(tmp_path / "none.so")}
    done = run_command("predict", "--model", model, "image.png", cwd=tmp_path, **without)
    assert_user_error(done, "fused is a fused export, which needs the compiled ops, but", "none.so")


def test_the_process_of_the_check_finds_only_tensorflow():
    find = clean_process_main._Finder.find_spec
    assert find("tensorflow") is not None
    assert find("keras") is None and find("vit_tf.layers") is None and find("pipelines") is None


def test_the_process_of_the_check_reports_its_failure(tmp_path):
    with pytest.raises(clean_process.CleanProcessError, match="saved_model"):
        clean_process.call_signatures(tmp_path, [])
