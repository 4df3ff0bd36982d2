"""`--weights=ema`: every command uses the average of a run's weights."""

import functools
import json
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

from pipelines.serving import clean_process
from pipelines.stored_models import model_source
from pipelines.stored_models.model_source import Checkpoint, NpzFile
from tests.pipelines.process import assert_user_error
from tests.pipelines.serving.exports import call_here
from tests.pipelines.stored_models.weights_choice import (
    assert_finetunes_from,
    evaluations,
    without_average,
)
from tests.pipelines.tiny import cut_short


@pytest.fixture(scope="module")
def runs(finished_run, tmp_path_factory):
    """`ended`: 12 steps; `unfinished`: the same stopped after 8; `plain`: without an average."""
    folder = tmp_path_factory.mktemp("runs")
    for name in ("ended", "plain"):
        shutil.copytree(finished_run, folder / name)
    cut_short(finished_run, folder / "unfinished", 8)
    (folder / "plain" / "ema.npz").unlink()
    without_average(folder / "plain")
    return folder


@pytest.fixture
def command(command, runs):
    """The working directory of commands has the runs."""
    return functools.partial(command, cwd=runs)


def test_evaluate_gives_the_numbers_that_training_logged(runs, command):
    logged = evaluations(runs / "ended")
    losses = {}
    for run, step in (("ended", 12), ("unfinished", 8)):
        for choice in ("final", "ema"):
            result = command("evaluate", f"--model={run}", f"--weights={choice}", "--json")
            assert result.returncode == 0, result.stderr
            losses[run, choice] = json.loads(result.stdout)["loss"]
        assert losses[run, "ema"] == pytest.approx(logged[step]["eval_loss"], rel=1e-6)
        assert abs(losses[run, "final"] - losses[run, "ema"]) > 1e-3
    by_name = command("evaluate", "--model=ended/ema.npz", "--json")
    # The batch size comes from the recipe, not from the run.
    loss = json.loads(by_name.stdout)["loss"]
    assert loss == pytest.approx(losses["ended", "ema"], rel=1e-6)
    default = command("evaluate", "--workdir=unfinished", "--json")
    assert json.loads(default.stdout)["loss"] == losses["unfinished", "final"]


def test_the_average_in_a_checkpoint_is_the_one_that_is_written(runs, tmp_path):
    """Every array is bitwise equal, before and after the run has written its results."""
    cut_short(runs / "ended", tmp_path / "run", 12)
    for choice, file in (("ema", "ema.npz"), ("final", "final.npz")):
        from_checkpoint = model_source.find(tmp_path / "run", choice)
        written = model_source.find(runs / "ended", choice)
        assert (type(from_checkpoint), type(written)) == (Checkpoint, NpzFile)
        assert written.path == str(runs / "ended" / file)
        ours = from_checkpoint.open_model().model
        theirs, *described = written.open_model()
        assert len(ours.weights) == len(theirs.weights) > 15
        for a, b in zip(ours.weights, theirs.weights, strict=True):
            np.testing.assert_array_equal(a, b)
        assert described == list(from_checkpoint.open_model()[1:])


def test_predict(runs, command):
    lines = {
        name: command("predict", f"--model={model}", *flags, "--json", "--top=1").stdout
        for name, model, flags in (
            ("by flag", "ended", ["--weights=ema"]),
            ("by name", "ended/ema.npz", []),
            ("final", "ended", []),
        )
    }
    assert lines["by flag"].count("\n") == 5
    assert lines["by flag"] == lines["by name"] != lines["final"]


def test_an_export_has_the_average_and_no_choice(runs, command, monkeypatch, tmp_path):
    monkeypatch.setattr(clean_process, "call_signatures", call_here)
    result = command("export", "--model=unfinished", "--weights=ema", f"--output={tmp_path}")
    assert result.returncode == 0, result.stderr
    images = tf.random.stateless_uniform([4, 12, 12, 3], [1, 2], 0, 255)
    served = tf.saved_model.load(tmp_path / "portable").signatures["serving_default"](images=images)
    logits = {}
    for choice in ("final", "ema"):
        source = model_source.find(runs / "unfinished", choice)
        model, preprocessing, _ = source.open_model()
        logits[choice] = model(preprocessing(images)).numpy()
    np.testing.assert_allclose(served["logits"], logits["ema"], rtol=0, atol=1e-5)
    assert np.abs(logits["ema"] - logits["final"]).max() > 1e-2
    for path in (tmp_path, tmp_path / "portable"):
        result = command("predict", f"--model={path}", "--weights=ema")
        assert_user_error(result, f"{path} is not a workdir")


def test_finetune_starts_from_the_average_and_says_so(runs, command, tmp_path, uncompiled):
    said = "(average at step 8)"
    assert_finetunes_from(command, tmp_path / "run", runs / "unfinished", "ema", said)


@pytest.mark.parametrize("module", ["evaluate", "predict", "export", "finetune"])
@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("plain", "plain keeps no average of its weights: train.ema_decay was none"),
        ("ended/final.npz", "ended/final.npz is not a workdir: it has one set of weights"),
        ("ended/checkpoints", "ended/checkpoints is not a workdir"),
        ("shipped", "shipped is not a workdir"),
        ("nowhere", "no model at nowhere"),
    ],
)
def test_where_there_is_no_average(runs, command, module, source, text):
    flag = "--init_from" if module == "finetune" else "--model"
    result = command(module, f"{flag}={source}", "--weights=ema")
    assert_user_error(result, text)
    assert sorted(os.listdir(runs)) == ["ended", "plain", "unfinished"]


@pytest.mark.parametrize("module", ["evaluate", "predict", "export", "finetune"])
def test_without_a_source_there_is_no_choice(command, module):
    assert_user_error(command(module, "--weights=ema"), "shipped is not a workdir")
    assert_user_error(command(module, "--weights=mean"), "weights", "ema")


def test_a_damaged_checkpoint_is_not_the_average(runs, command, tmp_path):
    """The newest undamaged one is used, as for the weights; without one there is no model."""
    cut_short(runs / "ended", tmp_path / "run", 8)
    for step, answer in ((8, 4), (4, None)):
        folder = tmp_path / "run" / "checkpoints" / f"step-{step}"
        data = next(path for path in folder.iterdir() if ".data-" in path.name)
        data.write_bytes(data.read_bytes()[:-1])
        flags = [f"--model={tmp_path / 'run'}", "--weights=ema", "--json"]
        result = command("evaluate", *flags)
        if answer:
            logged = evaluations(runs / "ended")[answer]["eval_loss"]
            assert json.loads(result.stdout)["loss"] == pytest.approx(logged, rel=1e-6)
        else:
            assert_user_error(result, "no model at")
