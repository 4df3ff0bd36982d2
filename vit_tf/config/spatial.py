"""Layers in the place of a residual unit's 3 x 3 convolution, and their published sizes.

See docs/paper.md C.4. The sizes are constants: a model with other ones is made of the layers in
`vit_tf.layers`.
"""

import math

# Values of `ResNetConfig.spatial`.
SPATIAL = (
    "convolution",
    "local_1d",
    "local_2d",
    "stand_alone",
    "augmented",
    "sparse",
    "full",
)

# Kinds whose cost grows with the square of the pixels: in a unit with strides, the mean comes
# before these layers, and after the others.
QUADRATIC = ("augmented", "full")
# Heads of every kind of attention.
HEADS = 8
# Side of the neighborhood of "stand_alone".
KERNEL_SIZE = 7
# Pixels of a block of "local_1d"; rows and columns of a block of "local_2d", and how far its memory
# extends. Both forms read 256 pixels. Not from the paper, whose sizes are for other maps.
BLOCK_1D = 128
BLOCK_2D, REACH_2D = (8, 8), (4, 4)
# Keys and values of "augmented", as fractions of the filters, and the smallest key of a head.
KEY_FRACTION, VALUE_FRACTION, SMALLEST_KEY = 0.2, 0.1, 20
# Channels per channel of the bottleneck of squeeze-and-excitation.
REDUCTION = 16
# Side of the patches that "full" reads.
PATCH = 2


def sparse_block(sides) -> int:
    """Pixels of a block of "sparse" on a map of (height, width): `ceil(sqrt(pixels))`."""
    return math.isqrt(sides[0] * sides[1] - 1) + 1


def attention_sizes(filters, key_fraction, value_fraction, heads) -> tuple[int, int]:
    """Channels of a head's keys and values in "augmented"."""
    key = max(round(key_fraction * filters / heads), SMALLEST_KEY)
    return key, max(round(value_fraction * filters / heads), 1)
