"""A setting stored with weights: how an image becomes a model's input.

Training, evaluation, prediction and exported models share these definitions, because a model that
is served with another resize or value range loses accuracy without any error. Files hold the fields
of `Preprocessing` and `Classes` in one object. TensorFlow is imported only when they are used, so
that configurations can hold them.
"""

import dataclasses
import math
import numbers
import typing
from typing import Literal, TypeGuard

from vit_tf.classes import CLASSES_KEYS
from vit_tf.images.value_range import MEAN, STD

# All but the first end with a central crop.
ResizeRule = Literal["direct", "resize_small", "shortest_edge", "center", "squash"]
Interpolation = Literal["bilinear", "bicubic", "area"]
Exif = Literal["apply", "ignore"]
Jpeg = Literal["fast", "accurate"]
# Far above the image size of any model. A damaged or hostile file cannot request terabytes.
MAX_SIDE = 16384
# The largest mean or standard deviation: float32 keeps the result finite.
MAX_VALUE = 1e6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """The steps that turn a decoded image into a model's input (docs/paper.md K).

    Calling it maps images of any size to the model's input: a resize, for most rules with a central
    crop, then (v / 255 - mean) / std for each value v in 0 .. 255.

    Attributes:
        image_size: (height, width) of the result, in pixels.
        resize: "direct" stretches to `image_size`, aspect not kept (as in the reference code).
            "resize_small" brings the shorter side to `resize_to` and takes the center;
            "shortest_edge" and "center" do the same with the rounding of sides and offsets of
            Hugging Face and of timm, which differs by at most a pixel. "squash" stretches to
            `resize_to` x `resize_to` and takes the center (timm).
        resize_to: side before the central crop, in pixels; not with "direct".
        crop_fraction: only an argument, instead of `resize_to`: the part of that side which the
            longer side of `image_size` keeps; `resize_to` is their quotient, rounded down.
        interpolation: "bilinear"; "bicubic" (Keys, a = -0.5), clipped to 0 .. 255; or "area", the
            mean over the area that a pixel of the result covers.
        antialias: False: bilinear and bicubic read 2 x 2 and 4 x 4 pixels, whatever the reduction.
            True: the filter becomes wider with the reduction, and the result of each pass is
            rounded to whole levels, as Pillow does it.
        mean, std: of v / 255, for each color. The default maps 0 to -1 and 255 to 1.
        exif: "apply": a JPEG is turned by its EXIF orientation when it is decoded, as a photo of a
            phone may need; "ignore": it is taken as it is stored. The call itself gets decoded
            images and turns none.
        jpeg: the inverse cosine transform with which JPEGs are decoded. "fast": TensorFlow's
            default, as in the reference code; its pixels are up to 16 levels of 255 from pixels of
            other decoders, and darker by 0.7 to 0.8 on average. "accurate": the integer transform,
            whose pixels are Pillow's. None: accurate with `antialias`, which resizes as Pillow
            does, else fast; files without the field mean fast.
        dtype: of the result. "uint8", for the default `mean` and `std` only: values 0 .. 255,
            rounded to whole levels, which models map to [-1, 1] themselves. It is for batches and
            is not stored.

    Raises:
        ValueError: if a field has the wrong type, or the fields do not fit together.
    """

    image_size: tuple[int, int]
    resize: ResizeRule = "direct"
    resize_to: int | None = None
    crop_fraction: dataclasses.InitVar[float | None] = None
    interpolation: Interpolation = "bilinear"
    antialias: bool = False
    mean: tuple[float, float, float] = MEAN
    std: tuple[float, float, float] = STD
    exif: Exif = "ignore"
    jpeg: Jpeg | None = None
    dtype: Literal["float32", "uint8"] = "float32"

    def __post_init__(self, crop_fraction):
        if not (
            isinstance(self.image_size, tuple | list)
            and len(self.image_size) == 2
            and all(_is_side(side) for side in self.image_size)
        ):
            raise ValueError(
                f"image_size={self.image_size!r} is not an image size. Expected two integers, "
                f"height and width, from 1 to {MAX_SIDE}."
            )
        if crop_fraction is not None:
            object.__setattr__(self, "resize_to", self._side_before_crop(crop_fraction))
        self._check_resize()
        for name, lowest in (("mean", -MAX_VALUE), ("std", 1 / MAX_VALUE)):
            values = getattr(self, name)
            if not _are_colors(values, lowest):
                raise ValueError(
                    f"{name}={values!r} is not possible. Expected three numbers, one per color, "
                    f"from {lowest:g} to {MAX_VALUE:g}."
                )
            object.__setattr__(self, name, tuple(float(value) for value in values))
        if self.dtype != "float32" and (self.dtype, self.mean, self.std) != ("uint8", MEAN, STD):
            raise ValueError(
                f"dtype={self.dtype!r} is not possible. Expected float32, or uint8 with "
                f"mean={MEAN} and std={STD}."
            )
        object.__setattr__(self, "image_size", tuple(int(side) for side in self.image_size))

    def _side_before_crop(self, fraction):
        """`resize_to` for a `crop_fraction`."""
        if self.resize_to is not None:
            raise ValueError(
                f"crop_fraction={fraction!r} and resize_to={self.resize_to!r} are two ways to set "
                "one side. Leave one out."
            )
        if not (_is_number(fraction) and 0 < fraction <= 1):
            raise ValueError(
                f"crop_fraction={fraction!r} is not possible. Expected a fraction above 0, up to 1."
            )
        return min(math.floor(max(self.image_size) / fraction), MAX_SIDE + 1)

    def _check_resize(self):
        if self.resize not in (known := typing.get_args(ResizeRule)):
            raise ValueError(f"resize={self.resize!r} is unknown. Expected one of {known}.")
        if self.resize == "squash" and set(self.image_size) == {self.resize_to}:
            # Nothing is cropped.
            object.__setattr__(self, "resize", "direct")
            object.__setattr__(self, "resize_to", None)
        if self.resize == "direct" and self.resize_to is not None:
            raise ValueError(
                f"resize_to={self.resize_to!r} has no meaning with resize='direct'. Leave it out, "
                f"or choose resize='resize_small'."
            )
        if self.resize != "direct" and not (
            _is_side(self.resize_to) and self.resize_to >= max(self.image_size)
        ):
            raise ValueError(
                f"resize_to={self.resize_to!r} does not fit. With resize={self.resize!r} expected "
                f"an integer from {max(self.image_size)}, the longer side of image_size, to "
                f"{MAX_SIDE}."
            )
        if self.interpolation not in (known := typing.get_args(Interpolation)):
            raise ValueError(
                f"interpolation={self.interpolation!r} is unknown. Expected one of {known}."
            )
        if self.exif not in (known := typing.get_args(Exif)):
            raise ValueError(f"exif={self.exif!r} is unknown. Expected one of {known}.")
        if self.jpeg is None:
            object.__setattr__(self, "jpeg", "accurate" if self.antialias else "fast")
        if self.jpeg not in (known := typing.get_args(Jpeg)):
            raise ValueError(f"jpeg={self.jpeg!r} is unknown. Expected one of {known}.")
        if not isinstance(self.antialias, bool):
            raise ValueError(
                f"antialias={self.antialias!r} is not possible. Expected true or false."
            )
        if self.antialias and self.interpolation == "area":
            raise ValueError(
                "antialias=True has no meaning with interpolation='area', which always averages. "
                "Set antialias=false."
            )

    @property
    def keeps_own_size(self) -> bool:
        """Whether `resized` returns the pixels of images of `image_size` as they are."""
        return self.resize == "direct" or set(self.image_size) == {self.resize_to}

    def decode(self, image_bytes, max_pixels=None):
        """The pixels of an encoded image, uint8 `[H, W, 3]`; JPEGs as `exif` and `jpeg` say.

        Args:
            image_bytes: scalar string tensor, the contents of the file.
            max_pixels: the most pixels that it may have, an int; None: the usual limit.

        Raises:
            tf.errors.InvalidArgumentError: see `vit_tf.images.decoding.decode_image`.
        """
        from vit_tf.images import decoding

        limit = decoding.MAX_PIXELS if max_pixels is None else max_pixels
        # Never None, which pyright cannot know.
        return decoding.decode_image(image_bytes, limit, self.exif, self.jpeg or "fast")

    def __call__(self, images):
        """Maps images to the model's input.

        Args:
            images: uint8 or floating `[H, W, 3]` or `[B, H, W, 3]`, values 0 .. 255, of any size,
                which may be unknown until the graph runs.

        Returns:
            `[h, w, 3]` or `[B, h, w, 3]` of `dtype`, where `(h, w)` is `image_size`; float32 with
            the default `mean` and `std` is in [-1, 1].

        Raises:
            ValueError: if the images have another rank, number of channels or dtype.
        """
        return self.normalized(self.resized(images))

    def resized(self, images):
        """The first step, resize and crop: float32 `[h, w, 3]` or `[B, h, w, 3]`, 0 .. 255.

        Arguments and errors are as in `__call__`.
        """
        import tensorflow as tf

        from vit_tf.images import resizing

        images = tf.convert_to_tensor(images)
        if images.dtype != tf.uint8 and not images.dtype.is_floating:
            raise ValueError(
                f"Expected uint8 or floating images with values 0 .. 255. Received: "
                f"{images.dtype.name}. Convert them with tf.cast(images, tf.uint8)."
            )
        if images.shape.rank not in (3, 4) or images.shape[-1] not in (3, None):
            raise ValueError(
                f"Expected images of shape [H, W, 3] or [B, H, W, 3]. Received: {images.shape}. "
                f"Decode them with vit_tf.images.decoding.decode_image, which gives three channels."
            )

        if self.resize == "direct":
            images = resizing.resize(images, self.image_size, self.interpolation, self.antialias)
        else:
            images = resizing.resize_and_crop(
                images,
                self.resize,
                self.resize_to,
                self.image_size,
                self.interpolation,
                self.antialias,
            )
        images.set_shape([*images.shape[:-3], *self.image_size, 3])
        return images

    def seen(self, images):
        """The pixels that the model sees of images, before they are normalized.

        Arguments and errors are as in `__call__`.

        Returns:
            uint8 `[h, w, 3]` or `[B, h, w, 3]`, rounded to whole levels.
        """
        from vit_tf.images import resizing

        return resizing.to_uint8(self.resized(images))

    def crop_box(self, size) -> tuple[float, float, float, float]:
        """The part of an image that the model sees.

        Args:
            size: (height, width) of the image in pixels.

        Returns:
            `(top, left, bottom, right)` in pixels of the image, from its top left corner. Pixels at
            the border of this part are mixed with their neighbors outside, where a resize reads
            several pixels.
        """
        if self.resize == "direct":
            return 0.0, 0.0, float(size[0]), float(size[1])
        from vit_tf.images import resizing

        return resizing.crop_box(size, self.resize, self.resize_to, self.image_size)

    def normalized(self, pixels):
        """The second step: values 0 .. 255, `[..., 3]`, as (v / 255 - mean) / std or uint8."""
        from vit_tf.images import resizing

        return resizing.to_model_range(pixels, self.mean, self.std, self.dtype)

    def without_normalization(self) -> "Preprocessing":
        """The same, but values stay 0 .. 255: for what normalizes them itself."""
        return dataclasses.replace(self, mean=(0.0, 0.0, 0.0), std=(1 / 255, 1 / 255, 1 / 255))

    def to_dict(self):
        """Returns the fields as a dictionary that JSON can hold; `from_dict` reads it back.

        Fields that earlier versions do not know are left out if they have their default.
        """
        values = dataclasses.asdict(self)
        values.pop("dtype")
        defaults = {"interpolation": "bilinear", "antialias": False, "mean": MEAN, "std": STD}
        defaults |= {"exif": "ignore", "jpeg": "fast"}
        kept = {name: value for name, value in values.items() if value != defaults.get(name, ...)}
        return {
            name: list(value) if isinstance(value, tuple) else value for name, value in kept.items()
        }

    @classmethod
    def from_dict(cls, fields):
        """Creates a `Preprocessing` from the result of `to_dict`, for instance from a JSON file.

        The fields of `Classes` may be in the same dictionary.

        Raises:
            ValueError: if it is not a dictionary, has unknown keys, lacks `image_size`, or holds a
                value of the wrong type.
        """
        known = [field.name for field in dataclasses.fields(cls) if field.name != "dtype"]
        if not isinstance(fields, dict):
            raise ValueError(
                f"Preprocessing must be a dictionary with the keys {known}. Received: "
                f"{type(fields).__name__}."
            )
        known += CLASSES_KEYS
        if unknown := sorted(str(key) for key in set(fields) - set(known)):
            raise ValueError(f"Preprocessing has unknown keys {unknown}. Expected some of {known}.")
        if "image_size" not in fields:
            raise ValueError(f"Preprocessing lacks 'image_size'. Received: {sorted(fields)}.")
        own = {key: value for key, value in fields.items() if key not in CLASSES_KEYS}
        own.setdefault("jpeg", "fast")
        return cls(**own)


def _are_colors(values, lowest):
    """Whether `values` are three numbers from `lowest` to `MAX_VALUE`."""
    return (
        isinstance(values, tuple | list)
        and len(values) == 3
        and all(_is_number(value) and lowest <= value <= MAX_VALUE for value in values)
    )


def _is_number(value) -> TypeGuard[float]:
    """Whether `value` is an integer or a float; bools are not numbers here."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _is_side(value) -> TypeGuard[int]:
    """Whether `value` is an integer from 1 to `MAX_SIDE`; bools are not integers here."""
    return (
        isinstance(value, numbers.Integral)
        and not isinstance(value, bool)
        and 1 <= int(value) <= MAX_SIDE
    )
