"""Costs of a residual network and of the stem of a hybrid, part by part; see `vit_tf/cost.py`."""

import dataclasses
import functools

from vit_tf.analysis.layer_costs import FLOAT32, Cost, conv, group_norm, halved, head, norm_relu
from vit_tf.analysis.spatial_cost import spatial_layer, squeeze_excite
from vit_tf.config import ResNetConfig, StemConfig
from vit_tf.config.spatial import PATCH, QUADRATIC


def parts(config: ResNetConfig, size, compiled) -> dict[str, Cost]:
    """Costs of an image by part; for the arguments see `vit_cost.parts`."""
    root, sides = (_patch_root if config.has_patch_root else _pooled_root)(config, size)
    unit = functools.partial(_pre_activation_unit, config, size=size, compiled=compiled)
    stages, pixels = _stages(config, unit, sides)
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
    stages, _ = _stages(config, functools.partial(_post_activation_unit, size=size), sides)
    return sum(stages, root + pooled)


def _pooled_root(config, size):
    """Cost of the root of a `ResNetConfig` and of its maximum; (height, width) of the result."""
    channels = config.root_channels
    root, sides = _root(config, config.image_size, size)
    # The max pooling reads a copy that is padded with zeros.
    padded = channels * (sides[0] + 2) * (sides[1] + 2)
    before, sides = channels * sides[0] * sides[1], halved(sides)
    pooled = channels * sides[0] * sides[1]
    return root + Cost(kept=size * (padded + pooled), live=size * (before + padded)), sides


def _patch_root(config, size):
    """Cost of a root of patches, and (height, width) of its result."""
    rows, columns = (side // PATCH for side in config.image_size)
    pixels, channels = rows * columns, config.root_channels
    image = 3 * config.image_size[0] * config.image_size[1]
    live = size * (image + channels * pixels)
    return conv(PATCH, 3, channels, pixels) + Cost(kept=size * image, live=live), (rows, columns)


def _root(config, image_size, size):
    """Cost of the root convolution, and (height, width) of its result."""
    sides = halved(image_size)
    pixels, channels = sides[0] * sides[1], config.root_channels
    image = 3 * image_size[0] * image_size[1]
    return conv(7, 3, channels, pixels) + Cost(kept=size * image), sides


def _stages(config, unit, sides):
    """Costs of all stages, and the number of pixels of the last feature map.

    `unit(stage, filters, channels, before, after)` is the cost of a unit that reads `channels` of
    (height, width) `before`, and writes `4 * filters` of `after`.
    """
    costs, channels = [], config.root_channels
    for stage, count in enumerate(config.stage_depths):
        filters, before = config.root_channels * 2**stage, sides
        sides = halved(sides) if stage else sides
        first = unit(stage, filters, channels, before, sides)
        channels = 4 * filters
        costs.append(first + unit(stage, filters, channels, sides, sides) * (count - 1))
    return costs, sides[0] * sides[1]


def _post_activation_unit(stage, filters, channels, before, after, size):
    """See `_stages`."""
    del stage
    before, pixels, outside = before[0] * before[1], after[0] * after[1], 4 * filters
    middle = conv(3, filters, filters, pixels)
    cost = _branch(middle, filters, channels, before, pixels, size)
    cost += norm_relu(outside, pixels, size)
    if channels != outside:
        cost += group_norm(outside, pixels)
    # The last norm, or the norm of the projection, while the larger branch is in memory.
    wait = size * max(channels * before, outside * pixels)
    return cost + Cost(live=wait + 2 * FLOAT32 * outside * pixels)


def _pre_activation_unit(config, stage, filters, channels, before, after, size, compiled):
    """See `_stages`."""
    kind = config.spatial_of(stage)
    sides = after if kind in QUADRATIC else before
    before, pixels, outside = before[0] * before[1], after[0] * after[1], 4 * filters
    if kind == "convolution":
        middle = conv(3, filters, filters, pixels)
    else:
        # The shortcut is in memory beside the layer; a layer after the mean keeps its own input.
        middle = spatial_layer(kind, filters, sides, size, compiled)
        middle = dataclasses.replace(middle, live=middle.live + size * outside * pixels)
        if kind in QUADRATIC and before != pixels:
            middle += Cost(kept=size * filters * pixels)
    # The first norm while an unprojected shortcut is in memory, or the last convolution.
    wait = size if channels == outside else 0
    first = channels * before * (2 * FLOAT32 + wait)
    last = size * pixels * (2 * outside + filters)
    cost = _branch(middle, filters, channels, before, pixels, size)
    cost += norm_relu(channels, before, size) + Cost(live=max(first, last))
    return cost + squeeze_excite(outside, pixels, size) if config.squeeze_excite else cost


def _branch(middle, filters, channels, before, pixels, size):
    """Layers of both kinds of units: convolutions, norms between them, perhaps a projection.

    `middle` is the cost of the layer between the two convolutions 1 x 1.
    """
    outside = 4 * filters
    cost = (
        conv(1, channels, filters, before)
        + norm_relu(filters, before, size)
        + middle
        + norm_relu(filters, pixels, size)
        + conv(1, filters, outside, pixels)
    )
    return cost if channels == outside else cost + conv(1, channels, outside, pixels)
