"""Axial hybrids and ResNets, also with attention: strategies, micro-batches, policies, restart."""

import json
import re

import numpy as np
import pytest
import tensorflow as tf

import custom_ops
from pipelines.serving import saved_model
from pipelines.serving.signatures import make_signatures
from pipelines.stored_models import conversion, model_source
from pipelines.training.train import train
from tests.pipelines.families import FAMILIES, axial_hybrid, axial_resnet
from tests.pipelines.tiny import (
    arrays,
    assert_same_weights,
    cut_short,
    losses,
    one_device,
    two_replicas,
)
from tests.pipelines.training_runs import without_compiling
from vit_tf.analysis.attention_maps import attention_maps

HEAVY = [pytest.param(x, marks=pytest.mark.heavy("training")) for x in ("axial hybrid", "BiT")]
SASA = pytest.param("SASA", marks=pytest.mark.release)
RUNS = ["AxialResNet", *HEAVY, SASA]


@pytest.fixture(scope="module", params=RUNS)
def run(request, tmp_path_factory):
    """`(function that makes the experiment, workdir of a run on one device)`."""
    folder = tmp_path_factory.mktemp("families") / "one"
    make = FAMILIES[request.param]
    with without_compiling():
        train(make(), folder, one_device())
    return make, folder


@pytest.fixture(scope="module")
def continued(run, tmp_path_factory):
    """The same run from step 2 on two replicas, of two micro-batches without BatchNorm."""
    make, folder = run
    workdir = cut_short(folder, tmp_path_factory.mktemp("families") / "split", 2)
    parts = 1 if make is axial_resnet else 2
    with without_compiling():
        train(make(f"train.accumulate_steps={parts}"), workdir, two_replicas())
    return workdir


def test_replicas_and_parts_continue_the_run_of_one_device(run, continued, tmp_path):
    """With micro-batches, kernels are standardized once; their gradients are summed before."""
    _, folder = run
    expected, received = arrays(folder), arrays(continued)
    largest = max(np.abs(value).max() for value in expected.values())
    for key, value in expected.items():
        if not key.endswith("key/bias"):
            assert np.abs(received[key] - value).max() <= 1e-5 * largest, key
    begun = model_source.find(cut_short(folder, tmp_path / "run", 2)).open_model().model
    [head] = [expected[key] for key in expected if re.search("head.*/kernel$", key)]
    change = begun.head.kernel.numpy().reshape(-1) - head.reshape(-1)
    assert np.abs(change).max() > 1e-3


def test_a_checkpoint_of_replicas_becomes_a_file(continued, tmp_path):
    """Checkpoints do not depend on the strategy: two replicas' checkpoints load anywhere."""
    unfinished = cut_short(continued, tmp_path / "run", 4)
    report = conversion.convert(str(unfinished), str(tmp_path / "a.npz"))
    assert report.passed and report.difference == 0
    expected, received = arrays(continued), arrays(tmp_path, "a.npz")
    for key, value in expected.items():
        np.testing.assert_array_equal(received[key], value)


@pytest.mark.release
def test_a_compiled_run_resumes_bitwise(run, tmp_path, logged):
    """With SGD and momentum."""
    make, _ = run
    whole = tmp_path / "whole"
    train(make(), whole, one_device())
    resumed = cut_short(whole, tmp_path / "run", 2)
    train(make(), resumed, one_device())
    assert "resuming from step 2" in logged.take()
    assert_same_weights(resumed, whole, ["final.npz"])


@pytest.mark.parametrize("run", [x for x in RUNS if x != "AxialResNet"], indirect=True)
def test_export_holds_standardized_kernels(run, tmp_path):
    make, folder = run
    model, preprocessing, _ = model_source.find(folder).open_model()
    report = saved_model.export(model, preprocessing, str(tmp_path))
    assert ("attend" in report.signatures) == (make is axial_hybrid)
    loaded = tf.saved_model.load(report.path)
    variables = {tuple(variable.shape): variable for variable in loaded.variables_}
    kernels = [value.numpy() for shape, value in variables.items() if len(shape) == 4]
    standardized = [k for k in kernels if abs(k.std(axis=(0, 1, 2)) - 1).max() < 1e-2]
    assert len(standardized) >= 5
    assert all(abs(kernel.mean(axis=(0, 1, 2))).max() < 1e-5 for kernel in standardized)
    # Kernels are standardized before the export: the graph has no root of a variance.
    for name in set(report.signatures) - {"labels"}:
        graph = loaded.signatures[name].graph.as_graph_def()
        nodes = [node for function in graph.library.function for node in function.node_def]
        convolutions = [node for node in nodes if node.op == "Conv2D"]
        assert convolutions
        assert sum(node.op == "Sqrt" for node in nodes) == 0


@pytest.mark.parametrize("run", ["AxialResNet"], indirect=True)
def test_exports_of_an_axial_resnet_have_no_op_of_this_project(run, tmp_path, no_process):
    """Neither form has one: the fused form carries the library in vain. Both hold the averages."""
    _, folder = run
    model, preprocessing, _ = model_source.find(folder).open_model()
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
    with pytest.raises(ValueError, match="models with patches"):
        attention_maps(model, tf.zeros([1, 16, 16, 3]))


def test_commands_take_the_run(run, command, uncompiled):
    _, folder = run
    for arguments in (
        ["evaluate", "--json", f"--model={folder}", "--set=data.eval_split=test[:20]"],
        ["predict", "--json", f"--model={folder}"],
    ):
        result = command(*arguments)
        assert result.returncode == 0, result.stderr
        assert json.loads(result.stdout.splitlines()[0])


def test_fine_tuning_begins_with_the_weights(run, tmp_path, uncompiled):
    """At another image size: a ResNet accepts any size, the positions of a hybrid are resized.

    In mixed precision and with an average, whose losses stay finite.
    """
    make, folder = run
    source = model_source.find(folder).open_model().model
    experiment = make(
        f"init_from={folder}",
        "model.image_size=24",
        "model.dtype=mixed_bfloat16",
        "optimizer.learning_rate=0",
        "train.ema_decay=0.9",
        "train.steps=2",
    )
    train(experiment, tmp_path / "run", one_device())
    assert len(losses(tmp_path / "run")) == 2 and np.isfinite(losses(tmp_path / "run")).all()
    tuned = model_source.find(tmp_path / "run").open_model().model
    old, new = (
        np.array(m.stem.conv_root.kernel if make is axial_hybrid else m.root.kernel)
        for m in (source, tuned)
    )
    np.testing.assert_array_equal(old, new)
    assert not np.any(tuned.head.kernel)
