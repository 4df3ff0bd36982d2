"""Checks of single values of a configuration.

All raise TypeError for a value of the wrong type and ValueError for one that is out of range.
"""

import math


def height_width(image_size) -> tuple[int, int]:
    """`image_size` as (height, width) in pixels; an int means a square."""
    size = (image_size, image_size) if isinstance(image_size, int) else image_size
    if not isinstance(size, tuple | list) or len(size) != 2:
        raise ValueError(
            f"image_size must be an int or (height, width), in pixels. Received: {image_size!r}."
        )
    for side in size:
        check_int("image_size", side, minimum=1)
    height, width = size
    return height, width


def check_int(name, value, minimum):
    """Raises unless `value` is an int of at least `minimum`; bools are rejected."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an int. Received: {value!r} ({type(value).__name__}).")
    if not minimum <= value < 2**40:
        shown = value if abs(value) < 2**64 else "a longer number"
        raise ValueError(f"{name} must be at least {minimum} and below 2^40. Received: {shown}.")


def check_float(name, value) -> float:
    """`value` as a float; raises unless it is a finite number."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(
            f"{name} must be a number. Received: {value!r} of type {type(value).__name__}."
        )
    # An integer can be too large for a float, and too long for a message.
    if abs(value) > 1e300 or not math.isfinite(value):
        raise ValueError(f"{name} must be finite and below 1e300.")
    return float(value)


def check_bool(name, value):
    """Raises unless `value` is a bool."""
    if not isinstance(value, bool):
        raise TypeError(
            f"{name} must be true or false. Received: {value!r} ({type(value).__name__})."
        )


def check_choice(name, value, choices):
    """Raises unless `value` is one of `choices`."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}. Received: {value!r}.")
