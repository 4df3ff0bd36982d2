"""Runs with adapters: what they train and keep, however a step is split, and their files."""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf

import vit_tf
from pipelines.config import override
from pipelines.errors import UserError
from pipelines.runs import checkpoint_weights, checkpoints
from pipelines.stored_models import model_source
from pipelines.tasks.task import task_of
from pipelines.training.prepare import resolve, sizes_of
from pipelines.training.train import build_trainer, train
from tests.pipelines import encoded
from tests.pipelines.distribution.local_workers import run
from tests.pipelines.equal_runs import assert_equal_runs, everything
from tests.pipelines.process import assert_user_error
from tests.pipelines.tiny import (
    arrays,
    as_flags,
    cut_short,
    one_device,
    tiny_experiment,
    two_replicas,
)
from tests.pipelines.training_runs import without_compiling
from tests.vit_tf import tiny

ADAPTERS = ("optimizer.lora_rank=2", "optimizer.lora_alpha=4", "optimizer.lora_blocks=1")


@pytest.fixture(scope="module")
def backbone(tmp_path_factory):
    """A file with a model of the size of the tiny runs and random weights."""
    model = vit_tf.create_model(tiny_experiment().model.config(7))
    rng = np.random.default_rng(0)
    for variable in model.trainable_variables:
        variable.assign(variable + 0.1 * rng.normal(size=variable.shape))
    path = tmp_path_factory.mktemp("backbone") / "backbone.npz"
    vit_tf.save_npz(model, path)
    return path


def experiment_of(backbone, *assignments, optimizer="sgd"):
    settings = (*everything(optimizer), *ADAPTERS, f"init_from={backbone}", *assignments)
    return tiny_experiment(*settings)


@pytest.fixture(scope="module")
def whole(backbone, tmp_path_factory):
    """A run of 12 steps on one device."""
    folder = tmp_path_factory.mktemp("lora") / "run"
    train(experiment_of(backbone), folder, one_device())
    return folder


# Nothing draws random numbers, so that block 0, below the adapters, is packed.
STILL = ("model.dropout=0", "model.attention_dropout=0", "model.stochastic_depth=0")


@pytest.fixture(scope="module")
def packed(backbone, tmp_path_factory):
    """A run of 12 steps on one device with a packed block."""
    folder = tmp_path_factory.mktemp("packed") / "run"
    train(experiment_of(backbone, *STILL), folder, one_device())
    return folder


@pytest.mark.heavy("training")
def test_packed_blocks_change_no_run(backbone, packed, tmp_path, logged):
    """Beside a run without them, one that was resumed, and one of replicas and micro-batches."""
    experiment = experiment_of(backbone, *STILL)
    resumed = cut_short(packed, tmp_path / "resumed", 8)
    train(experiment, resumed, one_device())
    split = override(experiment, ["train.accumulate_steps=4"])
    train(split, tmp_path / "split", two_replicas())
    assert logged.take().count("1 block below all trained weights: packed") == 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.training.train.pack_frozen_blocks", lambda model: 0)
        train(experiment, tmp_path / "plain", one_device())
    for other in ("plain", "resumed", "split"):
        assert_equal_runs(tmp_path / other, packed, "sgd")


@pytest.mark.process
@pytest.mark.heavy("training")
def test_two_workers_equal_one_device(backbone, packed, tmp_path):
    flags = as_flags(*everything("sgd"), *ADAPTERS, *STILL, f"init_from={backbone}")
    workers = run(tmp_path, "-m", "pipelines.pretrain", "--workdir=run", *flags)
    assert "1 block below all trained weights: packed" in workers[0].output
    assert_equal_runs(tmp_path / "run", packed, "sgd")
    images, base = tiny.images(size=(12, 12)), vit_tf.load(backbone)
    over = vit_tf.load_adapters(base, tmp_path / "run" / "adapters.safetensors")
    expected = vit_tf.load(packed).model(images)
    np.testing.assert_allclose(over.model(images), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.heavy("training")
def test_replicas_and_micro_batches_equal_the_whole_batch(backbone, whole, tmp_path):
    experiment = experiment_of(backbone, "train.accumulate_steps=4")
    train(experiment, tmp_path / "run", two_replicas())
    assert_equal_runs(tmp_path / "run", whole, "sgd")


def test_a_run_goes_on_without_its_backbone(backbone, whole, tmp_path, logged):
    resumed = cut_short(whole, tmp_path / "run", 8)
    moved = backbone.rename(backbone.with_name("away.npz"))
    try:
        with without_compiling():
            train(experiment_of(backbone), resumed, one_device())
    finally:
        moved.rename(backbone)
    assert "resuming from step 8" in logged.take()
    assert_equal_runs(resumed, whole, "sgd")
    before = (resumed / "adapters.safetensors").read_bytes()
    assert len(before) == (whole / "adapters.safetensors").stat().st_size < 4000


def test_only_adapters_and_head_are_trained_and_kept(backbone, whole):
    file = checkpoints.prefix(whole / "checkpoints", 12)
    stored = tf.train.load_checkpoint(file).get_variable_to_shape_map()
    kept = {name for name in stored if name.startswith(("ema/", "optimizer/"))}
    layers = ("block_1.Sattention.Sqkv", "block_1.Sattention.Sout")
    trained = [f"{layer}.Slora_kernel_{part}" for layer in layers for part in "ab"]
    trained += ["head.Skernel", "head.Sbias"]
    assert len(kept) == 2 * len(trained)
    for name in trained:
        assert sum(name in key for key in kept) == 2, name
    # Of the merged weights, those of the backbone have its bits, and the others have changed.
    before, after = arrays(backbone.parent, backbone.name), arrays(whole)
    attention = "Transformer/encoderblock_1/MultiHeadDotProductAttention_1"
    changed = {key for key in after if not np.array_equal(before[key], after[key])}
    kernels = {f"{attention}/{part}/kernel" for part in ("query", "key", "value", "out")}
    assert changed == kernels | {"head/kernel", "head/bias"}


def test_the_files_are_the_model_of_the_last_step(backbone, whole):
    """Merged weights, adapters over the backbone, and the checkpoint: the same function."""
    experiment = experiment_of(backbone)
    trainer = build_trainer(
        experiment, task_of(experiment, experiment.model.config(10)), one_device()
    )
    prefix = checkpoints.prefix(whole / "checkpoints", 12)
    images = tiny.images(size=experiment.model.image_size)
    base = vit_tf.load(backbone)
    for ema, name, adapters in (
        (False, "final.npz", "adapters.safetensors"),
        (True, "ema.npz", "ema_adapters.safetensors"),
    ):
        checkpoint_weights.read_weights(prefix, trainer.model, ema, partly=True)
        unmerged = trainer.model(images).numpy()
        merged = vit_tf.load(whole / name).model(images).numpy()
        np.testing.assert_allclose(merged, unmerged, rtol=1e-5, atol=1e-6)
        over = vit_tf.load_adapters(base, whole / adapters)
        np.testing.assert_array_equal(over.model(images), merged)
        assert over.classes.labels == tuple("0123456789")
        source = dataclasses.replace(model_source.find(whole), path=prefix)
        checkpoint = model_source.Checkpoint("step 12", source.path, source.workdir, ema=ema)
        found = checkpoint.open_model().model(images)
        np.testing.assert_array_equal(found, merged)


def test_predict_merges_adapters(backbone, whole, command, tmp_path):
    (tmp_path / "a.png").write_bytes(encoded.encode(encoded.pixels(12, 12), "PNG"))
    images, found = ["--json", "a.png"], []
    files = [
        f"--adapter={whole}/adapters.safetensors",
        f"--adapter={whole}/ema_adapters.safetensors",
    ]
    for arguments in ([f"--model={whole}"], *([f"--model={backbone}", file] for file in files)):
        result = command("predict", *arguments, *images)
        assert result.returncode == 0, result.stderr
        found.append(json.loads(result.stdout)["top"])
    assert found[0] == found[1] != found[2]
    other = tmp_path / "other.npz"
    vit_tf.save_npz(vit_tf.create_model(tiny_experiment().model.config(7)), other)
    for model, file, text in (
        (other, files[0], "another backbone"),
        (backbone, "--adapter=none.safetensors", "There is no file none.safetensors"),
    ):
        assert_user_error(command("predict", f"--model={model}", file, *images), text)


def test_a_dry_run_counts_them(backbone, command):
    flags = as_flags(*everything("adamw"), *ADAPTERS, f"init_from={backbone}")
    result = command("pretrain", "--dry_run", "--workdir=run", *flags)
    assert result.returncode == 0, result.stderr
    # A and B of q | k | v and of the projection.
    count = 2 * (16 + 48) + 2 * (16 + 16)
    assert f"of rank 2 and alpha 4 in qkv, projection of 1 block: they have {count} of" in (
        result.stdout
    )
    experiment = experiment_of(backbone, optimizer="adamw")
    config = experiment.model_config(10)
    found = sizes_of(experiment, config, replicas=1)
    trained = 4 * (count + 16 * 10 + 10)
    assert found.state["gradients"] == found.state["average"] == trained
    assert found.state["optimizer"] == 2 * trained == 2 * found.state["clipped gradients"]
    assert found.state["weights"] == vit_tf.cost.weight_bytes(config) + 4 * count
    megabytes = f"{found.state_bytes / 1e6:,.1f} MB for weights"
    assert megabytes in result.stdout


@pytest.mark.parametrize(
    ("assignments", "text"),
    [
        (["init_from=none"], "init_from is none. Name them by --init_from"),
        (["optimizer.lora_blocks=0,2"], "no block 2 of 0 to 1"),
        (["optimizer.lora_rank=17"], "above the width of the model, 16"),
        (["optimizer.lora_targets=qkv,mpl"], "'mpl'. Did you mean mlp"),
        (["optimizer.lora_targets="], "lora_targets is empty"),
        (["optimizer.lora_alpha=0"], "lora_alpha must be above 0"),
        (["optimizer.freeze=head"], "by optimizer.train_only"),
        (["optimizer.train_only=norm"], "train_only leaves out head/kernel"),
        (["task=masked_patches", "data.balance=none"], "for task=classification"),
    ],
)
def test_wrong_settings(backbone, assignments, text):
    with pytest.raises(UserError, match=text):
        experiment = override(experiment_of(backbone), assignments)
        resolve(experiment, None, 1)
        build_trainer(experiment, task_of(experiment, experiment.model.config(3)), one_device())


@pytest.mark.heavy("training")
def test_more_is_trained_by_train_only(backbone, uncompiled, tmp_path):
    """The norm is in the file of the adapters too."""
    experiment = experiment_of(
        backbone, "optimizer.train_only=head,norm", "train.steps=2", "schedule.warmup_steps=0"
    )
    folder = tmp_path / "run"
    train(experiment, folder, one_device())
    images = tiny.images(size=experiment.model.image_size)
    over = vit_tf.load_adapters(vit_tf.load(backbone), folder / "adapters.safetensors")
    np.testing.assert_array_equal(over.model(images), vit_tf.load(folder).model(images))
    before, after = arrays(backbone.parent, backbone.name), arrays(folder)
    norm = "Transformer/encoder_norm/scale"
    assert np.abs(before[norm] - after[norm]).max() > 0
