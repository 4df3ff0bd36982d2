"""The range of values that models read: a pixel value v in 0 .. 255 as x = v / 127.5 - 1."""

HALF_RANGE = 127.5
# x = SCALE * v + OFFSET.
SCALE = 1 / HALF_RANGE
OFFSET = -1.0
# The same range as mean and standard deviation of v / 255, one of each per color.
MEAN = STD = (0.5, 0.5, 0.5)
