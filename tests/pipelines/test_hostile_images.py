"""Unusual and hostile images in everything that reads images: conversion, or one error line.

`hostile.py` has the expected result of each file; `tests/vit_tf/images/test_decoding.py` tests
decoding itself.
"""

import json
import os

import numpy as np
import pytest
import tensorflow as tf

import vit_tf
from pipelines.data import bad_images, decoding, pipeline
from pipelines.data.sources import record_writer
from pipelines.data.sources.open import open_source
from pipelines.data.transforms import augmentation
from pipelines.errors import DataError
from pipelines.runs.workdir import Workdir
from pipelines.training.train import train
from tests.pipelines import hostile, process
from tests.pipelines.data.batches import train_dataset
from tests.pipelines.encoded import encode, pixels
from tests.pipelines.tiny import (
    as_flags,
    assert_same_weights,
    cut_short,
    one_device,
    tiny_experiment,
)
from vit_tf.classes import Classes
from vit_tf.images.decoding import decode_image
from vit_tf.preprocessing import Preprocessing

READABLE, UNREADABLE = hostile.readable(), hostile.unreadable()
RULES = [
    Preprocessing(image_size=(9, 8)),
    Preprocessing(image_size=(9, 8), resize="resize_small", resize_to=12, exif="apply"),
]


def write(folder, name, suffix, contents):
    path = folder / f"{name}.{suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(contents)
    return path


def make_folder(root, *, ordinary=0, odd=False, bad=False):
    """An image folder; class a has ordinary and unusual images, class b ordinary and bad ones."""
    for i in range(ordinary):
        write(root / "ab"[i % 2], f"{i:03}", "png", encode(pixels(20, 18, i), "PNG"))
    for name, (suffix, contents, _, _) in READABLE.items() if odd else ():
        write(root / "a", name, suffix, contents)
    for name, (suffix, contents) in UNREADABLE.items() if bad else ():
        write(root / "b", name, suffix, contents)
    return root


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """A folder with every file, as a source."""
    root = make_folder(tmp_path_factory.mktemp("hostile") / "all", ordinary=2, odd=True, bad=True)
    return open_source(f"folder:{root}", "train")


def names_of(source, ids):
    """Names of the files, without folder and suffix."""
    return [os.path.splitext(source.describe(int(i)).split(" of folder")[0])[0][2:] for i in ids]


def decoded(name, rule):
    """The pixels of a readable image: that with an orientation is turned if the rule says so."""
    stored = decode_image(READABLE[name][1])
    turned = name == "EXIF" and rule.exif == "apply"
    return tf.image.rot90(stored, k=3) if turned else stored


def only_batch(dataset):
    (batch,) = dataset.take(1).as_numpy_iterator()
    return batch


@pytest.mark.parametrize(
    ("rule", "crop"),
    list(zip(RULES, ("none", "inception"), strict=True)),
    ids=["direct", "resize_small"],
)
def test_training(everything, rule, crop):
    """With crop=none and without mirroring, training gets the documented conversion, resized."""
    batch = only_batch(
        train_dataset(
            everything,
            batch_size=everything.num_examples,
            preprocessing=rule,
            seed=0,
            shuffle_window=1000,
            crop=crop,
            flip=False,
            skips_bad_images=True,
        )
    )
    names = names_of(everything, batch["id"])
    assert len(set(names)) == len(READABLE) + len(UNREADABLE) + 2
    for name, image, weight in zip(names, batch["image"], batch["weight"], strict=True):
        assert weight == (name not in UNREADABLE)
        assert np.abs(image).max() <= 1
        if name in UNREADABLE:
            assert (image == -1).all()
        elif name in READABLE and crop == "none":
            np.testing.assert_array_equal(image, rule(decoded(name, rule)))


def test_a_random_crop_of_a_huge_jpeg_is_not_even_drawn():
    """Only a window would be decoded, but it may be large."""
    with pytest.raises(tf.errors.InvalidArgumentError, match="claims more than"):
        huge = tf.constant(UNREADABLE["huge JPEG"][1])
        augmentation.inception_crop(huge, tf.constant([0, 0]), (0.05, 1.0))


def test_evaluation_and_signatures(everything):
    """`predict` and the signatures on bytes use `decode_batch`."""
    rule = RULES[1]
    batch = only_batch(
        pipeline.eval_dataset(
            everything,
            batch_size=everything.num_examples,
            preprocessing=rule,
            skips_bad_images=True,
        )
    )
    names = names_of(everything, batch["id"])
    for name, image, weight in zip(names, batch["image"], batch["weight"], strict=True):
        assert weight == (name not in UNREADABLE)
        if name in READABLE:
            np.testing.assert_array_equal(image, rule(decoded(name, rule)))
    contents = everything.read(range(everything.num_examples)).images.tolist()
    images, valid = decoding.decode_batch(tf.constant(contents), rule)
    np.testing.assert_array_equal(valid, batch["weight"] == 1)
    np.testing.assert_array_equal(images.numpy()[valid], batch["image"][valid])
    assert not images.numpy()[~valid.numpy()].any()


def test_each_bad_file_is_named(everything):
    """With data.bad_images=stop."""
    stored = everything.read(range(everything.num_examples)).ids
    rows = dict(zip(names_of(everything, stored), enumerate(stored), strict=True))
    for name, (suffix, _) in UNREADABLE.items():
        row, example_id = rows[name]
        problem = str(next(bad_images.find_bad_images(everything, [row])).error())
        image = f"b/{name}.{suffix} of {everything.name} (id {example_id})"
        assert f"The image {image} cannot be decoded: " in problem
        assert "\n" not in problem and len(problem) < 1000
    good = [row for name, (row, _) in rows.items() if name not in UNREADABLE]
    assert not [*bad_images.find_bad_images(everything, good)]


def test_a_bad_file_is_never_written(tmp_path):
    """With data.bad_images=stop, the writer of records says the same and leaves nothing."""
    root = make_folder(tmp_path / "folder", ordinary=3)
    write(root / "b", "cut", *UNREADABLE["cut JPEG"])
    source = open_source(f"folder:{root}", "train")
    with pytest.raises(DataError) as refused:
        record_writer.write_records(
            {"train": source}, tmp_path / "records", shards=2, bad_images="stop"
        )
    (bad,) = bad_images.find_bad_images(source, range(4))
    assert str(refused.value) == str(bad.error())
    assert os.listdir(tmp_path) == ["folder"]


@pytest.mark.heavy("data")
def test_records_hold_what_can_be_read(everything, tmp_path, logged):
    """With data.bad_images=skip; unusual files are stored unchanged."""
    written = record_writer.write_records({"train": everything}, tmp_path / "records", 4, "skip")
    assert written.counts == {"train": len(READABLE) + 2}
    assert written.left_out == len(UNREADABLE)
    assert len(logged) == 11
    lines = (tmp_path / "records" / "bad_images.jsonl").read_text().splitlines()
    assert sorted(names_of(everything, [json.loads(line)["id"] for line in lines])) == sorted(
        UNREADABLE
    )
    source = open_source(f"tfrecord:{tmp_path}/records", "train")
    kept = set(source.read(range(source.num_examples)).images)
    assert kept > {contents for _, contents, _, _ in READABLE.values()}
    assert not [*bad_images.find_bad_images(source, range(source.num_examples))]


def test_predict_takes_odd_files(command, tmp_path):
    paths = [
        write(tmp_path, name, suffix, contents)
        for name, (suffix, contents, _, _) in READABLE.items()
    ]
    result = command("predict", "--json", *paths)
    assert result.returncode == 0, result.stderr
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    assert [answer["path"] for answer in answers] == [str(path) for path in paths]


# The decoder finds a size in the head or a frame; `test_decoding.py` has every kind of file.
@pytest.mark.parametrize("name", ["huge JPEG", "animated WebP cut off"])
def test_predict_refuses_hostile_files(command, tmp_path, name):
    path = write(tmp_path, name, *UNREADABLE[name])
    result = command("predict", path)
    process.assert_user_error(result, f"Cannot decode {path}", "megapixels")
    assert result.stdout == ""


@pytest.fixture(scope="module")
def unreadable_folder(tmp_path_factory):
    """1,000 files that are not images, in two classes."""
    root = tmp_path_factory.mktemp("unreadable")
    for label in "ab":
        (root / label).mkdir()
        for i in range(500):
            (root / label / f"{i:04}.jpg").write_bytes(b"" if i % 2 else b"text")
    return root


@pytest.mark.parametrize(
    ("choice", "text", "told"),
    [
        ("stop", "cannot be decoded: ", 0),
        # Ten names, that there are more of them, and how many there were.
        ("skip", "None of the 16 images of training batch 0", 12),
    ],
)
def test_unreadable_files_end_training(command, unreadable_folder, tmp_path, choice, text, told):
    data = f"data.name=folder:{unreadable_folder}"
    own = ("model.layers=1", "data.eval_split=none", "data.scan=none")
    flags = as_flags(data, *own, f"data.bad_images={choice}")
    result = command("pretrain", *flags, "--workdir", tmp_path / "run")
    process.assert_user_error(result, text, str(unreadable_folder))
    assert result.stdout.count("left out") == told
    assert not (tmp_path / "run" / "final.npz").exists()


def test_unreadable_files_end_evaluation(command, unreadable_folder, tmp_path):
    model = vit_tf.create_model(tiny_experiment().model.config(2))
    described = Preprocessing(image_size=(12, 12)), Classes(labels=("a", "b"))
    vit_tf.save_npz(model, tmp_path / "model.npz", *described)
    data = [f"--set=data.name=folder:{unreadable_folder}", "--set=data.eval_split=train[:5%]"]
    for choice, text in (
        ("stop", "cannot be decoded: "),
        ("skip", "None of the images of folder:"),
    ):
        flags = [*data, f"--set=data.bad_images={choice}"]
        result = command("evaluate", "--model=model.npz", *flags)
        process.assert_user_error(result, text)
        assert result.stdout == ""


@pytest.mark.heavy("data")
def test_unreadable_files_become_no_records(command, unreadable_folder, tmp_path):
    for choice, text in (("stop", "cannot be decoded: "), ("skip", "None of the images of")):
        flags = ["--set", f"data.name=folder:{unreadable_folder}", "--split", "train=train"]
        result = command(
            "make_tfrecords", *flags, "--output", "out", "--set", f"data.bad_images={choice}"
        )
        process.assert_user_error(result, text)
        assert os.listdir(tmp_path) == []


def test_a_run_with_bad_images_resumes_bitwise(tmp_path, logged, uncompiled):
    """With MixUp; the list of the bad images was cut off too."""
    root = make_folder(tmp_path / "data", ordinary=40, bad=True)
    experiment = tiny_experiment(
        f"data.name=folder:{root}",
        "data.eval_split=train[:20]",
        "data.mixup=0.2",
        "data.bad_images=skip",
        "model.layers=1",
        "train.deterministic=true",
        "train.log_every=100",
        "train.steps=8",
        "train.checkpoint_every=4",
    )
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(experiment, whole, one_device())
    printed = logged.take()
    records = (whole / "bad_images.jsonl").read_text().splitlines(keepends=True)
    assert f"they cannot be read: {len(records)}, named in {whole}/bad" in printed

    cut_short(whole, parts, 4)
    # The last ones were named after the step that is resumed from.
    (parts / "bad_images.jsonl").write_text("".join(records[:-2]))
    train(experiment, parts, one_device())
    assert_same_weights(parts, whole, ["final.npz"])
    again = (parts / "bad_images.jsonl").read_text().splitlines(keepends=True)
    assert sorted(again) == sorted(records) and len(records) > 3
    lines = [Workdir(run).read_metrics()[-1] for run in (whole, parts)]
    assert lines[0] | {"time": lines[1]["time"]} == lines[1]
    assert 0 < lines[0]["eval_examples"] < 20


@pytest.mark.heavy("data")
@pytest.mark.process
def test_hostile_files_need_no_more_memory_than_ordinary_ones(tmp_path):
    """Files that would take 1.4 GB to 11 GB each if their headers were trusted."""
    make_folder(tmp_path / "ordinary", ordinary=30)
    spoiled = make_folder(tmp_path / "spoiled", ordinary=30, odd=True, bad=True)
    write(spoiled / "a", "bomb", "gif", hostile.gif_bomb())
    write(spoiled / "b", "large", "png", encode(np.zeros((3000, 3000, 3), np.uint8), "PNG"))
    program = "tests.pipelines.programs.peak_memory"
    done = process.run_module(program, tmp_path, cwd=tmp_path, cold=True)
    assert done.returncode == 0, done.stderr
    ordinary, *hostile_files = json.loads(done.stdout.splitlines()[-1])
    assert len(hostile_files) == 3 and max(hostile_files) < ordinary + 1e9


@pytest.mark.process
def test_exit_codes_of_the_real_command(command, tmp_path, uncompiled):
    root = make_folder(tmp_path / "data", ordinary=30)
    write(root / "b", "broken", "jpg", UNREADABLE["cut JPEG"][1])
    write(root / "b", "text", "jpg", b"text")
    run = tmp_path / "run"
    data = (f"data.name=folder:{root}", "data.eval_split=train[:10]", "model.layers=1")

    stopped = command("pretrain", *as_flags(*data), "--workdir", run)
    process.assert_user_error(stopped, "2 of 42 files cannot be decoded; they are named above")
    stopped = command("pretrain", *as_flags(*data, "data.scan=none"), "--workdir", run)
    process.assert_user_error(stopped, f".jpg of folder:{root}", "cannot be decoded", "=skip")
    assert not (run / "final.npz").exists()

    # The same run continues without the bad images.
    skip = as_flags(*data, "data.bad_images=skip")
    done = process.run_command("pretrain", *skip, "--workdir", run, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    lines = done.stdout.splitlines()
    assert sum(line.startswith("left out b/") for line in lines) == 2
    assert (
        lines[-1]
        == f"images left out because they cannot be read: 2, named in {run}/bad_images.jsonl"
    )
    records = [json.loads(line) for line in (run / "bad_images.jsonl").read_text().splitlines()]
    assert {record["name"] for record in records} == {
        f"b/{name}.jpg of folder:{root}" for name in ("broken", "text")
    }
    assert all(record["reason"] for record in records)
    assert (run / "final.npz").exists()

    (tmp_path / "other" / "bad_images.jsonl").mkdir(parents=True)
    failed = command("pretrain", *skip, "--workdir", tmp_path / "other")
    assert failed.returncode == 1
    assert failed.stderr.count("error: ") == 1 and "Traceback" not in failed.stderr
    assert "bad_images.jsonl" in failed.stderr
