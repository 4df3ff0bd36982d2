"""Hints for misspelled names."""

import keras
import pytest

import vit_tf
from vit_tf.config.checks import POLICIES, SYNONYMS
from vit_tf.config.near_names import did_you_mean
from vit_tf.config.other_keywords import FIELDS
from vit_tf.config.variants import VARIANTS

KNOWN = ["hidden_size", "mlp_size", "image_size", "ViT-B/16"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("hiden_size", " Did you mean hidden_size or image_size?"),
        ("mage_size", " Did you mean image_size, mlp_size or hidden_size?"),
        ("vit-b/16", " Did you mean ViT-B/16?"),
        ("zzz", ""),
        (7, ""),
    ],
)
def test_did_you_mean(name, expected):
    assert did_you_mean(name, KNOWN) == expected


def test_a_lower_cutoff_finds_names_that_are_less_near():
    assert did_you_mean("B16", KNOWN) == ""
    assert did_you_mean("B16", KNOWN, cutoff=0.3) == " Did you mean ViT-B/16?"
    assert did_you_mean("a", []) == ""


def test_a_synonym_is_the_only_answer():
    synonyms = {"width": "hidden_size", "depth": "layers"}
    assert did_you_mean("Width", KNOWN, synonyms=synonyms) == " Did you mean hidden_size?"
    assert did_you_mean("depth", ["layer", "size"], synonyms=synonyms) == " Did you mean layer?"


@pytest.mark.parametrize(
    ("dtype", "policy"),
    [("bf16", "mixed_bfloat16"), ("FP16", "mixed_float16"), ("fp32", "float32")],
)
def test_dtypes_of_other_projects(dtype, policy):
    with pytest.raises(ValueError, match=f"'{dtype}'.*{policy}"):
        vit_tf.create_model("ViT-Ti/16", dtype=dtype)


def test_dtypes_are_policies_of_keras():
    assert set(SYNONYMS.values()) <= set(POLICIES)
    assert [keras.dtype_policies.get(name).name for name in POLICIES] == list(POLICIES)


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("pretrained", "weights=NAME loads trained weights: a name of vit_tf.list_weights"),
        ("input_shape", "Did you mean image_size?"),
        ("classes", "Did you mean num_classes?"),
        ("drop_path_rate", "Did you mean stochastic_depth?"),
        ("in_chans", "Models read images of 3 colors."),
        ("include_top", "num_classes=0 leaves the head out."),
        ("classifier_activation", "Models return logits: train with from_logits=True"),
        ("mlp_ratio", "The field of a ViT is mlp_size"),
    ],
)
def test_keywords_of_other_projects(field, said):
    with pytest.raises(ValueError) as caught:
        vit_tf.create_model("ViT-Ti/16", **{field: 1})
    assert f"Unknown model field {field!r}. {said}" in str(caught.value)


def test_a_keyword_of_another_project_without_a_field_in_this_family():
    with pytest.raises(ValueError, match="'depth'.*no layers"):
        vit_tf.create_model("BiT-R50x1", depth=3)


def test_keywords_stand_for_fields():
    fields = {name for config in VARIANTS.values() for name in config.to_dict()}
    assert set(FIELDS.values()) <= fields and fields.isdisjoint(FIELDS)
