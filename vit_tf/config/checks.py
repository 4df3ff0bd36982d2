"""Checks of single values of a configuration.

All raise TypeError for a value of the wrong type and ValueError for one that is out of range.
"""

import math

from vit_tf.config.near_names import did_you_mean

# Keras dtype policies. Quantized policies are left out: no configuration trains with them.
POLICIES = ("float32", "float64", "bfloat16", "float16", "mixed_bfloat16", "mixed_float16")
# Half precision means a mixed policy: the weights stay float32.
SYNONYMS = {
    **dict.fromkeys(("fp32", "f32", "single"), "float32"),
    **dict.fromkeys(("bf16", "bfloat16", "bf16-mixed", "amp", "mixed"), "mixed_bfloat16"),
    **dict.fromkeys(("fp16", "f16", "float16", "half", "16-mixed"), "mixed_float16"),
}

# Far above the sizes of any model. A damaged or hostile configuration cannot describe one that
# takes minutes to count; `create.check_memory` compares the whole model with the machine.
MAX_SIDE, MAX_WIDTH, MAX_DEPTH, MAX_CLASSES = 2**14, 2**17, 2**10, 2**24


def height_width(image_size) -> tuple[int, int]:
    """`image_size` as (height, width) in pixels; an int means a square."""
    size = (image_size, image_size) if isinstance(image_size, int) else image_size
    if not isinstance(size, tuple | list) or len(size) != 2:
        raise ValueError(
            f"image_size must be an int or (height, width), in pixels. Received: {image_size!r}."
        )
    for side in size:
        check_int("image_size", side, 1, MAX_SIDE)
    height, width = size
    return height, width


def check_int(name, value, minimum, maximum):
    """Raises unless `value` is an int from `minimum` to `maximum`; bools are rejected."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an int. Received: {value!r} ({type(value).__name__}).")
    if not minimum <= value <= maximum:
        shown = value if abs(value) < 2**64 else "a longer number"
        raise ValueError(f"{name} must be from {minimum} to {maximum}. Received: {shown}.")


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


def check_dtype(dtype):
    """Raises `ValueError` for another project's name of a policy; the message has the Keras name.

    All other values pass. Keras checks them later, because it accepts many policies and dtypes.
    """
    if isinstance(dtype, str) and dtype not in POLICIES and dtype.lower() in SYNONYMS:
        hint = did_you_mean(dtype, POLICIES, synonyms=SYNONYMS)
        raise ValueError(f"Unknown dtype policy {dtype!r}.{hint}")
