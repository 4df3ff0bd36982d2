"""Changes of images under which the inductive biases of a classifier show.

Images are float32 `[n, h, w, 3]` in [-1, 1]; a change returns as many of the same size.
"""

import dataclasses

import numpy as np
from scipy import ndimage


@dataclasses.dataclass(frozen=True)
class Shift:
    """Moves each image in one of four directions; the pixels of its edge fill the gap.

    Attributes:
        pixels: by how many.
    """

    pixels: int

    def __str__(self):
        return f"shifted by {self.pixels}"

    def apply(self, images, random):
        """Draws a direction for each image."""
        pad, (height, width) = self.pixels, images.shape[1:3]
        padded = np.pad(images, ((0, 0), (pad, pad), (pad, pad), (0, 0)), mode="edge")
        places = np.array([(0, pad), (2 * pad, pad), (pad, 0), (pad, 2 * pad)])
        chosen = places[random.integers(len(places), size=len(images))]
        return np.stack(
            [
                image[y : y + height, x : x + width]
                for image, (y, x) in zip(padded, chosen, strict=True)
            ]
        )


@dataclasses.dataclass(frozen=True)
class Shuffle:
    """Cuts each image into squares and puts them together in a random order.

    Attributes:
        side: of a square, in pixels; divides the sides of the images.
    """

    side: int

    def __str__(self):
        return f"squares of {self.side} shuffled"

    def apply(self, images, random):
        """Draws an order for each image."""
        count, height, width, colors = images.shape
        rows, columns, side = height // self.side, width // self.side, self.side
        squares = images.reshape(count, rows, side, columns, side, colors).transpose(
            0, 1, 3, 2, 4, 5
        )
        squares = squares.reshape(count, rows * columns, side, side, colors)
        order = random.permuted(np.tile(np.arange(rows * columns), (count, 1)), axis=1)
        squares = np.take_along_axis(squares, order[:, :, None, None, None], axis=1)
        squares = squares.reshape(count, rows, columns, side, side, colors)
        return squares.transpose(0, 1, 3, 2, 4, 5).reshape(images.shape)


@dataclasses.dataclass(frozen=True)
class Corruption:
    """Makes images harder to read.

    Attributes:
        kind: "noise", whose strength is its standard deviation; "blur", that of the Gaussian in
            pixels; "contrast", the part that is taken away; "cover", the part of the sides of a
            gray square at a random place.
        strength: see `kind`.
    """

    kind: str
    strength: float

    def __str__(self):
        return f"{self.kind} {self.strength:g}"

    def apply(self, images, random):
        """Draws noise and places."""
        return _KINDS[self.kind](images, self.strength, random)


def _noise(images, strength, random):
    noise = random.standard_normal(images.shape, dtype=np.float32)
    return np.clip(images + np.float32(strength) * noise, -1.0, 1.0)


def _blur(images, strength, random):
    del random
    return ndimage.gaussian_filter(images, (0, strength, strength, 0), mode="nearest")


def _contrast(images, strength, random):
    del random
    mean = images.mean(axis=(1, 2), keepdims=True)
    return mean + np.float32(1.0 - strength) * (images - mean)


def _cover(images, strength, random):
    images, (height, width) = images.copy(), images.shape[1:3]
    tall, wide = round(strength * height), round(strength * width)
    for image in images:
        y, x = random.integers(height - tall + 1), random.integers(width - wide + 1)
        image[y : y + tall, x : x + wide] = 0.0
    return images


_KINDS = {"noise": _noise, "blur": _blur, "contrast": _contrast, "cover": _cover}
_STRENGTHS = {
    "noise": (0.1, 0.2, 0.4),
    "blur": (0.5, 1.0, 2.0),
    "contrast": (0.5, 0.75, 0.9),
    "cover": (0.25, 0.375, 0.5),
}
SHIFTS = tuple(map(Shift, (1, 2, 3, 4, 5, 6, 7, 8)))
SHUFFLES = tuple(map(Shuffle, (16, 8, 4)))
CORRUPTIONS = {
    kind: tuple(Corruption(kind, strength) for strength in each)
    for kind, each in _STRENGTHS.items()
}
OTHERS = SHUFFLES + sum(CORRUPTIONS.values(), ())
