"""Numbers of parameters from the equations of the paper, without the code that builds models."""

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
BIT = [
    f"BiT-R{size}"
    for size in ("50x1", "50x2", "50x3", "101x1", "101x3", "152x1", "152x2", "152x4", "200x3")
]
AXIAL_RESNETS = ["AxialResNet-26S", "AxialResNet-50S", "AxialResNet-50M", "AxialResNet-50L"]
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
