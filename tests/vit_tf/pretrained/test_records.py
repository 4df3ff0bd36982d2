"""The table of published weights agrees with the models that it names."""

import pytest

import vit_tf
from vit_tf import cost
from vit_tf.config.variants import VARIANTS
from vit_tf.pretrained.records import find_file_record, find_record

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
    """Four bytes for each weight; the authors' S/16 of SAM also holds two optimizer moments."""
    record = vit_tf.list_weights()[name]
    assert record.name == name and record.url.endswith(f"/{name}.npz")
    config = VARIANTS[record.model]
    fields = {"image_size": record.image_size, "num_classes": record.num_classes}
    if record.has_pre_logits:
        fields["representation_size"] = getattr(config, "hidden_size")  # noqa: B009
    expected = 4 * cost.parameters(config.replace(**fields))
    if name == "sam/ViT-S_16":
        expected *= 3
    assert record.size == pytest.approx(expected, rel=0.006)
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
