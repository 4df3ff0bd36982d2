"""The memory of the functions that inspect a large model."""

import json
import subprocess
import sys

import pytest

from tests.checkout import ROOT


@pytest.mark.process
@pytest.mark.heavy("inspection")
@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
@pytest.mark.parametrize("implementation", ["auto", "reference"])
def test_vit_b16_at_384_needs_less_than_1500_mb(implementation, monkeypatch):
    """8 images, above the loaded model. All attention weights at once would take 1.5 GB."""
    monkeypatch.setenv("VIT_OPS", implementation)
    command = [sys.executable, "-m", "tests.vit_tf.programs.inspection_memory"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    peaks = json.loads(done.stdout.splitlines()[-1])
    attention = {"maps", "rollout", "distance", "entropy", "share"}
    assert set(peaks) == attention | {"norms", "activation", "components"}
    assert max(peaks.values()) < 1500, peaks
