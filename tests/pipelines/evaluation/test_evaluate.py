"""Evaluation of a saved model: as in training, every example once, with every strategy."""

import csv
import dataclasses
import functools
import json
import re
import shutil
import threading

import numpy as np
import pytest
import tensorflow as tf
from sklearn.datasets import load_digits

import vit_tf
from pipelines.config import Data
from pipelines.data import pipeline
from pipelines.data.builtin.digits import split_indices
from pipelines.data.sources.open import open_source, open_split
from pipelines.errors import UserError
from pipelines.evaluation.evaluate import evaluate
from pipelines.evaluation.evaluation_step import EvaluationData, Evaluator
from pipelines.runs import progress
from pipelines.runs.workdir import Workdir
from pipelines.stored_models import model_source
from pipelines.tasks import losses
from pipelines.tasks.classification import Classification
from pipelines.training.train import train
from tests.pipelines import encoded
from tests.pipelines.process import assert_user_error
from tests.pipelines.tiny import one_device, tiny_experiment, two_replicas
from tests.vit_tf import tiny
from vit_tf.images.decoding import decode_image


def evaluated(source, experiment, strategy):
    data = experiment.data
    return evaluate(
        source,
        open_source(data.name, data.eval_split, data.data_dir),
        strategy,
        batch_size=experiment.train.batch_size,
        bad_images=data.bad_images,
    )


@pytest.fixture
def evaluation(printed):
    """`evaluation(*flags)`: what `evaluate --json` prints."""
    return functools.partial(printed, "evaluate")


@pytest.fixture(scope="module")
def finished(finished_run, tmp_path_factory):
    """A run on one device that ended with the weights of its last evaluation, and that."""
    workdir = shutil.copytree(finished_run, tmp_path_factory.mktemp("finished") / "run")
    for end in ("", ".json"):
        (workdir / f"ema.npz{end}").replace(workdir / f"final.npz{end}")
    return workdir, Workdir(workdir).read_metrics()[-1]


# 300 is not a multiple of 32; 7 is odd, so it cannot be split between two replicas.
@pytest.mark.parametrize(
    ("make", "batch_size"),
    [
        (one_device, 32),
        (two_replicas, 7),
        pytest.param(one_device, 512, marks=pytest.mark.heavy("evaluation")),
        pytest.param(two_replicas, 300, marks=pytest.mark.heavy("evaluation")),
    ],
)
def test_evaluation_on_every_strategy_counts_once(finished, make, batch_size):
    workdir, last = finished
    changed = tiny_experiment(f"train.batch_size={batch_size}")
    means = evaluated(model_source.find(workdir), changed, make())
    assert means["examples"] == 300
    assert means["accuracy"] == last["eval_accuracy"]
    assert means["loss"] == pytest.approx(last["eval_loss"], rel=1e-5)


def test_evaluation_equals_a_plain_loop(finished):
    workdir, last = finished
    digits = load_digits()
    chosen = split_indices("test")
    images = np.round(digits.images[chosen] * 255 / 16).astype(np.uint8)
    model, preprocessing, _ = model_source.find(workdir).open_model()
    inputs = preprocessing(tf.repeat(tf.constant(images)[..., None], 3, axis=-1))
    predicted = np.argmax(model(inputs), axis=-1)
    assert np.mean(predicted == digits.target[chosen]) == pytest.approx(last["eval_accuracy"])


def test_fused_evaluation(finished, command):
    workdir, last = finished
    done = command("evaluate", "--model", workdir, "--fused", "--json")
    assert done.returncode == 0 and "blocks in one op, float32" in done.stderr
    means = json.loads(done.stdout)
    assert means["accuracy"] == last["eval_accuracy"]
    assert means["loss"] == pytest.approx(last["eval_loss"], rel=1e-4)


def test_evaluating_on_other_classes_is_refused(finished):
    workdir, _ = finished
    with pytest.raises(UserError, match="10 .*digits/low .*5"):
        evaluated(model_source.find(workdir), tiny_experiment("data.name=digits/low"), one_device())


@pytest.fixture(scope="module")
def unusual(tmp_path_factory):
    """A finished run in which every setting that affects an evaluation differs from its default."""
    workdir = tmp_path_factory.mktemp("unusual") / "run"
    experiment = tiny_experiment(
        "data.name=digits/low",
        "data.eval_split=validation",
        "data.resize=resize_small",
        "data.resize_to=14",
        "data.interpolation=bicubic",
        "data.antialias=true",
        "data.mean=0.4,0.5,0.6",
        "data.std=0.3,0.5,0.7",
        "model.dtype=mixed_bfloat16",
        "train.loss=sigmoid",
        "train.label_smoothing=0.2",
        "train.steps=4",
    )
    return workdir, train(experiment, workdir, one_device())


def test_a_run_is_evaluated_as_it_was_in_training(unusual, evaluation):
    """With its data, its preprocessing, its loss and its dtype."""
    workdir, last = unusual
    means = evaluation(f"--model={workdir}")
    for name in ("accuracy", "top_5_accuracy"):
        assert means[name] == last[f"eval_{name}"]
    # A float32 evaluation differs by more than 1e-4.
    assert means["loss"] == pytest.approx(last["eval_loss"], rel=1e-6)


def test_settings_change_the_data_of_a_run(unusual, evaluation):
    """`--workdir` is another name for the model of a run."""
    workdir, last = unusual
    own = evaluation(f"--workdir={workdir}", "--set=train.batch_size=7")
    test = evaluation(f"--model={workdir}", "--set=data.eval_split=test[:31]")
    assert own["loss"] == pytest.approx(last["eval_loss"], rel=1e-2)
    assert test["examples"] == 31 != own["examples"]


@pytest.mark.parametrize(
    ("flags", "texts"),
    [
        (["--experiment=digits"], ["run is a run and has its own experiment. Leave out"]),
        (
            ["--set=data.resize=direct", "--set=train.batch_size=3", "--set=data.resize_to=none"],
            ["--set data.resize, data.resize_to has no effect", "train.batch_size"],
        ),
        (["--set=train.loss=softmax"], ["--set train.loss has no effect", "as it was trained"]),
        (["--set=model.name=BiT-R50x1"], ["--set model.name has no effect"]),
        (["--set=model.stem.width=2"], ["--set model.stem.width has no effect"]),
        (["--set=data.crop=none"], ["--set data.crop has no effect"]),
        (["--set=train.steps=3"], ["--set train.steps has no effect"]),
        (["--set=train.step=3"], ["Unknown config path 'train.step'"]),
    ],
)
def test_settings_without_an_effect_are_refused(unusual, command, flags, texts):
    workdir, _ = unusual
    assert_user_error(command("evaluate", f"--model={workdir}", *flags), *texts)


def test_only_the_data_of_another_model_are_those_of_the_recipe(command):
    result = command("evaluate", "--set=data.resize=direct")
    assert_user_error(result, "shipped is evaluated as it was trained")
    flags = ["--experiment=digits", "--set=data.eval_split=test[:20]"]
    assert command("evaluate", *flags).returncode == 0


@pytest.mark.parametrize(
    ("kind", "loss"),
    [
        ("npz", "softmax"),
        pytest.param("keras", "sigmoid", marks=pytest.mark.heavy("evaluation")),
        pytest.param("workdir", "softmax", marks=pytest.mark.heavy("evaluation")),
    ],
)
def test_a_model_without_stored_preprocessing(finished, evaluation, tmp_path, kind, loss):
    """The command uses the settings of its flags: here a central crop, and a loss."""
    model = model_source.find(finished[0]).open_model().model
    path = tmp_path / ("run" if kind == "workdir" else f"model.{kind}")
    if kind == "workdir":
        shutil.copytree(finished[0], path)
        (path / "final.npz.json").unlink()
    elif kind == "npz":
        shutil.copy(finished[0] / "final.npz", path)
    else:
        model.save(path)
    crop = ["--set=data.resize=resize_small", "--set=data.resize_to=18"]
    flags = [*crop, f"--set=train.loss={loss}", "--set=data.eval_split=test[:50]"]
    means = evaluation(f"--model={path}", *flags)
    examples = open_source("digits", "test[:50]").read(range(50))
    prepare = vit_tf.Preprocessing(image_size=(12, 12), resize="resize_small", resize_to=18)
    images = tf.stack([prepare(decode_image(data)) for data in examples.images])
    logits = model(images).numpy().astype(np.float64)
    targets = np.eye(10)[examples.labels]
    losses_of_images = {
        "softmax": np.log(np.exp(logits).sum(axis=1)) - (logits * targets).sum(axis=1),
        "sigmoid": (np.log1p(np.exp(logits)) - logits * targets).sum(axis=1),
    }
    assert means["loss"] == pytest.approx(losses_of_images[loss].mean(), rel=1e-5)
    assert means["accuracy"] == pytest.approx(np.mean(logits.argmax(axis=1) == examples.labels))


def test_other_preprocessing_of_a_file_without_a_sidecar(finished, evaluation, tmp_path):
    """Every field reaches the pixels: a plain loop over these images has the same loss."""
    path = tmp_path / "model.npz"
    shutil.copy(finished[0] / "final.npz", path)
    fields = {"resize": "center", "crop_fraction": 0.7, "interpolation": "bicubic"}
    fields |= {"antialias": True, "mean": (0.4, 0.5, 0.6), "std": (0.3, 0.5, 0.7)}
    texts = {name: str(value).strip("()").lower() for name, value in fields.items()}
    flags = [f"--set=data.{name}={text}" for name, text in texts.items()]
    means = evaluation(f"--model={path}", *flags, "--set=data.eval_split=test[:40]")
    examples = open_source("digits", "test[:40]").read(range(40))
    prepare = vit_tf.Preprocessing(image_size=(12, 12), **fields)
    model = model_source.find(path).open_model().model
    images = tf.stack([prepare(decode_image(data)) for data in examples.images])
    expected = losses.cross_entropy(tf.constant(examples.labels), model(images), "softmax")
    assert means["loss"] == pytest.approx(float(tf.reduce_mean(expected)), rel=1e-5)
    assert means["images_per_second"] > 0


def one_output(folder, labels, activation="softmax"):
    """A model with one output, as it is and as a `StoredModel`, and images of cats and dogs."""
    model = tiny.shared(num_classes=1, seed=2)
    for index in range(12):
        path = folder / "data" / ("dog" if index % 3 else "cat") / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded.encode(encoded.pixels(11, 14, seed=index), "PNG"))
    classes = vit_tf.Classes(labels=labels, activation=activation)
    rule = vit_tf.Preprocessing(image_size=(11, 14))
    vit_tf.save_npz(model, folder / "model.npz", rule, classes)
    source = model_source.find(folder / "model.npz")
    return model, source, open_source(f"folder:{folder / 'data'}", "train")


def signed_logits(model, examples, positive):
    """The logit of each image, whose sign is changed for images of the other class."""
    stored = examples.read(range(examples.num_examples))
    rule = vit_tf.Preprocessing(image_size=model.config.image_size)
    images = tf.stack([rule(decode_image(data)) for data in stored.images])
    return model(images).numpy()[:, 0] * np.where(stored.labels == positive, 1, -1)


@pytest.mark.parametrize(
    ("labels", "positive", "activation"),
    [
        (("cat",), 0, "sigmoid"),
        pytest.param((), 1, "softmax", marks=pytest.mark.heavy("evaluation")),
        pytest.param(("dog", "cat"), 0, "softmax", marks=pytest.mark.heavy("evaluation")),
    ],
)
def test_one_output_is_evaluated_as_two_classes(tmp_path, labels, positive, activation):
    """As a sigmoid, by name: each image counts for the class of its label."""
    model, source, examples = one_output(tmp_path, labels, activation)
    report = tmp_path / "report"
    found = evaluate(
        source, examples, one_device(), batch_size=5, bad_images="stop", report=str(report)
    )
    logits = signed_logits(model, examples, positive)
    assert 0 < np.mean(logits > 0) < 1
    assert found["accuracy"] == pytest.approx(np.mean(logits > 0))
    assert found["loss"] == pytest.approx(np.log1p(np.exp(-logits)).mean(), rel=1e-4)
    rows = csv.DictReader((report / "predictions.csv").read_text().splitlines())
    assert {row["label"] for row in rows} == {"cat", "dog"}


def test_one_output_with_other_classes_needs_a_label_map(tmp_path):
    model, source, examples = one_output(tmp_path, ("Katze",))
    batch = {"batch_size": 8, "bad_images": "stop"}
    for other in (examples, open_source("digits", "test")):
        with pytest.raises(UserError, match="one output .Katze."):
            evaluate(source, other, one_device(), **batch)
    (tmp_path / "map.txt").write_text("Katze\nnot Katze\n")
    found = evaluate(source, examples, one_device(), label_map=str(tmp_path / "map.txt"), **batch)
    logits = signed_logits(model, examples, positive=0)
    assert found["loss"] == pytest.approx(np.log1p(np.exp(-logits)).mean(), rel=1e-4)


@pytest.mark.parametrize(
    "missing", [pytest.param(False, marks=pytest.mark.heavy("evaluation")), True]
)
def test_a_label_map_leaves_out_the_other_classes(finished, tmp_path, logged, missing):
    """The model of ten digits on five of them: the softmax is over the logits of the map.

    Images of a class that the map does not have are left out.
    """
    source = model_source.find(finished[0])
    examples = open_source("digits/low", "test")
    path = tmp_path / "map.txt"
    path.write_text("1\n-\n7\n3\n9\n" if missing else "1\n0\n7\n3\n9\n")
    batch = {"batch_size": 32, "bad_images": "stop"}
    means = evaluate(source, examples, one_device(), label_map=str(path), **batch)
    model, preprocessing, _ = source.open_model()
    stored = examples.read(range(examples.num_examples))
    images = tf.stack([preprocessing(decode_image(data)) for data in stored.images])
    logits = model(images).numpy().astype(np.float64)[:, [1, 0, 7, 3, 9]]
    labels = stored.labels
    if missing:
        kept = labels != 1
        logits, labels = np.delete(logits[kept], 1, axis=1), (labels - (labels > 1))[kept]
        assert 0 < len(labels) < len(kept)
    own = logits[np.arange(len(logits)), labels]
    assert means["loss"] == pytest.approx((np.log(np.exp(logits).sum(axis=1)) - own).mean())
    assert means["accuracy"] == pytest.approx(np.mean(logits.argmax(axis=1) == labels))
    assert means["examples"] == len(logits)
    said = "1 of 5 classes are left out: 1\n"
    assert (said in logged.take()) == missing


def test_a_label_map_without_the_classes_of_the_images(finished, tmp_path):
    source, examples = model_source.find(finished[0]), open_source("digits/low", "test[:1]")
    (label,) = examples.read(range(1)).labels
    path = tmp_path / "map.txt"
    path.write_text("\n".join("-" if index == label else str(index) for index in range(5)))
    with pytest.raises(UserError, match="None of .*label map"):
        evaluate(
            source,
            examples,
            one_device(),
            batch_size=1,
            bad_images="stop",
            label_map=str(path),
        )


def test_a_model_without_a_head(command, tmp_path):
    model = vit_tf.create_model(tiny_experiment().model.config(0))
    vit_tf.save_npz(model, tmp_path / "headless.npz")
    (tmp_path / "map.txt").write_text("0\n")
    for flags in ([], ["--label_map=map.txt"]):
        assert_user_error(
            command("evaluate", "--model=headless.npz", *flags), "headless.npz has no head"
        )


def test_a_label_map_that_does_not_fit(finished, command, tmp_path):
    (tmp_path / "map.txt").write_text("zero\n")
    result = command("evaluate", f"--model={finished[0]}", "--label_map=map.txt")
    assert_user_error(result, "map.txt has 1 classes, the data have 10")
    result = command("evaluate", f"--model={finished[0]}", "--set=data.name=digits/low")
    assert_user_error(result, "digits/low has 5", "--label_map FILE")


def test_a_cap_on_batches_takes_batches_from_all_of_the_data(finished, command):
    result = command(
        "evaluate", f"--model={finished[0]}", "--max_batches=3", "--set=train.batch_size=32"
    )
    assert result.returncode == 0, result.stderr
    lines = dict(line.split(": ") for line in result.stdout.splitlines())
    assert lines["examples"] == "96"
    assert int(lines["images_per_second"].replace(",", "")) > 0
    examples = open_source("digits", "test")
    options = {"batch_size": 32, "preprocessing": vit_tf.Preprocessing(image_size=(8, 8))}
    whole = [batch["id"].numpy() for batch in pipeline.eval_dataset(examples, **options)]
    assert len(whole) == 10
    for count, expected in ((3, [0, 3, 6]), (10, range(10)), (11, range(10))):
        capped = pipeline.eval_dataset(examples, max_batches=count, **options)
        ids = [batch["id"].numpy() for batch in capped]
        np.testing.assert_array_equal(ids, [whole[i] for i in expected])


def test_evaluations_in_training_are_capped(tmp_path, uncompiled):
    settings = ("train.steps=4", "train.eval_batches=2", "train.batch_size=20")
    last = train(tiny_experiment(*settings), tmp_path / "run", one_device())
    assert last["eval_examples"] == 40


def test_a_folder_without_a_test_split(command, tmp_path):
    for label in range(10):
        (tmp_path / "images" / str(label)).mkdir(parents=True)
        for i in range(2):
            image = tf.fill([8, 8, 3], tf.constant(20 * label + i, tf.uint8))
            (tmp_path / "images" / str(label) / f"{i}.png").write_bytes(
                tf.io.encode_png(image).numpy()
            )
    result = command("evaluate", "--set=data.name=folder:images", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["examples"] == 10  # One of each class.
    assert "images has the split train: evaluation takes train[90%:]" in result.stderr


def _angles(folder, kind):
    """A folder or list of 0, 90, 180 and 270 degrees, which text sorts otherwise."""
    rows = ["path,label"]
    for number, angle in enumerate((0, 90, 180, 270)):
        (folder / f"{angle} deg").mkdir()
        pixels = tf.fill([8, 8, 3], tf.constant(60 * number, tf.uint8))
        path = folder / f"{angle} deg" / "1.png"
        path.write_bytes(tf.io.encode_png(pixels).numpy())
        rows.append(f"{path},{angle} deg")
    (folder / "list.csv").write_text("\n".join(rows))
    return f"folder:{folder}" if kind == "folder" else f"list:{folder}/list.csv"


@pytest.mark.parametrize(
    "kind", ["folder", pytest.param("list", marks=pytest.mark.heavy("evaluation"))]
)
def test_classes_that_only_their_position_names(kind, tmp_path, logged, uncompiled):
    """Natural and text order differ: a line names the option, which numbers the classes so."""
    (tmp_path / "angles").mkdir()
    name = _angles(tmp_path / "angles", kind)
    model = vit_tf.create_model(tiny_experiment().model.config(4))
    vit_tf.save_npz(model, tmp_path / "unnamed.npz")
    source = model_source.find(tmp_path / "unnamed.npz")

    def lines(source, **settings):
        logged.clear()
        data = dataclasses.replace(Data(name=name), **settings)
        examples = open_split(data, "train")
        evaluate(
            source,
            examples,
            one_device(),
            batch_size=4,
            bad_images="stop",
            report=str(tmp_path / "report"),
        )
        found = [line for line in logged if "class names" in line]
        return examples.labels, found, (tmp_path / "report" / "report.json").read_text()

    labels, found, report = lines(source)
    assert labels == ("0 deg", "180 deg", "270 deg", "90 deg")
    assert len(found) == 1 and found[0].startswith("warning: ") and "\n" not in found[0]
    assert "in this order: 0 deg, 180 deg, 270 deg, ..." in found[0]
    assert "In natural order, class 1 is 90 deg, not 180 deg" in found[0]
    assert "data.class_order=natural" in found[0] and "data.class_order=natural" in report
    labels, found, _ = lines(source, class_order="natural")
    assert labels == ("0 deg", "90 deg", "180 deg", "270 deg")
    assert "In text order, class 1 is 180 deg, not 90 deg" in found[0]
    named = dataclasses.replace(source, labels=labels)
    assert lines(named, class_order="natural")[1] == []
    with pytest.raises(UserError, match="order.*class_order=natural"):
        lines(named)


def test_compiling_is_reported_until_the_first_batch_is_done(monkeypatch, each_line, logged):
    """The model is not traced before there is a line; the lines end before the last batch."""
    monkeypatch.setattr(progress, "_SIGN_EVERY", 0.01)
    reported, reporting = threading.Event(), []
    each_line(lambda line: reported.set())

    def model(images, training):
        assert reported.wait(300)
        return tf.zeros([tf.shape(images)[0], 10])

    class Signals:
        """Waits for the thread that reports, if it has been told to end."""

        def check(self):
            threads = [x for x in threading.enumerate() if x.name == "compiling"]
            for thread in threads if evaluator.first_batch_done else ():
                thread.join(300)
            reporting.append(any(thread.is_alive() for thread in threads))

    data = EvaluationData(
        source=open_source("digits", "test[:48]"),
        preprocessing=vit_tf.Preprocessing(image_size=(8, 8)),
        batch_size=16,
        bad_images=None,
    )
    task = Classification(loss="softmax")
    evaluator = Evaluator(model, one_device(), data, task, Signals())
    evaluator.run()
    assert reporting == [False, False, False]
    assert re.fullmatch(r"compiling the evaluation step: \d+ s", logged[0])


def test_nothing_to_evaluate(command):
    result = command("evaluate", "--set=data.eval_split=none")
    assert_user_error(result, "data.eval_split is none")


def test_unpooled_models_are_refused(tmp_path):
    model = vit_tf.create_model(tiny_experiment("model.classifier=unpooled").model.config(10))
    vit_tf.save_npz(model, tmp_path / "m.npz")
    with pytest.raises(UserError, match="unpooled"):
        evaluated(model_source.find(tmp_path / "m.npz"), tiny_experiment(), one_device())
