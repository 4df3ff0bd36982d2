"""Costs of the layers that take the place of a 3 x 3 convolution; see `vit_tf/cost.py`.

`f` channels in and out; every query and key that is computed counts, also those that a mask hides.
The relative positions of "full" exist once per batch, not per image, and do not count.
"""

from vit_tf.analysis.layer_costs import (
    FLOAT32,
    SOFTMAX_STATISTICS,
    Cost,
    also_float32,
    conv,
    dense,
)
from vit_tf.config import spatial
from vit_tf.config.spatial import HEADS


def spatial_layer(kind, filters, sides, size, compiled) -> Cost:
    """Costs of the layer of a value of `ResNetConfig.spatial`, without its inputs.

    Args:
        kind: the value, other than "convolution".
        filters: `f`.
        sides: (height, width) of the map.
        size: bytes of an activation.
        compiled: see `vit_cost.parts`.
    """
    return _LAYERS[kind](filters, sides, size, compiled)


def squeeze_excite(channels, pixels, size) -> Cost:
    """Costs of squeeze-and-excitation; the gradient reads its inputs, means and scales."""
    inside = channels // spatial.REDUCTION
    values = channels * pixels
    numbers = dense(channels, inside) + dense(inside, channels)
    kept = size * (values + 3 * channels + inside)
    return numbers + Cost(kept=kept, live=2 * size * values)


def _local_1d(filters, sides, size, compiled):
    del compiled
    blocks = _ceil(sides[0] * sides[1], spatial.BLOCK_1D)
    return _local(filters, sides, size, blocks, spatial.BLOCK_1D, 2 * spatial.BLOCK_1D)


def _local_2d(filters, sides, size, compiled):
    del compiled
    blocks, queries, keys = 1, 1, 1
    for side, block, reach in zip(sides, spatial.BLOCK_2D, spatial.REACH_2D, strict=True):
        blocks *= _ceil(side, block)
        queries *= block
        keys *= block + 2 * reach
    return _local(filters, sides, size, blocks, queries, keys)


def _local(filters, sides, size, blocks, queries, keys):
    """Blocks of queries that attend to memories of keys."""
    pixels, weights = sides[0] * sides[1], HEADS * blocks * queries * keys
    copies = size * filters * blocks * (queries + 2 * keys)
    kept = copies + size * filters * pixels + weights * also_float32(size)
    # Queries and keys are free when 16-bit logits become float32.
    beside = copies if size == FLOAT32 else size * filters * blocks * keys
    live = beside + weights * also_float32(size)
    attention = Cost(macs=2 * blocks * queries * keys * filters, kept=kept, live=live)
    return _projections(filters, pixels) + attention


def _stand_alone(filters, sides, size, compiled):
    del compiled
    k, (rows, columns) = spatial.KERNEL_SIZE, sides
    blocks, window = _ceil(columns, k), 2 * k - 1
    queries = rows * blocks * k
    windows = (rows + k - 1) * blocks * window
    # Kept: queries, also as their two halves, keys, values, relative logits, result, statistics.
    kept = size * filters * (2 * queries + 2 * windows)
    kept += FLOAT32 * queries * (HEADS * (window + k + 1) + filters)
    # At once: queries, keys and values; of one row offset values, weights and result.
    live = size * filters * (2 * queries + 2 * windows + rows * blocks * window)
    live += FLOAT32 * queries * (HEADS * (2 * window + k + 3) + filters)
    live += 0 if size == FLOAT32 else size * queries * HEADS * window
    return Cost(
        parameters=3 * filters**2 + k * filters,
        arrays=3,
        macs=3 * filters**2 * rows * columns + queries * filters * (k + 2 * k * window),
        kept=kept,
        live=live,
    )


def _sparse(filters, sides, size, compiled):
    pixels = sides[0] * sides[1]
    length = spatial.sparse_block(sides)
    lines = _ceil(pixels, length)
    padded = lines * length
    halves = [
        _attention(filters // 2, padded, size, padded * HEADS // 2, keys, compiled)
        for keys in (length, lines)
    ]
    kept = sum(halves) + size * filters * pixels
    macs = filters * padded * (length + lines)
    joint = size * 3 * filters * padded
    live = joint + max(size * 3 * filters * pixels, *halves)
    return _projections(filters, pixels) + Cost(macs=macs, kept=kept, live=live)


def _full(filters, sides, size, compiled):
    pixels = sides[0] * sides[1]
    live = _attention(filters, pixels, size, HEADS * pixels, pixels, compiled)
    kept = live + (0 if compiled else size * filters * pixels)
    tables = Cost(parameters=2 * HEADS * (sum(sides) - 1), arrays=2)
    attention = Cost(macs=2 * filters * pixels**2, kept=kept, live=live)
    return _projections(filters, pixels) + tables + attention


def _augmented(filters, sides, size, compiled):
    pixels, offsets = sides[0] * sides[1], 2 * (sum(sides) - 1)
    key, value = spatial.attention_sizes(
        filters, spatial.KEY_FRACTION, spatial.VALUE_FRACTION, HEADS
    )
    keys, values, widest = HEADS * key, HEADS * value, HEADS * max(key, value)
    kept = size * pixels * (keys + values)
    kept += _attention(widest, pixels, size, HEADS * pixels, pixels, compiled)
    # The op reads relative logits again; the reference keeps which rows are hidden.
    kept += FLOAT32 * HEADS * pixels**2 if compiled else HEADS * pixels
    # Beside the convolution: q, k, v and their joint copy, or logits and their bias before and
    # after the search for hidden rows.
    live = size * pixels * (filters - values + (6 if compiled else 1) * widest)
    live += (1 if compiled else 3) * FLOAT32 * HEADS * pixels**2
    relative = Cost(parameters=offsets * key, arrays=2, macs=pixels * keys * offsets)
    return (
        conv(3, filters, filters - values, pixels)
        + dense(filters, 2 * keys + values, pixels)
        + dense(values, values, pixels)
        + relative
        + Cost(macs=2 * widest * pixels**2, kept=kept, live=live)
    )


def _attention(width, pixels, size, rows, keys, compiled):
    """Bytes that attention keeps: q, k, v; the result and statistics, or the weights."""
    if compiled:
        return 4 * width * pixels * size + SOFTMAX_STATISTICS * FLOAT32 * rows
    return 3 * width * pixels * size + rows * keys * also_float32(size)


def _projections(filters, pixels):
    """The layers "qkv" and "out"."""
    return dense(filters, 3 * filters, pixels) + dense(filters, filters, pixels)


def _ceil(number, divisor):
    return -(-number // divisor)


_LAYERS = {
    "local_1d": _local_1d,
    "local_2d": _local_2d,
    "stand_alone": _stand_alone,
    "sparse": _sparse,
    "full": _full,
    "augmented": _augmented,
}
