"""Random changes to training images, as functions of an explicit seed.

The seed of an example comes from `keys.example_seeds`, hence from (seed of the run, step, place in
the global batch); each operation adds its own number. The same example therefore gets the same
crop on one device, on several replicas or hosts, and after a restart, eagerly or inside `tf.data`.

Order: crop and resize, mirror, colour jitter, RandAugment, value range, erasing; then MixUp or
CutMix on the batch (`mixing.py`).
"""

import dataclasses

import tensorflow as tf

from pipelines.data.randaugment import (
    MAX_MAGNITUDE,
    blend,
    fill_box,
    grey,
    mean_grey,
    rand_augment,
)
from vit_tf.image_files import check_size, decode_image
from vit_tf.preprocessing import to_model_range

# One number per operation that draws. Numbers are never reused.
_CROP, _FLIP, _JITTER, _RANDAUGMENT, _ERASING, _NOISE = range(1, 7)

CROPS = ("inception", "none")
ERASING_FILLS = ("noise", "grey")
# Width over height of the random crop; the reference code takes TensorFlow's default.
_ASPECT = (0.75, 1.33)
_ERASING_ATTEMPTS = 100


@dataclasses.dataclass(frozen=True, kw_only=True)
class Augmentation:
    """What happens to one training image; the defaults are the reference code's rule.

    Attributes:
        crop: "inception": a random part of the image, of random area and aspect, resized; "none":
            the resize of evaluation.
        crop_area: range of the crop's share of the image area.
        flip: whether to mirror left to right with probability 0.5.
        colour_jitter: strength of brightness, contrast, saturation (0 .. 1) and hue (0 .. 0.5); see
            `jitter_colours`.
        randaugment_layers: operations of RandAugment per image; 0 is none, AugReg uses 2.
        randaugment_magnitude: their magnitude, 0 .. 20 in AugReg; see `randaugment.py`.
        erasing: probability of erasing a rectangle; see `erase`.
        erasing_area, erasing_aspect: range of its share of the area, and of height over width.
        erasing_fill: "noise" or "grey".

    Raises:
        ValueError: if a field is out of range.
    """

    crop: str = "inception"
    crop_area: tuple[float, float] = (0.05, 1.0)
    flip: bool = True
    colour_jitter: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    randaugment_layers: int = 0
    randaugment_magnitude: float = 10.0
    erasing: float = 0.0
    erasing_area: tuple[float, float] = (0.02, 0.4)
    erasing_aspect: tuple[float, float] = (0.3, 1 / 0.3)
    erasing_fill: str = "noise"

    def __post_init__(self):
        for name, known in (("crop", CROPS), ("erasing_fill", ERASING_FILLS)):
            if (value := getattr(self, name)) not in known:
                raise ValueError(f"{name}={value!r} is unknown. Expected one of {known}.")
        for name, limit in (("crop_area", 1), ("erasing_area", 1), ("erasing_aspect", 100)):
            low, high = getattr(self, name)
            if not 0 < low <= high <= limit:
                raise ValueError(
                    f"{name}={(low, high)} is no range (low, high) with 0 < low <= high <= {limit}."
                )
        limits = (1, 1, 1, 0.5)
        if len(self.colour_jitter) != 4 or not all(
            0 <= strength <= limit
            for strength, limit in zip(self.colour_jitter, limits, strict=True)
        ):
            raise ValueError(
                f"colour_jitter={self.colour_jitter} are no strengths of brightness, contrast, "
                f"saturation and hue. Expected four numbers from 0 to {limits}."
            )
        if self.randaugment_layers < 0 or not 0 <= self.randaugment_magnitude <= MAX_MAGNITUDE:
            raise ValueError(
                f"randaugment_layers={self.randaugment_layers} with randaugment_magnitude="
                f"{self.randaugment_magnitude} is out of range. Expected layers from 0 and a "
                f"magnitude from 0 to {MAX_MAGNITUDE}."
            )
        if not 0 <= self.erasing <= 1:
            raise ValueError(f"erasing={self.erasing} is no probability. Expected 0 (off) to 1.")

    def __call__(self, image_bytes, seed, preprocessing):
        """Decodes and augments an image.

        Args:
            image_bytes: scalar string tensor, an encoded image.
            seed: int64 tensor `[2]`, the seed of the example.
            preprocessing: `vit_tf.Preprocessing`; gives the size, and the resize rule of
                crop="none".

        Returns:
            float32 `[h, w, 3]` in [-1, 1].
        """
        changes_values = any(self.colour_jitter) or self.randaugment_layers > 0
        if self.crop == "inception":
            image = inception_crop(image_bytes, seed, self.crop_area)
            image = tf.image.resize(image, preprocessing.image_size, "bilinear", antialias=False)
        else:
            image = preprocessing(decode_image(image_bytes))
            if changes_values:
                image = image * 127.5 + 127.5
        image = tf.ensure_shape(image, [*preprocessing.image_size, 3])
        if self.flip:
            image = random_flip(image, seed)
        if changes_values:
            image = _to_uint8(image)
            if any(self.colour_jitter):
                image = jitter_colours(image, seed, self.colour_jitter)
            image = rand_augment(
                image,
                _operation_seed(seed, _RANDAUGMENT),
                self.randaugment_layers,
                self.randaugment_magnitude,
            )
        if self.crop == "inception" or changes_values:
            image = to_model_range(image)
        if self.erasing:
            image = erase(
                image,
                seed,
                self.erasing,
                self.erasing_area,
                self.erasing_aspect,
                self.erasing_fill,
            )
        return image


def inception_crop(image_bytes, seed, area=(0.05, 1.0)):
    """Decodes a random part of an image: area and aspect drawn at random (Szegedy et al., 2015).

    The whole image if 100 attempts find no such part. Of a JPEG only the part is decoded, which
    costs about a third less; where colour is stored at half resolution, values at the border of the
    part can then differ by a few levels from those of the fully decoded image.

    Args:
        image_bytes: scalar string tensor, an encoded image.
        seed: int64 tensor `[2]`, the seed of the example.
        area: range of the share of the image area.

    Returns:
        uint8 `[h, w, 3]`; size and place depend on the seed and the image's size alone.
    """

    def crop_jpeg():
        shape = tf.io.extract_jpeg_shape(image_bytes)
        with tf.control_dependencies([check_size(shape[:2])]):
            begin, size = _crop_box(tf.identity(shape), seed, area)
        return tf.io.decode_and_crop_jpeg(
            image_bytes, tf.concat([begin[:2], size[:2]], axis=0), channels=3
        )

    def crop_other():
        image = decode_image(image_bytes)
        begin, size = _crop_box(tf.shape(image), seed, area)
        return tf.slice(image, begin, size)

    image = tf.cond(tf.io.is_jpeg(image_bytes), crop_jpeg, crop_other)
    image.set_shape([None, None, 3])
    return image


def random_flip(image, seed):
    """Mirrors an image `[h, w, c]` left to right with probability 0.5."""
    draw = tf.random.stateless_uniform([], _operation_seed(seed, _FLIP))
    return tf.cond(draw < 0.5, lambda: tf.reverse(image, axis=[1]), lambda: image)


def jitter_colours(image, seed, strengths):
    """Changes brightness, contrast, saturation and hue at random, in this order.

    The first three move by a factor from [max(0, 1 - s), 1 + s] away from black, from the mean grey
    and from the grey image; hue turns by an angle from [-s, s] of the circle. Values are cut to
    0 .. 255 after each.

    Args:
        image: uint8 `[h, w, 3]`.
        seed: int64 tensor `[2]`, the seed of the example.
        strengths: four numbers `s`; 0 skips that change.

    Returns:
        uint8 `[h, w, 3]`; every change is rounded down to integers, as Pillow does.
    """
    draws = tf.random.stateless_uniform([4], _operation_seed(seed, _JITTER))
    starts = (lambda values: 0.0, mean_grey, lambda values: grey(values)[..., None])
    for start, strength, draw in zip(starts, strengths, tf.unstack(draws), strict=False):
        if strength:
            low = max(0.0, 1.0 - strength)
            factor = low + draw * (1.0 + strength - low)
            image = blend(start(image), image, factor)
    if strengths[3]:
        turn = (draws[3] * 2 - 1) * strengths[3]
        # The op takes and returns floats in 0 .. 1.
        image = _to_uint8(tf.image.adjust_hue(tf.cast(image, tf.float32) * (1 / 255), turn) * 255.0)
    return image


def erase(image, seed, probability, area=(0.02, 0.4), aspect=(0.3, 1 / 0.3), fill="noise"):
    """Erases a random rectangle (Zhong et al., 2020, algorithm 1).

    Share of the area and aspect are uniform; the first of 100 attempts that fits into the image is
    placed uniformly. Without one the image stays.

    Args:
        image: float32 `[h, w, 3]` in [-1, 1].
        seed: int64 tensor `[2]`, the seed of the example.
        probability: of erasing at all.
        area: range of the share of the image area.
        aspect: range of height over width.
        fill: "noise": uniform values in [-1, 1); "grey": 0.

    Returns:
        float32 `[h, w, 3]`.
    """
    height, width, channels = image.shape
    draws = tf.random.stateless_uniform([_ERASING_ATTEMPTS + 2, 2], _operation_seed(seed, _ERASING))
    shares = area[0] + draws[2:, 0] * (area[1] - area[0])
    aspects = aspect[0] + draws[2:, 1] * (aspect[1] - aspect[0])
    rows = tf.round(tf.sqrt(shares * float(height * width) * aspects))
    columns = tf.round(tf.sqrt(shares * float(height * width) / aspects))
    fits = (rows < height) & (columns < width)
    first = tf.argmax(tf.cast(fits, tf.int32))
    rows, columns = tf.cast(rows[first], tf.int32), tf.cast(columns[first], tf.int32)
    top, left = (
        tf.cast(draw * tf.cast(room + 1, tf.float32), tf.int32)
        for draw, room in ((draws[1, 0], height - rows), (draws[1, 1], width - columns))
    )

    def erased():
        values = 0.0
        if fill == "noise":
            values = tf.random.stateless_uniform(
                [height, width, channels], _operation_seed(seed, _NOISE), -1.0, 1.0
            )
        return fill_box(image, top, left, top + rows, left + columns, values)

    return tf.cond((draws[0, 0] < probability) & fits[first], erased, lambda: image)


def _to_uint8(image):
    """Rounds values 0 .. 255 to integers; halves go up."""
    return tf.cast(image + 0.5, tf.uint8)


def _crop_box(shape, seed, area):
    """Returns begin `[3]` and size `[3]` of a random part of an image of this shape, int32."""
    begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
        shape,
        bounding_boxes=tf.zeros([1, 0, 4]),
        seed=_operation_seed(seed, _CROP),
        min_object_covered=0.0,
        aspect_ratio_range=_ASPECT,
        area_range=area,
        max_attempts=100,
        use_image_if_no_bounding_boxes=True,
    )
    # The op says -1 for "all channels"; as a size that is what tf.slice understands.
    return begin, size


def _operation_seed(seed, operation):
    """Returns the seed `[2]` that one operation uses for an example."""
    return seed + tf.constant([0, operation], tf.int64)
