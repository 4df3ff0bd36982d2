"""The range of values that models read: a pixel value v in 0 .. 255 as x = v / 127.5 - 1."""

HALF_RANGE = 127.5
# x = SCALE * v + OFFSET.
SCALE = 1 / HALF_RANGE
OFFSET = -1.0
