"""`predict --output` against `evaluate --report` and the model's own logits; kills; odd names."""

import csv
import io
import json
import os

import numpy as np
import pyarrow.parquet
import pytest
import tensorflow as tf

import vit_tf
from pipelines.data.sources.open import open_source
from tests.pipelines import encoded
from tests.pipelines.process import assert_user_error, run_module
from tests.vit_tf import tiny
from vit_tf.classes import Classes
from vit_tf.images.decoding import decode_image

LABELS = ("null", "one", "zwei", "três", "四")
DIGITS = ("--set=data.name=digits", "--set=data.eval_split=test[:100]")


def _write_model(folder, activation="softmax"):
    model = tiny.model()
    rule = vit_tf.Preprocessing(image_size=model.config.image_size)
    classes = Classes(labels=LABELS, activation=activation)
    vit_tf.save_npz(model, folder / "model.npz", rule, classes)
    return lambda image: model(rule(decode_image(image))[None]).numpy()[0].astype(np.float64)


def _table(path):
    text = path.read_bytes().decode()
    return list(csv.DictReader(io.StringIO(text, newline=""), strict=True))


def test_a_data_set_gets_the_predictions_of_evaluate(command, tmp_path):
    """Rows are in stored order, not in the order of the ids, as in the report."""
    result = command("evaluate", *DIGITS, "--report=report")
    assert result.returncode == 0, result.stderr
    result = command("predict", *DIGITS, "--output=p.csv", "--batch_size=17")
    assert result.returncode == 0, result.stderr
    assert result.stdout == "wrote p.csv: 100 images\n"
    found, wanted = _table(tmp_path / "p.csv"), _table(tmp_path / "report" / "predictions.csv")
    assert [int(row["id"]) for row in found] == open_source("digits", "test[:100]").ids(
        range(100)
    ).tolist()
    for row, other in zip(sorted(found, key=lambda row: int(row["id"])), wanted, strict=True):
        assert row.pop("error") == ""
        assert row.keys() == other.keys()
        for name, value in other.items():
            if name.startswith("probability"):
                assert float(row[name]) == pytest.approx(float(value), rel=1e-4)
            else:
                assert row[name] == value


def _write_folder(root):
    """Files with odd names, one of them broken; returns path -> bytes of the readable ones."""
    names = [b"a, b.png", b'quote"d.png', b"line\nbreak.png", "花.png".encode(), b"\xff.png"]
    contents = {}
    root.mkdir()
    for i, name in enumerate(names):
        path = os.fsencode(root) + b"/" + name
        contents[os.fsdecode(path)] = encoded.encode(encoded.pixels(9, 7, seed=i), "PNG")
        with open(path, "wb") as file:
            file.write(contents[os.fsdecode(path)])
    (root / "broken.jpg").write_bytes(encoded.broken()["cut JPEG"])
    return contents


def test_named_images(command, tmp_path):
    logits, contents = _write_model(tmp_path), _write_folder(tmp_path / "in")
    arguments = ("--model=model.npz", tmp_path / "in", "none.png")
    for name in ("p.csv", "p.jsonl"):
        result = command("predict", *arguments, f"--output={name}", "--top=9")
        assert result.returncode == 1
        assert "2 of 7 images have no result" in result.stderr.splitlines()[-1]
        assert f"The first: Cannot decode {tmp_path}/in/broken.jpg" in result.stderr
    lines = [json.loads(x) for x in (tmp_path / "p.jsonl").read_bytes().decode().splitlines()]
    errors = {line["path"]: line["error"] for line in lines if "error" in line}
    assert list(errors) == [str(tmp_path / "in" / "broken.jpg"), "none.png"]
    assert errors["none.png"] == "There is no image or folder at none.png."
    assert [line["path"] for line in lines] == [
        *sorted([*contents, next(iter(errors))]),
        "none.png",
    ]
    rows = _table(tmp_path / "p.csv")
    for line, row in zip(lines, rows, strict=True):
        escaped = line["path"].encode("utf-8", "backslashreplace").decode()
        assert (row["id"], row["path"], row["label"]) == ("", escaped, "")
        assert row["error"] == line.get("error", "")
        if "top" not in line:
            continue
        assert line.keys() == {"path", "top"}
        expected = tf.nn.softmax(logits(contents[line["path"]])).numpy()
        order = np.argsort(-expected)
        assert [one["index"] for one in line["top"]] == order.tolist()
        found = [one["probability"] for one in line["top"]]
        np.testing.assert_allclose(found, expected[order], rtol=1e-4)
        assert [float(row[f"probability_{i}"]) for i in range(1, 6)] == found
        assert [row[f"class_{i}"] for i in range(1, 6)] == [LABELS[i] for i in order]

    result = command("predict", "--model=model.npz", "in/broken.jpg", "--output=q.csv")
    assert_user_error(result, "Cannot decode in/broken.jpg", "None of the images")
    assert len(_table(tmp_path / "q.csv")) == 1
    assert_user_error(command("predict", "none.png", "--output=r.csv"), "There is no image")
    assert not (tmp_path / "r.csv").exists()


def test_lists_of_labels_take_sigmoids(command, tmp_path):
    logits, contents = _write_model(tmp_path, "sigmoid"), _write_folder(tmp_path / "in")
    paths = [path for path in contents if os.fsencode(path).decode(errors="ignore") == path]
    rows = [{"path": path, "labels": ["x", "y"][:i]} for i, path in enumerate(paths[:3])]
    rows.append({"path": str(tmp_path / "in" / "broken.jpg"), "labels": ["y"]})
    (tmp_path / "list.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = ("--set=data.name=list:list.jsonl", "--set=data.eval_split=train")
    for name in ("p.csv", "p.jsonl"):
        result = command("predict", "--model=model.npz", *data, f"--output={name}", "--top=2")
        assert result.returncode == 1, result.stderr
    table = {row["path"]: row for row in _table(tmp_path / "p.csv")}
    for line in (tmp_path / "p.jsonl").read_text().splitlines():
        found = json.loads(line)
        row = next(row for row in rows if row["path"] == found["path"])
        assert found["id"] == rows.index(row) and found["label"] == row["labels"]
        assert json.loads(table[row["path"]]["label"]) == row["labels"]
        if "error" not in found:
            share = 1 / (1 + np.exp(-logits(contents[row["path"]])))
            best = [one["probability"] for one in found["top"]]
            np.testing.assert_allclose(best, -np.sort(-share)[:2], rtol=1e-4)
    printed = command("predict", "--model=model.npz", *data, "--json", "--top=2").stdout
    assert printed == (tmp_path / "p.jsonl").read_text()


@pytest.mark.process
def test_killed_processes_leave_the_same_bytes(tmp_path):
    """SIGKILL, then SIGTERM, then the rest."""
    program = "tests.pipelines.programs.killed_prediction"
    flags = (*DIGITS, "--batch_size=16", "--shards=3")

    def run(signal, parts, output):
        return run_module(program, signal, parts, *flags, f"--output={output}", cwd=tmp_path)

    assert run("SIGKILL", 3, "p.csv").returncode == -9
    assert os.listdir(tmp_path) == ["p.csv.partial"]
    result = run("SIGTERM", 2, "p.csv")
    assert result.returncode == 75, result.stderr
    assert "going on with p.csv.partial: 33 of 100 images are done" in result.stderr
    assert "SIGTERM: 67 of 100 images are done. Start the same command again" in result.stderr
    assert run("SIGKILL", 99, "p.csv").returncode == 0
    assert run("SIGKILL", 99, "q.csv").returncode == 0
    names = sorted(os.listdir(tmp_path))
    assert names == [f"{x}-{i:05}-of-00003.csv" for x in "pq" for i in range(3)]
    for one, other in zip(names[:3], names[3:], strict=True):
        assert (tmp_path / one).read_bytes() == (tmp_path / other).read_bytes()


def test_flags_that_do_not_fit(command, tmp_path):
    (tmp_path / "there.csv").touch()
    for arguments, texts in (
        (["--shards=2"], ["--shards needs --output"]),
        (["--overwrite"], ["--overwrite needs --output"]),
        (["--json", "--output=a.csv"], ["--json prints the results", ".jsonl has the same lines"]),
        (["--output=a.txt"], ["a.txt has no known format", ".csv or .jsonl"]),
        (["--output=there.csv"], ["there.csv is already there", "--overwrite"]),
        (["--shards=0"], ["shards"]),
        (["a.png", *DIGITS], ["Images and --set both name what to classify"]),
        (["a.png", "--experiment=digits"], ["Images and --experiment both name"]),
        (["--set=data.eval_split=none"], ["data.eval_split is none"]),
        (["--set=train.steps=3"], ["--set train.steps has no effect", "data.eval_split"]),
        (["--set=data.name=folder:none"], ["There is no folder"]),
    ):
        assert_user_error(command("predict", *arguments), *texts)
    assert os.listdir(tmp_path) == ["there.csv"]


def test_embeddings_are_what_the_head_reads(command, tmp_path):
    """Their product with the kernel of the head, plus its bias, gives the probabilities."""
    _write_model(tmp_path)
    images = [encoded.pixels(24, 18, seed) for seed in range(5)]
    paths = [tmp_path / f"{seed}.png" for seed in range(5)]
    for path, pixels in zip(paths, images, strict=True):
        path.write_bytes(encoded.encode(pixels, "PNG"))
    paths.insert(2, tmp_path / "broken.png")
    paths[2].write_bytes(b"broken")
    for flags in (["--embed=e.npy"], ["--embed=e.parquet"], ["--output=p.csv", "--top=5"]):
        result = command("predict", "--model=model.npz", *flags, *paths)
        assert result.returncode == 1, result.stderr
        assert "1 of 6 images have no result" in result.stderr
    embeddings, rows = np.load(tmp_path / "e.npy"), _table(tmp_path / "e.csv")
    assert embeddings.dtype == np.float32
    assert [row["path"] for row in rows] == [str(path) for path in paths]
    assert [bool(row["error"]) for row in rows] == [False, False, True, False, False, False]
    assert np.isnan(embeddings[2]).all()
    assert np.isfinite(embeddings[[0, 1, 3, 4, 5]]).all()
    table = pyarrow.parquet.read_table(tmp_path / "e.parquet")
    assert table.column_names == ["id", "path", "label", "embedding", "error"]
    for one, row, embedding in zip(table.to_pylist(), rows, embeddings, strict=True):
        assert (one["path"], one["error"] or "") == (row["path"], row["error"])
        assert (one["id"], one["label"]) == (None, None)
        assert one["embedding"] == (None if row["error"] else embedding.tolist())
    with np.load(tmp_path / "model.npz") as weights:
        assert weights["head/kernel"].any()
        logits = embeddings.astype(np.float64) @ weights["head/kernel"] + weights["head/bias"]
    expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    for row, shares in zip(_table(tmp_path / "p.csv"), expected, strict=True):
        if not row["error"]:
            found = {
                row[f"class_{rank}"]: float(row[f"probability_{rank}"]) for rank in range(1, 6)
            }
            wanted = dict(zip(LABELS, shares, strict=True))
            assert found == pytest.approx(wanted, rel=1e-5)
