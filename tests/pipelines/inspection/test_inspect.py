"""`pipelines.inspect`: its files agree with the functions, for every family; pages are inert."""

import functools
import json
import os

import numpy as np
import pytest
import tensorflow as tf
from sklearn.datasets import load_sample_image

import vit_tf
from pipelines.errors import RunError, UserError
from pipelines.inspection import image_numbers, run
from pipelines.inspection import images as inspected_images
from pipelines.inspection.subject import Subject
from pipelines.predictions.images import Image
from tests.pipelines.encoded import encode
from tests.pipelines.hostile_names import HOSTILE
from tests.pipelines.process import assert_user_error
from tests.pipelines.reports.parsed_page import ParsedPage
from tests.vit_tf import tiny
from tests.vit_tf.checkpoints import safetensors_models
from vit_tf import analysis
from vit_tf.classes import Classes
from vit_tf.preprocessing import Preprocessing

# What exists for each family: names of maps, and of numbers of the model.
ATTENTION = {"attention", "rollout", "random rollout"}
CLASS = {"activation", "random activation", "occlusion"}
WEIGHTS = {"components", "singular_values", "effective_rank"}
STATISTICS = {"distance", "norms"}
STEM = {"stem": {"stage_depths": (1,), "width": 0.5}, "patch_size": 1, "image_size": (18, 26)}
FAMILIES = {
    "token": (
        tiny.config(),
        ATTENTION | CLASS,
        STATISTICS | {"entropy", "class share", "similarity"},
    ),
    "hybrid": (
        tiny.config(**STEM, classifier="gap"),
        ATTENTION | CLASS,
        STATISTICS | {"entropy", "similarity"},
    ),
    "map": (
        tiny.config(classifier="map", position_embedding="none"),
        ATTENTION | CLASS,
        STATISTICS | {"entropy"},
    ),
    "unpooled": (
        tiny.config(classifier="unpooled", position_embedding="relative"),
        ATTENTION | CLASS,
        STATISTICS | {"entropy"},
    ),
    "axial": (
        tiny.config(**tiny.AXIAL),
        ATTENTION | CLASS,
        STATISTICS | {"similarity"},
    ),
    "no head": (
        tiny.config(num_classes=0),
        ATTENTION,
        STATISTICS | {"entropy", "class share", "similarity"},
    ),
    "BiT": (
        vit_tf.ResNetConfig(stage_depths=(1,), width=0.5, image_size=(18, 26), num_classes=5),
        CLASS,
        set(),
    ),
    "AxialResNet": (
        vit_tf.AxialResNetConfig(
            stage_depths=(1,), width=0.125, heads=2, image_size=(16, 24), num_classes=5
        ),
        CLASS,
        set(),
    ),
}


@functools.cache
def subject_of(config, name="model", labels=()):
    """The same for all tests, also its twin and its traced functions."""
    prepare = Preprocessing(image_size=config.image_size)
    return Subject(name, tiny.shared_of(config), prepare, Classes(labels=labels))


def pictures(count=2):
    """Images of several sizes, also rectangular ones."""
    rng = np.random.default_rng(0)
    sizes = [(20 + 9 * index, 50 - 8 * index) for index in range(count)]
    return [
        Image(f"image {index}", encode(rng.integers(0, 256, (*size, 3), np.uint8), "PNG"))
        for index, size in enumerate(sizes)
    ]


def record_of(folder):
    return json.loads((folder / "inspect.json").read_text())["models"]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_what_exists_and_names_the_rest(family, tmp_path, logged):
    config, maps, numbers = FAMILIES[family]
    subject, found = subject_of(config), pictures(1)
    run.run([subject], found, tmp_path, run.Options(occludes=family in ("unpooled", "BiT")))
    [model] = record_of(tmp_path)
    assert set(model["numbers"]) == WEIGHTS | numbers == set(model["numbers_of_random_weights"])
    if family not in ("unpooled", "BiT"):
        maps = maps - {"occlusion"}
    assert all(set(one["maps"]) == maps | {"components"} for one in model["images"])
    assert set(model["left_out"]) == set(subject.left_out())
    lines = logged.take()
    assert all(name in lines for name in model["left_out"])
    images = np.stack([subject.preprocessing(inspected_images.pixels(x)) for x in found])
    expected = {"components": analysis.token_components(subject.model, images, 3)}
    if "rollout" in maps:
        expected["rollout"] = analysis.attention_rollout(subject.model, images)
        expected["attention"] = analysis.attention_maps.attention_maps(subject.model, images)
        distance = analysis.attention_distance(subject.model, images)
        np.testing.assert_allclose(model["numbers"]["distance"], distance, rtol=1e-3)
    if "activation" in maps:
        logits = tf.reshape(subject.model(images), [1, -1, config.num_classes])
        best = np.asarray(tf.reduce_mean(logits, axis=1)).argmax(axis=1)
        assert [one["explained_class"] for one in model["images"]] == best.tolist()
        expected["activation"] = analysis.class_activation(subject.model, images, best)
    for name, values in expected.items():
        for index, one in enumerate(model["images"]):
            np.testing.assert_allclose(one["maps"][name], values[index], rtol=2e-4, atol=1e-5)
    page = ParsedPage((tmp_path / "inspect.html").read_text())
    page.check_self_contained()
    shown = {"original", "seen", "components"} | maps
    files = {f"model-1-image-001-{name.replace(' ', '-')}.png" for name in shown}
    assert files <= set(os.listdir(tmp_path / "pictures"))
    shots = page.all("figure", class_="shot small") + page.all("figure", class_="shot")
    assert len(shots) >= len(shown)


@pytest.mark.parametrize("family", ["token", "axial", "BiT", "AxialResNet"])
@pytest.mark.parametrize("occludes", [False, True])
def test_the_progress_ends_where_it_should(family, occludes, tmp_path, monkeypatch):
    made = []

    class Watched(run.PassCounter):
        def __init__(self, total):
            super().__init__(total)
            made.append(self)

    monkeypatch.setattr(run, "PassCounter", Watched)
    options = run.Options(most=1, occludes=occludes)
    run.run([subject_of(FAMILIES[family][0])], pictures(2), tmp_path, options)
    [progress] = made
    assert progress.done == progress.total > 0


@pytest.mark.parametrize(("labels", "count"), [("0123456789", 5), ((), 2)])
def test_samples_are_digits_only_for_a_model_of_digits(labels, count):
    assert len(inspected_images.samples(tuple(labels))) == count


@pytest.fixture(scope="module")
def inspected(tmp_path_factory):
    """A subject, four prepared images, and what inspect.json has of them for class 3."""
    subject, found = subject_of(tiny.config()), pictures(4)
    folder = tmp_path_factory.mktemp("inspected")
    run.run([subject], found, folder, run.Options(target="3"))
    images = np.stack([subject.preprocessing(inspected_images.pixels(x)) for x in found])
    return subject, images, record_of(folder)[0]["images"]


def test_occlusion_and_curves_are_probabilities_of_covered_images(inspected):
    subject, images, records = inspected
    image, one = images[2], records[2]
    assert one["explained_class"] == 3

    def probability(covered):
        pixels = image.copy()
        for row, column in covered:
            pixels[4 * row : 4 * row + 4, 4 * column : 4 * column + 4] = image.mean(axis=(0, 1))
        return float(tf.nn.softmax(subject.model(pixels[None]))[0, 3])

    cells = list(np.ndindex(2, 3))
    for cell in cells:
        assert one["maps"]["occlusion"][cell[0]][cell[1]] == pytest.approx(
            probability([cell]), rel=1e-3
        )
    order = sorted(cells, key=lambda cell: -one["maps"]["rollout"][cell[0]][cell[1]])
    curves = one["curves"]["rollout"]
    for index in range(7):
        fraction = curves["deletion"]["fractions"][index]
        assert fraction == pytest.approx(index / 6, abs=1e-4)
        first, rest = order[:index], order[index:]
        assert curves["deletion"]["scores"][index] == pytest.approx(probability(first), rel=1e-3)
        assert curves["insertion"]["scores"][index] == pytest.approx(probability(rest), rel=1e-3)
    assert set(one["curves"]) == {"attention", "rollout", "activation", "chance"}


def test_neighbors_are_the_most_similar_embeddings(inspected):
    subject, images, records = inspected
    features = subject.model.features(images).numpy().astype(np.float64)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    for index, one in enumerate(records):
        cosines = features @ features[index]
        order = [x for x in np.argsort(-cosines) if x != index]
        assert [pair["image"] for pair in one["neighbors"]] == order
        assert [pair["cosine"] for pair in one["neighbors"]] == pytest.approx(
            cosines[order], abs=1e-4
        )


def test_the_size_of_a_page_and_200_classes(tmp_path):
    """20 images of a model with 144 heads are in 5 MB: 0.5 MB of its own, 225 kB for an image."""
    config = tiny.config(
        image_size=96, patch_size=8, layers=12, heads=12, hidden_size=24, num_classes=200
    )
    photo = load_sample_image("china.jpg")
    found = [Image("photo", encode(photo[:224, :224], "JPEG"))]
    labels = tuple(f"class {x}" for x in range(200))
    run.run([subject_of(config, labels=labels)], found, tmp_path, run.Options())
    text = (tmp_path / "inspect.html").read_text()
    assert len(text) < 0.5e6 + 225e3
    shown = {x for x in ParsedPage(text).text("span") if x.startswith("class ")}
    assert len(shown) == 5


def test_hostile_names_are_readable_and_inert(tmp_path):
    labels = (*HOSTILE[:4], HOSTILE[9])
    found = [Image(HOSTILE[index], image.content) for index, image in enumerate(pictures(3))]
    subject = subject_of(tiny.config(), HOSTILE[0], labels)
    run.run([subject, subject], found, tmp_path, run.Options(occludes=False))
    text = (tmp_path / "inspect.html").read_text()
    page = ParsedPage(text)
    page.check_self_contained()
    assert len(page.all("style")) == 1 and "<script" not in text and "\u202e" not in text
    assert len(text) < 1e6
    for index, one in enumerate(record_of(tmp_path)[0]["images"]):
        assert one["path"] == HOSTILE[index] and one["top"][0]["label"] in labels
    assert set(page.text("span")) & {"<script>alert(1)</script>", "x" * 59 + "…"}


def test_models_that_give_no_numbers_or_have_other_names_are_refused(tmp_path, monkeypatch):
    config = tiny.config(layers=1)  # Its model keeps the values.
    subject = subject_of(config)
    subject.model.norm.gamma.assign(np.full(config.hidden_size, np.nan))
    with pytest.raises(RunError, match="model: .*image 0.*finite"):
        run.run([subject], pictures(1), tmp_path / "a", run.Options())
    monkeypatch.setattr(Subject, "results", lambda self, images: [images[:, 0, 0], images[:, 0, 1]])
    images = np.zeros((3, 2, 2, 3), np.float32)
    images[2, 0, 1] = np.inf
    with pytest.raises(RunError, match="for c .*not finite"):
        image_numbers.results(subject, ["a", "b", "c"], images)
    with pytest.raises(UserError, match="2.*5"):
        run.run([subject_of(config, labels=("a", "b"))], pictures(1), tmp_path, run.Options())
    assert not os.listdir(tmp_path)


class TestCommand:
    def test_without_arguments_it_inspects_the_digits_of_the_package(self, tmp_path, command):
        result = command("inspect", "--output=out", "--noocclusion")
        assert result.returncode == 0, result.stderr
        assert "page: out/inspect.html" in result.stdout
        assert "over 5 images; the paper takes 128" in result.stdout
        [model] = record_of(tmp_path / "out")
        assert model["verdict"].startswith("Looks trained by")
        assert [one["top"][0]["label"] for one in model["images"]] == [
            one["path"][-1] for one in model["images"]
        ]

    def test_several_models_on_data_packed_and_shown_in_part(self, tmp_path, command):
        fields = {"image_size": 16, "num_classes": 10}
        vit_tf.save_npz(tiny.shared(**fields), tmp_path / "m.npz")
        model = tiny.shared(**fields, **safetensors_models.HUGGINGFACE)
        vit_tf.save_safetensors(model, tmp_path / "folder", "huggingface")
        model.save(tmp_path / "m.keras")
        names = ["folder", "m.npz", "m.keras"]
        arguments = [f"--model={name}" for name in names]
        arguments += ["--fused", "--show=2", "--noocclusion"]
        data = ["--set=data.name=digits", "--set=data.eval_split=test[:7]", "--class=4"]
        result = command("inspect", *arguments, *data)
        assert result.returncode == 0, result.stderr
        assert "showing 2 of 7 images; --show 7 shows all" in result.stdout
        models = record_of(tmp_path / "runs/inspect")
        assert [model["name"] for model in models] == names
        for model in models:
            assert model["images_of_statistics"] == 7
            assert [one["explained_class"] for one in model["images"]] == [4, 4]
        page = ParsedPage((tmp_path / "runs/inspect/inspect.html").read_text())
        assert page.text("h2").count("Similarity of positions") == 1
        assert "model-2-filters.png" in os.listdir(tmp_path / "runs/inspect/pictures")
        result = command("inspect", "--model=m.npz", "--show=1", "--noocclusion", *data)
        assert result.returncode == 0, "An earlier inspection is replaced."
        assert "model-2-filters.png" not in os.listdir(tmp_path / "runs/inspect/pictures")

    def test_files_that_cannot_be_read_are_named(self, tmp_path, command):
        (tmp_path / "photos").mkdir()
        (tmp_path / "photos/<b>.png").write_bytes(pictures(1)[0].content)
        (tmp_path / "photos/broken.png").write_bytes(b"no image")
        result = command("inspect", "photos", "--noocclusion")
        assert result.returncode == 1
        assert "1 of 2 images are left out" in result.stderr and "broken.png" in result.stderr
        bad = {"cat/1.png": b"", "dog/2.png": b"\0\0\0\x18ftypheic" + b"0" * 9}
        for name, content in bad.items():
            path = tmp_path / "data/test" / name
            path.parent.mkdir(parents=True)
            path.write_bytes(content)
            path.with_name("good.png").write_bytes(pictures(1)[0].content)
        data = ["--set=data.name=folder:data", "--set=data.eval_split=test", "--output=third"]
        result = command("inspect", *data, "--noocclusion")
        assert result.returncode == 1 and "2 of 4 images are left out" in result.stderr
        assert "cat/1.png: it is empty" in result.stderr and "it is a HEIC file" in result.stderr
        result = command("inspect", "photos/broken.png", "--output=other")
        assert_user_error(result, "Cannot decode photos/broken.png")

    @pytest.mark.parametrize(
        ("arguments", "texts"),
        [
            (["--class=eleven"], ["--class 'eleven' is no class of shipped", "below 10"]),
            (["--class=10"], ["--class '10'"]),
            (["--model=headless.npz", "--class=1"], ["has no classes", "Leave --class out"]),
            (["photo.png", "--set=data.name=digits"], ["Images and --set both name"]),
            (["--set=train.steps=3"], ["train.steps has no effect", "data.name"]),
            (["--output=file"], ["--output file is a file"]),
            (["--output=full"], ["--output full is not empty", "Name another directory"]),
            (["--model=shipped", "--model="], ["no --model may be empty"]),
            (["--model="], ["--model is empty"]),
            (["--show=0"], ["show"]),
            (["nowhere.png"], ["no image or folder at nowhere.png"]),
        ],
        ids=str,
    )
    def test_wrong_input_is_one_sentence(self, tmp_path, command, arguments, texts):
        (tmp_path / "file").write_text("")
        (tmp_path / "full").mkdir()
        if "--model=headless.npz" in arguments:
            vit_tf.save_npz(tiny.shared(num_classes=0), tmp_path / "headless.npz")
        (tmp_path / "full/mine.txt").write_text("")
        assert_user_error(command("inspect", *arguments), *texts)
        assert not (tmp_path / "runs").exists()
