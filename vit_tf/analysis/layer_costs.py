"""Costs of single layers, for one image; see `vit_tf/cost.py`.

`size` is the number of bytes of an activation. Norms, the softmax and the head compute in float32
under every policy.
"""

import dataclasses
import operator

FLOAT32 = 4
# Numbers that the compiled attention keeps per row of weights, to compute the row again.
SOFTMAX_STATISTICS = 2


@dataclasses.dataclass(frozen=True)
class Cost:
    """Costs of a part of a model, for one image."""

    parameters: int = 0
    arrays: int = 0
    macs: int = 0
    # MACs of the forward pass that the backward pass computes again.
    again: int = 0
    # Bytes that the backward pass reads.
    kept: int = 0
    # Largest number of bytes in use at once without a backward pass.
    live: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        *sums, live = dataclasses.astuple(self)
        *others, other_live = dataclasses.astuple(other)
        return Cost(*map(operator.add, sums, others), max(live, other_live))

    def __mul__(self, count: int) -> "Cost":
        """`count` of them in sequence. No loop, since a hostile file can state a huge count."""
        *sums, live = dataclasses.astuple(self)
        return Cost(*(count * number for number in sums), live * bool(count))


def conv(side, channels, filters, pixels):
    """A convolution without bias that writes `pixels` pixels of `filters` channels."""
    numbers = side * side * channels * filters
    return Cost(parameters=numbers, arrays=1, macs=numbers * pixels)


def dense(inputs, outputs, rows=1):
    """A dense layer with bias; the caller counts its activations."""
    return Cost(parameters=(inputs + 1) * outputs, arrays=2, macs=rows * inputs * outputs)


def head(inputs, classes, rows=1):
    """The classifier, which computes in float32 under every policy."""
    memory = FLOAT32 * rows * (inputs + classes)
    return dense(inputs, classes, rows) + Cost(kept=memory, live=memory)


def layer_norm(width, rows, size):
    """A LayerNorm; keeps its float32 input, scale times deviation, and three numbers per row."""
    values = FLOAT32 * rows * width
    return Cost(
        parameters=2 * width,
        arrays=2,
        kept=2 * values + 3 * FLOAT32 * rows,
        live=rows * width * also_float32(size) + 2 * values,
    )


def residual_norm(width, rows, size, compiled):
    """A LayerNorm of a block; the compiled op keeps its input, mean and deviation of each row."""
    if not compiled:
        return layer_norm(width, rows, size)
    kept = size * rows * width + 2 * FLOAT32 * rows
    # The two addends, their sum and the result.
    return Cost(parameters=2 * width, arrays=2, kept=kept, live=3 * size * rows * width + kept)


def group_norm(channels, pixels):
    """A GroupNorm; keeps the centered values in float32, and two numbers per channel."""
    values = FLOAT32 * channels * pixels
    kept = values + 2 * FLOAT32 * channels
    return Cost(parameters=2 * channels, arrays=2, kept=kept, live=2 * values)


def norm_relu(channels, pixels, size):
    """A GroupNorm and the ReLU after it; the result has `size` bytes per number."""
    return group_norm(channels, pixels) + Cost(kept=size * channels * pixels)


def halved(sides):
    """(height, width) after a stride of 2; every step rounds up."""
    return tuple(-(-side // 2) for side in sides)


def also_float32(size):
    """Bytes per number of a tensor and its float32 copy; a float32 tensor has no copy."""
    return size if size == FLOAT32 else size + FLOAT32
