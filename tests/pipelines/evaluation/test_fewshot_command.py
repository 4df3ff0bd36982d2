"""The command `fewshot`: the same result from every form of a model, its files and its errors."""

import json
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

import vit_tf
from pipelines.data.sources.open import open_source
from pipelines.errors import Interrupted
from pipelines.evaluation import few_shot_report
from pipelines.evaluation.few_shot import few_shot_accuracy
from pipelines.stored_models import model_source
from tests.pipelines.process import assert_user_error
from tests.pipelines.tiny import tiny_experiment
from tests.vit_tf import tiny
from vit_tf.images.decoding import decode_image

FEW = ["--shots=2,1", "--l2=32,1024,0.1n", "--seeds=2"]
SPLITS = ["--set=data.train_split=train[:120]", "--set=data.eval_split=test[:60]"]


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """The files that a run leaves behind: its configuration and its last weights."""
    folder = tmp_path_factory.mktemp("fewshot") / "run"
    folder.mkdir()
    experiment = tiny_experiment("model.layers=1", *(x.removeprefix("--set=") for x in SPLITS))
    (folder / "config.json").write_text(json.dumps(experiment.to_dict()))
    model = vit_tf.create_model(experiment.model.config(10))
    tiny.randomize(model)
    classes = experiment.classes([str(label) for label in range(10)])
    vit_tf.save_npz(model, folder / "final.npz", experiment.preprocessing(), classes)
    return folder


def test_a_model_has_one_result_in_every_form(workdir, command, tmp_path):
    """A workdir on its own data, a .npz and a .keras file; checked in a plain loop.

    The .npz file finds the features of the workdir: its fingerprint is the same.
    """
    model, preprocessing, _ = model_source.find(workdir).open_model()
    shutil.copytree(workdir, tmp_path / "run")
    shutil.copy(workdir / "final.npz", tmp_path / "model.npz")
    shutil.copy(workdir / "final.npz.json", tmp_path / "model.npz.json")
    model.save(tmp_path / "model.keras")
    records = {}
    there = [*SPLITS, "--output=run/fewshot"]
    for name, flags in (("run", []), ("model.npz", there), ("model.keras", SPLITS)):
        result = command("fewshot", f"--model={name}", *FEW, *flags, "--json", "--noprobe")
        assert result.returncode == 0, result.stderr
        records[name] = json.loads(result.stdout)
        assert records[name].pop("model") == name
        assert result.stderr.count(": from run/fewshot/features-") == 2 * (name == "model.npz")
    assert os.path.exists(tmp_path / "run/fewshot/fewshot.html")
    assert records["model.npz"] == records["model.keras"] == records["run"]
    record = records["run"]
    kept = ("train_examples", "test_examples", "classes", "features", "headline_strength")
    assert [record[name] for name in kept] == [120, 60, 10, 16, "1024"]

    parts = []
    for split in ("train[:120]", "test[:60]"):
        source = open_source("digits", split)
        rows = source.read(range(source.num_examples))
        images = tf.stack([preprocessing(decode_image(image)) for image in rows.images])
        parts += [model.features(images).numpy(), rows.labels]
    # Both forms of each strength: absolute, and as a multiple of the 10 or 20 training images.
    kept = ("shots", "examples", "strength", "l2", "l2_per_example")
    assert [tuple(row[name] for name in kept) for row in record["few_shot"]] == [
        (1, 10, "32", 32, 3.2),
        (1, 10, "1024", 1024, 102.4),
        (1, 10, "0.1n", 1, 0.1),
        (2, 20, "32", 32, 1.6),
        (2, 20, "1024", 1024, 51.2),
        (2, 20, "0.1n", 2, 0.1),
    ]
    for row in record["few_shot"]:
        wanted = [few_shot_accuracy(*parts, 10, row["shots"], seed, row["l2"]) for seed in (0, 1)]
        np.testing.assert_allclose(row["accuracies"], wanted, atol=1 / 60 + 1e-9)
        assert row["mean"] == pytest.approx(np.mean(row["accuracies"]))
        assert row["standard_deviation"] == pytest.approx(np.std(row["accuracies"], ddof=1))
    assert list(record["neighbors"]) == ["1", "10", "20"]


def test_the_shipped_model_the_cache_and_the_files(command, tmp_path, monkeypatch):
    flags = [*FEW, *SPLITS, "--output=out"]
    first = command("fewshot", *flags)
    assert first.returncode == 0, first.stderr
    lines = first.stdout.splitlines()
    assert lines[0].startswith("shipped on digits/all: 120 training images (train[:120]), 60 test")
    assert lines[1].split() == ["shots", "l2=32", "l2=1024", "l2=0.1n"]
    assert [line.split()[0] for line in lines[2:]] == ["1", "2", "l2=1024:", "k-NN:", "linear"]
    assert "+-" in lines[2] and "(k=20)" in lines[5]
    both = "1024 = 102.4n for n=10, 1024 = 51.2n for n=20"
    assert lines[4] == f"l2=1024: {both}"
    record = json.loads((tmp_path / "out/fewshot.json").read_text())
    page = (tmp_path / "out/fewshot.html").read_text()
    # Names of curves and columns, and titles of the points at both numbers of shots.
    assert page.count(">l2=") == 3 + 3 + 3 * 2 + 1 and "<td>2</td>" in page and both in page
    caches = [name for name in os.listdir(tmp_path / "out") if name.startswith("features-")]
    assert len(caches) == 2

    again = command(
        "fewshot", *flags, "--json", "--noknn", "--noprobe", "--seeds=1", "--l2=1,2,3,4,5"
    )
    assert again.returncode == 0, again.stderr
    assert again.stderr.count("features of digits/all") == again.stderr.count(": from out/") == 2
    less = json.loads(again.stdout)
    assert (less["neighbors"], less["probe"], less["headline_strength"]) == ({}, None, "1")
    assert {row["standard_deviation"] for row in less["few_shot"]} == {None}
    page = (tmp_path / "out/fewshot.html").read_text()
    assert page.count(">l2=") == 4 + 5 + 4 * 2 + 1 and "l2=5" in page
    assert record["neighbors"] and record["probe"]["accuracy"] > 0.9

    (tmp_path / "out" / caches[0]).write_bytes(b"PK")
    result = command("fewshot", *flags, "--json", "--noprobe")
    assert json.loads(result.stdout) == record | {"probe": None}
    assert result.stderr.count("is damaged and computed again") == 1

    def interrupted(*arguments):
        raise Interrupted("SIGINT")

    # The results before the long fit of the probe are on the disk.
    for name in ("fewshot.json", "fewshot.html"):
        os.remove(tmp_path / "out" / name)
    monkeypatch.setattr(few_shot_report, "linear_probe", interrupted)
    assert command("fewshot", *flags).returncode == 75
    assert json.loads((tmp_path / "out/fewshot.json").read_text()) == record | {"probe": None}
    assert "k-NN: " in (tmp_path / "out/fewshot.html").read_text()


@pytest.mark.parametrize(
    ("flags", "texts"),
    [
        (["--shots=0,1"], ["positive numbers of shots", "[0, 1]"]),
        (["--shots=1,many"], ["--shots=1,many is not readable", "whole numbers"]),
        (["--shots="], ["--shots= is not readable"]),
        (["--shots=1.5"], ["--shots=1.5 is not readable"]),
        (["--l2=1,-3"], ["positive, finite values of l2", "-3.0"]),
        (["--l2=nan"], ["positive, finite values of l2"]),
        (["--l2=-0.1n"], ["positive, finite values of l2", "-0.1"]),
        (["--l2=n"], ["--l2=n is not readable", "numbers with commas"]),
        (["--seeds=0"], ["seeds"]),
        (["--seeds=1001"], ["seeds", "1001", "1000"]),
        (["--model="], ["--model is empty"]),
        (["--model=nowhere"], ["nowhere"]),
        (["--labels=a.txt"], ["Unknown flag --labels"]),
        (["--set=data.eval_split=none"], ["data.eval_split is none"]),
        (
            ["--set=train.steps=3"],
            ["--set train.steps has no effect: only the features of shipped"],
        ),
        (["--set=data.resize=direct"], ["--set data.resize has no effect"]),
        (["--set=data.train_split=trian"], ["trian", "train"]),
        (["--output=a.txt"], ["--output a.txt is a file"]),
        (
            ["--set=data.train_split=train[:60]", "--shots=1,5,9", "--output=out"],
            ["The class '", "' of digits/all:", "split 'train[:60]' has", "than the 9 of --shots"],
        ),
    ],
    ids=lambda value: " ".join(value) if value[0].startswith("--") else "",
)
def test_wrong_input_is_one_sentence(command, tmp_path, flags, texts):
    (tmp_path / "a.txt").write_text("0\n")
    assert_user_error(command("fewshot", *flags), *texts)
    assert set(os.listdir(tmp_path)) <= {"a.txt", "out"}
    assert not os.path.exists(tmp_path / "out/fewshot.json")


@pytest.mark.filterwarnings("ignore:nan.npz has NaN or infinite values")
def test_models_without_usable_features(command, tmp_path):
    unpooled = tiny_experiment("model.classifier=unpooled", "model.layers=1").model.config(10)
    vit_tf.save_npz(vit_tf.create_model(unpooled), tmp_path / "unpooled.npz")
    assert_user_error(command("fewshot", "--model=unpooled.npz"), "unpooled.npz is unpooled")
    model = vit_tf.create_model(tiny_experiment("model.layers=1").model.config(0))
    tiny.randomize(model)
    vit_tf.save_npz(model, tmp_path / "headless.npz")
    result = command("fewshot", "--model=headless.npz", *FEW, *SPLITS, "--noprobe", "--output=good")
    assert result.returncode == 0, result.stderr
    model.class_token.token.assign(np.full([1, 16], np.nan))
    vit_tf.save_npz(model, tmp_path / "nan.npz")
    result = command("fewshot", "--model=nan.npz", *FEW, *SPLITS, "--output=out")
    texts = ["120 of 120 rows of the features of nan.npz on digits", "NaN", "the first is id 0"]
    assert_user_error(result, *texts)
    assert os.listdir(tmp_path / "out") == []


def test_lists_of_labels_are_refused(command, tmp_path):
    image = tf.io.encode_png(tf.zeros([8, 8, 3], tf.uint8)).numpy()
    (tmp_path / "a.png").write_bytes(image)
    rows = [{"path": "a.png", "labels": ["x"]}, {"path": "a.png", "labels": ["x", "y"]}]
    (tmp_path / "list.jsonl").write_text("\n".join(map(json.dumps, rows)))
    splits = ["--set=data.train_split=train", "--set=data.eval_split=train"]
    result = command("fewshot", "--set=data.name=list:list.jsonl", *splits)
    assert_user_error(result, "has lists of labels", "choose another data set")
