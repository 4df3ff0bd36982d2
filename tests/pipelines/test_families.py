"""Hybrids and BiT ResNets in all features: strategies, micro-batches, policies, restart, export."""

import json

import numpy as np
import pytest
import tensorflow as tf

from pipelines.config import override, recipes
from pipelines.runs import model_source
from pipelines.runs.workdir import Workdir
from pipelines.serving import conversion, saved_model
from pipelines.training import loop
from tests.pipelines.process import assert_user_error, run_here
from tests.pipelines.tiny import arrays, one_device, tiny_experiment, two_replicas

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


def hybrid(*assignments):
    own = ("model.stem.stage_depths=1,1", "model.stem.width=0.5", "model.patch_size=1")
    return tiny_experiment(*SHARED, IMAGES, *own, *assignments)


def bit(*assignments):
    own = ("model.name=BiT-R50x1", "model.stage_depths=1,1", "model.width=0.5")
    return override(recipes.get_recipe("digits"), [*SHARED, IMAGES, *own, *assignments])


FAMILIES = {"hybrid": hybrid, "BiT": bit}


@pytest.fixture(scope="module", params=FAMILIES)
def run(request, tmp_path_factory):
    """`(function that makes the experiment, workdir of a run on one device)`."""
    folder = tmp_path_factory.mktemp("families") / "one"
    make = FAMILIES[request.param]
    loop.train(make(), folder, one_device())
    return make, folder


@pytest.mark.parametrize(
    "strategy, parts",
    [(one_device, 4), (two_replicas, 1), (two_replicas, 2)],
    ids=["4 parts", "2 replicas", "2 replicas of 2 parts"],
)
def test_splits_train_the_same_model(run, tmp_path, strategy, parts):
    """With micro-batches, kernels are standardised once; their gradients are summed before."""
    make, folder = run
    loop.train(make(f"train.accumulate_steps={parts}"), tmp_path / "run", strategy())
    expected, received = arrays(folder), arrays(tmp_path / "run")
    largest = max(np.abs(value).max() for value in expected.values())
    for key, value in expected.items():
        if not key.endswith("key/bias"):
            assert np.abs(received[key] - value).max() <= 1e-5 * largest, key
    begun = model_source.open_model(model_source.find(folder))[0]
    assert np.abs(begun.head.kernel).max() > 1e-3  # training has changed the head


def test_a_checkpoint_of_replicas_becomes_a_file(run, tmp_path):
    """Checkpoints do not depend on the strategy: those of two replicas load anywhere."""
    make, _ = run
    loop.train(make(), tmp_path / "run", two_replicas())
    expected = arrays(tmp_path / "run")
    (tmp_path / "run" / "final.npz").unlink()
    report = conversion.convert(str(tmp_path / "run"), str(tmp_path / "a.npz"), log=str)
    assert report.passed and report.difference == 0
    with np.load(tmp_path / "a.npz") as file:
        for key, value in expected.items():
            np.testing.assert_array_equal(file[key], value)


def test_resumes_bitwise(run, tmp_path, capsys):
    make, folder = run
    loop.train(make("train.steps=2", "schedule.decay=constant"), tmp_path / "a", one_device())
    loop.train(make("schedule.decay=constant"), tmp_path / "a", one_device(), extend=True)
    assert "resuming from step 2" in capsys.readouterr().out
    loop.train(make("schedule.decay=constant"), tmp_path / "b", one_device())
    a, b = arrays(tmp_path / "a"), arrays(tmp_path / "b")
    assert all(a[key].tobytes() == b[key].tobytes() for key in b)
    assert any(a[key].tobytes() != value.tobytes() for key, value in arrays(folder).items())


def test_mixed_precision_and_average(run, tmp_path):
    make, _ = run
    experiment = make("model.dtype=mixed_bfloat16", "train.ema_decay=0.9")
    loop.train(experiment, tmp_path / "run", one_device())
    losses = [line["loss"] for line in Workdir(tmp_path / "run").read_metrics() if "loss" in line]
    assert len(losses) == 4 and np.isfinite(losses).all()


def test_export_holds_standardised_kernels(run, tmp_path):
    make, folder = run
    model, preprocessing = model_source.open_model(model_source.find(folder))
    report = saved_model.export(model, preprocessing, str(tmp_path))
    assert ("attend" in report.signatures) == (make is hybrid)
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


def command(monkeypatch, capsys, cwd, *arguments):
    return run_here(*arguments, monkeypatch=monkeypatch, capsys=capsys, cwd=cwd)


def test_commands_take_the_run(run, monkeypatch, capsys, tmp_path):
    _, folder = run
    for arguments in (
        ["evaluate", "--json", f"--model={folder}", "--set=data.eval_split=test"],
        ["predict", "--json", f"--model={folder}"],
    ):
        result = command(monkeypatch, capsys, tmp_path, *arguments)
        assert result.returncode == 0, result.stderr
        assert json.loads(result.stdout.splitlines()[0])


def test_fine_tuning_begins_with_the_weights(run, tmp_path):
    """At another image size: a ResNet accepts any size, the positions of a hybrid are resized."""
    make, folder = run
    source = model_source.open_model(model_source.find(folder))[0]
    experiment = make(f"init_from={folder}", "model.image_size=24", "optimizer.learning_rate=0")
    loop.train(experiment, tmp_path / "run", one_device())
    tuned = model_source.open_model(model_source.find(tmp_path / "run"))[0]
    kernel = "conv_root" if make is hybrid else "root"
    old, new = (
        np.array(getattr(m.stem if make is hybrid else m, kernel).kernel) for m in (source, tuned)
    )
    np.testing.assert_array_equal(old, new)
    assert not np.any(tuned.head.kernel)


@pytest.mark.parametrize(
    "assignments, words",
    [
        (["model.name=BiT-R50x1", "model.heads=3"], ["Unknown model field 'heads'"]),
        (["model.name=ViT-B/16", "model.stem.width=2"], ["ViT-B/16 has no stem", "width"]),
        (["model.name=ViT-B/16", "model.width=2"], ["model.width -> model.stem.width"]),
        (
            ["model.name=R50+ViT-B/16", "model.stem.stage_depths=0"],
            ["stage_depths must be at least 1"],
        ),
        (["model.name=BiT-R50x1", "model.stage_depths=()"], ["at least one stage"]),
        (
            ["model.name=BiT-R50x1", "model.stage_depths=x"],
            ["model.stage_depths is of type", "'x'"],
        ),
        (["model.name=BiT-R50x9"], ["Unknown model 'BiT-R50x9'. Did you mean BiT-R50x"]),
        (["model.name=R+ViT-Ti/16", "model.image_size=16"], ["smaller than one patch"]),
    ],
)
def test_wrong_fields_are_one_sentence(assignments, words, monkeypatch, capsys, tmp_path):
    flags = [f"--set={assignment}" for assignment in assignments]
    result = command(monkeypatch, capsys, tmp_path, "pretrain", "--workdir=run", *flags)
    assert_user_error(result, *words)
    assert not (tmp_path / "run").exists()
