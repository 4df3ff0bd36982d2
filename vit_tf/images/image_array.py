"""Checks arrays that are given as images; the error says how to convert each usual other form."""

import numpy as np


def check_image(array):
    """Raises `ValueError` unless an array is an image: uint8 `[H, W, 3]`, not empty."""
    advice = [_about_shape(array), _about_values(array)]
    if advice := [sentence for sentence in advice if sentence]:
        raise ValueError(
            "An image is the path of a file, or a uint8 array [H, W, 3] of values 0 .. 255. "
            f"Received: {array.dtype} {list(array.shape)}. {' '.join(advice)}"
        )


def _about_shape(array):
    """What to do about a wrong shape, one sentence; None if the shape is right."""
    shape = array.shape
    if not array.size:
        return "It has no values."
    if array.ndim == 2:
        return "It has no channels: repeat it, numpy.stack([image] * 3, axis=-1)."
    if array.ndim != 3:
        return "Pass one image, a list of images, or one array [B, H, W, 3]."
    if shape[2] == 3:
        return None
    if shape[2] == 1:
        return "It has one channel: repeat it, numpy.repeat(image, 3, axis=-1)."
    if shape[2] == 2:
        return "It is gray with alpha: use numpy.repeat(image[..., :1], 3, axis=-1)."
    if shape[2] == 4:
        return "It has an alpha channel: drop it, image[..., :3]."
    if shape[0] == 3:
        return "Its channels come first: use numpy.moveaxis(image, 0, -1)."
    return (
        f"It has {shape[2]} channels: pass three of them. Pass gray images [B, H, W] as "
        "numpy.stack([images] * 3, axis=-1)."
    )


def _about_values(array):
    """What to do about a wrong dtype, one sentence; None if the dtype is right."""
    if array.dtype == np.uint8:
        return None
    if array.dtype.kind not in "fiub":
        return "Its values are not numbers."
    if not array.size:
        return "Convert it with image.astype('uint8')."
    low, high = array.min(), array.max()
    if array.dtype.kind == "b" or (array.dtype.kind == "f" and low >= 0 and high <= 1):
        return "Its values are 0 to 1: multiply by 255, round: numpy.uint8((255 * image).round())."
    if array.dtype.kind == "f" and low >= -1 and high <= 1:
        return "Its values are -1 to 1: use numpy.uint8((127.5 * (image + 1)).round())."
    if low >= 0 and high <= 255:
        return "Its values are 0 to 255: use numpy.uint8(image.round())."
    if array.dtype == np.uint16:
        return f"Its values are up to {high}: for 16 bits, use numpy.uint8(image // 257)."
    return f"Its values are {low:g} to {high:g}: map them to 0 .. 255, and round."
