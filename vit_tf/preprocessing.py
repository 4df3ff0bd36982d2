"""Preprocessing: how a decoded image becomes a model's input. It is stored with the weights.

Training, evaluation, prediction and exported models share this one definition, because a model that
is served with another resize or value range loses accuracy without any error. TensorFlow is
imported only when a `Preprocessing` is called, so that configurations can hold one.
"""

import dataclasses
import numbers
from typing import TypeGuard

RESIZE_RULES = ("direct", "resize_small")
# Far above the image size of any model. A damaged or hostile file cannot request terabytes.
MAX_SIDE = 16384


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """The steps that turn a decoded image into a model's input.

    Calling it maps images of any size to the model's input: bilinear resize without antialiasing,
    then (x - 127.5) / 127.5, so that 0 becomes -1 and 255 becomes 1.

    Attributes:
        image_size: (height, width) of the result, in pixels.
        resize: "direct" stretches to `image_size`, aspect not kept (as in the reference code);
            "resize_small" brings the shorter side to `resize_to` and takes the centre.
        resize_to: shorter side before the central crop, in pixels; only with "resize_small".
        labels: class names in label order; empty if they are unknown.
        probabilities: how logits become probabilities: "softmax", or "sigmoid" where several
            classes may be true at once.

    Raises:
        ValueError: if a field has the wrong type, or the fields do not fit together.
    """

    image_size: tuple[int, int]
    resize: str = "direct"
    resize_to: int | None = None
    labels: tuple[str, ...] = ()
    probabilities: str = "softmax"

    def __post_init__(self):
        if not (
            isinstance(self.image_size, tuple | list)
            and len(self.image_size) == 2
            and all(_is_side(side) for side in self.image_size)
        ):
            raise ValueError(
                f"image_size={self.image_size!r} is not an image size. Expected two integers, "
                f"height and width, from 1 to {MAX_SIDE}."
            )
        if self.resize not in RESIZE_RULES:
            raise ValueError(f"resize={self.resize!r} is unknown. Expected one of {RESIZE_RULES}.")
        if self.resize == "direct" and self.resize_to is not None:
            raise ValueError(
                f"resize_to={self.resize_to!r} has no meaning with resize='direct'. Leave it out, "
                f"or choose resize='resize_small'."
            )
        if self.resize == "resize_small" and not (
            _is_side(self.resize_to) and self.resize_to >= max(self.image_size)
        ):
            raise ValueError(
                f"resize_to={self.resize_to!r} does not fit. With resize='resize_small' expected "
                f"an integer from {max(self.image_size)}, the longer side of image_size, to "
                f"{MAX_SIDE}."
            )
        if not (
            isinstance(self.labels, tuple | list)
            and all(isinstance(label, str) for label in self.labels)
        ):
            raise ValueError(f"labels={self.labels!r} are not class names. Expected strings.")
        if self.probabilities not in ("softmax", "sigmoid"):
            raise ValueError(
                f"probabilities={self.probabilities!r} is unknown. Expected softmax or sigmoid."
            )
        object.__setattr__(self, "image_size", tuple(int(side) for side in self.image_size))
        object.__setattr__(self, "labels", tuple(self.labels))

    def __call__(self, images):
        """Maps images to the model's input.

        Args:
            images: uint8 or floating `[H, W, 3]` or `[B, H, W, 3]`, values 0 .. 255, of any size,
                which may be unknown until the graph runs.

        Returns:
            float32 `[h, w, 3]` or `[B, h, w, 3]` in [-1, 1], where `(h, w)` is `image_size`.

        Raises:
            ValueError: if the images have another rank, number of channels or dtype.
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
            images = resizing.resize(images, self.image_size)
        else:
            images = resizing.resize_small_and_crop(images, self.resize_to, self.image_size)
        images.set_shape([*images.shape[:-3], *self.image_size, 3])
        return resizing.to_model_range(images)

    def to_dict(self):
        """Returns the fields as a dictionary that JSON can hold; `from_dict` reads it back."""
        return {
            "image_size": list(self.image_size),
            "resize": self.resize,
            "resize_to": self.resize_to,
            "labels": list(self.labels),
            "probabilities": self.probabilities,
        }

    def to_probabilities(self, logits):
        """Converts logits `[B, K]` to probabilities of the same shape."""
        import tensorflow as tf

        return tf.nn.sigmoid(logits) if self.probabilities == "sigmoid" else tf.nn.softmax(logits)

    @classmethod
    def from_dict(cls, fields):
        """Creates a `Preprocessing` from the result of `to_dict`, for instance from a JSON file.

        Raises:
            ValueError: if it is not a dictionary, has unknown keys, lacks `image_size`, or holds a
                value of the wrong type.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        if not isinstance(fields, dict):
            raise ValueError(
                f"Preprocessing must be a dictionary with the keys {known}. Received: "
                f"{type(fields).__name__}."
            )
        if unknown := sorted(str(key) for key in set(fields) - set(known)):
            raise ValueError(f"Preprocessing has unknown keys {unknown}. Expected some of {known}.")
        if "image_size" not in fields:
            raise ValueError(f"Preprocessing lacks 'image_size'. Received: {sorted(fields)}.")
        return cls(**fields)


def _is_side(value) -> TypeGuard[int]:
    """Whether `value` is an integer from 1 to `MAX_SIDE`; bools are not integers here."""
    return (
        isinstance(value, numbers.Integral)
        and not isinstance(value, bool)
        and 1 <= int(value) <= MAX_SIDE
    )
