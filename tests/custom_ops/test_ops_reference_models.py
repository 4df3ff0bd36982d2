"""Repeats the model tests with plain TensorFlow in place of the compiled ops."""

import os
import re
import subprocess
import sys

import pytest

from tests.checkout import ROOT

# Modules that run models and take seconds. Tests of files do not depend on the implementation.
MODULES = (
    "layers/test_dropout",
    "models/test_golden",
    "models/test_golden_residual",
    "models/test_keras_model",
    "layers/test_layers",
    "models/test_vit",
)


@pytest.mark.process
def test_models_pass_with_the_reference():
    modules = [f"tests/vit_tf/{name}.py" for name in MODULES]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *modules]
    # The variables of a pytest-xdist worker apply only to that worker.
    environment = {name: x for name, x in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        # Under XLA the reference runs anyway.
        [*command, "-m", "not slow and not process", "-k", "not xla"],
        cwd=ROOT,
        env=environment | {"VIT_OPS": "reference"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    [passed] = re.findall(r"(\d+) passed", done.stdout)
    assert int(passed) > 100
