"""Exact numbers of parameters of every model, counted without allocating weights."""

import math

import pytest

import vit_tf
from tests.vit_tf import tiny
from vit_tf import cost
from vit_tf.config.variants import get_variant

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
# The first five columns of `PUBLISHED` (docs/paper.md A.11). The reference's own tests have the
# second column for R+Ti/16, R26+S/32, R26+B/32, R50+B/16 and R50+L/32.
PUBLISHED_HYBRIDS = {
    "R+ViT-Ti/16": (6_144_704, 6_337_704, 6_374_760, 10_360_403, 10_397_459),
    "R26+ViT-S/32": (36_046_912, 36_431_912, 36_579_752, 44_456_467, 44_604_307),
    "R26+ViT-B/32": (100_614_976, 101_383_976, 101_974_568, 117_412_243, 118_002_835),
    "R50+ViT-B/32": (110_176_832, 110_945_832, 111_536_424, 126_974_099, 127_564_691),
    "R50+ViT-B/16": (97_890_112, 98_659_112, 99_249_704, 114_687_379, 115_277_971),
    "R50+ViT-L/32": (327_969_856, 328_994_856, 330_044_456, 350_358_931, 351_408_531),
    "R50+ViT-L/16": (315_458_624, 316_483_624, 317_533_224, 337_847_699, 338_897_299),
}
# Body, K=1000, K=21843 (docs/paper.md A.11; the BiT paper prints 928M for the body of R152x4).
PUBLISHED_BIT = {
    "BiT-R50x1": (23_500_352, 25_549_352, 68_256_659),
    "BiT-R50x2": (93_891_712, 97_988_712, 183_382_483),
    "BiT-R50x3": (211_174_080, 217_319_080, 345_399_315),
    "BiT-R101x1": (42_492_480, 44_541_480, 87_248_787),
    "BiT-R101x3": (381_789_888, 387_934_888, 516_015_123),
    "BiT-R152x1": (58_136_128, 60_185_128, 102_892_435),
    "BiT-R152x2": (232_238_208, 236_335_208, 321_728_979),
    "BiT-R152x4": (928_340_224, 936_533_224, 1_107_299_923),
    "BiT-R200x3": (562_488_000, 568_633_000, 696_713_235),
}
# K=1000 at 224 (docs/paper.md E.1).
PUBLISHED_AXIAL = {"Axial-ViT-B/32": 173_244_904, "Axial-ViT-B/16": 171_480_808}
# K=1000 (docs/paper.md E.2).
PUBLISHED_AXIAL_RESNET = {
    "AxialResNet-26S": 5_944_936,
    "AxialResNet-50S": 11_586_216,
    "AxialResNet-50M": 25_179_400,
    "AxialResNet-50L": 43_973_480,
}
# Units of each stage -> parameters of the stem alone (docs/paper.md A.11).
STEMS = {
    (): 9_536,
    (2, 2, 2, 2): 13_946_176,
    (3, 4, 6, 3): 23_508_032,
    (3, 4, 9): 11_894_848,
}
# Total reduction of the sides, stage_depths.
HYBRIDS = {
    "R+ViT-Ti/16": (32, ()),
    "R26+ViT-S/32": (32, (2, 2, 2, 2)),
    "R26+ViT-B/32": (32, (2, 2, 2, 2)),
    "R50+ViT-B/16": (16, (3, 4, 9)),
    "R50+ViT-B/32": (32, (3, 4, 6, 3)),
    "R50+ViT-L/16": (16, (3, 4, 9)),
    "R50+ViT-L/32": (32, (3, 4, 6, 3)),
}
BIT_UNITS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3), 200: (3, 24, 36, 3)}
# Millions of parameters (Ramachandran et al., 2019, table 1; Bello et al., 2019), and what
# squeeze-and-excitation adds to ResNet-50 (Hu et al., 2018: 28.09 M for 25.56 M).
PUBLISHED_COMPARISONS = {"SASA-R26": 10.3, "SASA-R38": 14.1, "SASA-R50": 18.0, "AACN-R50": 25.8}
PUBLISHED_SQUEEZE_EXCITE = 2_530_992
# Units of each stage; what is between the two convolutions 1 x 1.
COMPARISONS = {
    "SASA-R26": ((1, 2, 4, 1), "stand_alone"),
    "SASA-R38": ((2, 3, 5, 2), "stand_alone"),
    "SASA-R50": ((3, 4, 6, 3), "stand_alone"),
    "Local1D-R50": ((3, 4, 6, 3), "tokens"),
    "Local2D-R50": ((3, 4, 6, 3), "tokens"),
    "Sparse-R50": ((3, 4, 6, 3), "tokens"),
    "AACN-R50": ((3, 4, 6, 3), "augmented"),
    "SE-R50": ((3, 4, 6, 3), "convolution"),
    "Full-R20/2": ((6,), "full"),
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
AXIAL = [f"Axial-ViT-{size}/{patch}" for size in SIZES for patch in (16, 32)]


def by_formula(name, classes=1000, representation=False, image_size=224, token=True):
    """Number of parameters from the shapes in the paper's equations."""
    size, patch = name.split("ViT-")[1].split("/")
    width, mlp, layers = SIZES[size]
    reduction, channels, stem = int(patch), 3, 0
    side = reduction
    if name in HYBRIDS:
        reduction, stage_depths = HYBRIDS[name]
        side = 1 if stage_depths else 8
        channels, stem = residual_by_formula(stage_depths, 64, pre_activation=False)
    tokens = (image_size // reduction) ** 2 + token
    count = stem + side * side * channels * width + width + token * width + tokens * width
    attention = 4 * (width * width + width)
    block = 2 * 2 * width + attention + (width * mlp + mlp) + (mlp * width + width)
    count += layers * block + 2 * width
    if representation:
        count += width * width + width
    return count + (width * classes + classes if classes else 0)


def axial_by_formula(name):
    """Two blocks per layer, no class token, a vector of `D / 2` per row and per column."""
    vit = name.removeprefix("Axial-")
    width, mlp, layers = SIZES[vit.split("ViT-")[1].split("/")[0]]
    side = 224 // int(vit.split("/")[1])
    block = 4 * width + 4 * (width * width + width) + 2 * width * mlp + mlp + width
    positions = side * width - side * side * width  # 2 side vectors of half the width
    return by_formula(vit, token=False) + layers * block + positions


def residual_by_formula(stage_depths, root, pre_activation):
    """Channels, and number of parameters of root and residual units."""
    channels = root
    count = 7 * 7 * 3 * root + (0 if pre_activation else 2 * root)
    for stage, number in enumerate(stage_depths):
        inside = root * 2**stage
        outside = 4 * inside
        for index in range(number):
            count += channels * inside + 3 * 3 * inside * inside + inside * outside
            # Scale and offset of the norms, which are before each convolution or after it.
            count += 2 * (channels if pre_activation else outside) + 2 * inside + 2 * inside
            if index == 0:
                count += channels * outside + (0 if pre_activation else 2 * outside)
            channels = outside
    return channels, count


def bit_by_formula(name, classes=1000):
    depth, factor = (int(number) for number in name.removeprefix("BiT-R").split("x"))
    channels, count = residual_by_formula(BIT_UNITS[depth], 64 * factor, pre_activation=True)
    return count + 2 * channels + (channels * classes + classes if classes else 0)


def axial_resnet_by_formula(name, classes=1000, heads=8, sides=(56, 28, 14, 7)):
    units = {"26": (1, 2, 4, 1), "50": (3, 4, 6, 3)}[name[-3:-1]]
    channels = root = int(64 * {"S": 0.5, "M": 0.75, "L": 1}[name[-1]])
    count = 7 * 7 * 3 * root + 2 * root
    for stage, number in enumerate(units):
        inside = 2 * root * 2**stage
        for index in range(number):
            # The first unit of a stage attends at the side of the stage before.
            span = sides[max(stage - 1, 0)] if index == 0 else sides[stage]
            attention = 2 * inside * inside + 2 * (2 * inside + 3 * heads + 2 * inside)
            attention += 2 * inside // heads * (2 * span - 1)
            count += channels * inside + 2 * inside + 2 * attention
            count += inside * 2 * inside + 2 * 2 * inside
            if index == 0:
                count += channels * 2 * inside + 2 * 2 * inside
            channels = 2 * inside
    return count + (channels * classes + classes if classes else 0)


def middle_by_formula(kind, inside, side):
    """Parameters between the two convolutions 1 x 1 of a unit, on a map of `side x side`."""
    if kind == "stand_alone":  # q, k, v, and 7 + 7 embeddings of half a head each
        return 3 * inside**2 + 14 * inside // 2
    if kind in ("tokens", "full"):  # q, k, v and output with biases; a number per head and offset
        return 4 * (inside**2 + inside) + (2 * 8 * (2 * side - 1) if kind == "full" else 0)
    if kind == "augmented":  # 0.2 of the channels for keys, at least 20 of each head
        size, values = max(inside // 5 // 8, 20), max(round(inside / 10 / 8), 1) * 8
        projections = (inside + 1) * (16 * size + values) + (values + 1) * values
        return 9 * inside * (inside - values) + projections + 2 * (2 * side - 1) * size
    return 9 * inside**2


def comparison_by_formula(name):
    """Differences to the plain ResNet of the same units, at 224 pixels (32 for 2 x 2 patches)."""
    stage_depths, kind = COMPARISONS[name]
    channels, count = residual_by_formula(stage_depths, 64, pre_activation=True)
    if kind == "full":
        count -= (7 * 7 - 2 * 2) * 3 * 64
    for stage, number in enumerate(stage_depths):
        inside = 64 * 2**stage
        side = 16 if kind == "full" else 56 // 2**stage
        for _ in range(number):
            if not (kind == "augmented" and stage == 0):
                count += middle_by_formula(kind, inside, side) - 9 * inside**2
            if name == "SE-R50":
                outside = 4 * inside
                count += 2 * outside * outside // 16 + outside // 16 + outside
    return count + 2 * channels + channels * 1000 + 1000


def counted(name, **fields):
    """Trainable numbers: the moving averages of BatchNorm are not parameters."""
    with tiny.unallocated():
        model = vit_tf.create_model(name, **fields)
        count = sum(math.prod(variable.shape) for variable in model.trainable_variables)
        assert count == cost.parameters(model.config)
        assert len(model.weights) == cost.arrays(model.config)
    return count


def columns(name):
    """The fields of each column of `PUBLISHED`, and the formula's arguments."""
    width = SIZES[name.split("ViT-")[1].split("/")[0]][0]
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
    """A new model name must be added to the tables of this module."""
    counted_names = [*NAMES, *AXIAL, *HYBRIDS, *PUBLISHED_BIT, *PUBLISHED_AXIAL_RESNET]
    assert sorted(vit_tf.list_models()) == sorted([*counted_names, *COMPARISONS])


@pytest.mark.parametrize("name", NAMES)
def test_count_at_224_with_1000_classes(name):
    assert counted(name) == by_formula(name)


@pytest.mark.parametrize("name", AXIAL)
def test_counts_of_axial_models(name):
    assert cost.parameters(get_variant(name)) == axial_by_formula(name)
    assert name not in PUBLISHED_AXIAL or counted(name) == PUBLISHED_AXIAL[name]


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_counts(name):
    fields, arguments = columns(name)
    assert tuple(by_formula(name, **argument) for argument in arguments) == PUBLISHED[name]
    config = get_variant(name)
    found = [cost.parameters(config.replace(**field)) for field in fields]
    assert tuple(found) == PUBLISHED[name]
    # The test above checks the second column; this one checks the column with all optional layers.
    assert counted(name, **fields[4]) == found[4]


@pytest.mark.parametrize("name", PUBLISHED_HYBRIDS)
def test_published_counts_of_hybrids(name):
    fields, arguments = (column[:5] for column in columns(name))
    published = PUBLISHED_HYBRIDS[name]
    assert tuple(by_formula(name, **argument) for argument in arguments) == published
    assert counted(name) == published[1]
    config = get_variant(name)
    assert tuple(cost.parameters(config.replace(**field)) for field in fields) == published


@pytest.mark.parametrize("stage_depths", STEMS)
def test_published_counts_of_stems(stage_depths):
    """Root and units, without the projection to tokens."""
    assert residual_by_formula(stage_depths, 64, pre_activation=False)[1] == STEMS[stage_depths]
    with tiny.unallocated():
        model = vit_tf.create_model(tiny.config(stem=stage_depths, patch_size=1, image_size=64))
        assert model.stem.count_params() == STEMS[stage_depths]


@pytest.mark.parametrize("name", PUBLISHED_BIT)
def test_published_counts_of_bit(name):
    classes = (0, 1000, 21843)
    assert tuple(bit_by_formula(name, number) for number in classes) == PUBLISHED_BIT[name]
    assert counted(name) == PUBLISHED_BIT[name][1]
    config = get_variant(name)
    found = tuple(cost.parameters(config.replace(num_classes=number)) for number in classes)
    assert found == PUBLISHED_BIT[name]


@pytest.mark.parametrize("name", PUBLISHED_AXIAL_RESNET)
def test_published_counts_of_axial_resnets(name):
    assert axial_resnet_by_formula(name) == PUBLISHED_AXIAL_RESNET[name]
    assert counted(name) == PUBLISHED_AXIAL_RESNET[name]
    headless = get_variant(name).replace(num_classes=0)
    assert cost.parameters(headless) == axial_resnet_by_formula(name, classes=0)


@pytest.mark.parametrize("name", COMPARISONS)
def test_counts_of_comparisons(name):
    assert counted(name) == comparison_by_formula(name)


def test_published_counts_of_comparisons():
    """The normalisation of the published models has as many parameters."""
    for name, millions in PUBLISHED_COMPARISONS.items():
        assert comparison_by_formula(name) / 1e6 == pytest.approx(millions, abs=0.1)
    added = comparison_by_formula("SE-R50") - PUBLISHED_BIT["BiT-R50x1"][1]
    assert added == PUBLISHED_SQUEEZE_EXCITE


@pytest.mark.parametrize("name", PUBLISHED_GAP)
def test_published_counts_with_average_pooling(name):
    """Without a class token there is one position less."""
    assert by_formula(name, token=False) == PUBLISHED_GAP[name]
    assert counted(name, classifier="gap") == PUBLISHED_GAP[name]


def test_pooling_by_attention_has_a_probe_and_a_block_of_its_own():
    """A probe, q | k | v and output, one norm, the MLP; no class token, so one position less."""
    width, mlp, _ = SIZES["Ti"]
    pooling = width + 4 * (width * width + width) + 2 * width + 2 * width * mlp + mlp + width
    expected = by_formula("ViT-Ti/16", token=False) + pooling
    assert counted("ViT-Ti/16", classifier="map") == expected


@pytest.mark.parametrize("position_embedding", ["none", "sincos_2d"])
def test_only_learned_positions_have_a_table(position_embedding):
    fields = {"position_embedding": position_embedding}
    assert counted("ViT-Ti/16", **fields) == by_formula("ViT-Ti/16") - 197 * 192


def test_positions_of_rows_and_columns_have_two_tables():
    """Half the width for each of 14 rows and 14 columns, and the class token's own vector."""
    expected = by_formula("ViT-Ti/16") - 197 * 192 + 14 * 96 + 14 * 96 + 192
    assert counted("ViT-Ti/16", position_embedding="learned_2d") == expected


@pytest.mark.parametrize("name", [*NAMES, *AXIAL, *HYBRIDS])
def test_heads_leave_64_values_each_and_80_in_huge(name):
    """The number of heads does not change the parameter count (paper, table 1)."""
    config = get_variant(name)
    assert config.hidden_size / config.heads == (80 if "ViT-H" in name else 64)
