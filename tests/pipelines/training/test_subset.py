"""Runs on a part of the training data: length, log, resume, and what is refused."""

import json

import pytest

from pipelines.config import override
from pipelines.data.exclusion import exclusion
from pipelines.data.sources.open import open_source
from pipelines.errors import UserError
from pipelines.runs.json_file import write_json
from pipelines.runs.workdir import Workdir
from pipelines.training import fine_tuning
from pipelines.training.dry_run import dry_run
from pipelines.training.train import train
from pipelines.training.train_data import open_data
from tests.pipelines.tiny import (
    as_flags,
    assert_same_weights,
    cut_short,
    one_device,
    tiny_experiment,
)
from tests.pipelines.training_runs import without_compiling

PART = (
    "data.per_class=4",
    "data.subset_seed=1",
    "schedule.warmup_steps=0",
    "train.checkpoint_every=3",
    "train.deterministic=true",
    "model.layers=1",
)
LINE = "data: 40 of 1,297 examples (data.per_class=4, data.subset_seed=1)"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("part") / "run"
    in_epochs = override(tiny_experiment(*PART), ["train.epochs=2"])
    with without_compiling():
        last = train(in_epochs, workdir, one_device())
    return workdir, last


def test_epochs_are_those_of_the_part(finished):
    """Evaluation takes all examples; the log begins with the part."""
    workdir, last = finished
    assert last["step"] == 2 * 40 // 16 == 5 and last["eval_examples"] == 300
    lines = [line[20:] for line in (workdir / "run.log").read_text().splitlines()]
    assert lines[0] == LINE
    assert lines[1].startswith("trains on 40 images of 10 classes from digits/all")
    assert lines[2].startswith("evaluates on 300 images of 10 classes")
    assert lines[3] == "train.epochs=2 with 40 examples in batches of 16: 5 steps"
    assert "5 steps of 16 images (2 epochs)" in lines[4]
    manifest = json.loads((workdir / "manifest.json").read_text())
    expected = {"per_class": 4, "subset_seed": 1, "num_examples": 40}
    assert manifest["data"]["subset"] == expected and manifest["data"]["num_examples"] == 1297


def test_resume_is_bitwise_the_same(finished, tmp_path, uncompiled):
    copy = cut_short(finished[0], tmp_path / "run", 3)
    last = train(tiny_experiment(*PART, "train.steps=5"), copy, one_device())
    assert last | {"time": finished[1]["time"]} == finished[1]
    assert_same_weights(copy, finished[0], ["final.npz"])


def test_another_part_is_refused(finished):
    for other, text in (
        (["data.subset_seed=2"], "data.subset_seed: 1 -> 2"),
        (["data.per_class=none"], "data.per_class: 4 -> None"),
        (
            ["data.per_class=none", "data.fraction=0.1"],
            "data.fraction: None -> 0.1; data.per_class",
        ),
    ):
        experiment = tiny_experiment(*PART, "train.steps=5", *other)
        with pytest.raises(UserError, match="another configuration") as caught:
            dry_run(experiment, finished[0], one_device())
        assert text in str(caught.value)


def test_a_run_from_before_the_fields_goes_on(tmp_path):
    """Its config.json lacks them, and its manifest describes the whole split."""
    run, experiment = Workdir(tmp_path), tiny_experiment()
    run.create(experiment)
    values = json.loads((tmp_path / "config.json").read_text())
    for name in ("fraction", "per_class", "subset_seed"):
        del values["data"][name]
    (tmp_path / "config.json").write_text(json.dumps(values))
    manifest = open_source("digits", "train").manifest()
    (tmp_path / "manifest.json").write_text(json.dumps({"data": manifest}))
    (tmp_path / "checkpoints" / "step-4").mkdir()  # There is something to go on from.
    data = open_data(experiment, run).train
    assert run.check(experiment, data.source.manifest()) == 12


def test_a_run_goes_on_only_with_the_examples_it_left_out(tmp_path):
    """The manifest has the content of the list of data.exclude, whose file may change."""
    path, source = tmp_path / "list.json", open_source("digits", "train")
    run = Workdir(tmp_path / "run")
    experiment = tiny_experiment(f"data.exclude={path}")
    run.create(experiment)

    def manifest(ids):
        write_json(path, exclusion(source, ids))
        return open_data(experiment, run).train.source.manifest()

    before = manifest([5, 9])
    write_json(run.manifest, {"data": before})
    (tmp_path / "run" / "checkpoints" / "step-4").mkdir()  # There is something to go on from.
    assert before["exclude"]["num_examples"] == 1295
    assert run.check(experiment, manifest([9, 5])) == experiment.train.steps
    with pytest.raises(UserError, match="changed: exclude.list"):
        run.check(experiment, manifest([5, 8]))


def test_the_commands_say_it(command):
    """Beside a dry run, and beside the list of a batch, which has only such examples."""
    result = command("pretrain", "--dry_run", *as_flags(*PART))
    assert result.returncode == 0 and result.stderr.startswith(f"{LINE}\n")
    assert "(40 examples of 10 classes)" in result.stdout
    seen = []
    for step in range(5):  # Two epochs.
        flags = ["--json", f"--step={step}", *as_flags(*PART)]
        result = command("batch", *flags)
        assert result.returncode == 0, result.stderr
        # On a busy machine, lines about slow reads may come before it.
        assert LINE in result.stderr.splitlines(), result.stderr
        seen += json.loads(result.stdout)["examples"]
    assert sorted(x["label"] for x in seen[:40]) == sorted(4 * [*range(10)])
    assert {x["id"] for x in seen[:40]} == {x["id"] for x in seen[40:]}


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        (
            "data.per_class=1000",
            "fewer than the 1000 of data.per_class. Set data.per_class to at most",
        ),
        ("data.fraction=0.0001", "data.fraction=0.0001 of the 1,297 examples"),
    ],
)
def test_a_part_that_is_not_there_ends_the_command(setting, text, command, tmp_path):
    result = command("pretrain", "--workdir=run", *as_flags(setting))
    assert result.returncode == 2 and text in result.stderr and result.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_fine_tuning_chooses_for_the_part(monkeypatch):
    """Batches and length of a run on photos depend on the examples that it trains on."""

    class Photos:
        num_examples, num_classes, multi_label = 100_000, 20, False

    monkeypatch.setattr(fine_tuning, "open_train_split", lambda data: Photos())
    for assignments, count in (((), 100_000), (("data.fraction=0.01",), 1000)):
        data = tiny_experiment(*assignments).data
        assert fine_tuning._count(data)[0] == count
    assert fine_tuning._count(tiny_experiment("data.per_class=10").data)[0] == 200
