"""Axial hybrids and ResNets, also with attention: strategies, micro-batches, policies, restart.

Runs of ViTs are in the other tests; an axial model is one without a class token, and with
positions of rows and columns.
"""

import json

import numpy as np
import pytest
import tensorflow as tf

import custom_ops
from pipelines.config import override, recipes
from pipelines.runs import model_source
from pipelines.serving import conversion, saved_model
from pipelines.serving.signatures import make_signatures
from pipelines.training import loop
from tests.pipelines.process import run_here
from tests.pipelines.tiny import (
    arrays,
    assert_same_weights,
    cut_short,
    losses,
    one_device,
    tiny_experiment,
    two_replicas,
)
from tests.vit_tf import tiny
from vit_tf.analysis.attention_maps import attention_maps

SHARED = (
    "data.shuffle_window=64",
    "data.eval_split=none",
    "train.batch_size=16",
    "train.steps=4",
    "train.log_every=1",
    "train.checkpoint_every=2",
    "schedule.warmup_steps=1",
    "optimizer.name=sgd",
    "optimizer.learning_rate=0.05",
)
IMAGES = "model.image_size=16"


def axial_hybrid(*assignments):
    """One layer of two blocks on 2 x 3 patches."""
    own = ("model.stem.stage_depths=1,1", "model.stem.width=0.5", "model.patch_size=1")
    axial = ["model.layers=1", *(f"model.{name}={x}" for name, x in tiny.AXIAL.items())]
    return tiny_experiment(*SHARED, "model.image_size=(16,24)", *own, *axial, *assignments)


def bit(*assignments):
    own = ("model.name=BiT-R50x1", "model.stage_depths=1,1", "model.width=0.5")
    return override(recipes.get_recipe("digits"), [*SHARED, IMAGES, *own, *assignments])


def axial_resnet(*assignments):
    own = ("model.name=AxialResNet-26S", "model.stage_depths=1", "model.width=0.125")
    own += ("model.heads=2", "optimizer.learning_rate=0.01")
    return override(recipes.get_recipe("digits"), [*SHARED, IMAGES, *own, *assignments])


def stand_alone(*assignments):
    return bit("model.name=SASA-R26", *assignments)


FAMILIES = {
    "axial hybrid": axial_hybrid,
    "BiT": bit,
    "AxialResNet": axial_resnet,
    "SASA": stand_alone,
}


@pytest.fixture(
    scope="module",
    params=["axial hybrid", "BiT", "AxialResNet", pytest.param("SASA", marks=pytest.mark.slow)],
)
def run(request, tmp_path_factory):
    """`(function that makes the experiment, workdir of a run on one device)`."""
    folder = tmp_path_factory.mktemp("families") / "one"
    make = FAMILIES[request.param]
    loop.train(make(), folder, one_device())
    return make, folder


@pytest.fixture(scope="module")
def split_run(run, tmp_path_factory):
    """The workdir of the same run on two replicas, of two micro-batches without BatchNorm."""
    make, _ = run
    folder = tmp_path_factory.mktemp("families") / "split"
    loop.train(
        make(f"train.accumulate_steps={1 if make is axial_resnet else 2}"), folder, two_replicas()
    )
    return folder


def test_replicas_and_parts_train_the_same_model(run, split_run):
    """With micro-batches, kernels are standardised once; their gradients are summed before."""
    _, folder = run
    expected, received = arrays(folder), arrays(split_run)
    largest = max(np.abs(value).max() for value in expected.values())
    for key, value in expected.items():
        if not key.endswith("key/bias"):
            assert np.abs(received[key] - value).max() <= 1e-5 * largest, key
    begun = model_source.open_model(model_source.find(folder))[0]
    assert np.abs(begun.head.kernel).max() > 1e-3  # training has changed the head


def test_a_checkpoint_of_replicas_becomes_a_file(split_run, tmp_path):
    """Checkpoints do not depend on the strategy: those of two replicas load anywhere."""
    unfinished = cut_short(split_run, tmp_path / "run", 4)
    report = conversion.convert(str(unfinished), str(tmp_path / "a.npz"), log=str)
    assert report.passed and report.difference == 0
    expected, received = arrays(split_run), arrays(tmp_path, "a.npz")
    for key, value in expected.items():
        np.testing.assert_array_equal(received[key], value)


def test_resumes_bitwise(run, tmp_path, capsys):
    """With SGD and momentum."""
    make, folder = run
    resumed = cut_short(folder, tmp_path / "run", 2)
    loop.train(make(), resumed, one_device())
    assert "resuming from step 2" in capsys.readouterr().out
    assert_same_weights(resumed, folder, ["final.npz"])


def test_export_holds_standardised_kernels(run, tmp_path):
    make, folder = run
    if make is axial_resnet:
        pytest.skip("its kernels are not standardised")
    model, preprocessing = model_source.open_model(model_source.find(folder))
    report = saved_model.export(model, preprocessing, str(tmp_path))
    assert ("attend" in report.signatures) == (make is axial_hybrid)
    loaded = tf.saved_model.load(report.path)
    variables = {tuple(variable.shape): variable for variable in loaded.variables_}
    kernels = [value.numpy() for shape, value in variables.items() if len(shape) == 4]
    standardised = [k for k in kernels if abs(k.std(axis=(0, 1, 2)) - 1).max() < 1e-2]
    assert len(standardised) >= 5
    assert all(abs(kernel.mean(axis=(0, 1, 2))).max() < 1e-5 for kernel in standardised)
    # Kernels are standardised before the export: the graph has no root of a variance.
    for name in set(report.signatures) - {"labels"}:
        graph = loaded.signatures[name].graph.as_graph_def()
        nodes = [node for function in graph.library.function for node in function.node_def]
        convolutions = [node for node in nodes if node.op == "Conv2D"]
        assert convolutions
        assert sum(node.op == "Sqrt" for node in nodes) == 0


def test_exports_of_an_axial_resnet_have_no_op_of_this_project(run, tmp_path):
    """Neither form has one: the fused form carries the library in vain. Both hold the averages."""
    make, folder = run
    if make is not axial_resnet:
        pytest.skip("only this family has neither ops of ours nor standardised kernels")
    model, preprocessing = model_source.open_model(model_source.find(folder))
    with custom_ops.implementation("compiled"):
        traced = make_signatures(model, preprocessing)["embed"].get_concrete_function().graph
    report = saved_model.export(model, preprocessing, str(tmp_path))
    assert {"embed", "serving_bytes"} <= set(report.signatures)
    assert "attend" not in report.signatures
    loaded = tf.saved_model.load(report.path)
    for graph in (traced, loaded.signatures["serving_default"].graph):
        definition = graph.as_graph_def()
        nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
        assert nodes and not [node.op for node in nodes if node.op.startswith("Vit")]
    exported = {variable.numpy().tobytes() for variable in loaded.variables_}
    assert all(np.array(v).tobytes() in exported for v in model.non_trainable_weights)
    with pytest.raises(ValueError, match="Attention maps belong to models with patches"):
        attention_maps(model, tf.zeros([1, 16, 16, 3]))


def test_commands_take_the_run(run, monkeypatch, capsys, tmp_path):
    _, folder = run
    for arguments in (
        ["evaluate", "--json", f"--model={folder}", "--set=data.eval_split=test"],
        ["predict", "--json", f"--model={folder}"],
    ):
        result = run_here(*arguments, monkeypatch=monkeypatch, capsys=capsys, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        assert json.loads(result.stdout.splitlines()[0])


def test_fine_tuning_begins_with_the_weights(run, tmp_path):
    """At another image size: a ResNet accepts any size, the positions of a hybrid are resized.

    In mixed precision and with an average, whose losses stay finite.
    """
    make, folder = run
    source = model_source.open_model(model_source.find(folder))[0]
    experiment = make(
        f"init_from={folder}",
        "model.image_size=24",
        "model.dtype=mixed_bfloat16",
        "optimizer.learning_rate=0",
        "train.ema_decay=0.9",
    )
    loop.train(experiment, tmp_path / "run", one_device())
    assert len(losses(tmp_path / "run")) == 4 and np.isfinite(losses(tmp_path / "run")).all()
    tuned = model_source.open_model(model_source.find(tmp_path / "run"))[0]
    old, new = (
        np.array(m.stem.conv_root.kernel if make is axial_hybrid else m.root.kernel)
        for m in (source, tuned)
    )
    np.testing.assert_array_equal(old, new)
    assert not np.any(tuned.head.kernel)
