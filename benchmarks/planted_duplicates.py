"""Synthetic pictures with statistics like photos, and their near-duplicates.

A picture is colored noise whose amplitude falls with the frequency, as in photos, under a few large
shapes with soft edges. Pictures of different seeds have nothing in common.
"""

import io

import numpy as np
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter

SIDE = 96
# The area that a crop keeps.
CROP_AREA = 0.8
QUALITY = 92


def picture(seed, side=SIDE):
    """A picture, a Pillow image of about `side` pixels in RGB; the same for the same seed."""
    random = np.random.default_rng(seed)
    height, width = (int(side * x) for x in random.uniform(0.8, 1.2, 2))
    luma = _noise(random, height, width)
    chroma = [0.35 * _noise(random, height, width) for _ in range(2)]
    base, contrast = random.uniform(60, 190, 3), random.uniform(15, 45)
    weights = np.array([[1, 1, 0], [1, -0.5, -0.5], [1, 0, 1]])
    pixels = base + contrast * (np.stack([luma, *chroma], axis=-1) @ weights.T)
    image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
    shapes = Image.new("RGBA", image.size)
    draw = ImageDraw.Draw(shapes)
    for _ in range(random.integers(2, 7)):
        color = (*random.integers(0, 256, 3).tolist(), int(random.integers(90, 256)))
        center = random.uniform(0, 1, 2) * image.size
        radius = random.uniform(0.08, 0.4) * side
        if random.random() < 0.5:
            stretch = random.uniform(0.5, 1.5)
            corner = np.array([radius * stretch, radius / stretch])
            draw.ellipse([*(center - corner), *(center + corner)], fill=color)
        else:
            angles = np.sort(random.uniform(0, 2 * np.pi, random.integers(3, 7)))
            points = center + radius * np.stack([np.cos(angles), np.sin(angles)], axis=1)
            draw.polygon([tuple(point) for point in points], fill=color)
    shapes = shapes.filter(ImageFilter.GaussianBlur(0.6))
    image.paste(shapes, (0, 0), shapes)
    return image


def _noise(random, height, width):
    """Noise `[height, width]` of deviation 1 whose amplitude falls with the frequency."""
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width))
    frequency[0, 0] = np.inf
    shape = frequency.shape
    waves = random.standard_normal(shape) + 1j * random.standard_normal(shape)
    noise = np.fft.irfft2(waves * frequency ** -random.uniform(1.0, 1.6), (height, width))
    return noise / noise.std()


def encoded(image, quality=QUALITY):
    """The bytes of a JPEG file."""
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return file.getvalue()


def crop(image, random):
    """A window at a random place that keeps 80 % of the area and the aspect ratio."""
    size = np.round(np.sqrt(CROP_AREA) * np.array(image.size)).astype(int)
    corner = [int(random.integers(0, most + 1)) for most in np.array(image.size) - size]
    return image.crop((*corner, *(corner + size)))


def resized(image, factor, stretch=1.0):
    """The image with other sides."""
    size = [round(image.width * factor * stretch), round(image.height * factor)]
    return image.resize(size, Image.Resampling.BICUBIC)


def rotated(image, random, degrees):
    """The image turned in either direction, cut to the largest part without corners of black."""
    turned = image.rotate(degrees * random.choice([-1, 1]), Image.Resampling.BICUBIC)
    loss = np.tan(np.radians(degrees)) / 2
    cut = int(np.ceil(loss * image.height)), int(np.ceil(loss * image.width))
    return turned.crop((*cut, image.width - cut[0], image.height - cut[1]))


def enhanced(image, kind, random):
    """Less or more brightness, contrast or color: a factor of 0.6 to 0.8 or of 1.25 to 1.6."""
    factor = random.choice([random.uniform(0.6, 0.8), random.uniform(1.25, 1.6)])
    return kind(image).enhance(factor)


def recolored(image, random):
    """Every color multiplied by a factor of its own, from 0.8 to 1.2."""
    pixels = np.asarray(image, np.float64) * random.uniform(0.8, 1.2, 3)
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


# The kind of which the changed picture is the test image, and the picture the training image.
CROPPED_TEST = "test image is such a crop"
# Kind -> function from a picture and a random generator to the bytes of its near-duplicate.
KINDS = {
    "the same file": lambda image, random: encoded(image),
    **{
        f"JPEG, quality {quality}": lambda image, random, quality=quality: encoded(image, quality)
        for quality in (95, 75, 50, 30)
    },
    "half the sides": lambda image, random: encoded(resized(image, 0.5)),
    "twice the sides": lambda image, random: encoded(resized(image, 2)),
    "other aspect (x 1.2)": lambda image, random: encoded(resized(image, 1, 1.2)),
    "mirrored": lambda image, random: encoded(image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)),
    "crop, 80 % of the area": lambda image, random: encoded(crop(image, random)),
    CROPPED_TEST: lambda image, random: encoded(crop(image, random)),
    "turned by 2 degrees": lambda image, random: encoded(rotated(image, random, 2)),
    "turned by 5 degrees": lambda image, random: encoded(rotated(image, random, 5)),
    "brightness": lambda image, random: encoded(enhanced(image, ImageEnhance.Brightness, random)),
    "contrast": lambda image, random: encoded(enhanced(image, ImageEnhance.Contrast, random)),
    "saturation": lambda image, random: encoded(enhanced(image, ImageEnhance.Color, random)),
    "tint": lambda image, random: encoded(recolored(image, random)),
    "gray": lambda image, random: encoded(image.convert("L").convert("RGB")),
}
