"""The files of `evaluate --report`: they agree, on all strategies, and are inert and readable."""

import csv
import functools
import json
import os

import numpy as np
import pytest
import tensorflow as tf
from sklearn.metrics import average_precision_score, precision_recall_fscore_support

import vit_tf
from pipelines.data.sources.arrays import ArraySource
from pipelines.data.sources.open import open_source
from pipelines.errors import NonFiniteError
from pipelines.evaluation.evaluate import evaluate
from pipelines.evaluation.predictions import Predicted
from pipelines.evaluation.report_files import write_report
from pipelines.stored_models import model_source
from tests.pipelines.encoded import encode
from tests.pipelines.hostile_names import HOSTILE
from tests.pipelines.process import assert_user_error
from tests.pipelines.reports.parsed_page import ParsedPage
from tests.pipelines.tiny import one_device, tiny_experiment, two_replicas
from tests.vit_tf import tiny
from vit_tf.classes import Classes
from vit_tf.images.decoding import decode_image

FILES = {"report.html", "report.json", "predictions.csv", "confusion.csv", "confusion.png"}


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A file of a model with random weights, and an evaluation of it with a report."""
    folder = tmp_path_factory.mktemp("digits")
    experiment = tiny_experiment("model.layers=1")
    model = vit_tf.create_model(experiment.model.config(10))
    tiny.randomize(model)
    vit_tf.save_npz(model, folder / "model.npz", experiment.preprocessing())
    return folder, _evaluated(folder / "model.npz", folder / "report", one_device(), 64)


def _evaluated(model, report, strategy, batch_size, source=None, **options):
    return evaluate(
        model_source.find(model),
        source or open_source("digits", "test"),
        strategy,
        batch_size=batch_size,
        bad_images="stop",
        report=report,
        **options,
    )


def _rows(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def _matrix(folder):
    return np.array([row[1:] for row in _rows(folder / "confusion.csv")[1:]], int)


def test_all_files_agree_with_a_plain_loop(digits):
    folder, means = digits
    report = folder / "report"
    assert set(os.listdir(report)) == FILES
    source = open_source("digits", "test")
    stored = source.read(range(300))
    model, prepare, _ = model_source.find(folder / "model.npz").open_model()
    logits = model(tf.stack([prepare(decode_image(image)) for image in stored.images]))
    order = np.argsort(stored.ids)
    probabilities, labels = tf.nn.softmax(logits).numpy()[order], stored.labels[order]
    predicted = probabilities.argmax(axis=1)

    header, *rows = _rows(report / "predictions.csv")
    assert header[:5] == ["id", "path", "label", "class_1", "probability_1"] and len(header) == 13
    assert [int(row[0]) for row in rows] == sorted(stored.ids)
    assert [row[1] for row in rows] == [""] * 300
    assert [int(row[2]) for row in rows] == labels.tolist()
    assert [int(row[3]) for row in rows] == predicted.tolist()
    best = -np.sort(-probabilities, axis=1)[:, :5]
    np.testing.assert_allclose([[float(x) for x in row[4::2]] for row in rows], best, rtol=1e-4)

    matrix = _matrix(report)
    assert matrix.sum() == means["examples"] == 300
    assert np.trace(matrix) / 300 == pytest.approx(means["accuracy"])
    record = json.loads((report / "report.json").read_text())
    assert record["accuracy"] == means["accuracy"] and record["images_per_second"] > 0
    expected = precision_recall_fscore_support(labels, predicted, zero_division=0)
    for name, column in zip(("precision", "recall", "f1", "support"), expected, strict=True):
        np.testing.assert_allclose([x[name] for x in record["classes"]], column, rtol=1e-12)
    assert sum(x["images"] for x in record["calibration"]) == 300
    gaps = [x["images"] * abs(x["accuracy"] - x["confidence"]) for x in record["calibration"]]
    assert record["calibration_error"] == pytest.approx(sum(gaps) / 300)

    page = ParsedPage((report / "report.html").read_text())
    page.check_self_contained()
    assert f"{means['accuracy']:.2%}" in page.text("b")
    wrong = np.flatnonzero(predicted != labels)
    wrong = wrong[np.argsort(-probabilities[wrong].max(axis=1))][:20]
    uncertain = np.argsort(probabilities.max(axis=1))[:20]
    ids = [np.sort(stored.ids)[row] for row in (*wrong, *uncertain)]
    names = page.all("div", class_="where")
    assert len(names) == len(page.all("img")) == 40
    where = [text for text in page.text("div") if text.startswith("test example ")]
    assert where == [source.describe(int(example_id)) for example_id in ids]
    first = page.all("img")[0]
    assert first["alt"] == f"a {labels[wrong[0]]}, classified as {predicted[wrong[0]]}"


@pytest.mark.parametrize(("make", "batch_size"), [(one_device, 300), (two_replicas, 7)])
def test_the_report_is_that_of_every_strategy(digits, tmp_path, make, batch_size):
    """Also with padding: 300 is no multiple of 8."""
    folder, means = digits
    other = _evaluated(folder / "model.npz", tmp_path / "r", make(), batch_size)
    assert other["accuracy"] == means["accuracy"]
    np.testing.assert_array_equal(_matrix(tmp_path / "r"), _matrix(folder / "report"))
    found, wanted = (_rows(x / "predictions.csv")[1:] for x in (tmp_path / "r", folder / "report"))
    assert [row[:4] for row in found] == [row[:4] for row in wanted]
    shares = ([[float(x) for x in row[4::2]] for row in rows] for rows in (found, wanted))
    np.testing.assert_allclose(*shares, rtol=1e-4)


def test_a_part_of_the_data_and_of_the_classes(digits, tmp_path):
    """A cap on batches; a label map that leaves out a class, whose images do not count."""
    folder, _ = digits
    model = folder / "model.npz"
    means = _evaluated(model, tmp_path / "a", one_device(), 32, max_batches=3)
    assert _matrix(tmp_path / "a").sum() == means["examples"] == 96
    (tmp_path / "map.txt").write_text("1\n-\n7\n3\n9\n")
    means = _evaluated(
        model,
        tmp_path / "b",
        one_device(),
        32,
        open_source("digits/low", "test"),
        label_map=str(tmp_path / "map.txt"),
    )
    matrix = _matrix(tmp_path / "b")
    assert matrix.shape == (5, 5) and matrix.sum() == means["examples"] < 150
    assert matrix[1].sum() == matrix[:, 1].sum() == 0


def test_a_folder_of_images_has_its_paths(tmp_path, digits, command):
    rng = np.random.default_rng(0)
    for name in ("<b>a", "b"):
        (tmp_path / "test" / name).mkdir(parents=True)
        for number in range(3):
            image = rng.integers(0, 256, [400, 300, 3], np.uint8)
            (tmp_path / "test" / name / f"{number}.png").write_bytes(encode(image, "PNG"))
    (tmp_path / "test/b/broken.png").write_bytes(b"no image")
    (tmp_path / "map.json").write_text('{"<b>a": 0, "b": 1}')
    result = command(
        "evaluate",
        f"--model={digits[0] / 'model.npz'}",
        "--set=data.name=folder:.",
        "--set=data.eval_split=test",
        "--set=data.bad_images=skip",
        "--label_map=map.json",
        "--report=out/report",
    )
    assert result.returncode == 0, result.stderr
    assert "wrote out/report/report.html" in result.stderr
    _, *rows = _rows(tmp_path / "out/report/predictions.csv")
    listed = [
        str(tmp_path / "test" / name / f"{i}.png") for name in ("<b>a", "b") for i in range(3)
    ]
    assert [row[1] for row in rows] == listed and _matrix(tmp_path / "out/report").sum() == 6
    assert [row[2] for row in rows] == ["<b>a"] * 3 + ["b"] * 3
    text = (tmp_path / "out/report/report.html").read_text()
    assert "<b>a" not in text and "&lt;b&gt;a" in text
    assert listed[0] in ParsedPage(text).text("div")
    assert len(text) < 1e6  # Pictures are small.


def test_a_report_that_cannot_be_written(digits, command, tmp_path):
    (tmp_path / "file").write_text("")
    result = command("evaluate", "--report=file", "--set=data.eval_split=test[:5]")
    assert_user_error(result, "--report file is a file. Name a directory.")
    model = tiny.shared(image_size=(16, 16), num_classes=10)
    model.head.kernel.assign(np.full(model.head.kernel.shape, np.nan))
    vit_tf.save_npz(model, tmp_path / "nan.npz")
    with pytest.raises(NonFiniteError, match="there is no report"):
        with pytest.warns(UserWarning, match="NaN"):
            _evaluated(tmp_path / "nan.npz", tmp_path / "r", one_device(), 50)
    assert not (tmp_path / "r").exists()


def test_multi_label_data_have_average_precisions(tmp_path):
    rng = np.random.default_rng(0)
    lists = [np.flatnonzero(rng.random(4) < 0.4).tolist() for _ in range(30)]
    names = ["a", "b", "c", "d", "nowhere"]
    source = ArraySource(rng.integers(0, 256, [30, 11, 14, 3], np.uint8), lists, names)
    model = tiny.shared()
    prepare = vit_tf.Preprocessing(image_size=(11, 14))
    vit_tf.save_npz(model, tmp_path / "m.npz", prepare, Classes(activation="sigmoid"))
    reports = {}
    for make in (one_device, two_replicas):
        folder = tmp_path / make.__name__
        means = _evaluated(tmp_path / "m.npz", folder, make(), 8, source)
        assert set(os.listdir(folder)) == {"report.html", "report.json", "predictions.csv"}
        reports[make] = json.loads((folder / "report.json").read_text())["classes"]
        header, *rows = _rows(folder / "predictions.csv")
        assert len(rows) == means["examples"] == 30
        assert [json.loads(row[2]) for row in rows] == [[names[x] for x in own] for own in lists]
    stored = source.read(range(30))
    logits = model(tf.stack([prepare(decode_image(image)) for image in stored.images])).numpy()
    targets = np.stack([np.isin(range(5), own) for own in stored.labels])
    for classes in reports.values():
        assert [x["support"] for x in classes] == targets.sum(axis=0).tolist()
        assert classes[4]["average_precision"] is None
        for one in range(4):
            expected = average_precision_score(targets[:, one], logits[:, one])
            assert classes[one]["average_precision"] == pytest.approx(expected)
    precisions = [x["average_precision"] for x in reports[one_device][:4]]
    assert means["mean_average_precision"] == pytest.approx(np.mean(precisions))
    page = ParsedPage((folder / "report.html").read_text())
    assert "Average precision" in page.text("th") and "Confusion matrix" not in page.text("h2")
    assert "without a label" in (folder / "report.html").read_text()


def _invented(classes, images, names):
    """A report on invented predictions, to look at pages with many or with hostile classes."""
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, [images, 8, 8, 3], np.uint8)
    labels = rng.integers(0, classes, images)
    source = ArraySource(pixels, labels, names, name=names[0])
    guesses = np.where(rng.random(images) < 0.7, labels, rng.integers(0, classes, images))
    found = (guesses[:, None] + np.arange(5)) % classes
    shares = -np.sort(-rng.dirichlet(np.ones(5), images), axis=1)
    predicted = Predicted(np.arange(images), labels, found, shares)
    means = {"accuracy": np.mean(guesses == labels), "top_5_accuracy": 1.0}
    means |= {"examples": images, "loss": 1.0}
    return functools.partial(write_report, model_name=names[0], source=source, names=names,
                             predicted=predicted, means=means)  # fmt: skip


def test_200_classes(tmp_path):
    _invented(200, 2000, [f"class {number}" for number in range(200)])(tmp_path)
    text = (tmp_path / "report.html").read_text()
    page = ParsedPage(text)
    assert len(text) < 1e6 and _matrix(tmp_path).sum() == 2000
    # Too many for names beside the matrix, but all are in the table.
    assert not {text for text in page.text("text") if text.startswith("class ")}
    assert {f"class {number}" for number in range(200)} <= set(page.text("td"))
    assert len(page.all("tr")) == 1 + 20 + 1 + 200


def test_more_classes_than_a_matrix_can_have(tmp_path):
    _invented(2500, 3000, [str(number) for number in range(2500)])(tmp_path)
    header, *rows = _rows(tmp_path / "confusion.csv")
    assert header == ["label", "predicted", "images"]
    assert sum(int(row[2]) for row in rows) == 3000
    text = (tmp_path / "report.html").read_text()
    assert "3 x 3 neighboring classes" in text and "has 1,000 of 2,500" in text
    assert len(text) < 4e6


def test_hostile_names_are_readable_and_inert(tmp_path):
    _invented(10, 200, HOSTILE)(tmp_path)
    text = (tmp_path / "report.html").read_text()
    page = ParsedPage(text)
    page.check_self_contained()
    assert len(page.all("style")) == 1 and "<script" not in text
    assert len(text) < 1e6 and max(map(len, text.split("\n"))) < 60_000
    cells = page.text("td")
    assert "<script>alert(1)</script>" in cells
    assert "x" * 59 + "…" in cells and "right to left \u05d0\u05d1" in cells
    assert "$\\frac{1}{0}$ line break [31m" in cells and "{{ 7 * 7 }}{% raw %}" in cells
    assert "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645 \u732b\u1f600" in cells
    assert not any(character in text for character in "\u202e\x00\x1b")
    assert [row[0] for row in _rows(tmp_path / "confusion.csv")[1:]] == HOSTILE
