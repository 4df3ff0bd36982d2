"""Exact numbers of parameters of every model, and of models that are built without weights."""

import math

import pytest

import vit_tf
from tests.vit_tf import tiny
from tests.vit_tf.parameter_formulas import (
    AXIAL,
    AXIAL_RESNETS,
    BIT,
    COMPARISONS,
    HYBRIDS,
    NAMES,
    SIZES,
    axial_by_formula,
    axial_resnet_by_formula,
    bit_by_formula,
    by_formula,
    comparison_by_formula,
    residual_by_formula,
)
from vit_tf import cost
from vit_tf.config.variants import get_variant

# Units of each stage -> parameters of the stem alone (docs/paper.md A.11).
STEMS = {
    (): 9_536,
    (2, 2, 2, 2): 13_946_176,
    (3, 4, 6, 3): 23_508_032,
    (3, 4, 9): 11_894_848,
}
# K=1000 at 224, the mean of the patches in place of a class token.
PUBLISHED_GAP = {
    "ViT-S/16": 22_049_896,
    "ViT-S/32": 22_878_184,
    "ViT-B/16": 86_566_120,
    "ViT-B/32": 88_222_696,
}
# Millions of parameters (Ramachandran et al., 2019, table 1; Bello et al., 2019), and what
# squeeze-and-excitation adds to ResNet-50 (Hu et al., 2018: 28.09 M for 25.56 M).
PUBLISHED_COMPARISONS = {"SASA-R26": 10.3, "SASA-R38": 14.1, "SASA-R50": 18.0, "AACN-R50": 25.8}
PUBLISHED_SQUEEZE_EXCITE = 2_530_992
TI = get_variant("ViT-Ti/16")
FORMULAS = (
    dict.fromkeys([*NAMES, *HYBRIDS], by_formula)
    | dict.fromkeys(AXIAL, axial_by_formula)
    | dict.fromkeys(BIT, bit_by_formula)
    | dict.fromkeys(AXIAL_RESNETS, axial_resnet_by_formula)
    | dict.fromkeys(COMPARISONS, comparison_by_formula)
)


def counted(name, **fields):
    """Numbers in all variables; the moving averages of BatchNorm are not parameters."""
    with tiny.unallocated():
        model = vit_tf.create_model(name, **fields)
        assert len(model.weights) == cost.arrays(model.config)
        return sum(math.prod(variable.shape) for variable in model.trainable_variables)


def test_every_model_has_a_formula():
    """A new model name must be added to the tables of `parameter_formulas.py`."""
    assert sorted(vit_tf.list_models()) == sorted(FORMULAS)


@pytest.mark.parametrize("name", FORMULAS)
def test_count_is_that_of_the_formula(name):
    assert cost.parameters(get_variant(name)) == FORMULAS[name](name)


@pytest.mark.parametrize(
    "name",
    ["ViT-Ti/16", "R+ViT-Ti/16", "Axial-ViT-Ti/32", "BiT-R50x1", "AxialResNet-26S", "SE-R50"],
)
def test_models_have_as_many_parameters(name):
    """One of each family; `analysis/test_vit_cost.py` compares small models of every kind."""
    assert counted(name) == FORMULAS[name](name)


@pytest.mark.parametrize("name", [*NAMES, *HYBRIDS])
def test_counts_with_other_heads_and_sizes(name):
    """The formula has the published numbers of docs/paper.md A.11 for nine of the names."""
    config = get_variant(name)
    wide = config.replace(representation_size=config.hidden_size)
    assert cost.parameters(config.replace(num_classes=0)) == by_formula(name, classes=0)
    expected = by_formula(name, classes=21843, representation=True)
    assert cost.parameters(wide.replace(num_classes=21843)) == expected
    assert cost.parameters(config.replace(image_size=384)) == by_formula(name, image_size=384)


@pytest.mark.parametrize("name", [*BIT, *AXIAL_RESNETS])
def test_counts_of_resnets_without_a_head(name):
    config = get_variant(name).replace(num_classes=0)
    assert cost.parameters(config) == FORMULAS[name](name, classes=0)


@pytest.mark.parametrize("stage_depths", STEMS)
def test_published_counts_of_stems(stage_depths):
    """Root and units, without the projection to tokens."""
    assert residual_by_formula(stage_depths, 64, pre_activation=False)[1] == STEMS[stage_depths]


def test_published_counts_of_comparisons():
    """The normalization of the published models has as many parameters."""
    for name, millions in PUBLISHED_COMPARISONS.items():
        assert comparison_by_formula(name) / 1e6 == pytest.approx(millions, abs=0.1)
    added = comparison_by_formula("SE-R50") - bit_by_formula("BiT-R50x1")
    assert added == PUBLISHED_SQUEEZE_EXCITE


@pytest.mark.parametrize("name", PUBLISHED_GAP)
def test_published_counts_with_average_pooling(name):
    """Without a class token there is one position less."""
    assert by_formula(name, token=False) == PUBLISHED_GAP[name]
    assert cost.parameters(get_variant(name).replace(classifier="gap")) == PUBLISHED_GAP[name]


def test_pooling_by_attention_has_a_probe_and_a_block_of_its_own():
    """A probe, q | k | v and output, one norm, the MLP; no class token, so one position less."""
    width, mlp, _ = SIZES["Ti"]
    pooling = width + 4 * (width * width + width) + 2 * width + 2 * width * mlp + mlp + width
    expected = by_formula("ViT-Ti/16", token=False) + pooling
    assert cost.parameters(TI.replace(classifier="map")) == expected


@pytest.mark.parametrize("position_embedding", ["none", "sincos_2d"])
def test_only_learned_positions_have_a_table(position_embedding):
    config = TI.replace(position_embedding=position_embedding)
    assert cost.parameters(config) == by_formula("ViT-Ti/16") - 197 * 192


def test_positions_of_rows_and_columns_have_two_tables():
    """Half the width for each of 14 rows and 14 columns, and the class token's own vector."""
    expected = by_formula("ViT-Ti/16") - 197 * 192 + 14 * 96 + 14 * 96 + 192
    assert cost.parameters(TI.replace(position_embedding="learned_2d")) == expected


@pytest.mark.parametrize("name", [*NAMES, *AXIAL, *HYBRIDS])
def test_heads_leave_64_values_each_and_80_in_huge(name):
    """The number of heads does not change the parameter count (paper, table 1)."""
    config = get_variant(name)
    assert config.hidden_size / config.heads == (80 if "ViT-H" in name else 64)
