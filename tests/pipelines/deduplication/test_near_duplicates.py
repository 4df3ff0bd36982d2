"""`near_duplicates` and the command: planted copies, the page, the list that training takes."""

import csv
import itertools
import json
import os
import pathlib
import types

import numpy as np
import pytest

from benchmarks import planted_duplicates as planted
from pipelines.data.labels.rules import RULES
from pipelines.data.sources.open import open_source
from pipelines.deduplication import near_duplicates as studied
from pipelines.deduplication import page
from pipelines.deduplication.near_duplicates import near_duplicates, open_named
from pipelines.deduplication.perceptual_hash import hashes_of_files
from pipelines.errors import DataError, UserError
from tests.pipelines import encoded
from tests.pipelines.process import assert_user_error
from tests.pipelines.reports.parsed_page import ParsedPage

KINDS = (
    "the same file",
    "JPEG, quality 30",
    "half the sides",
    "mirrored",
    "crop, 80 % of the area",
)
MARKUP = '<script>x" onerror="y'  # Names of files are untrusted.


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return str(path)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders of training and test images; and which test image each planted copy is of."""
    root, random, copies = tmp_path_factory.mktemp("photos"), np.random.default_rng(0), {}
    for number in range(12):
        original = planted.picture(number)
        path = root / "query" / "test" / f"class {number % 2}" / f"{number}.jpg"
        write(path, planted.encoded(original))
        if number < len(KINDS):
            name = f"copy {number}{MARKUP}.jpeg"
            copy = root / "reference" / "train" / f"class {number % 2}" / name
            write(copy, planted.KINDS[KINDS[number]](original, random))
            copies[str(path)] = str(copy)
    for number in range(40):
        path = root / "reference" / "train" / f"class {number % 2}" / f"other {number}.jpg"
        write(path, planted.encoded(planted.picture(1000 + number)))
    for part, split in (("query", "train"), ("reference", "test")):
        for label in (0, 1):
            picture = planted.picture(2000 + label + 2 * (part == "query"))
            write(root / part / split / f"class {label}" / "a.jpg", planted.encoded(picture))
    write(root / "reference" / "train" / "class 0" / "broken.jpg", b"no image")
    plain = encoded.encode(np.zeros([9, 9, 3], np.uint8), "PNG")
    write(root / "reference" / "train" / "class 0" / "plain.png", plain)
    return root, copies


def test_copies_in_folders_are_found(folders, logged):
    root, copies = folders
    found = near_duplicates(root / "reference", root / "query")
    assert {(query, reference) for query, reference, _ in found} == set(copies.items())
    assert found == sorted(found, key=lambda row: (row[0], row[2], row[1]))
    distances = {os.path.basename(query): distance for query, _, distance in found}
    assert distances["0.jpg"] == 0 and all(type(x) is int for x in distances.values())
    assert max(distances.values()) <= 10
    assert any("2 of 49 images are left out" in line for line in logged)
    swapped = near_duplicates(root / "query", root / "reference")
    assert sorted((b, a, distance) for a, b, distance in swapped) == sorted(found)
    for most in (0, 3):
        expected = [row for row in found if row[2] <= most]
        assert near_duplicates(str(root / "reference"), root / "query", most) == expected


def test_it_agrees_with_all_pairs(tmp_path, monkeypatch):
    """Noisy forms of a few images, so that there are pairs at all distances."""
    random, bases = np.random.default_rng(0), [encoded.pixels(40, 32, seed) for seed in range(4)]
    paths = {"a": [], "b": []}
    for number in range(60):
        noisy = bases[number // 2 % 4] + random.normal(0, random.uniform(0, 25), (40, 32, 1))
        pixels = np.clip(noisy, 0, 255).astype(np.uint8)[:, :: 1 - 2 * (number % 5 == 0)]
        folder = "ab"[number % 2]
        content = encoded.encode(np.ascontiguousarray(pixels), "PNG")
        paths[folder].append(write(tmp_path / folder / f"{number}.png", content))

    def hashed(folder):
        contents = [pathlib.Path(path).read_bytes() for path in paths[folder]]
        hashes, *_ = hashes_of_files(contents)
        return dict(zip(paths[folder], hashes.T.tolist(), strict=True))

    monkeypatch.setattr(studied, "_ROWS", 7)
    queries, references = hashed("a"), hashed("b")
    for most in (0, 4, 10, 17):
        expected = []
        for query, reference in itertools.product(sorted(queries), sorted(references)):
            left, right = queries[query], references[reference]
            pairs = [(left[0], view) for view in right] + [(view, right[0]) for view in left]
            distance = min((a ^ b).bit_count() for a, b in pairs)
            if distance <= most:
                expected.append((query, reference, distance))
        expected.sort(key=lambda row: (row[0], row[2], row[1]))
        assert near_duplicates(tmp_path / "b", tmp_path / "a", most) == expected
        assert len(expected) >= {0: 0, 4: 5, 10: 50, 17: 150}[most]


def test_folders_that_cannot_be_searched(tmp_path):
    (tmp_path / "empty").mkdir()
    write(tmp_path / "good" / "a.png", encoded.encode(encoded.pixels(9, 9), "PNG"))
    for pair in (("none", "good"), ("good", "none"), ("empty", "good"), ("good", "empty")):
        with pytest.raises(UserError, match="no image"):
            near_duplicates(*(tmp_path / name for name in pair))
    with pytest.raises(UserError, match="max_distance=-1"):
        near_duplicates(tmp_path / "good", tmp_path / "good", -1)


def search(command, folders, output, *more):
    root, _ = folders
    return command(
        "dedup",
        f"--reference=folder:{root}/reference",
        f"--query=folder:{root}/query",
        f"--query=folder:{root}/reference@test",
        f"--output={output}",
        *more,
    )


def test_the_command_writes_counts_pairs_and_a_page(folders, command, tmp_path):
    root, copies = folders
    result = search(command, folders, tmp_path / "out", "--show=3", "--json")
    assert result.returncode == 0, result.stderr
    record = json.loads(result.stdout)
    assert record == json.loads((tmp_path / "out" / "dedup.json").read_text())
    assert record["reference"] | {"data": ""} == {
        "data": "",
        "images": 47,
        "unreadable": 1,
        "plain": 1,
    }
    first, second = record["queries"]
    assert (first["images"], first["with_duplicates"], first["pairs"]) == (12, 5, 5)
    assert first["reference_images"] == record["excluded"] == 5
    assert first["mirrored"] == first["parts"] == 1
    assert second["images"] == 2 and second["pairs"] == 0
    assert record["model"] is record["min_cosine"] is None and record["max_distance"] == 10

    with open(tmp_path / "out" / "pairs.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 5
    by_name = {os.path.basename(row["query"].split(".jpg of ")[0]): row for row in rows}
    for number, kind in enumerate(KINDS):
        row = by_name[str(number)]
        assert f"copy {number}{MARKUP}.jpeg of folder:{root}/reference" in row["reference"]
        assert row["mirrored"] == ("true" if kind == "mirrored" else "false")
        assert row["part_of"] == ("query" if kind.startswith("crop") else "")
        assert int(row["distance"]) <= 10 and row["cosine"] == ""

    parsed = ParsedPage((tmp_path / "out" / "dedup.html").read_text())
    parsed.check_self_contained()
    assert len(parsed.all("figure", class_="pair")) == 3 and len(parsed.all("img")) == 6
    text = " ".join(parsed.text("p", "td", "figcaption", "h2", "span", "b"))
    assert "not published" in text and "of 64 bits differ" in text and "10.64%" in text

    names = [
        f"--{x}=folder:{root}/{y}" for x, y in (("reference", "query"), ("query", "reference"))
    ]
    swapped = command("dedup", f"{names[0]}@test", f"{names[1]}@train", f"--output={tmp_path}/b")
    assert swapped.returncode == 0, swapped.stderr
    with open(tmp_path / "b" / "pairs.csv", newline="") as file:
        found = {(row["reference"], row["query"]): row for row in csv.DictReader(file)}
    for row in rows:
        twin = found.pop((row["query"], row["reference"]))
        assert (twin["distance"], twin["mirrored"]) == (row["distance"], row["mirrored"])
        assert twin["part_of"] == row["part_of"].replace("query", "reference")
    assert not found

    again = search(command, folders, tmp_path / "out", "--max_distance=0")
    assert again.returncode == 0, again.stderr
    found = "4 images with near-duplicates: 4 pairs, 1 of them mirrored and 0 with a part"
    assert found in again.stdout
    assert f"--set data.exclude={tmp_path / 'out'}/exclude.json" in again.stdout


@pytest.mark.parametrize(
    ("name", "published"),
    [("cifar10", ["435", "687"]), ("imagenet2012", ["6,470", "3,834"]), ("a", ["not in it"] * 2)],
)
def test_counts_of_bit_are_beside_those_of_its_data_sets(name, published):
    counts = {"data": f"{name} split", "images": 8, "with_duplicates": 2, "reference_images": 3}
    query = types.SimpleNamespace(source=types.SimpleNamespace(name=name))
    assert page._row(query, counts) == [f"{name} split", "8", "2", "25.00%", "3", *published]


def test_training_leaves_out_what_was_found(folders, command, tmp_path):
    root, copies = folders
    assert search(command, folders, tmp_path / "out").returncode == 0
    exclude, name = tmp_path / "out" / "exclude.json", f"folder:{root}/reference"
    source = open_source(name, "train")
    data = [
        f"--set=data.name={name}",
        f"--set=data.exclude={exclude}",
        "--set=data.eval_split=none",
    ]
    data += ["--set=data.bad_images=skip", "--set=model.image_size=32"]
    result = command("pretrain", "--dry_run", *data)
    assert result.returncode == 0, result.stderr
    assert f"5 of 47 examples are left out (data.exclude={exclude})" in result.stderr
    assert "42 examples" in result.stdout
    result = command("batch", "--json", "--set=train.batch_size=42", *data[:2])
    names = {example["name"] for example in json.loads(result.stdout)["examples"]}
    assert len(names) == 42 and not any("copy" in name for name in names)
    assert source.num_examples == 47

    result = command("pretrain", "--dry_run", f"--set=data.exclude={exclude}")
    assert_user_error(result, "is a list for folder:", "training reads digits")


def test_embeddings_find_what_hashes_miss(folders, command, tmp_path):
    flags = ["--model=shipped", "--min_cosine=0.95", "--max_distance=0", "--json"]
    result = search(command, folders, tmp_path / "out", *flags)
    assert result.returncode == 0, result.stderr
    record = json.loads(result.stdout)
    assert record["model"] and record["min_cosine"] == 0.95
    assert record["queries"][0]["with_duplicates"] >= 3
    with open(tmp_path / "out" / "pairs.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert any(int(row["distance"] or 65) > 0 for row in rows)
    assert all(int(row["distance"] or 65) == 0 or float(row["cosine"]) >= 0.95 for row in rows)


@pytest.mark.parametrize(
    ("flags", "texts"),
    [
        (["--query=digits"], ["--reference is missing"]),
        (["--reference=digits"], ["--query is missing"]),
        (["--reference=digits@trian", "--query=digits"], ["no split 'trian'", "train"]),
        (["--reference=digitz", "--query=digits"], ["no data set named 'digitz'"]),
        (["--reference=folder:none", "--query=digits"], ["There is no folder"]),
        (["--reference=digits", "--query=digits", "--min_cosine=0.9"], ["belongs to --model"]),
        (["--reference=digits", "--query=digits", "--model="], ["--model is empty"]),
        (["--reference=digits", "--query=digits", "--model=none.npz"], ["none.npz"]),
        (["--reference=digits", "--query=digits", "--max_distance=21"], ["max_distance"]),
        (["--reference=digits", "--query=digits", "--output=.."], ["is not empty"]),
    ],
)
def test_wrong_input_is_one_sentence(command, tmp_path, flags, texts):
    (tmp_path / "cwd").mkdir()
    assert_user_error(command("dedup", *flags, cwd=tmp_path / "cwd"), *texts)
    assert os.listdir(tmp_path / "cwd") == []


def test_splits_behind_the_name(folders, tmp_path):
    root, _ = folders
    assert open_named("digits", None, is_query=False).split == "train"
    assert open_named("digits", None, is_query=True).split == "test"
    assert open_named("digits@train[:10]", None, is_query=True).num_examples == 10
    assert open_named("folder:reference@test", root, is_query=False).num_examples == 2
    # The only split is taken whole.
    for name in ("a@b", "c"):
        for label in (0, 1):
            write(
                tmp_path / name / str(label) / "x.png", encoded.encode(encoded.pixels(9, 9), "PNG")
            )
    for is_query in (False, True):
        assert open_named(f"folder:{tmp_path}/c", None, is_query=is_query).split == "train"
    whole = open_named(f"folder:{tmp_path}/a@b@train", None, is_query=False)
    assert whole.num_examples == 2
    with pytest.raises(DataError, match="There is no folder"):
        open_named(f"folder:{tmp_path}/a@b", None, is_query=False)


def test_data_sets_with_several_labels_need_no_choice(monkeypatch):
    """No label is compared; `open_source` would ask for data.label."""
    opened = []
    monkeypatch.setattr(studied, "open_source", lambda *arguments: opened.append(arguments))
    for name in ("clevr:3.*.*", "dsprites", "cifar10"):
        open_named(f"{name}@test", "/data", is_query=True)
    labels = [label for *_, label in opened]
    assert labels[0] in RULES["clevr"] and labels[1] in RULES["dsprites"] and labels[2] is None
    assert opened[0][:3] == ("clevr:3.*.*", "test", "/data")


def test_images_that_are_too_alike_for_the_distance_are_said(command, tmp_path):
    """Digits of 8 x 8 pixels: most have a near hash, and none is a copy."""
    flags = ["--reference=digits@train", "--query=digits@test", "--output=a"]
    result = command("dedup", *flags, "--max_distance=10")
    assert result.returncode == 0, result.stderr
    lines = (result.stdout + result.stderr).splitlines()
    [line] = [line for line in lines if line.startswith("warning:")]
    assert "of the images of digits" in line and "too alike for --max_distance=10" in line
    result = command("dedup", *flags, "--max_distance=0")
    assert result.returncode == 0 and "warning:" not in result.stdout + result.stderr
