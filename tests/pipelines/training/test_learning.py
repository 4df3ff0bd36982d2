"""Training learns, its memory stays flat, and the shipped model is as accurate as documented."""

import json

import pytest

from pipelines.training.train import train
from tests.pipelines.process import run_module
from tests.pipelines.tiny import one_device, tiny_experiment

LEARNING = (
    "model.layers=1",
    "model.hidden_size=32",
    "model.mlp_size=64",
    "model.dropout=0",
    "model.attention_dropout=0",
    "model.stochastic_depth=0",
    "optimizer.learning_rate=0.01",
    "train.batch_size=64",
    "train.steps=150",
    "train.log_every=50",
    "schedule.warmup_steps=15",
)


def test_a_tiny_run_learns_digits(tmp_path):
    """Chance is 10 %, and this run reaches about 90 %."""
    last = train(tiny_experiment(*LEARNING), tmp_path / "run", one_device())
    assert last["eval_examples"] == 300
    assert last["eval_accuracy"] > 0.85


def test_the_shipped_model_has_the_documented_accuracy(command):
    """97.3 % in README.md and docs/model_card.md."""
    result = command("evaluate", "--json")
    assert result.returncode == 0, result.stderr
    means = json.loads(result.stdout)
    assert (means["examples"], means["accuracy"] * 300) == (300, pytest.approx(292, abs=1e-4))


@pytest.mark.process
@pytest.mark.heavy("training")
def test_memory_stays_flat_over_300_steps(tmp_path):
    """From step 100 to step 300; one batch of each of these steps would have 315 MB."""
    result = run_module("tests.pipelines.programs.training_memory", tmp_path / "run", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    resident = json.loads(result.stdout)
    assert len(resident) == 30
    assert resident[-1] - resident[9] < 100e6, resident
