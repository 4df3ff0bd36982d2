"""Image folders: which files are images, ids, splits that mix classes, links, hostile trees."""

import hashlib
import itertools
import json
import os
import re
import shutil

import numpy as np
import pytest

from pipelines.config import Data
from pipelines.data.labels.class_sizes import size_warnings
from pipelines.data.skipped_files import skipped_files
from pipelines.data.sources import files, folders
from pipelines.data.sources.files import FileRules
from pipelines.data.sources.open import open_source, split_names, with_splits
from pipelines.errors import DataError


def _write(root, *paths):
    """Writes files whose contents are their own paths."""
    for path in paths:
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(os.fsencode(path))


def _everything(source):
    """Path -> (label, id) of all examples of a source."""
    images, labels, ids = source.read(range(source.num_examples))
    return {
        image.decode(): (source.labels[label], int(example_id))
        for image, label, example_id in zip(images, labels, ids, strict=True)
    }


@pytest.fixture(scope="module")
def big(tmp_path_factory):
    """Three classes of 400, 300 and 100 images."""
    root = tmp_path_factory.mktemp("big")
    for name, count in (("a", 400), ("b", 300), ("c", 100)):
        _write(root, *[f"{name}/{i:03}.jpg" for i in range(count)])
    return root


def test_images_labels_and_ids(tmp_path):
    _write(
        tmp_path,
        "cat/1.jpg",
        "cat/deep/er/2.JPEG",
        "cat/3.Png",
        "dog/1.jpg",
        "dog/b c.webp",
        "dog/Ωmega.BMP",
        "Zebra/x.gif",
        "cat/notes.txt",
        "cat/no_suffix",
        "dog/.hidden.jpg",
        "dog/._1.jpg",
        ".cache/1.jpg",
        "__MACOSX/1.jpg",
        "stray.jpg",
    )
    source = open_source(f"folder:{tmp_path}", "train")
    expected = [
        "Zebra/x.gif",
        "cat/1.jpg",
        "cat/3.Png",
        "cat/deep/er/2.JPEG",
        "dog/1.jpg",
        "dog/b c.webp",
        "dog/Ωmega.BMP",
    ]
    assert source.labels == ("Zebra", "cat", "dog")
    assert (source.num_examples, source.num_classes) == (7, 3)
    assert _everything(source) == {
        path: (path.split("/")[0], place) for place, path in enumerate(expected)
    }
    for place, path in enumerate(expected):
        assert source.describe(place) == f"{path} of folder:{tmp_path}"


def test_files_that_are_no_images_are_counted(tmp_path):
    _write(tmp_path, *(f"{split}/{name}/1.jpg" for split in ("train", "val") for name in "ab"))
    _write(tmp_path, "train/a/x.TXT", "train/b/deep/y.txt", "train/b/README", "val/a/scan.tif")
    train = open_source(f"folder:{tmp_path}", "train[:50%]")
    assert train.skipped() == {"train": {".txt": 2, "without suffix": 1}}
    both = [train, *(open_source(f"folder:{tmp_path}", x) for x in ("train[50%:]", "val"))]
    assert skipped_files(both) == {".txt": 2, "without suffix": 1, ".tif": 1}


def test_stored_order_is_that_of_a_hash(tmp_path):
    """Repeats the definition: a change would move images between train[:90%] and train[90%:]."""
    paths = [f"{name}/{i}.jpg" for name in "ab" for i in range(10)]
    _write(tmp_path, *paths)
    hashes = {
        path: hashlib.blake2b(path.encode(), digest_size=8, person=b"stored order").digest()
        for path in paths
    }
    images = open_source(f"folder:{tmp_path}", "train").read(range(20)).images
    assert [image.decode() for image in images] == sorted(paths, key=hashes.get)


def test_sub_splits_hold_all_classes(big):
    whole = _everything(open_source(f"folder:{big}", "train"))
    parts = [open_source(f"folder:{big}", split) for split in ("train[:75%]", "train[75%:]")]
    assert [part.num_examples for part in parts] == [600, 200]
    first, second = (_everything(part) for part in parts)
    assert first | second == whole
    assert not first.keys() & second.keys()
    for window in range(0, 800, 100):
        labels = open_source(f"folder:{big}", "train").read(range(window, window + 100)).labels
        counts = np.bincount(labels, minlength=3)
        # Expected are 50, 37.5 and 12.5; three standard deviations are at most 15.
        assert (abs(counts - [50, 37.5, 12.5]) < 16).all()


@pytest.mark.parametrize(
    ("sizes", "trained", "evaluated"),
    [
        # Every class is on both sides; the only image of a class trains.
        ([10] * 10, [9] * 10, [1] * 10),
        ([5, 1], [4, 1], [1, 0]),
        ([2] * 7, [1] * 7, [1] * 7),
        ([4, 3, 7], [3, 2, 6], [1, 1, 1]),
        ([100, 2], [91, 1], [9, 1]),
        ([1] * 30 + [2], [1] * 31, [0] * 30 + [1]),
        ([200, 50, 20], [180, 45, 18], [20, 5, 2]),
    ],
)
def test_the_default_ranges_divide_each_class(tmp_path, sizes, trained, evaluated):
    _write(tmp_path, *(f"{i:02}/{k}.jpg" for i, size in enumerate(sizes) for k in range(size)))
    parts = [open_source(f"folder:{tmp_path}", split) for split in ("train[:90%]", "train[90%:]")]
    counts = [
        np.bincount(part.read_labels(range(part.num_examples)), minlength=len(sizes))
        for part in parts
    ]
    assert [each.tolist() for each in counts] == [trained, evaluated]
    first, second = map(_everything, parts)
    assert not first.keys() & second.keys()
    assert all(part.manifest()["split_by"] == "class" for part in parts)


def test_one_sided_classes_and_few_images_are_named(tmp_path):
    _write(tmp_path, *(f"{name}/{k}.jpg" for name in "ab" for k in range(100)), "only one/1.jpg")
    train, evaluation, first = (
        open_source(f"folder:{tmp_path}", split)
        for split in ("train[:90%]", "train[90%:]", "train[:9]")
    )
    images, classes = size_warnings(train, evaluation)
    assert "1 of 3 classes trained and never evaluated, with their images: only one (1)." in classes
    assert "20 images to evaluate: each is 5.0% of the accuracy" in images
    assert (
        "evaluated and never trained, with their images: only one (1)"
        in size_warnings(first, train)[-1]
    )
    assert all(line.startswith("warning: ") and "\n" not in line for line in (classes, images))
    # Nothing to say.
    assert not [x for x in size_warnings(train, train) if "classes" in x or "images to" in x]


def test_other_ranges_divide_each_class(tmp_path):
    """Any ranges together are the split; each has its part of each class, up to one image."""
    sizes = {"a": 37, "b": 60, "c": 11}
    _write(tmp_path, *(f"{name}/{i}.jpg" for name, size in sizes.items() for i in range(size)))
    percents, images = ["0", "15%", "50%", "80%", "-10%", ""], ["0", "20", "54", "100", ""]
    for borders in (percents, images):
        found = []
        for begin, end in itertools.pairwise(borders):
            part = open_source(f"folder:{tmp_path}", f"train[{begin}:{end}]".replace("[0:", "[:"))
            found += _everything(part)
            counts = np.bincount(part.read_labels(range(part.num_examples)), minlength=3)
            expected = np.array([*sizes.values()]) * part.num_examples / 108
            assert (abs(counts - expected) < 2).all(), (begin, end)
        assert len(found) == len({*found}) == 108
    assert open_source(f"folder:{tmp_path}", "train[:54]").num_examples == 54
    assert open_source(f"folder:{tmp_path}", "train[50%:][:5]").num_examples == 5


@pytest.mark.parametrize("size", [3, 5, 9])
def test_three_ranges_of_small_classes_are_all_there(tmp_path, size):
    _write(tmp_path, *_tree([f"{i:02}" for i in range(20)], count=size))
    parts = [
        open_source(f"folder:{tmp_path}", f"train[{part}]") for part in (":80%", "80%:90%", "90%:")
    ]
    found = [path for part in parts for path in _everything(part)]
    assert len(found) == len({*found}) == 20 * size and all(part.num_examples for part in parts)
    assert {*parts[2].read_labels(range(parts[2].num_examples))} == {*range(20)}


def test_ranges_of_earlier_runs_are_those_of_the_hash(tmp_path):
    paths = [f"{name}/{i}.jpg" for name in "ab" for i in range(10)]
    _write(tmp_path, *paths)
    whole = open_source(f"folder:{tmp_path}", "train")
    old = FileRules(split_by="file")
    parts = [
        open_source(f"folder:{tmp_path}", split, rules=old)
        for split in ("train[:90%]", "train[90%:]")
    ]
    images = [[*part.read(range(part.num_examples)).images] for part in parts]
    assert images[0] + images[1] == [*whole.read(range(20)).images]

    def stored_order(path):
        return hashlib.blake2b(path.encode(), digest_size=8, person=b"stored order").digest()

    assert [x.decode() for x in images[0] + images[1]] == sorted(paths, key=stored_order)
    assert not any("split_by" in part.manifest() for part in [whole, *parts])


def test_splits_change_little_when_images_are_added(tmp_path):
    _write(tmp_path, *[f"{name}/{i}.jpg" for name in "ab" for i in range(100)])
    before = _everything(open_source(f"folder:{tmp_path}", "train[:50%]"))
    version = open_source(f"folder:{tmp_path}", "train").version
    _write(tmp_path, "a/new.jpg", "b/new.jpg")
    after = _everything(open_source(f"folder:{tmp_path}", "train[:50%]"))
    assert len(before.keys() & after.keys()) >= 98
    assert open_source(f"folder:{tmp_path}", "train").version != version


def test_a_folder_per_split(tmp_path):
    _write(tmp_path, "Train/cat/1.jpg", "Train/dog/1.jpg", "Train/dog/2.jpg", "val/dog/9.jpg")
    _write(tmp_path, "val/eel/8.jpg", "test/eel/1.jpg", "test/cat/1.jpg")
    train = open_source(f"folder:{tmp_path}", "Train")
    both = open_source(f"folder:{tmp_path}", "val+Train[1:]")
    # Labels come from the classes of all splits, so they mean the same in each split.
    assert train.labels == both.labels == ("cat", "dog", "eel")
    assert {key: i for key, (_, i) in _everything(train).items()} == {
        "Train/cat/1.jpg": 0,
        "Train/dog/1.jpg": 1,
        "Train/dog/2.jpg": 2,
    }
    found = _everything(both)
    assert both.num_examples == 4
    assert found["val/dog/9.jpg"] == ("dog", 0)
    assert found["val/eel/8.jpg"] == ("eel", 1)
    for path, (_, example_id) in found.items():
        assert both.describe(example_id).startswith(path)
    assert {i for _, i in found.values()} < {0, 1, 2, 3, 4}
    assert both.shard_lengths == (2, 2)


def test_a_class_may_be_called_like_a_split(tmp_path):
    _write(tmp_path, "bicycle/1.jpg", "car/1.jpg", "train/1.jpg")
    assert open_source(f"folder:{tmp_path}", "train").labels == ("bicycle", "car", "train")


def _tree(*levels, count=3):
    """The paths of some images in all combinations of folders: `_tree("ab", ["x"])`: a/x/0.jpg."""
    return [
        "/".join(names) + f"/{i}.jpg" for names in itertools.product(*levels) for i in range(count)
    ]


@pytest.mark.parametrize(
    ("paths", "splits", "chosen", "labels"),
    [
        # Archives that are unpacked into folders of their own name.
        (
            [f"seg_{x}/seg_{x}/{y}" for x in ("train", "test") for y in _tree(["sea", "ice"])],
            {"seg_test", "seg_train"},
            ("seg_train", "seg_test"),
            ("ice", "sea"),
        ),
        (_tree(["training_set", "test_set"], "ab"), None, ("training_set", "test_set"), ("a", "b")),
        (_tree(["train2017", "val2017"], "ab"), None, ("train2017", "val2017"), ("a", "b")),
        (_tree(["Train-images", "ValSet"], "ab"), None, ("Train_images", "ValSet"), ("a", "b")),
        (_tree(["train", "eval"], "ab"), None, ("train", "eval"), ("a", "b")),
        (_tree(["set"], ["set"], "ab"), {"train"}, ("train[:90%]", "train[90%:]"), ("a", "b")),
        # Names with such words, and deeper folders, are classes where images say so.
        (
            _tree(["steam_train", "test tube", "car"]),
            {"train"},
            None,
            ("car", "steam_train", "test tube"),
        ),
        (_tree(["train", "val"], ["n1", "n2"], ["images"]), {"train", "val"}, None, ("n1", "n2")),
        (
            ["cat/wild/1.jpg", "cat/2.jpg", "dog/wild/1.jpg", "dog/old/1.jpg"],
            {"train"},
            None,
            ("cat", "dog"),
        ),
    ],
)
def test_layouts_of_splits(tmp_path, paths, splits, chosen, labels):
    root = tmp_path / "set"
    root.mkdir()
    _write(root, *paths)
    name = f"folder:{root}"
    assert splits is None or {*split_names(name)} == splits
    data, _ = with_splits(Data(name=name))
    assert chosen is None or (data.train_split, data.eval_split) == chosen
    source = open_source(name, "+".join(split_names(name)))
    assert (source.labels, source.num_examples) == (labels, len(paths))


def test_images_beside_the_classes_of_a_split_count_for_nothing(tmp_path):
    for name, stray in (("one", ["val/x.png"]), ("both", ["train/y.png", "val/x.png"])):
        _write(tmp_path / name, *_tree(["train", "val"], "ab"), *stray)
        assert {*split_names(f"folder:{tmp_path / name}")} == {"train", "val"}
        source = open_source(f"folder:{tmp_path / name}", "val")
        assert (source.labels, source.num_examples) == (("a", "b"), 6)
    _write(tmp_path / "alone", *_tree(["train"], "ab"), "train/y.png")
    assert open_source(f"folder:{tmp_path / 'alone'}", "train").labels == ("a", "b")


def test_folders_called_like_splits_are_no_classes_beside_another(tmp_path):
    """Without folders of classes nothing says which of both they are."""
    _write(tmp_path, "train/1.jpg", "test/1.jpg", "sample/1.jpg")
    message = _message(tmp_path)
    assert "(train, test)" in message or "(test, train)" in message
    assert "(sample)" in message and "list:<path>" in message and "rename" in message


@pytest.mark.parametrize(
    ("paths", "fix", "labels"),
    [
        ([*_tree(["train"], "ab"), "test_images/1.png", "test_images/2.png"], "train", "ab"),
        ([*_tree(["train"], "ab"), "test/1.png"], "train", "ab"),
        ([*_tree(["train"], "ab"), "test/test/1.png"], "train", "ab"),
        ([*_tree(["train"], "ab"), "test/unknown/1.png"], "train", "ab"),
        ([*_tree(["train"], "ab"), "test/read.me"], "train", "ab"),
        ([*_tree(["train"], "ab"), "samples/1.png"], "train", "ab"),
        ([*_tree(["train", "val"], "ab"), "train/x.png", "val/y.png", "more/1.png"], "train", "ab"),
        (
            [*_tree(["seg_test", "seg_train"], "ab"), "seg_pred/seg_pred/1.jpg"],
            "seg_train",
            "ab",
        ),
        (_tree(["fold1", "fold2"], "abc"), "fold1", "abc"),
        ([f"{x}/{x}/{y}" for x in ("fold1", "fold2") for y in _tree("ab")], "fold1", "ab"),
        (_tree(["data"], "ab"), "data", "ab"),
        ([*_tree(["site_a", "site_b"], "ab"), "c/1.jpg"], "site_a", "ab"),
        (_tree("ab", ["train", "test"]), None, "ab"),
    ],
)
def test_folders_that_are_no_classes_are_refused_with_the_path_that_works(
    tmp_path, paths, fix, labels, logged
):
    _write(tmp_path, *paths)
    message = _message(tmp_path, "train")
    if fix is None:
        assert "splits inside of classes" in message and "list:<path>" in message
        # As earlier versions read it, with a warning.
        assert open_source(f"folder:{tmp_path}", "train", rules=FileRules("file")).labels == (
            "a",
            "b",
        )
        assert logged == [message]
        return
    path = re.search("data.name=folder:([^ ;]*?)[.;]? ", message + " ")[1]
    assert path.startswith(f"{tmp_path}/{fix}")
    assert open_source(f"folder:{path}", "train").labels == tuple(labels)


def test_links(tmp_path):
    """Links are followed, even to other folders. Cycles end. Each class counts a directory once."""
    elsewhere, root = tmp_path / "elsewhere", tmp_path / "root"
    _write(elsewhere, "one.jpg", "sub/two.jpg")
    _write(root, "a/1.jpg", "b/1.jpg")
    (root / "a" / "all").symlink_to(elsewhere)
    (root / "a" / "sub").symlink_to(elsewhere / "sub")
    (root / "a" / "up").symlink_to(root / "a")
    (elsewhere / "back").symlink_to(root / "a")
    (root / "c").symlink_to(elsewhere)
    (root / "b" / "file.jpg").symlink_to(elsewhere / "one.jpg")
    (root / "b" / "itself").symlink_to(root / "b" / "itself")
    source = open_source(f"folder:{root}", "train")
    assert [source.describe(i).split(" of ")[0] for i in range(source.num_examples)] == [
        "a/1.jpg",
        "a/all/one.jpg",
        "a/all/sub/two.jpg",
        "b/1.jpg",
        "b/file.jpg",
        "c/back/1.jpg",
        "c/back/sub/two.jpg",  # reached through this link before c/sub
        "c/one.jpg",
    ]
    images = source.read(range(8))
    assert images.images[images.ids == 4] == [b"one.jpg"]


def test_links_to_folders_that_contain_them_are_not_followed(tmp_path, logged):
    """Their images would count for the class that the link is in."""
    elsewhere, root = tmp_path / "elsewhere", tmp_path / "root"
    _write(root, "train/a/1.jpg", "train/a/deep/2.jpg", "train/b/1.jpg")
    _write(elsewhere, "3.jpg")
    (root / "train" / "a" / "deep" / "all").symlink_to(root)
    (root / "train" / "a" / "above").symlink_to(tmp_path)
    (root / "train" / "b" / "others").symlink_to(elsewhere)
    (elsewhere / "back").symlink_to(root / "train")
    source = open_source(f"folder:{root}/train", "train")
    contents = ["3.jpg", "train/a/1.jpg", "train/a/deep/2.jpg", "train/b/1.jpg"]
    assert sorted(_everything(source)) == contents
    assert len(logged) == 1 and "3 links to a folder that contains it not followed" in logged[0]


def test_files_that_cannot_be_read(tmp_path, monkeypatch):
    """They count as images without bytes. Reading waits for no pipe and reads no endless file."""
    _write(tmp_path, "a/1.jpg", "a/large.jpg", "b/1.jpg", "b/lost.jpg", "b/denied.jpg")
    (tmp_path / "a" / "broken.jpg").symlink_to("nowhere")
    (tmp_path / "a" / "circle.png").symlink_to("circle.png")
    (tmp_path / "a" / "zeros.png").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "a" / "pipe.jpg")
    source = open_source(f"folder:{tmp_path}", "train")
    (tmp_path / "b" / "lost.jpg").unlink()
    (tmp_path / "a" / "large.jpg").write_bytes(b"x" * 21)
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 20)
    # Root ignores permissions.
    monkeypatch.setattr(os, "access", lambda path, mode: not path.endswith("denied.jpg"))
    assert source.num_examples == 9
    examples = source.read(range(9))
    readable = {i for i, image in zip(examples.ids, examples.images, strict=True) if image}
    names = {source.describe(i).split(" of ")[0] for i in readable}
    assert names == {"a/1.jpg", "b/1.jpg"}


def test_failures_of_the_disk_are_not_bad_images(tmp_path, monkeypatch):
    _write(tmp_path, "root/a/1.jpg", "root/b/1.jpg")
    source = open_source(f"folder:{tmp_path}/root", "train")

    def failing(path):
        raise OSError(5, "Input/output error", path)

    with monkeypatch.context() as patch:
        patch.setattr(files, "_is_usable", failing)
        with pytest.raises(DataError, match="'train'.*Input/output"):
            source.read(range(2))
    image = tmp_path / "root" / "a" / "1.jpg"
    image.rename(tmp_path / "1.jpg")
    image.mkdir()
    with monkeypatch.context() as patch:  # It changes after it was checked.
        patch.setattr(files, "_is_usable", lambda path: True)
        with pytest.raises(DataError, match="'train'.*1.jpg"):
            source.read(range(2))
    image.rmdir()
    (tmp_path / "1.jpg").rename(image)
    (tmp_path / "root").rename(tmp_path / "away")
    with pytest.raises(DataError, match="no longer there"):
        source.read(range(2))


def test_names_that_are_not_unicode(tmp_path):
    _write(tmp_path, "a/1.jpg", "b/1.jpg")
    with open(os.path.join(os.fsencode(tmp_path), b"a", b"\xff.jpg"), "wb") as file:
        file.write(b"image")
    source = open_source(f"folder:{tmp_path}", "train")
    assert source.describe(1) == f"a/�.jpg of folder:{tmp_path}"
    examples = source.read(range(3))
    assert examples.images[examples.ids == 1] == [b"image"]
    json.dumps(source.manifest()).encode()
    os.mkdir(os.path.join(os.fsencode(tmp_path), b"\xfe"))
    assert "not UTF-8" in _message(tmp_path, "train")


def test_relative_path_begins_in_data_dir(tmp_path, monkeypatch):
    _write(tmp_path, "set/a/1.jpg", "set/b/1.jpg")
    assert open_source("folder:set", "train", tmp_path).num_examples == 2
    monkeypatch.chdir(tmp_path)
    assert open_source("folder:set", "train").name == f"folder:{tmp_path}/set"


def test_manifest(big):
    manifest = open_source(f"folder:{big}", "train[:10%]").manifest()
    assert json.loads(json.dumps(manifest)) == manifest
    assert manifest["data_set"] == f"folder:{big}"
    assert manifest["parts"] == [{"split": "train", "start": 0, "stop": 80, "first_id": 0}]
    assert "listing" in manifest["id"]


def _message(path, split="train"):
    with pytest.raises(DataError) as error:
        open_source(f"folder:{path}", split)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("paths", "split", "texts"),
    [
        ([], "train", ["no folder of a class", "<class>/<image>"]),
        (["1.jpg", "2.jpg"], "train", ["no folder of a class"]),
        (["cat/1.jpg"], "train", ["one class, 'cat'", "at least two"]),
        (
            ["cat/1.jpg", "dog/1.jpg"],
            "train[90%:]",
            ["is empty: train has 2 images", "data.train_split=train data.eval_split=none"],
        ),
        (["a/1.tiff", "b/2.txt"], "train", ["a has no image", "1.tiff", ".webp"]),
        (["a/1.jpg", "b/x.heic"], "train", ["b has no image", "x.heic"]),
        (["a/.x.jpg", "b/.y.jpg"], "train", ["a has no image"]),
        (["a/1.jpg", "b/1.jpg"], "test", ["no split 'test'", "train (2)"]),
        (["a/1.jpg", "b/1.jpg"], "train[:10%]", ["empty"]),
        (["a/1.jpg", "b/.keep"], "train", ["b has no image. Expected .jpg", "Add images"]),
        (["flower/1.jpg", "Flower/1.jpg"], "train", ["'Flower' and 'flower'", "one name"]),
        (["train/a/1.jpg", "train/b/1.jpg", "val/A/1.jpg"], "train", ["'A' and 'a'"]),
        (
            [*(f"{split}/a/1.jpg" for split in ("train", "val", "test")), "test/b/1.jpg"],
            "train",
            ["'b'", "is in test and in no other split", "to train, val", "move test/b away"],
        ),
        (
            [f"{split}/{name}/1.jpg" for split in ("train", "val") for name in "ab"],
            "dev",
            ["train (2), val (2)"],
        ),
        (["train/a/1.jpg", "val/b/1.jpg", "c/1.jpg"], "train", ["mixes", "train, val", "(c)"]),
    ],
)
def test_clear_errors(tmp_path, paths, split, texts):
    _write(tmp_path, *paths)
    message = _message(tmp_path, split)
    for text in texts:
        assert text in message


def test_wrong_paths(tmp_path):
    _write(tmp_path, "file.csv", "a/1.jpg")
    assert f"There is no folder {tmp_path}/none" in _message(tmp_path / "none")
    assert "list:<path>" in _message(tmp_path / "file.csv")
    assert "has no path" in _message("")
    with pytest.raises(DataError, match=f"Did you mean folder:{tmp_path}"):
        open_source(str(tmp_path), "train")


def test_folder_that_cannot_be_listed(tmp_path, monkeypatch):
    _write(tmp_path, "a/1.jpg", "b/deep/1.jpg")
    original = os.scandir

    def denying(path):
        if str(path).endswith("deep"):  # root ignores permissions
            raise PermissionError(13, "Permission denied", path)
        return original(path)

    monkeypatch.setattr(folders.os, "scandir", denying)
    message = _message(tmp_path)
    assert f"{tmp_path}/b/deep cannot be read: Permission denied" in message


def test_tree_deeper_than_the_system_can_name(tmp_path):
    _write(tmp_path, "a/1.jpg", "b/1.jpg")
    here = os.getcwd()
    os.chdir(tmp_path / "a")
    try:
        for _ in range(20):
            os.mkdir("x" * 250)
            os.chdir("x" * 250)
    finally:
        os.chdir(here)
    assert "cannot be read: File name too long" in _message(tmp_path)
    shutil.rmtree(tmp_path / "a")
