"""Costs of an AxialResNet, part by part; see `vit_tf/cost.py`.

Moving averages are not parameters. The statistics of a BatchNorm, a few numbers per channel and
batch, are not counted.
"""

import dataclasses

from vit_tf.analysis.layer_costs import (
    FLOAT32,
    Cost,
    also_float32,
    conv,
    group_norm,
    halved,
    head,
)
from vit_tf.config import AxialResNetConfig


def parts(config: AxialResNetConfig, size, compiled) -> dict[str, Cost]:
    """Costs of an image by part; `compiled` has no effect, see `vit_cost.parts`."""
    del compiled
    channels, sides = config.root_channels, halved(config.image_size)
    pixels, padded = sides[0] * sides[1], (sides[0] + 2) * (sides[1] + 2)
    image = 3 * (config.image_size[0] + 6) * (config.image_size[1] + 6)
    sides = config.root_size
    root = (
        conv(7, 3, channels, pixels)
        + _norm(config, channels, pixels, size)
        + Cost(kept=size * (image + channels * (pixels + padded + sides[0] * sides[1])))
    )
    costs = {"root": root}
    for stage, count in enumerate(config.stage_depths):
        filters, strides = config.root_channels * 2 ** (stage + 1), 2 if stage else 1
        first = _unit(config, (channels, filters), sides, strides, size)
        channels, sides = 2 * filters, tuple(side // strides for side in sides)
        others = _unit(config, (channels, filters), sides, 1, size)
        costs[f"stage{stage + 1}"] = first + others * (count - 1)
    if config.num_classes:
        costs["head"] = head(channels, config.num_classes)
    else:
        costs["result"] = Cost(kept=FLOAT32 * channels)
    return costs


def _unit(config, widths, sides, strides, size):
    """A residual unit; `widths` are its input channels and the channels of its attention."""
    channels, filters = widths
    before = sides[0] * sides[1]
    pixels, outside = before // strides**2, 2 * filters
    shortcut = size * outside * pixels
    cost = (
        conv(1, channels, filters, before)
        + _norm(config, filters, before, size, shortcut)
        + _attention(config, (filters, before, sides[0]), size, shortcut)
        + _attention(config, (filters, before, sides[1]), size, shortcut)
        + conv(1, filters, outside, pixels)
        + _norm(config, outside, pixels, size, shortcut)
        # The results of the three ReLUs, and the input of each attention in its layout.
        + Cost(kept=size * (filters * (3 * before + pixels) + outside * pixels))
    )
    if channels != outside or strides != 1:
        inputs = size * channels * before
        cost += conv(1, channels, outside, pixels) + _norm(config, outside, pixels, size, inputs)
    return cost


def _attention(config, sizes, size, shortcut):
    """Attention; `sizes` are its channels, its pixels and the pixels of a line."""
    filters, pixels, span = sizes
    values, maps = filters // config.heads, config.heads * pixels * span
    # The values wait while the logits are normalized.
    wait = shortcut + size * filters * pixels
    return (
        conv(1, filters, 2 * filters, pixels)
        + _norm(config, 2 * filters, pixels, size, shortcut)
        + _norm(config, 3 * config.heads, pixels * span, size, wait)
        + _norm(config, 2 * filters, pixels, size, shortcut)
        + Cost(
            parameters=2 * values * (2 * span - 1),
            arrays=1,
            # Three products of d / 2 values for the logits, two of d for the sums.
            macs=7 * maps * values // 2,
            # Queries, keys and values, and the softmax with its copy in the compute dtype.
            kept=size * 2 * filters * pixels + also_float32(size) * maps,
        )
    )


def _norm(config, channels, pixels, size, wait=0):
    """A norm of `pixels` numbers per channel, while `wait` other bytes are in memory."""
    cost, numbers = group_norm(channels, pixels), channels * pixels
    if config.norm == "group":
        return dataclasses.replace(cost, live=cost.live + wait)
    # Gamma and beta are parameters; the moving averages are two more arrays.
    live = (size + FLOAT32) * numbers + wait
    return dataclasses.replace(cost, arrays=4, kept=FLOAT32 * numbers, live=live)
