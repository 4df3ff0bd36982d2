"""Exports of the trained DINOv2-small, in every form, give the features of ONNX Runtime."""

import pathlib

import numpy as np
import pytest

import vit_tf
from pipelines.serving import saved_model
from pipelines.serving.single_file import export
from pipelines.stored_models import runtimes
from tests.peers import trained
from tests.pipelines.serving.exports import call_here

pytestmark = [pytest.mark.heavy("trained")]


@pytest.mark.parametrize(
    ("form", "dtype"),
    [("portable", "float32"), ("fused", "float32"), ("fused", "mixed_bfloat16")],
)
def test_saved_models(folder, crops, expected, tmp_path, form, dtype):
    """The export resizes the photos; `export` has checked it in a process with TensorFlow only."""
    model, preprocessing, _ = vit_tf.load(folder, dtype=dtype)
    report = saved_model.export(model, preprocessing, str(tmp_path), form=form)
    print(report)
    assert set(report.signatures) == {"embed", "attend"}
    (answer,), _ = call_here(report.path, [("embed", np.float32(crops))])
    found = answer["embedding"]
    if dtype == "float32":
        assert trained.difference(found, expected[:, 0]) <= trained.TOLERANCE
    else:
        assert trained.smallest_cosine(found, expected[:, 0]) >= 0.9999


@pytest.mark.parametrize("form", ["litert", "onnx"])
def test_single_files(loaded, crops, expected, tmp_path, form):
    report = export.export_file(loaded, str(tmp_path), form)
    print(report)
    call = runtimes.open_runtime(form, pathlib.Path(report.path).read_bytes())
    pixels = np.stack([loaded.preprocessing.resized(crop) for crop in crops])
    found = call(np.float32(pixels))["embedding"]
    assert trained.difference(found, expected[:, 0]) <= trained.TOLERANCE
