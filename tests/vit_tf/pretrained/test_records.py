"""The table of published weights agrees with the models that it names."""

import dataclasses

import pytest

import vit_tf
from vit_tf import cost
from vit_tf.config.variants import VARIANTS
from vit_tf.pretrained.records import find_file_record, find_record, named_record

WEIGHTS = vit_tf.list_weights()


def test_the_table_is_complete():
    """Rows of the authors' lists: 9 + 8 of the paper, 5 of SAM, 2 x 9 of AugReg, 3 x 5 + 2 BiT."""
    count = {}
    for record in WEIGHTS.values():
        count[record.collection] = count.get(record.collection, 0) + 1
    assert count == {
        "imagenet21k": 9,
        "imagenet21k+imagenet2012": 8,
        "sam": 5,
        "augreg": 18,
        "bit_models": 15,
        "bit_models/distill": 2,
    }
    WEIGHTS.clear()
    assert vit_tf.list_weights()


@pytest.mark.parametrize("name", list(vit_tf.list_weights()))
def test_sizes_are_those_of_the_models(name):
    """Four bytes for each weight; the authors' S/16 of SAM also holds two optimizer moments.

    Of AugReg's files the authors list nine sizes, in MiB.
    """
    record = vit_tf.list_weights()[name]
    assert record.name == name and record.url.endswith(f"/{name}.npz")
    assert record.preprocessing.exif == "ignore" and record.preprocessing.jpeg == "fast"
    config = VARIANTS[record.model]
    fields = {"image_size": record.image_size, "num_classes": record.num_classes}
    if record.has_pre_logits:
        fields["representation_size"] = getattr(config, "hidden_size")  # noqa: B009
    expected = 4 * cost.parameters(config.replace(**fields))
    if name == "sam/ViT-S_16":
        expected *= 3
    assert record.size == pytest.approx(expected, rel=0.006)
    if record.recipe and not record.recipe.fine_tuning:
        listed = {
            "ViT-L/16": 1243,
            "ViT-B/16": 391,
            "ViT-S/16": 115,
            "R50+ViT-L/32": 1337,
            "R26+ViT-S/32": 170,
            "ViT-Ti/16": 37,
            "ViT-B/32": 398,
            "ViT-S/32": 118,
            "R+ViT-Ti/16": 40,
        }
        assert record.size / 2**20 == pytest.approx(listed[record.model], abs=0.6)
    assert record.size < record.most_bytes
    assert (record.num_classes == 1000) == any(
        word in name for word in ("imagenet2012", "ILSVRC2012", "sam/", "BiT-S", "distill")
    )


@pytest.mark.parametrize(
    ("name", "model", "url", "side", "top1"),
    [
        (
            "augreg/R_Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0"
            "--imagenet2012-steps_20k-lr_0.03-res_384",
            "R+ViT-Ti/16",
            "https://storage.googleapis.com/vit_models/augreg/R_Ti_16-i21k-300ep-lr_0.001-"
            "aug_none-wd_0.03-do_0.0-sd_0.0--imagenet2012-steps_20k-lr_0.03-res_384.npz",
            384,
            75.4,
        ),
        (
            "imagenet21k+imagenet2012/ViT-L_16-224",
            "ViT-L/16",
            "https://storage.googleapis.com/vit_models/imagenet21k+imagenet2012/ViT-L_16-224.npz",
            224,
            None,
        ),
        (
            "bit_models/BiT-M-R101x3-ILSVRC2012",
            "BiT-R101x3",
            "https://storage.googleapis.com/bit_models/BiT-M-R101x3-ILSVRC2012.npz",
            480,
            None,
        ),
    ],
)
def test_addresses_sizes_and_accuracies_of_records(name, model, url, side, top1):
    record = vit_tf.list_weights()[name]
    assert (record.model, record.url, record.top1) == (model, url, top1)
    assert record.image_size == (side, side) and record.license == "Apache-2.0"
    assert record.preprocessing.resize == "direct"


def test_names_are_completed_by_the_model():
    config = VARIANTS["ViT-H/14"]
    assert find_record("imagenet21k", config).name == "imagenet21k/ViT-H_14"
    assert find_record("imagenet21k/", config).name == "imagenet21k/ViT-H_14"
    assert find_record("sam/ViT-B_32").name == "sam/ViT-B_32"


@pytest.mark.parametrize(
    ("name", "model", "words"),
    [
        ("augreg", "ViT-B/16", ["Choose one", "augreg/B_16-i21k", "res_384"]),
        ("sam/ViT-S", None, ["the name of weights sam/ViT-S_16. Use this"]),
        ("augreg/B_16", None, ["beginning of several", "augreg/B_16-i21k"]),
        ("sam", "ViT-H/14", ["no file for this model", "ViT-S/16"]),
        ("sam/ViT-B_16", "ViT-B/32", ["of another model", "create a ViT-B/16"]),
        ("sam/ViT-B_61", None, ["no published weights", "Did you mean sam/ViT-B_16"]),
        ("", None, ["no published weights"]),
        ("runs/a", None, ["There is no model at runs/a"]),
        ("imagenet", "ViT-H/14", ["the name of weights imagenet21k/ViT-H_14. Use this"]),
    ],
)
def test_names_that_do_not_fit(name, model, words):
    with pytest.raises(ValueError) as caught:
        find_record(name, VARIANTS.get(model))
    for word in words:
        assert word in str(caught.value)
    assert "B_32" not in str(caught.value) or model != "ViT-B/16"


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("vit_base_patch16_224", "imagenet21k+imagenet2012/ViT-B_16-224"),
        ("google/vit-base-patch16-224", "imagenet21k+imagenet2012/ViT-B_16-224"),
        ("google/vit-base-patch16-224-in21k", "imagenet21k/ViT-B_16"),
        ("vit_base_patch16_384", "imagenet21k+imagenet2012/ViT-B_16"),
        ("vit_base_patch16_224.sam_in1k", "sam/ViT-B_16"),
        ("vit_base_patch16_224.augreg_in21k", "augreg/B_16-i21k-300ep-lr_0.001-aug_medium1"),
        ("vit_base_patch16_224.orig_in21k_ft_in1k", "imagenet21k+imagenet2012/ViT-B_16-224"),
        ("ViT-H/14", "imagenet21k/ViT-H_14"),
    ],
)
def test_names_of_other_projects_bring_the_weights_of_that_model(name, first):
    with pytest.raises(ValueError, match=r"no published weights have this name\. Did") as caught:
        find_record(name)
    assert f"Did you mean {first}" in str(caught.value)
    assert "folder of Hugging Face or timm on this machine" in str(caught.value)


@pytest.mark.parametrize("name", ["runs/vit_base_patch16_224.npz", "vit_giant_patch14_224"])
def test_a_missing_file_or_an_unknown_model_brings_no_weights_of_a_model(name):
    with pytest.raises(ValueError) as caught:
        find_record(name)
    assert "Hugging Face" not in str(caught.value)


def test_files_are_known_by_name_and_number_of_classes():
    assert find_file_record("/data/ViT-B_16.npz", 21843).collection == "imagenet21k"
    assert find_file_record("ViT-B_16.npz", 1000).num_classes == 1000
    assert find_file_record("ViT-B_16.npz", 10) is None
    assert find_file_record("B_16.npz", 1000) is None


TI_16 = "augreg/Ti_16-i21k-30ep-lr_0.001-aug_light0-wd_0.03-do_0.1-sd_0.0"


def test_any_name_of_augreg_is_its_own_record():
    """Model, data, recipe and sizes are in the name."""
    record = find_record(TI_16, VARIANTS["ViT-Ti/16"])
    assert (record.name, record.model) == (TI_16, "ViT-Ti/16")
    assert record.url == f"https://storage.googleapis.com/vit_models/{TI_16}.npz"
    assert (record.num_classes, record.image_size) == (21843, (224, 224))
    assert TI_16 not in WEIGHTS and record.top1 is None
    own, recipe = dataclasses.asdict(record.recipe), vit_tf.list_weights()[BEST].recipe
    expected = {"data": "i21k", "epochs": 30, "learning_rate": 0.001, "augmentation": "light0"}
    expected |= {"weight_decay": 0.03, "dropout": 0.1, "stochastic_depth": 0.0}
    assert own == expected | {"model": "ViT-Ti/16", "fine_tuning": None}
    assert (recipe.model, recipe.epochs, recipe.weight_decay) == ("R+ViT-Ti/16", 300, 0.03)
    tuned = find_record(f"{TI_16}--kitti-steps_2k-lr_0.003-res_384")
    assert (tuned.num_classes, tuned.image_size) == (4, (384, 384))
    fine_tuning = {"data": "kitti", "steps": 2, "learning_rate": 0.003, "image_size": 384}
    assert dataclasses.asdict(tuned.recipe.fine_tuning) == fine_tuning
    config = VARIANTS["ViT-Ti/16"].replace(num_classes=4, image_size=384)
    assert tuned.size == 4 * cost.parameters(config)
    assert find_file_record("/data/" + tuned.url.rpartition("/")[2], 4) == tuned
    with pytest.raises(ValueError, match="another model.*ViT-Ti/16"):
        find_record(TI_16, VARIANTS["ViT-S/16"])


BEST = "augreg/R_Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("Ti_16", "Ti_32", ["'Ti_32' is not the model", "S_32 or S_16"]),
        ("i21k", "jft", ["'jft' is not the data set of pre-training", "i1k or i21k"]),
        ("30ep", "30", ["'30' is not the number of epochs", "300ep"]),
        ("lr_0.001", "lr_1e-3", ["'lr_1e' is not the learning rate", "lr_0.001"]),
        ("light0", "light2", ["'aug_light2' is not the augmentation", "none or light0"]),
        ("wd_0.03", "wd_0,03", ["'wd_0,03' is not the weight decay"]),
        ("do_0.1", "dr_0.1", ["'dr_0.1' is not the dropout", "do_0.0"]),
        ("-sd_0.0", "", ["'' is not the stochastic depth", "sd_0.1"]),
        ("sd_0.0", "sd_0.0-seed_1", ["nothing follows the stochastic depth", "'seed_1'"]),
        ("sd_0.0", "sd_0.0--pets-steps_2k-lr_0.1-res_384", ["'pets' is not the data set of fine"]),
        ("sd_0.0", "sd_0.0--kitti-steps_2-lr_0.1-res_384", ["'steps_2' is not the number of st"]),
        ("sd_0.0", "sd_0.0--kitti-steps_2k-lr_1-res_384", ["'lr_1' is not the learning rate of"]),
        ("sd_0.0", "sd_0.0--kitti-steps_2k-lr_0.1-res_512", ["'res_512' is not the image size"]),
        ("sd_0.0", "sd_0.0--", ["'' is not the data set of fine-tuning"]),
    ],
)
def test_the_wrong_part_of_a_name_of_augreg_is_named(old, new, words):
    name = TI_16.replace(old, new)
    assert name != TI_16
    with pytest.raises(ValueError) as caught:
        find_record(name)
    for word in (name, *words):
        assert word in str(caught.value)
    assert named_record(name) is None
    assert find_file_record(f"{name.removeprefix('augreg/')}.npz", 21843) is None
