"""Draws any number of images of simple shapes from a seed, with NumPy only.

Image i of a stream is a function of (seed, stream, i, size). It does not depend on the number of
images, or on the images drawn in the same call. Pixels are computed only with operations that IEEE
754 rounds exactly, so the same random words give the same bytes on every platform.

One image holds 1 to 5 copies of one shape in one color and texture. Each copy has its own place,
size and rotation. The background has low saturation and a brightness that differs from the shape's.

Shapes of arrays: `n` images of `s x s` pixels.
"""

from typing import NamedTuple

import numpy as np

from pipelines.data import stateless_random

KINDS = ("circle", "ring", "square", "triangle", "star", "cross", "bar", "semicircle")
COLORS = {
    "red": (215, 40, 40),
    "orange": (240, 140, 30),
    "yellow": (240, 225, 50),
    "green": (50, 165, 70),
    "cyan": (60, 200, 210),
    "blue": (50, 85, 220),
    "purple": (145, 60, 190),
    "pink": (245, 135, 195),
}
COUNTS = ("1", "2", "3", "4", "5")
# Cell of the first shape's center, in a grid of 3 x 3 cells, row by row.
POSITIONS = tuple(
    f"{row} {column}"
    for row in ("top", "middle", "bottom")
    for column in ("left", "centre", "right")
)
TEXTURES = ("solid", "stripes", "checks", "dots", "speckles")
BACKGROUNDS = ("plain", "gradient", "stripes", "clouds", "speckles")

# Radius over image side: a single shape, one shape among several, and a large single one.
_ALONE, _TOGETHER, _LARGE = (0.11, 0.28), (0.11, 0.15), (0.25, 0.45)
# Distance between a shape and the edge of its cell, in image sides.
_GAP = 0.012
# Ranges of change: of the shape's color, of the background's color, and of the background's
# brightness within an image. Values are in 0 .. 1.
_COLOR_JITTER, _TINT, _RELIEF = 0.07, 0.1, 0.25
# Random words per image: at least one per draw, and a multiple of 4 (see
# `stateless_random.random_words`).
_WORDS = 64
_CLOUD_CELLS = 4


class Attributes(NamedTuple):
    """Attributes of the images: int64 `[n]` each, an index into the names above."""

    kind: np.ndarray
    color: np.ndarray
    count: np.ndarray  # number of shapes - 1
    position: np.ndarray
    texture: np.ndarray
    background: np.ndarray


class _Shapes(NamedTuple):
    """Geometry, float32 `[n, 5]` each, in image sides; entries beyond the count are not used."""

    x: np.ndarray
    y: np.ndarray
    radius: np.ndarray
    cos: np.ndarray
    sin: np.ndarray


def draw(first, count, size, *, seed=0, stream=0, single=False, large=False, pairs=None):
    """Draws images `first` .. `first + count - 1` of a stream.

    Args:
        first, count: index of the first image, and number of images.
        size: height and width, in pixels.
        seed: seed of the data set, 0 .. 2**64 - 1.
        stream: such as the number of a split; different streams have different images.
        single: whether every image holds exactly one shape, as the label "position" needs.
        large: whether this one shape is large, and anywhere in the image.
        pairs: int64 `[p, 2]`, the kinds and colors that are drawn together; None: all of them.

    Returns:
        uint8 `[count, size, size, 3]`, and the `Attributes`.
    """
    words = stateless_random.random_words(
        seed, stateless_random.SHAPES, (first * _WORDS // 4, stream, 0), count * _WORDS
    ).reshape(count, _WORDS)
    uniform = iter(_unit(words).T)

    def choose(names):
        return (next(uniform) * np.float32(len(names))).astype(np.int64)

    if pairs is None:
        kind, color = choose(KINDS), choose(COLORS)
    else:
        kind, color = pairs[choose(pairs)].T
        next(uniform)  # That of the color, so that all else is drawn from the same words.
    texture, background = choose(TEXTURES), choose(BACKGROUNDS)
    number = choose(COUNTS)
    if single or large:
        number = np.zeros_like(number)
    shapes = _place(uniform, number, large)
    column, row = (np.minimum((center[:, 0] * 3).astype(np.int64), 2) for center in shapes[:2])
    position = 3 * row + column

    noise = _pixel_noise(first, count, size, seed, stream)
    coverage = _coverage(kind, number, shapes, size)
    front = _front(uniform, color, texture, noise, size)
    back = _back(uniform, color, background, noise, size)
    back += coverage[..., None] * (front - back)
    images = np.clip(back * np.float32(255) + np.float32(0.5), 0, 255).astype(np.uint8)
    return images, Attributes(kind, color, number, position, texture, background)


def _unit(words):
    """Maps random words to float32 in [0, 1)."""
    return (words >> np.uint64(40)).astype(np.float32) * np.float32(2**-24)


def _between(uniform, low, high):
    return np.float32(low) + uniform * np.float32(high - low)


def _direction(uniform):
    """Returns cosine and sine of a random angle, float32; computed in float64."""
    angle = uniform.astype(np.float64) * (2 * np.pi)
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def _place(uniform, number, large):
    """Places the shapes of each image so that they lie inside it and do not overlap.

    Each shape gets its own cell of a 3 x 3 grid. The shape of an image with only one shape may be
    larger than its cell; a large one has the whole image.
    """
    slots = len(COUNTS)
    cells = np.argsort(np.stack([next(uniform) for _ in range(9)], 1), 1, kind="stable")[:, :slots]
    alone = (number == 0)[:, None]
    draws = np.stack([next(uniform) for _ in range(slots)], 1)
    single = _LARGE if large else _ALONE
    radius = np.where(alone, _between(draws, *single), _between(draws, *_TOGETHER))

    def center(cell):
        third = np.float32(1 / 3)
        low, high = (cell * 0, cell * 0 + 1) if large else (cell * third, (cell + 1) * third)
        margin = np.where(alone, 0, radius + np.float32(_GAP))
        low, high = np.maximum(low + margin, radius), np.minimum(high - margin, 1 - radius)
        place = np.stack([next(uniform) for _ in range(slots)], 1)
        return (low + place * (high - low)).astype(np.float32)

    x, y = center((cells % 3).astype(np.float32)), center((cells // 3).astype(np.float32))
    cos, sin = _direction(np.stack([next(uniform) for _ in range(slots)], 1))
    return _Shapes(x, y, radius, cos, sin)


def _coverage(kind, number, shapes, size):
    """Returns the fraction of each pixel that the shapes cover, float32 `[n, s, s]`."""
    coverage = np.zeros((len(kind), size, size), np.float32)
    grid = _pixel_centers(size)
    for index, distance in enumerate(_DISTANCES):
        for slot in range(len(COUNTS)):
            images = np.flatnonzero((kind == index) & (number >= slot))
            if not len(images):
                continue
            x, y, radius, cos, sin = (c[images, slot][:, None, None] for c in shapes)
            right, down = (grid - x) / radius, (grid[:, None] - y) / radius
            u, v = cos * right + sin * down, cos * down - sin * right
            # Edges are one pixel wide.
            inside = np.float32(0.5) - distance(u, v) * (radius * np.float32(size))
            coverage[images] = np.maximum(coverage[images], np.clip(inside, 0, 1))
    return coverage


def _star(u, v):
    """Distance from a star with five points. Symmetry maps (u, v) into one of its ten wedges."""
    a, b = np.float32(0.809017), np.float32(0.587785)  # cos 36, sin 36 degrees
    u = abs(u)
    for sign in (1, -1):
        fold = 2 * np.maximum(sign * a * u - b * v, 0)
        u, v = u - fold * (sign * a), v + fold * b
    u, v = abs(u), v - 1
    # The edge from the tip to the inner corner.
    edge_u, edge_v = np.float32(0.45) * b, np.float32(0.45) * a - 1
    along = np.clip((u * edge_u + v * edge_v) / (edge_u**2 + edge_v**2), 0, 1)
    away = np.sqrt((u - edge_u * along) ** 2 + (v - edge_v * along) ** 2)
    return np.where(v * edge_u < u * edge_v, -away, away)


def _box(u, v, half_width, half_height):
    return np.maximum(abs(u) - np.float32(half_width), abs(v) - np.float32(half_height))


def _triangle(u, v):
    slope = abs(u) * np.float32(0.866025) + v * np.float32(0.5)
    return np.maximum(slope, -v) - np.float32(0.5)


def _semicircle(u, v):
    v = v + np.float32(0.4)
    return np.maximum(np.sqrt(u * u + v * v) - np.float32(0.92), -v)


# For each of KINDS: distance of (u, v) from the edge of the shape, in radii, negative inside. The
# center of the shape is (0, 0).
_DISTANCES = (
    lambda u, v: np.sqrt(u * u + v * v) - np.float32(0.9),
    lambda u, v: abs(np.sqrt(u * u + v * v) - np.float32(0.75)) - np.float32(0.22),
    lambda u, v: _box(u, v, 0.7, 0.7),
    _triangle,
    _star,
    lambda u, v: np.minimum(_box(u, v, 0.95, 0.3), _box(u, v, 0.3, 0.95)),
    lambda u, v: _box(u, v, 0.95, 0.28),
    _semicircle,
)


def _front(uniform, color, texture, noise, size):
    """Returns the shapes' colors at every pixel, float32 `[n, s, s, 3]`."""
    light = np.array(list(COLORS.values()), np.float32)[color] / np.float32(255)
    jitter = np.stack([next(uniform) for _ in range(3)], 1)
    light = np.clip(light + _between(jitter, -_COLOR_JITTER, _COLOR_JITTER), 0, 1)
    patterns = (_ones, _stripes, _checks, _dots, _speckles)
    pattern = _pattern(uniform, texture, patterns, noise, size, (0.07, 0.13))
    # Dark areas of a texture keep the hue.
    return (np.float32(0.6) + np.float32(0.4) * pattern)[..., None] * light[:, None, None]


def _back(uniform, color, background, noise, size):
    """Returns the background at every pixel, float32 `[n, s, s, 3]`."""
    red, green, blue = np.array(list(COLORS.values()), np.float32)[color].T / np.float32(255)
    bright = np.float32(0.3) * red + np.float32(0.6) * green + np.float32(0.1) * blue > 0.45
    level = next(uniform)
    level = np.where(bright, _between(level, 0.1, 0.2), _between(level, 0.7, 0.8))
    tint = np.stack([next(uniform) for _ in range(3)], 1)
    base = level[:, None] + _between(tint, -_TINT, _TINT)
    patterns = (_ones, _gradient, _stripes, _clouds, _speckles)
    pattern = _pattern(uniform, background, patterns, noise, size, (0.1, 0.35))
    return (
        base[:, None, None] + (np.float32(_RELIEF) * pattern - np.float32(_RELIEF / 2))[..., None]
    )


def _pattern(uniform, choice, patterns, noise, size, periods):
    """Returns the chosen pattern of each image, float32 `[n, s, s]` in [0, 1].

    Args:
        uniform: iterator over draws `[n]`.
        choice: index into `patterns`, `[n]`.
        patterns: functions of p, q `[m, s, s]`, the noise `[m, s, s]` and the frequency. p and q
            are image coordinates, rotated by a random angle, in units of the random period.
        noise: `[n, s, s]` in [0, 1].
        size: s.
        periods: range (low, high) of the periods, in image sides.
    """
    cos, sin = _direction(next(uniform))
    frequency = 1 / _between(next(uniform), *periods)
    shift = (next(uniform), next(uniform))
    grid = _pixel_centers(size)
    result = np.empty(noise.shape, np.float32)
    for index, pattern in enumerate(patterns):
        images = np.flatnonzero(choice == index)
        if not len(images):
            continue
        c, s, f, p0, q0 = (x[images][:, None, None] for x in (cos, sin, frequency, *shift))
        right, down = grid * f, grid[:, None] * f
        result[images] = pattern(
            c * right + s * down + p0, c * down - s * right + q0, noise[images], f
        )
    return result


def _ones(p, q, noise, frequency):
    return np.ones_like(noise)


def _stripes(p, q, noise, frequency):
    wave = abs(2 * (p - np.floor(p)) - 1)
    return np.clip((wave - np.float32(0.5)) * 4 + np.float32(0.5), 0, 1)


def _checks(p, q, noise, frequency):
    odd = (np.floor(p) + np.floor(q)).astype(np.int32) & 1
    return odd.astype(np.float32)


def _dots(p, q, noise, frequency):
    p, q = p - np.floor(p) - np.float32(0.5), q - np.floor(q) - np.float32(0.5)
    return np.clip((p * p + q * q - np.float32(0.09)) * 12 + np.float32(0.5), 0, 1)


def _speckles(p, q, noise, frequency):
    return noise


def _gradient(p, q, noise, frequency):
    """Rises from 0 to 1 along p, over the whole image."""
    turn = p - p.min((1, 2), keepdims=True)
    return turn / turn.max((1, 2), keepdims=True)


def _clouds(p, q, noise, frequency):
    """Interpolates a few values of the noise over the image."""
    size = noise.shape[-1]
    corner = min(_CLOUD_CELLS + 1, size)
    values = noise[:, :corner, :corner]
    place = _pixel_centers(size) * np.float32(corner - 1)
    low = np.minimum(place.astype(np.int64), corner - 2)
    weight = place - low.astype(np.float32)
    values = values[:, low] * (1 - weight)[:, None] + values[:, low + 1] * weight[:, None]
    return values[..., low] * (1 - weight) + values[..., low + 1] * weight


def _pixel_centers(size):
    """Returns the centers of a row of pixels, float32 `[s]` in image sides."""
    return (np.arange(size, dtype=np.float32) + np.float32(0.5)) / np.float32(size)


def _pixel_noise(first, count, size, seed, stream):
    """Returns one draw per pixel, float32 `[count, s, s]` in [0, 1]."""
    pixels = size * size
    words = -(-pixels // 32) * 4
    raw = stateless_random.random_words(
        seed, stateless_random.SHAPES, (first * words // 4, stream, 1), count * words
    )
    levels = raw.astype("<u8").view(np.uint8).reshape(count, words * 8)[:, :pixels]
    return levels.reshape(count, size, size).astype(np.float32) * np.float32(1 / 255)
