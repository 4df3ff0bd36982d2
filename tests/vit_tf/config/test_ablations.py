"""The lists of the paper's ablations: what they vary, and their numbers of parameters."""

import pytest

from tests.vit_tf.parameter_formulas import by_formula
from vit_tf import cost
from vit_tf.config import VARIANTS, ablations


def changed(config, base):
    """The fields in which a configuration differs from another."""
    fields, others = config.to_dict(), base.to_dict()
    return {key: value for key, value in fields.items() if value != others[key]}


def test_table_8_has_the_cells_of_the_paper():
    base = VARIANTS["ViT-B/16"]
    once, each = {"none", "relative"}, {"learned_1d", "learned_2d"}
    cells = {f"{kind}, stem" for kind in once | each}
    cells |= {f"{kind}, every_layer{end}" for kind in each for end in ("", "_shared")}
    assert ablations.TABLE_8.keys() == cells
    for name, config in ablations.TABLE_8.items():
        kind, injection = name.split(", ")
        assert (config.position_embedding, config.position_injection) == (kind, injection)
        assert changed(config, base).keys() <= {"position_embedding", "position_injection"}


def test_parameters_of_table_8():
    """Twelve layers, 197 tokens, 14 x 14 patches, width 768, heads of 64."""
    without = by_formula("ViT-B/16") - 197 * 768
    one_table, sides = 197 * 768, 28 * 384 + 768
    expected = {
        "none, stem": 0,
        "learned_1d, stem": one_table,
        "learned_1d, every_layer": 12 * one_table,
        "learned_1d, every_layer_shared": one_table,
        "learned_2d, stem": sides,
        "learned_2d, every_layer": 12 * sides,
        "learned_2d, every_layer_shared": sides,
        "relative, stem": 12 * 393 * 64,
    }
    assert {
        name: cost.parameters(config) - without for name, config in ablations.TABLE_8.items()
    } == expected


def test_figure_8_scales_one_dimension_or_all():
    base = ablations.FIGURE_8["base"]
    assert (base.layers, base.hidden_size, base.mlp_size, base.patch_size) == (8, 1024, 2048, 32)
    sizes = {"layers", "hidden_size", "mlp_size", "patch_size"}
    for name, config in ablations.FIGURE_8.items():
        field, _, number = name.partition("=")
        found = changed(config, base)
        if field == "all":
            factor = float(number)
            assert found.keys() - {"heads"} == sizes
            assert config.patch_size == 32 / factor
            assert all(
                getattr(config, key) == factor * getattr(base, key)
                for key in sizes - {"patch_size"}
            )
        else:
            assert found.keys() - {"heads"} == ({field} & sizes)
            assert field == "base" or found[field] == int(number)
        assert config.hidden_size == 64 * config.heads


def test_the_base_of_figure_8_has_the_published_size():
    """docs/paper.md D.3, for any number of heads."""
    for heads in (8, 16):
        base = ablations.FIGURE_8["base"].replace(num_classes=0, heads=heads)
        assert cost.parameters(base) == 70_400_000
        assert cost.macs(base) / 1e9 == pytest.approx(3.551, abs=0.0005)


def test_halved_base_is_small():
    """Halved width, MLP and heads are the sizes of ViT-S, which the paper does not have."""
    assert {"ViT-b/32": VARIANTS["ViT-S/32"]} == ablations.FIGURE_4
