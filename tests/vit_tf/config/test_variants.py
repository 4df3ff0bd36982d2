"""Names of models and what they stand for."""

import math

import pytest

import vit_tf
from vit_tf.config.variants import VARIANTS, get_variant


@pytest.mark.parametrize("name", VARIANTS)
def test_file_names_are_read(name):
    assert get_variant(name) == get_variant(name.replace("/", "_")) == VARIANTS[name]


def test_names_are_the_papers():
    sizes, patches = ("Ti", "S", "B", "L", "H"), (8, 14, 16, 32)
    names = [f"ViT-{size}/{patch}" for size in sizes for patch in patches]
    for name in names:
        assert VARIANTS[name].patch_size == int(name.split("/")[1])
    names += ["R+ViT-Ti/16", "R26+ViT-S/32", "R26+ViT-B/32"]
    names += ["R50+ViT-B/16", "R50+ViT-B/32", "R50+ViT-L/16", "R50+ViT-L/32"]
    nets = "50x1 50x2 50x3 101x1 101x3 152x1 152x2 152x4 200x3"
    names += [f"BiT-R{net}" for net in nets.split()]
    assert sorted(vit_tf.list_models()) == sorted(names)


@pytest.mark.parametrize(
    "name, grid, grid_at_384, channels",
    [
        ("R+ViT-Ti/16", (7, 7), (12, 12), 64),
        ("R26+ViT-S/32", (7, 7), (12, 12), 2048),
        ("R50+ViT-B/16", (14, 14), (24, 24), 1024),
        ("R50+ViT-L/32", (7, 7), (12, 12), 2048),
    ],
)
def test_hybrids_are_the_papers(name, grid, grid_at_384, channels):
    """docs/paper.md C.3: sides are halved as often as the total reduction says, rounding up."""
    config = get_variant(name)
    assert (config.grid, config.replace(image_size=384).grid) == (grid, grid_at_384)
    assert config.stem.channels == channels
    assert config.replace(image_size=(225, 100)).feature_size == tuple(
        math.ceil(side / (4 if "R+" in name else int(name.split("/")[1]))) for side in (225, 100)
    )


@pytest.mark.parametrize(
    "name, hidden_size, mlp_size, layers, heads",
    [
        ("ViT-Ti/16", 192, 768, 12, 3),
        ("ViT-S/16", 384, 1536, 12, 6),
        ("ViT-B/16", 768, 3072, 12, 12),
        ("ViT-L/16", 1024, 4096, 24, 16),
        ("ViT-H/14", 1280, 5120, 32, 16),
    ],
)
def test_sizes_are_the_papers(name, hidden_size, mlp_size, layers, heads):
    config = get_variant(name)
    assert (config.hidden_size, config.mlp_size) == (hidden_size, mlp_size)
    assert (config.layers, config.heads) == (layers, heads)


@pytest.mark.parametrize(
    "name, near",
    [
        ("ViT-B/15", "ViT-B/16"),
        ("ViT-B-16", "ViT-B/16"),
        ("ViT_B_16", "ViT-B/16"),
        ("vit-b/16", "ViT-B/16"),
        ("ViT-H14", "ViT-H/14"),
    ],
)
def test_unknown_names_bring_the_near_ones(name, near):
    with pytest.raises(ValueError, match=f"Unknown model '{name}'. Did you mean .*{near}"):
        get_variant(name)
