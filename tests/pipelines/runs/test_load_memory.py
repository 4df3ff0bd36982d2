"""Opening and loading a model takes at most 1.3 times its weights plus the file size."""

import json
import os
import subprocess
import sys

import pytest

import vit_tf
from pipelines.serving import conversion
from tests.checkout import ROOT

pytestmark = pytest.mark.process

SIZES = {"hidden_size": 768, "mlp_size": 3072, "layers": 8, "heads": 12, "patch_size": 16}
SOURCES = {"model.npz": None, "model.keras": None, "folder": "huggingface"}

# The first small model pays TensorFlow's one-time costs before the measurement.
PROGRAM = """
import gc, json, sys
import vit_tf
from pipelines.runs import model_source

def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))

action, path, fields = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
small = vit_tf.create_model(vit_tf.ViTConfig(**fields | {"layers": 1}))
vit_tf.save_npz(small, sys.argv[4])
model_source.open_model(model_source.find(sys.argv[4]))
gc.collect()  # Keras models are circles, which stay until then.
before = peak()
if action == "open":
    model, _ = model_source.open_model(model_source.find(path))
else:
    model = vit_tf.create_model(vit_tf.ViTConfig(**fields))
    model_source.load(model, model_source.find(path))
print(json.dumps([peak() - before, 4 * model.count_params()]))
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("memory")
    model = vit_tf.create_model(vit_tf.ViTConfig(**SIZES))
    vit_tf.save_npz(model, folder / "model.npz")
    for name, layout in list(SOURCES.items())[1:]:
        conversion.convert(str(folder / "model.npz"), str(folder / name), layout=layout, log=str)
    return folder


@pytest.mark.parametrize("action", ["open", "load"])
@pytest.mark.parametrize("name", SOURCES)
def test_memory(files, tmp_path, name, action):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM]
        + [action, str(files / name), json.dumps(SIZES), str(tmp_path / "small.npz")],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    grown, weights = json.loads(done.stdout.splitlines()[-1])
    assert weights > 200e6
    # The file has the size of the weights.
    assert grown < (1.3 + 1) * weights, f"{grown / weights:.2f} times the weights"
    assert grown > 0.8 * weights
