"""The command that tells which examples are in a batch, against the batches themselves."""

import json

import numpy as np
import pytest

from pipelines.data import pipeline
from pipelines.data.sources import open_source
from pipelines.workdir import Workdir
from tests.pipelines.process import run_here
from tests.pipelines.tiny import as_flags, tiny_experiment

ASSIGNMENTS = ["data.train_split=train[:150]", "data.window=40", "seed=4"]


@pytest.fixture(scope="module")
def trained_on():
    """The batches that training would see."""
    experiment = tiny_experiment(*ASSIGNMENTS)
    source = open_source("digits", "train[:150]")
    dataset = pipeline.train_dataset(
        source,
        batch_size=experiment.train.batch_size,
        preprocessing=experiment.preprocessing(source.labels),
        seed=4,
        window=40,
    )
    return list(dataset.take(12).as_numpy_iterator())


@pytest.fixture
def batch_command(monkeypatch, capsys, tmp_path):
    """`batch_command(*arguments)`: exit code, stdout, stderr."""

    def run(*arguments):
        here = {"monkeypatch": monkeypatch, "capsys": capsys, "cwd": tmp_path}
        result = run_here("batch", *arguments, **here)
        return result.returncode, result.stdout, result.stderr

    return run


# 9 spans two epochs, every other one two windows at most.
@pytest.mark.parametrize("step", [0, 2, 9, 11])
def test_json(batch_command, trained_on, step):
    flags = ["--step", step, "--json", *as_flags(*ASSIGNMENTS)]
    code, out, err = batch_command(*flags)
    assert (code, err) == (0, "")
    batch = json.loads(out)
    assert (batch["step"], batch["batch_size"], batch["epoch"]) == (step, 16, step * 16 // 150)
    examples = batch["examples"]
    for key in ("position", "id", "label"):
        np.testing.assert_array_equal([e[key] for e in examples], trained_on[step][key])
    for example in examples:
        assert example["class"] == str(example["label"])
        assert example["name"] == f"train example {example['id']} of digits/all:1.0.0"


def test_text_names_files(batch_command, tmp_path):
    for path in ("cat/1.jpg", "cat/2.jpg", "dog/1.jpg"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(b"not even an image")
    flags = as_flags(f"data.name=folder:{tmp_path}", "train.batch_size=3")
    code, out, err = batch_command("--step", "7", *flags)
    assert (code, err) == (0, "")
    title, header, *rows = out.splitlines()
    assert title == f"step 7 of folder:{tmp_path} split 'train', epoch 7"
    assert header.split() == ["position", "id", "class", "name"]
    assert sorted(row.split(None, 2)[2] for row in rows) == [
        f"cat (0)  cat/1.jpg of folder:{tmp_path}",
        f"cat (0)  cat/2.jpg of folder:{tmp_path}",
        f"dog (1)  dog/1.jpg of folder:{tmp_path}",
    ]
    assert [int(row.split()[0]) for row in rows] == [0, 1, 2]


def test_experiment_of_a_run(batch_command, tmp_path, trained_on):
    Workdir(tmp_path).create(tiny_experiment(*ASSIGNMENTS))
    code, out, err = batch_command("--workdir", tmp_path, "--step", 5, "--json")
    assert (code, err) == (0, "")
    ids = [example["id"] for example in json.loads(out)["examples"]]
    assert ids == trained_on[5]["id"].tolist()


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--step", "-1"], "step"),
        (["--workdir", "nowhere"], "nowhere"),
        (["--workdir", "x", "--set", "seed=3"], "Leave out --set"),
        (["--set", "data.name=folder:nowhere"], "There is no folder"),
        (["3"], "Unexpected argument '3'"),
    ],
)
def test_rejects(batch_command, flags, text):
    code, out, err = batch_command(*flags)
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and err.count("\n") == 1
    assert text in err
