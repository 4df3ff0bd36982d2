"""The names of models and their configurations."""

import math
import re

import pytest

import vit_tf
from vit_tf.config.other_spellings import other_spelling
from vit_tf.config.variants import VARIANTS, get_variant


@pytest.mark.parametrize("name", VARIANTS)
def test_file_names_are_read(name):
    assert get_variant(name) == get_variant(name.replace("/", "_")) == VARIANTS[name]


def test_names_are_the_papers():
    sizes, patches = ("Ti", "S", "B", "L", "H"), (8, 14, 16, 32)
    names = [f"ViT-{size}/{patch}" for size in sizes for patch in patches]
    for name in names:
        assert VARIANTS[name].patch_size == int(name.split("/")[1])
    names += [f"Axial-ViT-{size}/{patch}" for size in sizes for patch in (16, 32)]
    names += ["R+ViT-Ti/16", "R26+ViT-S/32", "R26+ViT-B/32"]
    names += ["R50+ViT-B/16", "R50+ViT-B/32", "R50+ViT-L/16", "R50+ViT-L/32"]
    nets = "50x1 50x2 50x3 101x1 101x3 152x1 152x2 152x4 200x3"
    names += [f"BiT-R{net}" for net in nets.split()]
    names += [f"AxialResNet-{net}" for net in ("26S", "50S", "50M", "50L")]
    names += ["SASA-R26", "SASA-R38", "SASA-R50", "Local1D-R50", "Local2D-R50", "Sparse-R50"]
    names += ["AACN-R50", "SE-R50", "Full-R20/2"]
    assert sorted(vit_tf.list_models()) == sorted(names)


@pytest.mark.parametrize("name", [name for name in VARIANTS if name.startswith("Axial-")])
def test_axial_models_are_vits_without_a_class_token(name):
    config, vit = get_variant(name), get_variant(name.removeprefix("Axial-"))
    assert config == vit.replace(axial=True, classifier="gap", position_embedding="learned_2d")
    assert (config.num_prefix_tokens, vit.num_prefix_tokens) == (0, 1)


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
    """docs/paper.md C.3: the total reduction gives the number of halvings; each rounds up."""
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


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        ("vit_base_patch16_224", "ViT-B/16 with image_size=224"),
        ("google/vit-base-patch16-224", "ViT-B/16 with image_size=224"),
        ("google/vit-huge-patch14-224-in21k", "ViT-H/14 with image_size=224"),
        ("vit_tiny_patch16_384.augreg_in21k_ft_in1k", "ViT-Ti/16 with image_size=384"),
        ("timm/vit_small_patch32_224.augreg_in21k", "ViT-S/32 with image_size=224"),
        ("vit_base_patch16_224_imagenet21k", "ViT-B/16 with image_size=224"),
        ("vit_base_patch16_sam_224", "ViT-B/16 with image_size=224"),
        ("vit_b_16", "ViT-B/16"),
        ("ViT-L-14", "ViT-L/14"),
        ("VIT-b/16", "ViT-B/16"),
        ("B/16", "ViT-B/16"),
        ("vit_base_r50_s16_224", "R50+ViT-B/16 with image_size=224"),
        ("vit_small_r26_s32_384", "R26+ViT-S/32 with image_size=384"),
        ("vit_tiny_r_s16_p8_224", "R+ViT-Ti/16 with image_size=224"),
        ("google/vit-hybrid-base-bit-384", "R50+ViT-B/16 with image_size=384"),
        ("R50-ViT-L_32", "R50+ViT-L/32"),
        ("resnetv2_50x1_bit", "BiT-R50x1"),
        ("resnetv2_152x2_bit_teacher_384", "BiT-R152x2 with image_size=384"),
        ("resnetv2_101x3_bitm_in21k", "BiT-R101x3"),
        ("BiT-M-R50x3", "BiT-R50x3"),
        ("google/bit-50", "BiT-R50x1"),
        ("axial50m", "AxialResNet-50M"),
    ],
)
def test_spellings_of_other_projects(name, variant):
    with pytest.raises(ValueError) as error:
        vit_tf.create_model(name)
    assert str(error.value) == f"Unknown model {name!r}. Did you mean {variant}?"


@pytest.mark.parametrize("name", VARIANTS)
def test_no_spelling_is_another_variant(name):
    has_spellings = re.search("ViT|BiT|AxialResNet", name)
    spelled = other_spelling(name.lower().replace("/", "_"))
    assert spelled == ((name, None) if has_spellings else None)


@pytest.mark.parametrize("name", ["vit_giant_patch14_224", "vit_base_patch15_224", "resnet50", ""])
def test_other_models_have_no_spelling(name):
    with pytest.raises(ValueError, match=r"Unknown model .* vit_tf.list_models\(\) returns all"):
        get_variant(name)
