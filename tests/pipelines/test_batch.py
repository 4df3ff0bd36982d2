"""The command that lists the examples of a batch, compared with the batches of training."""

import functools
import json

import numpy as np
import pytest
import tensorflow as tf

from pipelines.data import throughput
from pipelines.data.sources import record_writer
from pipelines.data.sources.open import open_source
from pipelines.runs.manifest import write_manifest
from pipelines.runs.workdir import Workdir
from tests.pipelines import encoded
from tests.pipelines.data.batches import train_dataset
from tests.pipelines.process import assert_user_error
from tests.pipelines.tiny import as_flags, tiny_experiment
from vit_tf.cost import training_macs

ASSIGNMENTS = ["data.train_split=train[:150]", "data.shuffle_window=40", "seed=4"]


@pytest.fixture(scope="module")
def trained_on():
    """The batches that training would get."""
    experiment = tiny_experiment(*ASSIGNMENTS)
    source = open_source("digits", "train[:150]")
    dataset = train_dataset(
        source,
        batch_size=experiment.train.batch_size,
        preprocessing=experiment.preprocessing(),
        seed=4,
        shuffle_window=40,
    )
    return list(dataset.take(12).as_numpy_iterator())


@pytest.fixture
def listed(printed):
    """`listed(*arguments)`: what `batch --json` prints, without a log."""
    return functools.partial(printed, "batch", logs=False)


# Batch 9 spans two epochs, the others at most two windows.
@pytest.mark.parametrize(("step", "epoch"), [(2, 0), (9, 0), (11, 1)])
def test_the_examples_of_a_step_are_those_of_training(listed, trained_on, step, epoch):
    batch = listed("--step", step, *as_flags(*ASSIGNMENTS))
    assert (batch["step"], batch["batch_size"], batch["epoch"]) == (step, 16, epoch)
    examples = batch["examples"]
    for key in ("slot", "id", "label"):
        np.testing.assert_array_equal([e[key] for e in examples], trained_on[step][key])
    for example in examples:
        assert example["class"] == str(example["label"])
        assert example["name"] == f"train example {example['id']} of digits/all:1.0.0"


def test_every_image_is_checked_once(command, tmp_path):
    """Also examples that a part or a balanced epoch leaves out or repeats."""
    for name, count in (("a", 12), ("b", 8)):
        (tmp_path / "data" / name).mkdir(parents=True)
        for i in range(count):
            data = encoded.encode(encoded.pixels(8, 9, seed=i + count), "PNG")
            (tmp_path / "data" / name / f"{i}.png").write_bytes(data)
    check = ["--check", "--json", *as_flags(f"data.name=folder:{tmp_path}/data")]
    split = ["--set=data.train_split=train[:60%]", "--set=data.eval_split=train[60%:]"]
    result = command("batch", *check, *split)
    assert (result.returncode, result.stderr) == (0, "")
    assert [part["images"] for part in json.loads(result.stdout)["splits"]] == [12, 8]
    for i in range(3):
        (tmp_path / "data" / "b" / f"{i}.png").write_bytes(b"text")
    for part in ("data.balance=sample", "data.per_class=1"):
        result = command("batch", *check, *split, f"--set={part}")
        assert result.returncode == 1
        assert "error: 3 images cannot be decoded. Remove or replace them" in result.stderr
        named = [bad["name"] for bad in json.loads(result.stdout)["unreadable"]]
        assert sorted(named) == ["b/0.png", "b/1.png", "b/2.png"]


@pytest.mark.parametrize("kind", ["folder", "list"])
def test_a_check_names_all_faults_at_once(command, tmp_path, kind):
    """Of the structure and of images, and advice about few images; training ends at the first."""
    data = tmp_path / "data"
    for path in [*(f"{name}/{i}.png" for name in "ab" for i in range(4)), "Empty/x.txt", "A/1.png"]:
        (data / path).parent.mkdir(parents=True, exist_ok=True)
        (data / path).write_bytes(encoded.encode(encoded.pixels(8, 9, seed=len(path)), "PNG"))
    for i in range(3):
        (data / "b" / f"{i}.png").write_bytes(b"text")
    rows = [*(f"data/{name}/{i}.png,{name}" for name in "ab" for i in range(4)), "data/A/1.png,A"]
    rows[1:1] = ["no,such,row", "data/none.png,a", ",b", "data/gone.png,b"]
    (tmp_path / "list.csv").write_text("\n".join(["path,label", *rows]))
    name = f"folder:{data}" if kind == "folder" else f"list:{tmp_path}/list.csv"
    auto = ["--set=data.train_split=auto", "--set=data.eval_split=auto"]
    result = command("batch", "--check", "--json", *as_flags(f"data.name={name}"), *auto)
    assert result.returncode == 1, result.stderr
    report = json.loads(result.stdout)
    expected = {
        "folder": ["letter case", "Empty has no image"],
        "list": ["line 3 has 3 fields", "line 5 has the path ''", "none.png", "gone.png"],
    }[kind]
    assert len(report["faults"]) == len(expected)
    for text in expected:
        assert sum(text in fault for fault in report["faults"]) == 1, text
    assert {f"{'' if kind == 'folder' else 'data/'}b/{i}.png" for i in range(3)} <= {
        bad["name"].split()[0] for bad in report["unreadable"]
    }
    assert f"error: {len(expected)} faults of the folders or the list" in result.stderr
    assert "cannot be decoded. Remove or replace them" in result.stderr
    assert any("A (1)" in x and "never evaluated" in x for x in report["warnings"])
    assert any("of the accuracy" in x for x in report["warnings"])
    refused = command("batch", *as_flags(f"data.name={name}"), *auto)
    assert_user_error(refused, expected[0])


@pytest.mark.parametrize(
    ("paths", "fault"),
    [
        (["train/a/1.png", "train/b/1.png", "val/a/1.png", "val/b/1.png", "raw/1.png"], "mixes"),
        (["train/1.png", "val/1.png", "other/1.png"], "without folders of classes"),
        (["a/1.png", "a/2.png"], "has one class, 'a'"),
        (["a/1.png", "b\udcff/1.png"], "'b\\udcff'"),
        (["val/a/1.png", "val/b/1.png"], "no split called train"),
    ],
    ids=["mixture", "without classes", "one class", "not UTF-8", "no training"],
)
def test_images_are_checked_in_spite_of_the_structure(command, tmp_path, paths, fault):
    for path in paths:
        (tmp_path / "data" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / path).write_bytes(b"text")
    flags = as_flags(f"data.name=folder:{tmp_path}/data")
    auto = ["--set=data.train_split=auto", "--set=data.eval_split=auto"]
    result = command("batch", "--check", "--json", *flags, *auto)
    report = json.loads(result.stdout)
    assert result.returncode == 1 and any(fault in x for x in report["faults"]), result
    bad = [each["name"] for each in report["unreadable"]]
    assert len({*bad}) >= min(2, len(paths) - 1), bad
    result = command("batch", "--check", *flags, *auto)
    assert result.returncode == 1 and fault in result.stdout
    assert_user_error(command("batch", *flags, *auto), fault)


def test_text_names_files(command, tmp_path):
    for path in ("cat/1.jpg", "cat/2.jpg", "dog/1.jpg"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(b"not even an image")
    flags = as_flags(f"data.name=folder:{tmp_path}", "train.batch_size=3")
    result = command("batch", "--step", "7", *flags)
    assert (result.returncode, result.stderr) == (0, "")
    title, header, *rows = result.stdout.splitlines()
    assert title == f"step 7 of folder:{tmp_path} split 'train', epoch 7"
    assert header.split() == ["slot", "id", "class", "name"]
    assert sorted(row.split(None, 2)[2] for row in rows) == [
        f"cat (0)  cat/1.jpg of folder:{tmp_path}",
        f"cat (0)  cat/2.jpg of folder:{tmp_path}",
        f"dog (1)  dog/1.jpg of folder:{tmp_path}",
    ]
    assert [int(row.split()[0]) for row in rows] == [0, 1, 2]


def test_experiment_of_a_run(listed, tmp_path, trained_on):
    Workdir(tmp_path).create(tiny_experiment(*ASSIGNMENTS))
    examples = listed("--workdir", tmp_path, "--step", 5)["examples"]
    assert [example["id"] for example in examples] == trained_on[5]["id"].tolist()


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """A folder of TFRecord files: 150 digits in six files."""
    path = tmp_path_factory.mktemp("batch") / "records"
    record_writer.write_records(
        {"train": open_source("digits", "train[:150]")}, path, shards=6, bad_images="stop"
    )
    return path


def test_files_of_hosts(command, listed, records):
    """The batches of all hosts, each in its own epoch; hosts hold 50 examples."""
    assignments = [f"data.name=tfrecord:{records}", "data.sharding=files", "train.batch_size=6"]
    experiment = tiny_experiment(*assignments)
    source = open_source(experiment.data.name, "train")
    for step, epoch in ((0, 0), (26, 1)):
        seen = []
        for host in range(3):
            dataset = train_dataset(
                source,
                batch_size=6,
                preprocessing=experiment.preprocessing(),
                seed=experiment.seed,
                shuffle_window=experiment.data.shuffle_window,
                start_step=step,
                sharding="files",
                input_context=tf.distribute.InputContext(3, host, 3),
            )
            seen.append(next(iter(dataset)))
        flags = ["--step", step, "--hosts", 3, *as_flags(*assignments)]
        batch = listed(*flags)
        assert (batch["sharding"], batch["hosts"], batch["epoch"]) == ("files", 3, epoch)
        for key in ("id", "label", "slot"):
            expected = np.concatenate([part[key] for part in seen])
            assert [example[key] for example in batch["examples"]] == expected.tolist()
    title = command("batch", *flags).stdout.splitlines()[0]
    assert title.endswith(f"{records} split 'train', epoch 1, files of 3 hosts")


def test_hosts_of_a_run(listed, tmp_path, records):
    """The hosts of its last start, unless a flag sets them."""
    experiment = tiny_experiment(f"data.name=tfrecord:{records}", "data.sharding=files")
    run = Workdir(tmp_path)
    run.create(experiment)
    for hosts in (4, 2):
        write_manifest(run.manifest, seed=0, data={}, strategy="8 replicas on TPU", hosts=hosts)
    for flags, hosts in (([], 2), (["--hosts", "1"], 1)):
        assert listed("--workdir", tmp_path, *flags)["hosts"] == hosts


def test_throughput(command):
    """The numbers for a real input; `test_throughput.py` tests how they are computed."""
    assignments = as_flags("train.batch_size=64", "data.mixup=0.2")
    flags = ["--json", "--throughput", "0.2", "--teraflops", "2.5", *assignments]
    done = command("batch", *flags)
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stderr.splitlines()] == ["reading", "reading"]
    result = json.loads(done.stdout)
    assert result.pop("images_per_second_needed") == pytest.approx(
        0.45 * 2.5e12 / (2 * training_macs(tiny_experiment().model_config(10)))
    )
    rates = [result.pop(f"images_per_second{text}") for text in ("", "_without_decoding")]
    assert 0 < rates[0] <= rates[1]  # `throughput.measure` returns no faster rate.
    assert result.pop("cores") >= 1
    assert result == {
        "data_set": "digits/all:1.0.0 split 'train'",
        "model": "ViT-Ti/16",
        "image_size": [12, 12],
        "batch_size": 64,
        "teraflops": 2.5,
        "utilization": 0.45,
        "seconds": 0.2,
    }


def test_throughput_measures_the_batches_of_training(command, monkeypatch):
    dtypes = []

    def rate(batches, *_):
        dtypes.append(next(batches)["image"].dtype.name)
        return 1.0

    monkeypatch.setattr(throughput, "reading_rate", rate)
    monkeypatch.setattr(throughput, "decoding_rate", rate)
    result = command("batch", "--throughput", "1", *as_flags("data.image_dtype=uint8"))
    assert (result.returncode, dtypes) == (0, ["string", "uint8"]), result.stderr


def test_throughput_names_a_bad_image(command, tmp_path):
    for folder in ("cat", "dog"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "1.jpg").write_bytes(b"not even an image")
    flags = as_flags(f"data.name=folder:{tmp_path}", "train.batch_size=2")
    result = command("batch", "--throughput", "0.1", *flags)
    assert (result.returncode, result.stdout) == (2, "")
    error = result.stderr.splitlines()[-1]
    assert "cannot be decoded" in error and ".jpg" in error
    skip = ["--set", "data.bad_images=skip"]
    result = command("batch", "--throughput", "0.1", *flags, *skip)
    assert result.returncode == 0
    assert result.stdout.splitlines()[-1].startswith("without decoding: ")
    result = command("batch", "--throughput", "0.1", "--teraflops", "9", *flags, *skip)
    assert result.stdout.splitlines()[-1].startswith("ViT-Ti/16 at 12 x 12 needs ")


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--throughput", "0"], "--throughput=0 is not a positive number"),
        (["--throughput", "-2"], "--throughput=-2 is not"),
        (["--throughput", "nan"], "--throughput=nan is not"),
        (["--throughput", "soon"], "throughput"),
        (["--throughput", "1", "--step", "0"], "--throughput takes no --step"),
        (["--throughput", "1", "--hosts", "2"], "--throughput takes no --hosts"),
        (["--check", "--throughput", "1"], "--check takes no --throughput"),
        (["--throughput", "1", "--teraflops", "0"], "--teraflops=0 is not"),
        (["--teraflops", "9"], "--teraflops belongs to --throughput"),
        (["--throughput", "1", "--set", "data.name=tfrecord:nowhere"], "nowhere"),
        (["--hosts", "0"], "hosts"),
        (["--hosts", "2"], "Leave out --hosts=2, or set data.sharding=files"),
        (
            ["--hosts", "3", "--set", "data.sharding=files"],
            "--hosts=3 does not divide train.batch_size=64",
        ),
        (
            ["--hosts", "4", "--set", "data.sharding=files"],
            "a file for each of 4 hosts, but digits/all:1.0.0 split 'train' has 1",
        ),
        (["--step", "-1"], "step"),
        (["--step", str(10**18)], "--step=1000000000000000000 is too large"),
        (["--step", "1" + "0" * 400], "is too large"),
        (["--workdir", "nowhere"], "nowhere"),
        (["--workdir", "x", "--set", "seed=3"], "Leave out --set"),
        (["--set", "data.name=folder:nowhere"], "There is no folder"),
        (["3"], "Unexpected argument '3'"),
    ],
)
def test_rejects(command, flags, text):
    result = command("batch", *flags)
    assert_user_error(result, text)
    assert result.stdout == "" and result.stderr.count("\n") == 1
