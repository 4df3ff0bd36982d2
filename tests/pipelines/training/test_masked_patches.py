"""Training by masked patch prediction: strategies, restart, results, fine-tuning, wrong input."""

import numpy as np
import pytest
import tensorflow as tf

import vit_tf
from pipelines.config import Experiment, override, recipes
from pipelines.data.sources.open import open_source
from pipelines.errors import UserError
from pipelines.evaluation.few_shot import few_shot_accuracy
from pipelines.runs.workdir import Workdir
from pipelines.stored_models import model_source
from pipelines.training.train import train
from tests.pipelines.process import assert_user_error
from tests.pipelines.tiny import (
    arrays,
    assert_same_weights,
    cut_short,
    losses,
    one_device,
    tiny_experiment,
    two_replicas,
)
from tests.pipelines.training_runs import without_compiling
from vit_tf.images.decoding import decode_image

FEW_SHOT = "few_shot_4_accuracy"
MASKED = (
    "model.layers=1",
    "task=masked_patches",
    "train.steps=6",
    "train.checkpoint_every=2",
    "train.eval_every=4",
    "train.eval_batches=2",
    "train.keep_best=true",
    "train.keep_last=100",
    "train.ema_decay=0.9",
    "train.inspect_every=6",
    "data.flip=true",
)


def masked(*assignments):
    return tiny_experiment(*MASKED, *assignments)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("masked") / "run"
    with without_compiling():
        train(masked(), workdir, one_device())
    return workdir


def test_two_replicas_and_micro_batches_train_the_same_model(run, tmp_path):
    """A compiled step against one that runs op by op."""
    train(masked("train.accumulate_steps=2"), tmp_path / "run", two_replicas())
    assert len(losses(run)) == 6 and losses(run)[0] == pytest.approx(np.log(512), rel=1e-6)
    np.testing.assert_allclose(losses(tmp_path / "run"), losses(run), rtol=1e-5)
    received, expected = arrays(tmp_path / "run"), arrays(run)
    assert received.keys() == expected.keys()
    for key, value in expected.items():
        if not key.endswith("key/bias"):  # Its exact gradient is 0; Adam scales up the rounding.
            np.testing.assert_allclose(received[key], value, rtol=0, atol=2e-4, err_msg=key)


def test_a_restart_changes_no_bit(run, tmp_path, uncompiled):
    workdir = cut_short(run, tmp_path / "run", 2)
    (workdir / "reconstructions.html").unlink()
    train(masked(), workdir, one_device())
    assert_same_weights(workdir, run)
    assert losses(workdir) == losses(run)
    assert (workdir / "reconstructions.html").read_bytes() == (
        run / "reconstructions.html"
    ).read_bytes()


def test_results_are_the_encoder_and_pictures(run):
    metrics = [line for line in Workdir(run).read_metrics() if "eval_loss" in line]
    assert [line["step"] for line in metrics] == [4, 6]
    assert set(metrics[0]) == {
        *("step", "time", "eval_examples", "eval_loss", "eval_patch_accuracy")
    }
    page = (run / "reconstructions.html").read_text()
    assert page.count("<img") == 4 * 8
    # 9 patches of 4 x 4: 5 are corrupted, 1 of them replaced and 1 unchanged.
    assert "5 of 9 patches are corrupted: 3 masked" in page
    keys = arrays(run)
    assert not [key for key in keys if "head" in key or "prediction" in key or "mask" in key]
    for weights in ("final", "ema", "best"):
        model, _, classes = model_source.find(run, weights).open_model()
        assert model.config.num_classes == 0 and classes.labels == ()
    final = model_source.find(run).open_model().model
    kernel = final.patch_embedding.kernel.numpy().reshape(-1)
    np.testing.assert_array_equal(keys["embedding/kernel"].reshape(-1), kernel)
    assert vit_tf.cost.parameters(final.config) == final.count_params()


def test_tensorboard_shows_the_reconstructions(run):
    found, attention = [], []
    for path in sorted((run / "tensorboard" / "validation").glob("*tfevents*")):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            found += [(event.step, x) for x in event.summary.value if x.tag == "masked patches"]
            attention += [event.step for x in event.summary.value if x.tag == "attention"]
    assert [step for step, _ in found] == [4, 6] and attention == [6]
    width, height, *images = tf.make_ndarray(found[0][1].tensor).tolist()
    assert (width, height, len(images)) == (b"54", b"12", 8)  # Four of 12 pixels and three gaps.


@pytest.mark.heavy("training")
@pytest.mark.parametrize("target", ["downsample", "pixels"])
def test_float16_few_shot_and_initial_weights(run, target, tmp_path, uncompiled):
    settings = (
        f"masking.target={target}",
        "model.dtype=mixed_float16",
        f"init_from={run}",
        "train.few_shot_every=2",
        "train.best_metric=few_shot",
        "few_shot.train_split=train[:100]",
        "few_shot.eval_split=test[:100]",
        "few_shot.shots=4",
        "train.steps=2",
        "schedule.warmup_steps=0",
    )
    train(masked(*settings), tmp_path / "run", one_device())
    metrics = Workdir(tmp_path / "run").read_metrics()
    logged = {x["step"]: x[FEW_SHOT] for x in metrics if FEW_SHOT in x}
    assert list(logged) == [0, 2]
    expected = _few_shot_accuracies(tmp_path / "run")
    # An image with nearly equal scores may change sides by rounding.
    assert logged[2] == pytest.approx(expected["patches"], abs=1.01 / 100)
    assert abs(expected["token"] - logged[2]) > 0.03
    assert "eval_loss" in metrics[-1]  # A sweep reads the last line.
    assert np.isfinite(losses(tmp_path / "run")).all()
    kernel = arrays(tmp_path / "run")["embedding/kernel"]
    assert 0 < np.abs(kernel - arrays(run)["embedding/kernel"]).max() < 0.1


def _few_shot_accuracies(workdir):
    """The accuracy with the means of the final patch tokens, and with the class tokens."""
    model, preprocessing, _ = model_source.find(workdir, "ema").open_model()
    columns, labels = {"patches": [], "token": []}, []
    for split in ("train[:100]", "test[:100]"):
        rows = open_source("digits", split).read(range(100))
        images = tf.stack([preprocessing(decode_image(image)) for image in rows.images])
        tokens = model.encode(model.embed(images))[0].numpy().astype(np.float64)
        columns["patches"].append(tokens[:, 1:].mean(axis=1))
        columns["token"].append(tokens[:, 0])
        labels.append(rows.labels)
    found = {}
    for name, (few, test) in columns.items():
        given = (few, labels[0], test, labels[1], 10, 4)
        found[name] = np.mean([few_shot_accuracy(*given, seed, 1024) for seed in range(3)])
    return found


def test_a_frozen_prediction_is_refused(tmp_path):
    with pytest.raises(UserError, match="prediction/kernel.*zeros"):
        train(masked("optimizer.freeze=prediction"), tmp_path / "run", one_device())


def test_fine_tuning_starts_from_the_encoder(run, command, tmp_path, uncompiled):
    workdir = tmp_path / "tuned"
    result = command(
        "finetune",
        f"--init_from={run}",
        "--weights=best",
        f"--workdir={workdir}",
        "--set=train.steps=1",
        "--set=data.eval_split=none",
        "--set=train.batch_size=8",
    )
    assert result.returncode == 0, result.stderr
    assert Workdir(workdir).read_experiment().task == "classification"
    assert arrays(workdir)["head/kernel"].shape == (16, 10)


def test_the_digits_recipe_and_a_dry_run(command, tmp_path):
    result = command("pretrain", "--experiment=mpp_digits", "--dry_run", f"--workdir={tmp_path}/x")
    assert result.returncode == 0, result.stderr
    assert "masked patch prediction of color" in result.stdout
    assert "8 of 16 patches are corrupted: 6 masked, 1 replaced" in result.stdout
    assert "the number of classes comes from the data" not in result.stdout
    recipe = recipes.get_recipe("mpp_digits")
    assert Experiment.from_dict(recipe.to_dict()) == recipe


def test_other_commands_say_what_is_missing(run, command):
    result = command("evaluate", f"--model={run}")
    assert_user_error(result, "has no head")
    result = command("pretrain", "--set=task=masked_patches", "--set=model.name=BiT-R50x1")
    assert_user_error(result, "BiT-R50x1 has no patches to mask.")


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (["model.name=AxialResNet-26S", "model.image_size=32"], "AxialResNet-26S.*patches"),
        (["model.classifier=unpooled"], "classifier=token or gap"),
        (["model.classifier=map"], "classifier=token or gap"),
        (["model.representation_size=8"], "8 pre-logits"),
        (["masking.fraction=0.01"], "9 patches.*0.055556"),
        (["masking.fraction=0"], "masking.fraction.*: 0"),
        (["masking.fraction=1.5"], "Received: 1.5"),
        (["masking.target=colour"], "masking.target.*'colour'"),
        (["task=masked"], "task.*'masked'"),
        (
            ["model.stem.stage_depths=1", "model.stem.width=0.5", "model.patch_size=1"]
            + ["model.image_size=18"],
            "image_size.*multiple of 4",
        ),
    ],
)
def test_wrong_input(assignments, message):
    with pytest.raises(UserError, match=message):
        override(masked(), assignments)
