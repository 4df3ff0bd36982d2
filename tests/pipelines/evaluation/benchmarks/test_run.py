"""`evaluate --benchmark`: against plain loops, on one device and on replicas; what is refused."""

import itertools
import json
import types

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import vit_tf
from pipelines.config import override, recipes
from pipelines.data import pipeline
from pipelines.data.sources.open import open_source
from pipelines.evaluation.benchmarks import run as benchmarks
from pipelines.evaluation.benchmarks.differences import compare
from pipelines.evaluation.objectnet import objectnet_accuracy
from pipelines.predictions.job import _SIDEWAYS
from pipelines.stored_models import model_source
from tests.pipelines.data.true_features import COUNT, prepare
from tests.pipelines.process import assert_user_error
from tests.pipelines.tiny import one_device, tiny_experiment, two_replicas
from vit_tf.classes import Classes
from vit_tf.config.variants import VARIANTS
from vit_tf.images.decoding import decode_image
from vit_tf.preprocessing import Preprocessing
from vit_tf.pretrained.class_names import class_names, synsets

SIDE = 64
NOTHING = "nothing that is known here"
# No number divides 12 or 23 images, and 7 cannot be split between two replicas.
RUNS = [(one_device, 5), (two_replicas, 7)]


def _write_model(path, classes=1000, labels=(), **settings):
    """A tiny ViT whose head is random, so that images have different predictions."""
    tf.keras.utils.set_random_seed(3)
    sizes = [f"model.image_size={SIDE}", "model.patch_size=32"]
    model = vit_tf.create_model(tiny_experiment(*sizes).model.config(classes).replace(**settings))
    if classes:
        shape = model.head.kernel.shape
        model.head.kernel.assign(np.random.default_rng(0).normal(size=shape))
    # A benchmark turns no image, whatever the model does with photos.
    preprocessing = Preprocessing(image_size=(SIDE, SIDE), exif="apply")
    vit_tf.save_npz(model, path, preprocessing, Classes(labels=labels))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model, and 23 images of noise of many sizes, each with a red border of two pixels."""
    root = tmp_path_factory.mktemp("benchmarks")
    _write_model(root / "model.npz", labels=class_names(1000))
    draw = np.random.default_rng(1)
    for place in range(23):
        size = draw.integers(30, 90, 2)
        coarse = draw.integers(0, 256, [4, 5, 3], np.uint8)
        image = np.asarray(Image.fromarray(coarse).resize((*size.tolist(),), Image.NEAREST)).copy()
        image[:2] = image[-2:] = image[:, :2] = image[:, -2:] = (255, 0, 0)
        Image.fromarray(image).save(root / f"{place:02}.png")
    return root


def _images(folder, border=0):
    """The pixels of the images in the order of their names, cropped by Pillow."""
    for path in sorted(folder.glob("*.png")):
        image = Image.open(path)
        width, height = image.size
        yield np.asarray(image.crop((border, border, width - border, height - border)))


def _plain_logits(path, images):
    model, preprocessing, _ = model_source.find(path).open_model()
    inputs = tf.stack([preprocessing(image) for image in images])
    return model(inputs).numpy().astype(np.float64)


@pytest.fixture(scope="module")
def imagenet(folder):
    """ImageNet and ReaL as TFDS prepares them: `(order, labels, lists)` of a plain loop.

    `order` has the classes of each stored image by logit. A third of the single labels is the most
    probable class, a third the fourth one. A third of the lists is empty, in a third is the
    most probable class.
    """
    encoded = [tf.io.encode_jpeg(x).numpy() for x in itertools.islice(_images(folder), COUNT)]
    encoded = [jpeg[:2] + _SIDEWAYS + jpeg[2:] for jpeg in encoded]
    assert decode_image(encoded[0]).shape != decode_image(encoded[0], exif="apply").shape
    images = [decode_image(image) for image in encoded]
    order = np.argsort(-_plain_logits(folder / "model.npz", images), axis=1)
    assert len(set(order[:, 0])) > 6
    single = [int(order[key, (0, 3, 700)[key % 3]]) for key in range(COUNT)]
    lists = [([], [int(order[key, 9])], [3, int(order[key, 0])])[key % 3] for key in range(COUNT)]

    def example(key):
        return {"image": encoded[key], "file_name": f"ILSVRC2012_val_{key + 1:08}.JPEG"}

    splits = {"splits": ("validation",)}
    prepare("imagenet2012", folder, lambda key: example(key) | {"label": single[key]}, **splits)
    prepare(
        "imagenet2012_real",
        folder,
        lambda key: example(key) | {"original_label": single[key], "real_label": lists[key]},
        **splits,
    )
    return order, np.array(single), lists


@pytest.fixture(scope="module")
def objectnet(folder):
    """ObjectNet of five classes beside the images, and `(logits, labels, classes)` of a plain loop.

    The model of the loop is made at 480 x 480 pixels by `create_model`.
    """
    model = vit_tf.create_model(
        model_source.find(folder / "model.npz").read_config().config,
        weights=folder / "model.npz",
        image_size=480,
    )
    prepare = Preprocessing(image_size=(480, 480), resize="resize_small", resize_to=512)
    images = tf.stack([prepare(image) for image in _images(folder, border=2)])
    logits = model(images).numpy().astype(np.float64)
    order = np.argsort(-logits, axis=1)
    # Counterparts: the best class of some images, the fourth of others, none.
    classes = [[], [int(order[1, 0]), 3], [int(order[7, 3])], [int(order[3, 0])], [5, 6, 7]]
    labels = [[0, 1, 2, 3, 4][i % 5] for i in range(23)]
    names, root = class_names(1000), folder / "objectnet-1.0"
    for place, label in enumerate(labels):
        (root / "images" / f"thing_{label}").mkdir(parents=True, exist_ok=True)
        image = (folder / f"{place:02}.png").read_bytes()
        (root / "images" / f"thing_{label}" / f"{place:02}.png").write_bytes(image)
    shuffled = np.random.default_rng(3).permutation(1000)
    mappings = {
        "folder_to_objectnet_label.json": {f"thing_{x}": f"Thing {x}" for x in range(5)},
        "objectnet_to_imagenet_1k.json": {
            f"Thing {x}": "; ".join(f"{i} {names[i]}" for i in own)
            for x, own in enumerate(classes)
            if own
        },
        "pytorch_to_imagenet_2012_id.json": {str(x): int(line) for line, x in enumerate(shuffled)},
    }
    (root / "mappings").mkdir()
    for name, value in mappings.items():
        (root / "mappings" / name).write_text(json.dumps(value))
    lines = [f"{x} {names[x]}" for x in shuffled]  # Different for all classes.
    (root / "mappings" / "imagenet_to_label_2012_v2").write_text("\n".join(lines))
    return logits, np.array(labels), classes


def _run(name, folder, make, batch_size, *assignments, model="model"):
    texts = [*benchmarks.data_settings(name), f"data.data_dir={folder}", *assignments]
    data = override(recipes.get_recipe("digits"), texts).data
    source = model_source.find(folder / f"{model}.npz")
    return benchmarks.run(name, source, data, make(), batch_size=batch_size)


@pytest.mark.parametrize(("make", "batch_size"), RUNS[1:])
def test_imagenet_counts_every_image_once(folder, imagenet, make, batch_size):
    order, labels, _ = imagenet
    result = _run("imagenet", folder, make, batch_size)
    right = order[:, :5] == labels[:, None]
    assert (result["examples"], right[:, 0].sum(), right.any(axis=1).sum()) == (COUNT, 4, 8)
    assert (result["accuracy"], result["top_5_accuracy"]) == pytest.approx((1 / 3, 2 / 3))
    assert f"images: 50,000 -> {COUNT}" in result["comparison"][-1]
    assert "data.exif: 'ignore' -> 'apply'" in result["comparison"][-1]


@pytest.mark.parametrize(("make", "batch_size"), RUNS)
def test_real_counts_every_image_once(folder, imagenet, make, batch_size):
    """A class that is the ordinary label of an image, but not on its list, is wrong."""
    order, labels, lists = imagenet
    rows = zip(order[:, 0], labels, lists, strict=True)
    assert any(best == label and label not in own for best, label, own in rows)
    result = _run("real", folder, make, batch_size)
    assert (result["examples"], result["labeled"], result["accuracy"]) == (COUNT, 8, 0.5)
    assert "images with labels: 46,837 -> 8" in result["comparison"][-1]


@pytest.mark.parametrize(("make", "batch_size"), RUNS)
def test_objectnet_counts_every_image_once(folder, objectnet, make, batch_size):
    """The top-5 accuracy is above the top-1 accuracy, and the accuracy on all classes is lower."""
    logits, labels, classes = objectnet
    result = _run("objectnet", folder, make, batch_size)
    overlaps = labels > 0
    assert (result["examples"], result["overlapping"]) == (23, overlaps.sum())
    inner = objectnet_accuracy(logits[overlaps], labels[overlaps], classes)
    outer = objectnet_accuracy(logits, labels, classes)
    ends = ("", "_of_all_classes")
    found = [(result[f"accuracy{x}"], result[f"top_5_accuracy{x}"]) for x in ends]
    assert found == [pytest.approx(inner), pytest.approx(outer)]
    assert 0 < outer[0] < inner[0] < inner[1] < 1


def test_the_border_is_cut_off_before_the_resize(folder):
    """Also of images that are smaller than both borders: one pixel stays."""
    (folder / "few").mkdir()
    Image.new("RGB", (3, 4), (9, 8, 7)).save(folder / "few" / "small.png")
    rows = [f"{path.relative_to(folder)},x" for path in sorted(folder.glob("*.png"))[:3]]
    rows += ["few/small.png,y"]
    (folder / "border.csv").write_text("\n".join(["path,label", *rows]))
    source = open_source("list:border.csv", "train", folder)
    prepare = Preprocessing(image_size=(20, 30))
    (batch,) = pipeline.eval_dataset(source, batch_size=4, preprocessing=prepare, border=2)
    found = dict(zip(batch["id"].numpy().tolist(), batch["image"].numpy(), strict=True))
    for place, image in zip(range(3), _images(folder, border=2), strict=False):
        np.testing.assert_array_equal(found[place], prepare(image))
    np.testing.assert_array_equal(found[3], prepare(np.full([1, 1, 3], (9, 8, 7), np.uint8)))


def test_the_command_prints_the_result_beside_the_papers(folder, objectnet, command):
    flags = [f"--model={folder / 'model.npz'}", f"--set=data.data_dir={folder}", "--max_batches=2"]
    done = command("evaluate", "--benchmark=objectnet", "--set=train.batch_size=5", *flags)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == ["benchmark: objectnet", "examples: 10"]
    assert [line for line in lines if line.startswith("paper: ")] == [
        "paper: 61.7 % (ViT-H/14 from JFT-300M; D.9)",
        "paper: 82.1 % (ViT-H/14 from JFT-300M, top-5; D.9)",
    ]
    assert "images: 50,273 -> 10" in lines[-1]
    assert "was trained on images of 64 x 64 pixels; ObjectNet is read at 480 x 480" in done.stderr


# The comparison.


def _compare(benchmark, name, model, side, workdir=None, data=None, fields=(), **numbers):
    whole = {"imagenet": 50_000, "real": 50_000, "objectnet": 50_273}[benchmark]
    result = {"benchmark": benchmark, "examples": whole, "labeled": 46_837} | numbers
    source = types.SimpleNamespace(name=name, workdir=workdir)
    config = VARIANTS[model].replace(image_size=side, num_classes=1000, **dict(fields))
    data, split = data or (benchmarks.DATA_NAMES[benchmark], "validation")
    return compare(result, source, config, types.SimpleNamespace(name=data, split=split))


def _differences_of_run(benchmark, recipe, side, *assignments):
    """The last line for a run of a recipe, without its beginning."""
    experiment = override(recipes.get_recipe(recipe), [f"model.image_size={side}", *assignments])
    run = types.SimpleNamespace(read_experiment=lambda: experiment)
    model, fields = experiment.model.name, experiment.model.fields
    compared = _compare(benchmark, "runs/a", model, side, run, fields=fields)
    return compared["comparison"][-1].removeprefix("differs from the paper: ")


def test_released_weights_are_compared_with_their_column():
    compared = _compare("imagenet", "imagenet21k+imagenet2012/ViT-B_16", "ViT-B/16", 384)
    assert [(x["table"], x["pretraining"], x["percent"]) for x in compared["paper"]] == [
        ("5", "ImageNet-21k", 83.97)
    ]
    assert compared["comparison"][-1] == (
        "differs from the paper: the run: no table names a released file"
    )


def test_everything_that_differs_is_named():
    compared = _compare("real", "mine.npz", "ViT-L/16", 224, examples=7, labeled=5)
    assert {x["table"] for x in compared["paper"]} == {"2", "5"}
    for text in (
        "the weights, mine.npz",
        "images: 50,000 -> 7",
        "images with labels: 46,837 -> 5",
        "train.steps: 20000 -> unknown",
        "model.image_size: 512 x 512 -> 224 x 224 (table 2)",
        "model.image_size: 384 x 384 -> 224 x 224 (table 5)",
    ):
        assert text in compared["comparison"][-1]
    text = " ".join(compared["comparison"]).lower()
    assert not any(word in text for word in ("pass", "fail", "better", "worse"))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # Every rate of table 4, and what changes no result.
        (["data.name=imagenet2012:5.1.0", "data.train_split=train", "seed=3"], NOTHING),
        (["optimizer.learning_rate=0.06", "data.data_dir=/data"], NOTHING),
        (["optimizer.learning_rate=0.1"], "optimizer.learning_rate: 0.03 -> 0.1"),
        (["train.steps=9000"], "train.steps: 20000 -> 9000"),
        (["data.flip=false", "model.dropout=0.1"], "data.flip: True -> False; model.dropout: "),
        (
            ["data.name=folder:mine", "data.train_split=train"],
            "training data: imagenet2012 -> folder:mine; data.exif: 'ignore' -> 'apply'",
        ),
        (["data.exif=apply"], "data.exif: 'ignore' -> 'apply'"),
        (["data.train_split=train[:10%]"], "data.train_split: 'train' -> 'train[:10%]'"),
        (["train.ema_decay=0.9", "train.ema_warmup=false"], "train.ema_decay: None -> 0.9"),
    ],
)
def test_a_run_is_compared_by_its_settings(settings, expected):
    found = _differences_of_run("real", "finetune_imagenet", 384, *settings)
    assert found.startswith(expected)
    assert found.count(";") == expected.count(";")


def test_a_run_is_compared_with_each_table():
    """Table 2 has larger images and averaged weights; of ViT-H/14 only for JFT-300M."""
    average = "train.ema_decay: None -> 0.9999"
    size = "model.image_size: 384 x 384 -> {0} x {0}"
    found = _differences_of_run("imagenet", "finetune_imagenet_l16_512", 512)
    assert found == f"{average} (table 5); {size.format(512)} (table 5)"
    found = _differences_of_run("imagenet", "finetune_imagenet_h14_518", 518)
    assert found == f"{average}; {size.format(518)}"
    # Its appendix does not say whether the weights are averaged.
    found = _differences_of_run("objectnet", "finetune_imagenet_h14_518", 518)
    assert found.startswith("the weights, imagenet21k/ViT-H_14; the mapping of classes")


def test_a_run_with_images_below_the_patches_of_the_paper():
    found = _differences_of_run("imagenet", "finetune_imagenet", 12, "model.patch_size=4")
    assert "model.patch_size: None -> 4" in found
    assert "model.image_size: 384 x 384 -> 12 x 12" in found


def test_a_resnet_is_compared_with_the_nearer_setup():
    start = "init_from=bit_models/BiT-M-R50x1"
    weights = "the weights, bit_models/BiT-M-R50x1"
    assert _differences_of_run("imagenet", "bit_imagenet", 384, start) == weights
    found = _differences_of_run("imagenet", "bit_imagenet", 384, start, "data.mixup=0")
    assert found == f"{weights}; data.mixup: 0.1 -> 0.0"
    table_4 = [start, "model.name=BiT-R50x1", "train.steps=9000"]
    found = _differences_of_run("imagenet", "finetune_imagenet", 384, *table_4)
    assert found.startswith(f"{weights}; ") and "train.steps: 20000 -> 9000" in found
    assert "mixup" not in found


@pytest.mark.parametrize(
    ("benchmark", "data"),
    [
        ("imagenet", ("imagenet2012_corrupted/gaussian_noise_5", "validation")),
        ("imagenet", ("imagenet2012", "train[:50000]")),
        ("imagenet", ("imagenet2012_real", "validation")),
        ("real", ("imagenet2012", "validation")),
        ("imagenet", ("folder:/data/imagenet", "val")),
    ],
)
def test_other_images_are_a_difference(benchmark, data):
    name, (other, split) = benchmarks.DATA_NAMES[benchmark], data
    compared = _compare(benchmark, "x.npz", "ViT-B/16", 384, data=data)
    expected = f"; data: {name} split 'validation' -> {other} split '{split}'; "
    assert expected in compared["comparison"][-1]


def test_models_and_sizes_of_the_tables():
    table2 = _compare("imagenet", "x.npz", "ViT-L/16", 512)["comparison"]
    assert any("512 x 512" in line for line in table2)
    assert table2[-1].count("image_size") == 1
    assert "model.image_size: 384 x 384 -> 512 x 512 (table 5)" in table2[-1]
    bit = _compare("imagenet", "x.npz", "BiT-R152x4", 480)["comparison"]
    assert "480 x 480 pixels" in bit[0] and "image_size" not in bit[-1]
    none = _compare("imagenet", "x.npz", "ViT-Ti/16", 384)["comparison"]
    assert none == [
        "paper: no number for ViT-Ti/16 on these data",
        "differs from the paper: train.steps: 20000 -> unknown",
    ]


# Wrong input.


@pytest.mark.parametrize(
    ("flags", "texts"),
    [
        (["imagenet", "--set=data.name=digits"], ["needs the 1,000 classes of ImageNet", "has 10"]),
        (
            ["imagenet", "--set=data.name=imagenet2012_real"],
            ["needs one label per image", "has lists", "data.name=imagenet2012 "],
        ),
        (
            ["real", "--set=data.label=original_label"],
            ["needs lists of labels", "has one label per image", "leave data.label out"],
        ),
        (
            ["real", "--set=data.eval_split=test"],
            ["has no split 'test'. It has: validation (12)"],
        ),
        (
            ["imagenet", "--set=data.data_dir=nowhere"],
            ["'imagenet2012' is not prepared", "data.data_dir"],
        ),
        (["real", "--set=data.eval_split=none"], ["data.eval_split is none"]),
        (["objectnet", "--set=data.name=digits"], ["data.name=folder:PATH", "data.name=digits"]),
        (
            ["objectnet", "--set=data.name=folder:nowhere"],
            ["There is no folder", "nowhere/images", "with images/ and mappings/"],
        ),
        (["objectnet", "--set=data.eval_split=test"], ["has no split 'test'"]),
        (["real", "--label_map=wordnet"], ["--benchmark=real takes no --label_map"]),
        (["objectnet", "--report=r"], ["--benchmark=objectnet takes no --report"]),
        (["vtab"], ["benchmark", "imagenet|real|objectnet"]),
    ],
)
def test_wrong_data(folder, imagenet, objectnet, command, flags, texts):
    name, *flags = flags
    flags = [f"--model={folder / 'model.npz'}", f"--set=data.data_dir={folder}", *flags]
    assert_user_error(command("evaluate", f"--benchmark={name}", *flags), *texts)


def test_lists_without_a_label(folder, command):
    names = "|".join(synsets(1000))
    (folder / "none.csv").write_text(f"path,labels,split\n00.png,{names},train\n01.png,,val\n")
    flags = [f"--model={folder / 'model.npz'}", f"--set=data.name=list:{folder / 'none.csv'}"]
    done = command("evaluate", "--benchmark=real", *flags)
    assert_user_error(done, "None of the images of", "has a label")


def test_objectnet_without_counterparts_or_mappings(folder, objectnet, command, tmp_path):
    for name in ("thing_0", "thing_1"):
        (tmp_path / "images" / name).mkdir(parents=True)
        image = (folder / "00.png").read_bytes()
        (tmp_path / "images" / name / "a.png").write_bytes(image)
    (tmp_path / "mappings").symlink_to(folder / "objectnet-1.0" / "mappings")
    parts = [f"train[{place}:{place + 1}]" for place in range(2)]
    name = f"folder:{tmp_path}/images"
    [part] = [part for part in parts if open_source(name, part).read_labels([0]) == 0]
    flags = [f"--model={folder / 'model.npz'}", f"--set=data.name=folder:{tmp_path}"]
    flags += [f"--set=data.eval_split={part}"]
    done = command("evaluate", "--benchmark=objectnet", *flags)
    assert_user_error(done, "has a counterpart in ImageNet")
    (tmp_path / "mappings").unlink()
    done = command("evaluate", "--benchmark=objectnet", *flags)
    assert_user_error(done, "folder_to_objectnet_label.json is not a file", "as it is unpacked")


@pytest.mark.parametrize(
    ("settings", "labels", "text"),
    [
        ({"classes": 10}, (), "was trained for 10 classes (unnamed). --benchmark real needs"),
        ({}, tuple(f"species {x}" for x in range(1000)), "1,000 classes (species 0, species 1"),
        ({"classes": 0}, (), "has no head"),
        ({"classifier": "unpooled"}, (), "is unpooled"),
    ],
)
def test_wrong_models(folder, imagenet, command, tmp_path, settings, labels, text):
    _write_model(tmp_path / "other.npz", labels=labels, **settings)
    flags = ["--model=other.npz", f"--set=data.data_dir={folder}"]
    done = command("evaluate", "--benchmark=real", *flags)
    assert_user_error(done, text)


def test_softmax_on_lists_without_the_benchmark(folder, imagenet, command):
    flags = [f"--model={folder / 'model.npz'}", f"--set=data.data_dir={folder}"]
    done = command("evaluate", "--set=data.name=imagenet2012_real", *flags)
    assert_user_error(done, "Evaluate on ReaL with --benchmark real")
