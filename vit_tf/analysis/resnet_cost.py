"""Costs of a residual network and of the stem of a hybrid, part by part; see `vit_tf/cost.py`."""

from vit_tf.analysis.layer_costs import FLOAT32, Cost, conv, group_norm, halved, head, norm_relu
from vit_tf.config import ResNetConfig, StemConfig


def parts(config: ResNetConfig, size, fused) -> dict[str, Cost]:
    """Costs of an image by part; `fused` has no effect, see `vit_cost.parts`."""
    del fused
    channels = config.root_channels
    root, sides = _root(config, config.image_size, size)
    # The max pooling reads a copy that is padded with zeros.
    padded = channels * (sides[0] + 2) * (sides[1] + 2)
    before, sides = channels * sides[0] * sides[1], halved(sides)
    pooled = channels * sides[0] * sides[1]
    root += Cost(kept=size * (padded + pooled), live=size * (before + padded))
    stages, pixels = _stages(config, _pre_activation_unit, sides, size)
    costs = {"root": root}
    costs |= {f"stage{index + 1}": stage for index, stage in enumerate(stages)}
    costs["norm"] = norm_relu(config.channels, pixels, size)
    if config.num_classes:
        costs["head"] = head(config.channels, config.num_classes)
    else:
        costs["result"] = Cost(kept=FLOAT32 * config.channels)
    return costs


def stem(config: StemConfig, image_size, size) -> Cost:
    """Costs of the ResNet of a hybrid, for an image of (height, width)."""
    channels = config.root_channels
    root, sides = _root(config, image_size, size)
    root += norm_relu(channels, sides[0] * sides[1], size)
    sides = halved(sides)
    pooled = Cost(kept=size * channels * sides[0] * sides[1])
    stages, _ = _stages(config, _post_activation_unit, sides, size)
    return sum(stages, root + pooled)


def _root(config, image_size, size):
    """Cost of the root convolution, and (height, width) of its result."""
    sides = halved(image_size)
    pixels, channels = sides[0] * sides[1], config.root_channels
    image = 3 * image_size[0] * image_size[1]
    return conv(7, 3, channels, pixels) + Cost(kept=size * image), sides


def _stages(config, unit, sides, size):
    """Costs of all stages, and the number of pixels of the last feature map."""
    costs, channels = [], config.root_channels
    for stage, count in enumerate(config.stage_depths):
        filters, before = config.root_channels * 2**stage, sides[0] * sides[1]
        sides = halved(sides) if stage else sides
        pixels = sides[0] * sides[1]
        first = unit(filters, channels, before, pixels, size)
        channels = 4 * filters
        costs.append(first + unit(filters, channels, pixels, pixels, size) * (count - 1))
    return costs, sides[0] * sides[1]


def _post_activation_unit(filters, channels, before, pixels, size):
    """A unit: reads `before` pixels of `channels`, writes `pixels` pixels of `4 * filters`."""
    outside = 4 * filters
    cost = _branch(filters, channels, before, pixels, size) + norm_relu(outside, pixels, size)
    if channels != outside:
        cost += group_norm(outside, pixels)
    # The last norm, or the norm of the projection, while the larger branch is in memory.
    wait = size * max(channels * before, outside * pixels)
    return cost + Cost(live=wait + 2 * FLOAT32 * outside * pixels)


def _pre_activation_unit(filters, channels, before, pixels, size):
    """See `_post_activation_unit`."""
    outside = 4 * filters
    # The first norm while an unprojected shortcut is in memory, or the last convolution.
    wait = size if channels == outside else 0
    first = channels * before * (2 * FLOAT32 + wait)
    last = size * pixels * (2 * outside + filters)
    cost = _branch(filters, channels, before, pixels, size) + norm_relu(channels, before, size)
    return cost + Cost(live=max(first, last))


def _branch(filters, channels, before, pixels, size):
    """Layers of both kinds of units: convolutions, norms between them, perhaps a projection."""
    outside = 4 * filters
    cost = (
        conv(1, channels, filters, before)
        + norm_relu(filters, before, size)
        + conv(3, filters, filters, pixels)
        + norm_relu(filters, pixels, size)
        + conv(1, filters, outside, pixels)
    )
    return cost if channels == outside else cost + conv(1, channels, outside, pixels)
