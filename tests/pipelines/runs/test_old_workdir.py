"""A workdir that an earlier version wrote is evaluated and resumed: `tests/golden/old_workdir`."""

import shutil

import numpy as np
import pytest

from pipelines.config import Assignments, Request, override
from pipelines.data.sources.open import open_source
from pipelines.errors import UserError
from pipelines.evaluation.evaluate import evaluate
from pipelines.runs import checkpoints
from pipelines.runs.workdir import Workdir
from pipelines.stored_models import model_source
from pipelines.stored_models.model_source import Checkpoint, NpzFile
from pipelines.training.train import train
from tests.checkout import ROOT
from tests.pipelines.tiny import arrays, cut_short, losses, one_device

OLD = ROOT / "tests" / "golden" / "old_workdir"
# Another processor adds in another order.
TOLERANCE = 1e-4


@pytest.fixture
def workdir(tmp_path):
    return shutil.copytree(OLD, tmp_path / "old")


@pytest.mark.parametrize("place", ["files", "checkpoint"])
def test_the_old_model_has_the_stored_loss(workdir, tmp_path, place, uncompiled):
    """The evaluations during training were of the average of the weights."""
    if place == "checkpoint":
        workdir = cut_short(workdir, tmp_path / "run", 6)
    source = model_source.find(workdir, "ema")
    assert type(source) is {"files": NpzFile, "checkpoint": Checkpoint}[place]
    data = Workdir(workdir).read_experiment().data
    examples = open_source(data.name, data.eval_split)
    means = evaluate(source, examples, one_device(), batch_size=50, bad_images="stop")
    stored = Workdir(OLD).read_metrics()[-1]
    assert means["examples"] == stored["eval_examples"] == 100
    assert means["loss"] == pytest.approx(stored["eval_loss"], rel=TOLERANCE)
    assert means["accuracy"] == pytest.approx(stored["eval_accuracy"], abs=0.011)  # One image.


def test_the_old_run_resumes_and_ends_with_the_stored_weights(
    workdir, tmp_path, logged, uncompiled
):
    """Its average begins without a warm-up, which the same command has now: the run keeps that."""
    run = cut_short(workdir, tmp_path / "run", 4)
    warmed = override(Workdir(run).read_experiment(), ["train.ema_warmup=true"])
    assigned = Request(assignments=Assignments.parse(["train.ema_warmup=true"]))
    with pytest.raises(UserError, match="ema_warmup: False -> True"):
        train(warmed, run, one_device(), assigned)
    train(override(warmed, ["data.exif=apply", "data.split_by=class"]), run, one_device())
    said = logged.take()
    assert "the run keeps its own: train.ema_warmup: True -> False" in said
    assert "the run keeps its own: data.exif: 'apply' -> 'ignore'" in said
    assert "the run keeps its own: data.split_by: 'class' -> 'file'" in said
    assert "resuming from step 4" in said
    assert "53% of the average are still the initial weights, after 6 steps" in said
    assert checkpoints.steps(run / "checkpoints") == [4, 6]
    np.testing.assert_allclose(losses(run), losses(OLD), rtol=TOLERANCE)
    for name in ("final.npz", "ema.npz"):
        received, stored = arrays(run, name), arrays(OLD, name)
        assert received.keys() == stored.keys()
        largest = max(np.abs(value).max() for value in stored.values())
        for key, value in stored.items():
            # The exact gradient of a key bias is 0; AdamW scales up its rounding error.
            if not key.endswith("key/bias"):
                error = np.abs(received[key] - value).max()
                assert error <= TOLERANCE * largest, f"{key} of {name}: {error:.1e}"
