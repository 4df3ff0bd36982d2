"""Costs of the layers that every model is made of, for one image; see `vit_tf/cost.py`.

`size` is the bytes of an activation. Norms, the softmax and the head compute in float32 whatever
the policy.
"""

import dataclasses
import operator

FLOAT32 = 4


@dataclasses.dataclass(frozen=True)
class Cost:
    """Costs of a part of a model, for one image."""

    parameters: int = 0
    arrays: int = 0
    macs: int = 0
    # Bytes that the backward pass reads.
    kept: int = 0
    # Most bytes in use at once when no backward pass follows.
    live: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        *sums, live = dataclasses.astuple(self)
        *others, other_live = dataclasses.astuple(other)
        return Cost(*map(operator.add, sums, others), max(live, other_live))

    def __mul__(self, count: int) -> "Cost":
        """`count` of them, one after the other; hostile files name counts too large for a loop."""
        *sums, live = dataclasses.astuple(self)
        return Cost(*(count * number for number in sums), live * bool(count))


def conv(side, channels, filters, pixels):
    """A convolution without bias that writes `pixels` of `filters` channels."""
    numbers = side * side * channels * filters
    return Cost(parameters=numbers, arrays=1, macs=numbers * pixels)


def dense(inputs, outputs, rows=1):
    """A dense layer with bias; what it keeps and reads is counted where it is used."""
    return Cost(parameters=(inputs + 1) * outputs, arrays=2, macs=rows * inputs * outputs)


def head(inputs, classes, rows=1):
    """The classifier, which computes in float32 under every policy."""
    memory = FLOAT32 * rows * (inputs + classes)
    return dense(inputs, classes, rows) + Cost(kept=memory, live=memory)


def layer_norm(width, rows, size):
    """Keeps what it reads in float32, scale times deviation, and three numbers of each row."""
    values = FLOAT32 * rows * width
    return Cost(
        parameters=2 * width,
        arrays=2,
        kept=2 * values + 3 * FLOAT32 * rows,
        live=rows * width * also_float32(size) + 2 * values,
    )


def group_norm(channels, pixels):
    """Keeps the centred values in float32, and two numbers of each channel."""
    values = FLOAT32 * channels * pixels
    kept = values + 2 * FLOAT32 * channels
    return Cost(parameters=2 * channels, arrays=2, kept=kept, live=2 * values)


def norm_relu(channels, pixels, size):
    """A GroupNorm and the ReLU behind it, whose result has `size` bytes a number."""
    return group_norm(channels, pixels) + Cost(kept=size * channels * pixels)


def halved(sides):
    """(height, width) after a stride of 2; every step rounds up."""
    return tuple(-(-side // 2) for side in sides)


def also_float32(size):
    """Bytes of a number that exists in float32 too, which is one tensor where all are float32."""
    return size if size == FLOAT32 else size + FLOAT32
