"""Exact numbers of parameters of every model, counted without allocating weights."""

import math

import pytest

import vit_tf
from tests.vit_tf import tiny
from vit_tf.config import get_variant

# Published counts: no head, K=1000, K=1000 with pre-logits, K=21843, K=21843 with pre-logits,
# K=1000 at 384. The K=1000 column equals the constants in the reference repository's own tests.
PUBLISHED = {
    "ViT-Ti/16": (5_524_416, 5_717_416, 5_754_472, 9_740_115, 9_777_171, 5_790_376),
    "ViT-S/32": (22_493_952, 22_878_952, 23_026_792, 30_903_507, 31_051_347, 22_915_432),
    "ViT-S/16": (21_665_664, 22_050_664, 22_198_504, 30_075_219, 30_223_059, 22_196_584),
    "ViT-B/32": (87_455_232, 88_224_232, 88_814_824, 104_252_499, 104_843_091, 88_297_192),
    "ViT-B/16": (85_798_656, 86_567_656, 87_158_248, 102_595_923, 103_186_515, 86_859_496),
    "ViT-B/8": (85_807_872, 86_576_872, 87_167_464, 102_605_139, 103_195_731, 87_744_232),
    "ViT-L/32": (305_510_400, 306_535_400, 307_585_000, 327_899_475, 328_949_075, 306_632_680),
    "ViT-L/16": (303_301_632, 304_326_632, 305_376_232, 325_690_707, 326_740_307, 304_715_752),
    "ViT-H/14": (630_764_800, 632_045_800, 633_685_480, 658_745_683, 660_385_363, 632_651_240),
}
PUBLISHED_GAP = {
    "ViT-S/16": 22_049_896,
    "ViT-S/32": 22_878_184,
    "ViT-B/16": 86_566_120,
    "ViT-B/32": 88_222_696,
}
# width D, MLP width M, layers L: table 1 of the paper; Ti and S: AugReg, table 1.
SIZES = {
    "Ti": (192, 768, 12),
    "S": (384, 1536, 12),
    "B": (768, 3072, 12),
    "L": (1024, 4096, 24),
    "H": (1280, 5120, 32),
}
NAMES = [f"ViT-{size}/{patch}" for size in SIZES for patch in (8, 14, 16, 32)]


def by_formula(name, classes=1000, representation=False, image_size=224, token=True):
    """Number of parameters from the shapes in the paper's equations."""
    size, patch = name.removeprefix("ViT-").split("/")
    width, mlp, layers = SIZES[size]
    patch = int(patch)
    tokens = (image_size // patch) ** 2 + token
    count = patch * patch * 3 * width + width + token * width + tokens * width
    attention = 4 * (width * width + width)
    block = 2 * 2 * width + attention + (width * mlp + mlp) + (mlp * width + width)
    count += layers * block + 2 * width
    if representation:
        count += width * width + width
    return count + (width * classes + classes if classes else 0)


def counted(name, **fields):
    with tiny.unallocated():
        model = vit_tf.create_model(name, **fields)
        count = sum(math.prod(variable.shape) for variable in model.variables)
        assert model.count_params() == count
    return count


def columns(name):
    """The fields of each column of `PUBLISHED`, and the formula's arguments."""
    width = SIZES[name.removeprefix("ViT-").split("/")[0]][0]
    fields = [
        {"num_classes": 0},
        {},
        {"representation_size": width},
        {"num_classes": 21843},
        {"num_classes": 21843, "representation_size": width},
        {"image_size": 384},
    ]
    arguments = [
        {"classes": 0},
        {},
        {"representation": True},
        {"classes": 21843},
        {"classes": 21843, "representation": True},
        {"image_size": 384},
    ]
    return fields, arguments


def test_every_model_has_a_count():
    """A new name needs its sizes here before this file passes."""
    assert sorted(vit_tf.list_models()) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_count_at_224_with_1000_classes(name):
    assert counted(name) == by_formula(name)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_counts(name):
    fields, arguments = columns(name)
    assert tuple(by_formula(name, **argument) for argument in arguments) == PUBLISHED[name]
    assert tuple(counted(name, **field) for field in fields) == PUBLISHED[name]


@pytest.mark.parametrize("name", PUBLISHED_GAP)
def test_published_counts_with_average_pooling(name):
    """No class token, and one position fewer."""
    assert by_formula(name, token=False) == PUBLISHED_GAP[name]
    assert counted(name, classifier="gap") == PUBLISHED_GAP[name]


def test_position_embedding_none_has_no_table():
    assert counted("ViT-Ti/16", position_embedding="none") == by_formula("ViT-Ti/16") - 197 * 192


@pytest.mark.parametrize("name", NAMES)
def test_heads_leave_64_values_each_and_80_in_huge(name):
    """The number of heads changes no count, so it is checked by itself (paper, table 1)."""
    config = get_variant(name)
    assert config.hidden_size / config.heads == (80 if "ViT-H" in name else 64)
